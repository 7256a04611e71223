"""What a node of a cluster tells about itself. It is sent as source, as the node may not have this package."""

from typing import Any


def look_around(token: str, store: str, node: str, paths: list[str]) -> dict[str, Any]:
    """Runs on a node: which packages it has, what machine it is, and whether it sees the store and some paths.

    Args:
        token: name of a file in the store, which is read; a file beside it is written.
        store: folder or URL.
        node: id of the node, which ends the name of the file that is written.
        paths: files and folders that must exist.
    """
    import os
    import platform
    import socket
    from importlib.metadata import PackageNotFoundError, version
    from pathlib import Path

    versions = {"python": platform.python_version()}
    for package in ("subquad", "torch"):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = ""
    boot = Path("/proc/sys/kernel/random/boot_id")
    problem = ""
    try:
        from fsspec.core import url_to_fs

        system, root = url_to_fs(store)
        if system.cat_file(f"{root}/{token}").decode() != token:
            problem = "it has another file there"
        system.pipe_file(f"{root}/{token}-{node}", token.encode())
    except Exception as error:  # whatever a file system raises
        problem = f"{type(error).__name__}: {error}"[:200]
    return {
        "host": socket.gethostname(),
        "machine": boot.read_text().strip() if boot.exists() else socket.gethostname(),
        "versions": versions,
        "store": problem,
        "missing": [path for path in paths if not os.path.exists(path)],  # noqa: PTH110, paths as they were given
    }
