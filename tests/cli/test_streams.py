"""Standard streams that are closed, full, read no further or without UTF-8, and what is said of errors of any kind."""

import errno
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from subquad import cli
from subquad.cli import BUG, INTERRUPTED, main
from subquad.cli.streams import say
from subquad.errors import OptionError, SubquadError

TINY = ["--layers", "1", "--heads", "1", "--head-dim", "4", "--length", "2", "--steps", "2", "--held-out", "2"]
PLAIN = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "ascii"}
EVENTS = "sequence,time,type\n" + "".join(f"s{s},{t + s / 10},{'ab'[t % 2]}\n" for s in range(6) for t in range(4))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A place with a trained run of each of two tasks, the name of one being no ASCII."""
    found = tmp_path_factory.mktemp("streams")
    (found / "events.csv").write_text(EVENTS)
    assert main(["train", "copy", *TINY, "--out", str(found / "schön")]) == 0
    size = [option for option in TINY[:8] if option not in ("--length", "2")]
    given = ["--data", str(found / "events.csv"), "--steps", "1", "--inner", "4", "--components", "2"]
    assert main(["train", "events", *size, *given, "--out", str(found / "events")]) == 0
    return found


def shell(line: str, folder: Path, environment: Mapping[str, str] | None = None) -> tuple[int, str, str]:
    """Runs a line in which SUBQUAD stands for the command; gives the exit code of the command, and what was printed."""
    place = next((at for at, part in enumerate(line.split("|")) if "SUBQUAD" in part), 0)
    line = line.replace("SUBQUAD", f"{sys.executable} -m subquad")
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONUNBUFFERED", "SUBQUAD_DEBUG")}
    done = subprocess.run(
        ["bash", "-c", f"{line}; exit ${{PIPESTATUS[{place}]}}"],
        cwd=folder,
        env=clean | dict(environment or {}),
        capture_output=True,
        timeout=300,
        check=False,
    )
    return done.returncode, done.stdout.decode(), done.stderr.decode()


FULL = "subquad: cannot write standard output: No space left on device; make room, or choose another place"
UNREAD = "subquad: nobody reads standard output any more; the work goes on without it"


@pytest.mark.parametrize("unbuffered", ["", pytest.param("1", marks=pytest.mark.slow)])
def test_a_training_goes_on_when_nobody_reads(unbuffered: str, folder: Path, tmp_path: Path) -> None:
    line = f"SUBQUAD train copy {' '.join(TINY)} --out {tmp_path}/run | head -1"
    code, out, err = shell(line, folder, {"PYTHONUNBUFFERED": unbuffered})
    assert (code, err) == (0, UNREAD + "\n")
    assert out.count("\n") == 1
    assert (tmp_path / "run" / "report.html").exists()


@pytest.mark.slow
def test_a_training_goes_on_when_its_output_is_full_and_says_so(folder: Path, tmp_path: Path) -> None:
    code, _, err = shell(f"SUBQUAD train copy {' '.join(TINY)} --out {tmp_path}/run > /dev/full", folder)
    assert (code, err.splitlines()) == (2, [f"{FULL}; the work goes on without it", FULL])
    assert (tmp_path / "run" / "report.html").exists()


def test_closed_streams_do_not_matter(folder: Path, tmp_path: Path) -> None:
    assert shell(f"SUBQUAD train copy {' '.join(TINY)} --out {tmp_path}/run <&- >&- 2>&-", folder) == (0, "", "")
    assert (tmp_path / "run" / "report.html").exists()


def test_a_comparison_goes_on_when_nobody_reads(folder: Path, tmp_path: Path) -> None:
    """Its processes are others, which must not print either."""
    options = "--mechanisms linear --what forward --causal --heads 1 --head-dim 4 --threads 1 --lengths 8 --budget 60"
    code, _, err = shell(f"SUBQUAD compare {options} --out {tmp_path}/run | true", folder)
    assert (code, err) == (0, UNREAD + "\n")
    assert (tmp_path / "run" / "report.html").exists()


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        pytest.param("SUBQUAD --help > /dev/full", 2, FULL, marks=pytest.mark.slow),
        ("SUBQUAD --help | true", 0, ""),
        pytest.param("SUBQUAD train copy --help | true", 0, "", marks=pytest.mark.slow),
        ("SUBQUAD report schön > /dev/full", 2, f"{FULL}; the work goes on without it\n{FULL}"),
        ("SUBQUAD report nowhere 2>/dev/full", 2, ""),
        pytest.param("SUBQUAD report nowhere 2>&-", 2, "", marks=pytest.mark.slow),
        ("SUBQUAD predict schön 3 1 > /dev/full", 2, FULL),
        pytest.param("SUBQUAD predict schön 3 1 | true", 0, "", marks=pytest.mark.slow),
        pytest.param("PYTHONUNBUFFERED=1 SUBQUAD predict schön 3 1 | true", 0, "", marks=pytest.mark.slow),
        ("SUBQUAD predict schön <&-", 2, "subquad: standard input is closed: give lines there, or a file"),
        ("yes '1 a' | SUBQUAD predict events --follow | head -1", 0, ""),
        ("yes | tr -d '\\n' | head -c 40000000 | SUBQUAD predict events --follow > out", 2, "line 1: it is longer than"),
    ],
)
def test_ends_of_pipes(line: str, code: int, said: str, folder: Path) -> None:
    ended, _, err = shell(line, folder)
    assert ended == code
    assert said in err if said else err == ""
    assert len(err.splitlines()) == len(said.splitlines())
    assert len(err) < 500


def test_without_utf8(folder: Path) -> None:
    """What is printed has no letter that the encoding lacks; a name with one is refused in a sentence."""
    code, out, err = shell("SUBQUAD report events; SUBQUAD report schön", folder, PLAIN)
    assert code == 2
    assert out == "The page: events/report.html\n"
    assert err == "subquad: RUNS [0] must be a text that UTF-8 can write, but is PosixPath('sch\\udcc3\\udcb6n')\n"


def failing(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> int:
    """The exit code of a command that raises an error."""

    def command(words: Sequence[str]) -> int:
        raise error

    monkeypatch.setattr(cli, "import_module", lambda name: SimpleNamespace(main=command))
    return main(["report"])


def system(number: int, file: str | None = None) -> OSError:
    return OSError(number, os.strerror(number), file)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (SubquadError("two\nlines"), "two lines"),
        (SubquadError("a \x1b[31mred\x1b[0m name\u202e"), "a \\x1b[31mred\\x1b[0m name\\u202e"),
        (OptionError("learning_rate", "must be positive"), "--learning-rate must be positive"),
        (system(errno.ENOSPC, "a/b"), "a/b: No space left on device; make room, or choose another place"),
        (system(errno.EACCES, "a/b"), "a/b: Permission denied; change its permissions, or choose another place"),
        (system(errno.EROFS, "a/b"), "a/b: Read-only file system; choose a place that can be written"),
        (system(errno.ENAMETOOLONG, "a/b"), "a/b: File name too long; choose a shorter name"),
        (system(errno.ELOOP, "a"), "a: Too many levels of symbolic links; check the path: its links lead in a circle"),
        (system(errno.EMFILE), "Too many open files; close other programs, or raise the limit of open files"),
        (system(errno.EPIPE), "Broken pipe"),  # of something else than standard output
        (UnicodeDecodeError("utf-8", b"a\xff", 1, 2, "invalid"), "a file that should be text is not: byte 1 is not utf-8"),
        (UnicodeEncodeError("ascii", "aé", 1, 2, "invalid"), "a text has the letter '\\xe9', which ascii lacks"),
        (RecursionError("maximum recursion depth exceeded"), "the input is nested too deep to be read: simplify it"),
        (MemoryError(), "there is not enough memory: make the model, the batch or the sequences smaller"),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried ..."), "not enough memory"),
    ],
)
def test_what_comes_from_outside_is_a_sentence(
    error: Exception, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert failing(error, monkeypatch) == 2
    printed = capsys.readouterr().err
    assert printed.startswith("subquad: ")
    assert said in printed
    assert printed.count("\n") == 1


def test_anything_else_is_a_bug(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A library's ValueError is no sentence for the user. The traceback is shown where it is asked for."""
    for error in (KeyError("value"), ValueError("out of memory"), AssertionError("x\n" * 10**6), ZeroDivisionError()):
        assert failing(error, monkeypatch) == BUG
        printed = capsys.readouterr().err
        assert f"subquad: internal error, {type(error).__name__}: " in printed
        assert "this is a bug: run the command again with SUBQUAD_DEBUG=1 and report what it prints" in printed
        assert printed.count("\n") == 1
        assert len(printed) < 500
    monkeypatch.setenv("SUBQUAD_DEBUG", "1")
    assert failing(KeyError("value"), monkeypatch) == BUG
    assert "Traceback (most recent call last)" in capsys.readouterr().err
    assert failing(SubquadError("a mistake"), monkeypatch) == 2
    assert "Traceback (most recent call last)" in capsys.readouterr().err


