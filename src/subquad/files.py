"""Reading and writing files, with error messages that name the file.

A file is written under a temporary name in the same folder and renamed, so it is complete or absent. Only plain files are
replaced: links are followed, devices and pipes are written to, folders and sockets are refused. Only plain files of bounded
size are read as a whole.
"""

import errno
import gzip
import os
import re
import secrets
import stat
import zlib
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Literal

import psutil

from subquad.errors import SubquadError

LARGEST = 2**32
"""Largest number of bytes of a file that is read as a whole."""
MEMORY_PART = 4
"""A file is read as a whole only if it fits `MEMORY_PART` times into free memory: its contents are parsed in memory too."""
BLOCK = 2**20
"""Number of bytes that are unpacked at a time."""
LINKS = 40
"""Largest number of links that are followed one after the other, the same as on Linux."""
NAME_LENGTH = 80
"""Largest number of characters of a file name that is derived from another name."""
ADVICE = {
    errno.ENOSPC: "make room, or choose another place",
    errno.EDQUOT: "make room, or choose another place",
    errno.EACCES: "change its permissions, or choose another place",
    errno.EPERM: "change its permissions, or choose another place",
    errno.EROFS: "choose a place that can be written",
    errno.ENOENT: "check the path",
    errno.ENOTDIR: "check the path: a part of it is a file",
    errno.EISDIR: "name a file, not a folder",
    errno.ENAMETOOLONG: "choose a shorter name",
    errno.ELOOP: "check the path: its links lead in a circle",
    errno.EMFILE: "close other programs, or raise the limit of open files",
}

Kind = Literal["nothing", "file", "folder", "pipe", "device", "disk", "socket"]
_KINDS: dict[int, Kind] = {
    stat.S_IFREG: "file",
    stat.S_IFDIR: "folder",
    stat.S_IFIFO: "pipe",
    stat.S_IFCHR: "device",
    stat.S_IFBLK: "disk",
    stat.S_IFSOCK: "socket",
}


def because(error: OSError) -> str:
    """The message of the operating system for an error, with advice on what to do about it."""
    message = error.strerror or f"{error}".partition("\n")[0][:200] or type(error).__name__
    advice = ADVICE.get(error.errno or 0)
    return f"{message}; {advice}" if advice else message


def cannot_read(path: Path, error: OSError) -> SubquadError:
    """Returns the error for a file that could not be read."""
    return SubquadError(f"cannot read {path}: {because(error)}")


def cannot_write(path: Path, error: OSError) -> SubquadError:
    """Returns the error for a file that could not be written."""
    return SubquadError(f"cannot write {path}: {because(error)}")


def kind_of(path: Path) -> Kind:
    """The kind of file at a path, with links followed. Raises `SubquadError` if the path cannot be accessed."""
    try:
        return _KINDS[stat.S_IFMT(path.stat().st_mode)]
    except (FileNotFoundError, NotADirectoryError):
        return "nothing"
    except OSError as error:
        raise cannot_read(path, error) from None
    except ValueError:  # a zero byte
        raise SubquadError(f"{str(path)!r:.100} is not a path") from None


def require_folder(path: Path) -> None:
    """Raises `SubquadError` if `path` neither is a folder nor can be created as one."""
    kind = kind_of(path)
    if kind not in ("folder", "nothing"):
        raise SubquadError(f"cannot write into {path}: it is a {kind}; name a folder")
    if kind == "nothing" and path != path.parent:
        require_folder(path.parent)


def open_plain(path: Path) -> BinaryIO:
    """Opens a plain file for reading. Folders, devices and pipes are refused, as they could be endless."""
    kind = kind_of(path)
    if kind not in ("file", "nothing"):
        raise SubquadError(f"cannot read {path}: it is a {kind}, not a file")
    try:
        return path.open("rb")
    except OSError as error:
        raise cannot_read(path, error) from None


