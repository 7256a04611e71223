"""Reading and writing files, with a sentence that names the file where that fails.

A file is written beside and renamed, so that it is there whole or not at all. What is no plain file is never replaced: links
are followed, devices and pipes are written to, folders are refused.
"""

import os
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from subquad.errors import SubquadError


def read_text(path: Path) -> str:
    """The text of a file in UTF-8."""
    try:
        if not path.is_file():
            raise SubquadError(f"cannot read {path}: it is not a file")
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise SubquadError(f"cannot read {path}: byte {error.start} is not UTF-8") from None
    except OSError as error:
        raise SubquadError(f"cannot read {path}: {error.strerror or error}") from None


def write_whole(path: Path, content: str | bytes) -> None:
    """Writes a file that is there whole or not at all. Links are followed; devices and pipes are written to directly."""
    data = content.encode() if isinstance(content, str) else content
    try:
        if path.is_dir():
            raise SubquadError(f"cannot write {path}: it is a folder; name a file")
        if _is_direct(path):
            with path.open("wb") as device:
                device.write(data)
        else:
            target = Path(os.path.realpath(path))
            _write_beside(target, data, lambda part: part.replace(target))
    except OSError as error:
        raise cannot_write(path, error) from None


def write_new(path: Path, content: str) -> None:
    """Writes a file that must not be there yet. Raises `FileExistsError` where it is, whoever made it."""

    def place(part: Path) -> None:
        try:
            os.link(part, path)  # unlike a rename, this never replaces
            part.unlink()
        except FileExistsError:
            raise
        except OSError:  # a file system without hard links
            part.replace(path)

    try:
        _write_beside(path, content.encode(), place)
    except FileExistsError:
        raise
    except OSError as error:
        raise cannot_write(path, error) from None


def _is_direct(path: Path) -> bool:
    """Whether a path leads to something that must not be renamed over: a device, a pipe, a file that is open."""
    if str(path.absolute()).startswith(("/dev/", "/proc/")):
        return path.exists()
    return path.exists() and not path.is_file()


def _write_beside(target: Path, data: bytes, place: Callable[[Path], object]) -> None:
    """Writes the data into a new file in the same folder, then puts it in its place. Where either fails, nothing is left."""
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(target.name + ".part")
    try:
        with part.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if target.exists():
            part.chmod(stat.S_IMODE(target.stat().st_mode))
        place(part)
    except BaseException:
        with suppress(OSError):
            part.unlink()
        raise


def cannot_write(path: Path, error: OSError) -> SubquadError:
    """The sentence for a file that could not be written."""
    return SubquadError(f"cannot write {path}: {error.strerror or error}; make room or choose another folder")