def test_an_interrupt_is_said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert failing(KeyboardInterrupt(), monkeypatch) == INTERRUPTED
    assert capsys.readouterr().err == "subquad: interrupted\n"


def test_a_sentence_is_bounded(capsys: pytest.CaptureFixture[str]) -> None:
    say("x" * 10**7)
    assert len(capsys.readouterr().err) < 2100


def test_warnings_and_errors_of_threads_are_sentences() -> None:
    script = """
import sys, threading, warnings
from subquad import cli
def command(words):
    warnings.warn("old\\nways", DeprecationWarning, stacklevel=1)
    thread = threading.Thread(target=lambda: 1 / 0)
    thread.start()
    thread.join()
    class Late:
        def __del__(self):
            raise KeyError("late")
    Late()
    return 0
cli.import_module = lambda name: type("Module", (), {"main": staticmethod(command)})
warnings.simplefilter("always")
sys.argv[1:] = ["report"]
sys.exit(cli.main())
"""
    clean = {name: value for name, value in os.environ.items() if name != "SUBQUAD_DEBUG"}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=clean, check=True)
    first, *others = done.stderr.splitlines()
    assert first == "subquad: DeprecationWarning: old ways"
    assert [line.partition(";")[0] for line in others] == [
        "subquad: internal error, ZeroDivisionError: division by zero",
        "subquad: internal error, KeyError: 'late'",
    ]