def read_bytes(path: Path) -> bytes:
    """Returns the content of a file, unpacked if its name ends in ``.gz``. Refuses a file that is too large for memory."""
    most = min(LARGEST, psutil.virtual_memory().available // MEMORY_PART)
    try:
        with open_plain(path) as file:
            if path.name.endswith(".gz"):
                content = _unpacked(file, most)
            else:
                content = file.read() if os.fstat(file.fileno()).st_size <= most else None
    except (gzip.BadGzipFile, zlib.error, EOFError):
        raise SubquadError(f"{path} is not a whole gzip file: fetch it again, or unpack it") from None
    except OSError as error:
        raise cannot_read(path, error) from None
    if content is None:
        raise SubquadError(f"{path} holds more than {most / 1e9:.3g} GB, which is too much to be read at once: split it")
    return content


def _unpacked(packed: BinaryIO, most: int) -> bytes | None:
    """The unpacked content of a gzip file, or None if it has more than `most` bytes."""
    pieces, total = [], 0
    with gzip.open(packed) as file:
        while piece := file.read(BLOCK):
            total += len(piece)
            if total > most:
                return None
            pieces.append(piece)
    return b"".join(pieces)


def read_text(path: Path) -> str:
    """Returns the text of a UTF-8 file, with or without a byte order mark, unpacked if its name ends in ``.gz``."""
    try:
        return read_bytes(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise SubquadError(f"{path} is not text in UTF-8: save it as such (byte {error.start} is wrong)") from None


def write_whole(path: Path, content: str | bytes) -> None:
    """Writes a file completely or not at all. Links are followed; devices and pipes are written to directly."""
    data = content.encode(errors="replace") if isinstance(content, str) else content
    try:
        target = _followed(path)
        kind = kind_of(target)
        if (descriptor := _own_descriptor(target)) is not None:
            _write_to(os.dup(descriptor), data)
        elif kind in ("pipe", "device"):
            _write_to(os.open(target, os.O_WRONLY), data)
        elif kind in ("file", "nothing"):
            _write_beside(target, data, lambda part: part.replace(target))
        else:
            raise SubquadError(f"cannot write {path}: it is a {kind}; name a file")
    except OSError as error:
        raise cannot_write(path, error) from None


def write_new(path: Path, content: str) -> None:
    """Writes a file that must not exist yet. Raises `FileExistsError` if it exists."""

    def place(part: Path) -> None:
        try:
            os.link(part, path)  # unlike a rename, this never replaces
            part.unlink()
        except FileExistsError:
            raise
        except OSError:  # a file system without hard links
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
            part.replace(path)

    try:
        _write_beside(path, content.encode(), place)
    except FileExistsError:
        raise
    except OSError as error:
        raise cannot_write(path, error) from None


def file_names(names: Iterable[str]) -> dict[str, str]:
    """Maps each name to a distinct file name without suffix, made of lower-case letters, digits and hyphens."""
    file_name_of: dict[str, str] = {}
    taken: set[str] = set()
    for name in dict.fromkeys(names):
        plain = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:NAME_LENGTH] or "unnamed"
        candidate, number = plain, 1
        while candidate in taken:
            number += 1
            candidate = f"{plain}-{number}"
        taken.add(candidate)
        file_name_of[name] = candidate
    return file_name_of


def _followed(path: Path) -> Path:
    """The path that links lead to, which need not exist. File descriptors of this process are not followed further."""
    for _ in range(LINKS):
        place = Path(os.path.realpath(path.parent)) / path.name
        if _own_descriptor(place) is not None or not place.is_symlink():
            return place
        path = place.parent / place.readlink()
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))


def _own_descriptor(place: Path) -> int | None:
    """The number of the file descriptor of this process that a path such as ``/dev/stdout`` names, or None.

    Such a file must not be opened again, because that would overwrite what was written to it before.
    """
    is_own = place.parent == Path(f"/proc/{os.getpid()}/fd") and place.name.isdecimal()
    return int(place.name) if is_own and place.exists() else None


def _write_to(descriptor: int, data: bytes) -> None:
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)


def _write_beside(target: Path, data: bytes, place: Callable[[Path], object]) -> None:
    """Writes data to a temporary file in the same folder, then calls `place` on it. No file is left behind on failure."""
    _make_folder(target.parent)
    replaced = target.stat() if target.exists() else None
    if replaced is not None and not os.access(target, os.W_OK, effective_ids=os.access in os.supports_effective_ids):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(target))
    part = target.with_name(f".{target.name[: NAME_LENGTH // 2]}.{secrets.token_hex(6)}.part")
    try:
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666 if replaced is None else 0o600)
    except OSError as error:
        raise SubquadError(f"cannot write {target}: no file can be made in {target.parent}: {because(error)}") from None
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
            if replaced is not None:
                _keep_owner_and_mode(file.fileno(), replaced)
        place(part)
    except BaseException:
        with suppress(OSError):
            part.unlink()
        raise


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError:  # it is a file
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder)) from None


def _keep_owner_and_mode(descriptor: int, replaced: os.stat_result) -> None:
    """Copies the permissions, and where allowed the owner, of the replaced file to an open file."""
    with suppress(PermissionError):
        os.fchown(descriptor, replaced.st_uid, replaced.st_gid)
    os.fchmod(descriptor, stat.S_IMODE(replaced.st_mode))
