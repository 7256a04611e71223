"""Files: what is replaced, what is written to, what is refused, and what is left when writing fails."""

import errno
import gzip
import os
import socket
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from subquad import files
from subquad.errors import SubquadError
from subquad.files import file_names, kind_of, read_bytes, read_text, write_new, write_whole

NOBODY = 65534


def make_node(path: Path, kind: int, major: int, minor: int) -> Path:
    """A device of our own. Those of the machine are never touched."""
    try:
        os.mknod(path, kind | 0o666, os.makedev(major, minor))
        os.close(os.open(path, os.O_RDONLY))
    except OSError as error:
        pytest.skip(f"device nodes cannot be made here: {error.strerror}")
    return path


@contextmanager
def another_user() -> Iterator[Path]:
    """Inside, the process may do no more than any user, in a folder that all may enter; yields that folder."""
    if os.geteuid() != 0:
        with tempfile.TemporaryDirectory() as folder:
            yield Path(folder)
        return
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o777)
        os.seteuid(NOBODY)
        try:
            yield Path(folder)
        finally:
            os.seteuid(0)


def leftovers(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*.part"))


@pytest.mark.parametrize("content", ["new\n", b"new\n"])
def test_a_file_is_made_with_its_folder_and_replaced(content: str | bytes, tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "page.html"
    write_whole(path, "old")
    write_whole(path, content)
    assert path.read_bytes() == b"new\n"
    assert [found.name for found in path.parent.iterdir()] == ["page.html"]


def test_a_full_device_is_said_and_stays(tmp_path: Path) -> None:
    """As /dev/full, which was once renamed over."""
    node = make_node(tmp_path / "full", stat.S_IFCHR, 1, 7)
    with pytest.raises(SubquadError, match=r"cannot write .*full: No space left on device; make room"):
        write_whole(node, "x" * 100_000)
    assert stat.S_ISCHR(node.stat().st_mode)
    assert leftovers(tmp_path) == []


def test_a_device_behind_a_link_is_written_to(tmp_path: Path) -> None:
    node = make_node(tmp_path / "null", stat.S_IFCHR, 1, 3)
    (tmp_path / "link").symlink_to("null")
    write_whole(tmp_path / "link", "x")
    assert stat.S_ISCHR(node.stat().st_mode)
    assert (tmp_path / "link").is_symlink()


def test_a_disk_is_refused(tmp_path: Path) -> None:
    """Whoever names one by mistake would lose what is on it."""
    node = tmp_path / "disk"
    try:
        os.mknod(node, stat.S_IFBLK | 0o666, os.makedev(7, 250))
    except OSError as error:
        pytest.skip(f"device nodes cannot be made here: {error.strerror}")
    with pytest.raises(SubquadError, match=r"cannot write .*disk: it is a disk; name a file"):
        write_whole(node, "x")


def test_a_pipe_is_written_to(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append(fifo.read_bytes()))
    reader.start()
    write_whole(fifo, b"x" * 200_000)
    reader.join(timeout=20)
    assert read == [b"x" * 200_000]
    assert kind_of(fifo) == "pipe"


def test_a_pipe_whose_reader_goes_is_said(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    reader = threading.Thread(target=lambda: fifo.open("rb").close())
    reader.start()
    with pytest.raises(SubquadError, match=r"cannot write .*fifo: Broken pipe"):
        write_whole(fifo, b"x" * 200_000)
    reader.join(timeout=20)


@pytest.mark.parametrize("way", ["/dev/stdout", "/proc/self/fd/1", "/dev/fd/1", "link"])
def test_standard_output_by_its_path_is_added_to(way: str, tmp_path: Path) -> None:
    """What stood before in a file that it was sent to stays, as with `>>`."""
    (tmp_path / "link").symlink_to("/dev/stdout")
    (tmp_path / "log").write_text("before\n")
    script = f"from pathlib import Path; from subquad.files import write_whole; write_whole(Path({way!r}), 'after\\n')"
    with (tmp_path / "log").open("ab") as log:
        subprocess.run([sys.executable, "-c", script], stdout=log, cwd=tmp_path, check=True)
    assert (tmp_path / "log").read_text() == "before\nafter\n"
    piped = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, cwd=tmp_path, check=True)
    assert piped.stdout == b"after\n"


def test_links_are_followed(tmp_path: Path) -> None:
    """Also through several, and to what is not there yet."""
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "file").write_text("old")
    (tmp_path / "first").symlink_to("second")
    (tmp_path / "second").symlink_to(tmp_path / "there" / "file")
    (tmp_path / "dangling").symlink_to("there/new/file")
    write_whole(tmp_path / "first", "new")
    write_whole(tmp_path / "dangling", "also new")
    assert all((tmp_path / name).is_symlink() for name in ("first", "second", "dangling"))
    assert (tmp_path / "there" / "file").read_text() == "new"
    assert (tmp_path / "there" / "new" / "file").read_text() == "also new"
    (tmp_path / "door").symlink_to("there")
    write_whole(tmp_path / "door" / "file", "through a link to its folder")
    assert (tmp_path / "door").is_symlink()
    assert (tmp_path / "there" / "file").read_text() == "through a link to its folder"


def test_what_is_neither_a_file_nor_new_is_refused(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "to-folder").symlink_to("folder")
    (tmp_path / "loop").symlink_to("pool")
    (tmp_path / "pool").symlink_to("loop")
    (tmp_path / "file").write_text("kept")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "socket"))
        for name, said in {
            "folder": "it is a folder; name a file",
            "to-folder": "it is a folder; name a file",
            "socket": "it is a socket; name a file",
            "loop": "Too many levels of symbolic links; check the path",
            "file/page": "Not a directory; check the path: a part of it is a file",
            "file/deep/page": "Not a directory; check the path: a part of it is a file",
            "n" * 300: "File name too long; choose a shorter name",
            "a\0b": "is not a path",
        }.items():
            with pytest.raises(SubquadError) as refused:
                write_whole(tmp_path / name, "x")
            assert said in str(refused.value)
    assert leftovers(tmp_path) == []
    assert (tmp_path / "file").read_text() == "kept"


