"""Copies of a folder's files in a place that several machines reach: a shared folder, or a URL of fsspec.

Files are stored under new names each time, and a manifest lists which of them make up the folder. A manifest is written
after its files, so that a reader gets a folder as it was at some moment, even if the writer was killed. A writer that begins
later wins over an earlier one, which may still be writing because only its connection was lost.
"""

import json
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from subquad.errors import SubquadError
from subquad.files import because

LEFT_OUT = (".part", ".old", ".aside", ".new")
"""Suffixes of files and folders that are still being written or are being deleted."""
ROWS, ABOUT = "rows.jsonl", "run.json"
TRIES, PAUSE_SECONDS = 5, 0.5
"""How often files that change while they are read are read again, and the pause between."""

Stamp = tuple[int, int]
"""Size and time of modification of a file."""


class Manifest(NamedTuple):
    """The files of a folder at some moment."""

    writer: int
    number: int
    stored: dict[str, str]
    """Name in the store by the path in the folder."""

    @property
    def name(self) -> str:
        """Name of the manifest's own file. The newest manifest has the largest name."""
        return f"manifest-{self.writer:06d}-{self.number:09d}.json"


class Relay:
    """The copy of one folder in a store."""

    def __init__(self, store: str, name: str, *, here: str = "", there: str = "") -> None:
        """Opens the copy under `name`.

        Args:
            store: folder or URL.
            name: name of the copy in the store.
            here: path in run.json on this machine that is `there` in the store; empty for none.
            there: see `here`.
        """
        self.system, root = open_store(store)
        self.root = f"{root.rstrip('/')}/{name}"
        self.paths = json.dumps(here)[1:-1].encode(), json.dumps(there)[1:-1].encode()
        self.writer: int | None = None
        self.stored = 0
        self.manifest = Manifest(0, 0, {})
        self.stamps: dict[str, Stamp] = {}

    def push(self, folder: Path) -> bool:
        """Stores the files of a folder that changed, and returns whether there were some."""
        try:
            stamps = dict(_stamps(folder))
            changed = [path for path, stamp in stamps.items() if self.stamps.get(path) != stamp]
            if not changed and stamps.keys() == self.manifest.stored.keys():
                return False
            self._begin_writing()
            stored = {path: name for path, name in self.manifest.stored.items() if path in stamps}
            for path in changed:
                stored[path] = self._store(folder / path)
        except FileNotFoundError:  # a checkpoint was deleted in the meantime: the next time will do
            return False
        before = self.manifest
        self.manifest = Manifest(self.writer or 0, before.number + 1, stored)
        self.system.pipe_file(f"{self.root}/{self.manifest.name}", json.dumps(stored).encode())
        self.stamps = stamps
        self._forget(before)
        return True

    def pull(self, folder: Path) -> bool:
        """Brings a folder to the newest state in the store, and returns whether it changed. Other files are left alone."""
        for _ in range(TRIES):
            newest = self._newest()
            if newest is None or newest.name == self.manifest.name:
                return False
            with suppress(FileNotFoundError):  # a newer one has replaced it
                self._fetch(newest, folder)
                return True
            time.sleep(PAUSE_SECONDS)
        return False

    def clear(self) -> None:
        """Deletes the copy."""
        with suppress(FileNotFoundError):
            self.system.rm(self.root, recursive=True)
        self.writer, self.manifest, self.stamps = None, Manifest(0, 0, {}), {}

    def _begin_writing(self) -> None:
        if self.writer is None:
            newest = self._newest()
            self.writer = 1 if newest is None else newest.writer + 1
            self.system.makedirs(self.root, exist_ok=True)

    def _store(self, path: Path) -> str:
        self.stored += 1
        name = f"{self.writer:06d}-{self.stored:09d}"
        if path.name == ABOUT:
            self.system.pipe_file(f"{self.root}/{name}", self._renamed(path.read_bytes(), *self.paths))
        else:
            self.system.put_file(str(path), f"{self.root}/{name}")
        return name

    def _fetch(self, newest: Manifest, folder: Path) -> None:
        changed = {path: name for path, name in newest.stored.items() if self.manifest.stored.get(path) != name}
        for path, name in sorted(
            changed.items(), key=lambda item: Path(item[0]).name != ROWS
        ):  # no checkpoint before its rows
            target = folder / path
            if not target.resolve().is_relative_to(folder.resolve()):
                raise SubquadError(f"{self.root} names the file {path!r:.80}, which is outside of its folder: delete it")
            target.parent.mkdir(parents=True, exist_ok=True)
            part = target.with_name(f".{target.name}.part")
            self.system.get_file(f"{self.root}/{name}", str(part))
            if target.name == ABOUT:
                part.write_bytes(self._renamed(part.read_bytes(), *reversed(self.paths)))
            part.replace(target)
        for path in self.manifest.stored.keys() - newest.stored.keys():
            (folder / path).unlink(missing_ok=True)
            with suppress(OSError):  # other files are in it
                (folder / path).parent.rmdir()
        self.manifest, self.stamps = newest, {path: _stamp(folder / path) for path in newest.stored}

    def _newest(self) -> Manifest | None:
        """The newest manifest that can be read; None if there is none."""
        self.system.invalidate_cache()
        with suppress(FileNotFoundError):
            names = [Path(name).name for name in self.system.ls(self.root, detail=False)]
            for name in sorted((name for name in names if name.startswith("manifest-")), reverse=True):
                _, writer, number = Path(name).stem.split("-")
                with suppress(ValueError, FileNotFoundError):  # being written, or replaced by now
                    return Manifest(int(writer), int(number), json.loads(self.system.cat_file(f"{self.root}/{name}")))
        return None

    def _forget(self, before: Manifest) -> None:
        """Deletes what only an earlier manifest lists."""
        gone = set(before.stored.values()) - set(self.manifest.stored.values())
        for name in [*gone, *([before.name] if before.number else [])]:
            with suppress(FileNotFoundError):
                self.system.rm_file(f"{self.root}/{name}")

    def _renamed(self, content: bytes, old: bytes, new: bytes) -> bytes:
        return content.replace(old, new) if old and new else content


def open_store(store: str) -> tuple[Any, str]:
    """Returns the file system of a folder or URL, and the path in it. Raises `SubquadError` for an unknown one."""
    from fsspec.core import url_to_fs

    try:
        system, root = url_to_fs(store)
    except ImportError as error:
        raise SubquadError(f"--store {store} cannot be opened, as a package is missing: {error}") from None
    except ValueError as error:
        raise SubquadError(f"--store {store} is neither a folder nor a URL that fsspec opens: {error}") from None
    except OSError as error:
        raise SubquadError(f"--store {store} cannot be opened: {because(error)}") from None
    return system, root


def _stamps(folder: Path) -> Iterator[tuple[str, Stamp]]:
    """The files of a folder, rows last: rows must not be older than the checkpoints that are stored with them."""
    paths = [path for path in folder.rglob("*") if path.is_file() and not _is_left_out(path.relative_to(folder))]
    for path in sorted(paths, key=lambda path: path.name == ROWS):
        yield path.relative_to(folder).as_posix(), _stamp(path)


def _stamp(path: Path) -> Stamp:
    status = path.stat()
    return status.st_size, status.st_mtime_ns


def _is_left_out(path: Path) -> bool:
    return any(part.startswith(".") or part.endswith(LEFT_OUT) for part in path.parts)