def test_names_as_long_as_they_may_be(tmp_path: Path) -> None:
    write_whole(tmp_path / ("n" * 255), "x")
    write_whole(tmp_path / ("ä" * 127), "x")
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("failing", ["write", "fsync", "replace"])
def test_nothing_is_left_when_writing_fails(failing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "page.html"
    write_whole(path, "old")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    if failing == "write":
        resource = pytest.importorskip("resource")
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))  # a real one: Python ignores its signal
        try:
            with pytest.raises(SubquadError, match=r"cannot write .*page.html: File too large"):
                write_whole(path, "x" * 2000)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    else:
        monkeypatch.setattr(*((os, "fsync", full) if failing == "fsync" else (Path, "replace", full)))
        with pytest.raises(SubquadError, match=r"cannot write .*page.html: No space left on device; make room"):
            write_whole(path, "new")
    assert path.read_text() == "old"
    assert leftovers(tmp_path) == []


def test_an_interrupt_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(descriptor: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_whole(tmp_path / "page.html", "new")
    assert list(tmp_path.iterdir()) == []


def test_permissions_and_owner_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    path.chmod(0o640)
    if os.geteuid() == 0:
        os.chown(path, 1234, 2345)
    before = path.stat()
    write_whole(path, "new")
    after = path.stat()
    assert (after.st_mode, after.st_uid, after.st_gid) == (before.st_mode, before.st_uid, before.st_gid)
    before_mask = os.umask(0o027)
    try:
        write_whole(tmp_path / "fresh", "x")
    finally:
        os.umask(before_mask)
    assert stat.S_IMODE((tmp_path / "fresh").stat().st_mode) == 0o640


def test_a_file_that_may_not_be_written_is_not_replaced() -> None:
    """Its folder may be written, so it could be renamed over."""
    with another_user() as folder:
        (folder / "mine").write_text("kept")
        (folder / "mine").chmod(0o444)
        with pytest.raises(SubquadError, match=r"cannot write .*mine: Permission denied; change its permissions"):
            write_whole(folder / "mine", "new")
        assert (folder / "mine").read_text() == "kept"


def test_a_folder_that_takes_no_files_is_named() -> None:
    """A file in it is not written in place: a full disk would leave half of it."""
    with another_user() as folder:
        (folder / "closed").mkdir()
        (folder / "closed" / "mine").write_text("kept")
        (folder / "closed").chmod(0o555)
        with pytest.raises(SubquadError, match=r"cannot write .*mine: no file can be made in .*closed: Permission denied"):
            write_whole(folder / "closed" / "mine", "new")
        assert (folder / "closed" / "mine").read_text() == "kept"
        (folder / "closed").chmod(0o755)


def test_two_that_write_at_once_do_not_meet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second begins while the first has written but not renamed."""
    path, fsync = tmp_path / "page.html", os.fsync
    begun: list[bool] = []

    def second_writer(descriptor: int) -> None:
        if not begun:
            begun.append(True)
            write_whole(path, "second")
            assert path.read_text() == "second"
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", second_writer)
    write_whole(path, "first")
    assert path.read_text() == "first"
    assert [found.name for found in tmp_path.iterdir()] == ["page.html"]


def test_half_a_character_does_not_stop_a_page(tmp_path: Path) -> None:
    """JSON can hold one, and a row's name may be anything."""
    write_whole(tmp_path / "page.html", "a\ud800b")
    assert (tmp_path / "page.html").read_text() == "a?b"


@pytest.mark.parametrize("links", [True, False])
def test_what_must_be_new_replaces_nothing(links: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also on a file system without hard links."""

    def refuse(*_: object) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    if not links:
        monkeypatch.setattr(os, "link", refuse)
    write_new(tmp_path / "run.json", "first")
    with pytest.raises(FileExistsError):
        write_new(tmp_path / "run.json", "second")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("run.json", "first")]


def test_file_names_stay_inside_and_apart() -> None:
    names = ["../../x", "/etc/x", "x", "X", "loss", "token_accuracy", "token accuracy", "", "..", "a" * 500, "a" * 501, "é"]
    names += ["con\0x", "x.png", "-rf", "x-2"]
    made = file_names(names)
    assert list(made) == names
    assert len(set(made.values())) == len(names)
    assert made["loss"] == "loss"
    assert made["token_accuracy"] == "token-accuracy"
    for name in made.values():
        assert 0 < len(name) <= 100
        assert set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789-")
        assert not name.startswith("-")


def test_text_is_read_with_and_without_a_mark(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfwords\r\n")
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(b"packed"))
    assert read_text(tmp_path / "a.txt") == "words\r\n"
    assert read_text(tmp_path / "b.jsonl.gz") == "packed"
    (tmp_path / "c.txt").write_bytes("ab\xe9".encode("latin-1"))
    with pytest.raises(SubquadError, match=r"c.txt is not text in UTF-8: save it as such \(byte 2 is wrong\)"):
        read_text(tmp_path / "c.txt")


def test_only_plain_files_of_bounded_size_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "loop").symlink_to("loop")
    for name, said in {
        "": "it is a folder, not a file",
        "fifo": "it is a pipe, not a file",  # which would wait for a writer for ever
        "loop": "Too many levels of symbolic links",
        "none": "No such file or directory",
    }.items():
        with pytest.raises(SubquadError, match=f"cannot read .*{said}"):
            read_bytes(tmp_path / name)
    monkeypatch.setattr(files, "LARGEST", 10_000_000)
    with (tmp_path / "sparse").open("wb") as sparse:
        sparse.truncate(2**40)
    (tmp_path / "bomb.gz").write_bytes(gzip.compress(bytes(50_000_000)))
    for name in ("sparse", "bomb.gz"):
        with pytest.raises(SubquadError, match=rf"{name} holds more than 0.01 GB, which is too much to be read at once"):
            read_bytes(tmp_path / name)


def test_what_may_not_be_read_is_said() -> None:
    with another_user() as folder:
        (folder / "secret").write_text("x")
        (folder / "secret").chmod(0)
        with pytest.raises(SubquadError, match=r"cannot read .*secret: Permission denied; change its permissions"):
            read_bytes(folder / "secret")
        (folder / "closed").mkdir()
        (folder / "closed" / "file").write_text("x")
        (folder / "closed").chmod(0)
        with pytest.raises(SubquadError, match=r"cannot read .*file: Permission denied; change its permissions"):
            kind_of(folder / "closed" / "file")
        (folder / "closed").chmod(0o755)
