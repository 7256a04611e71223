"""One command at a time writes to a run."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from subquad.cli import main, train
from subquad.measure.memory import in_fresh_process
from subquad.measure.workers import Candidate, Limits, visit
from subquad.results import LOCK, Run
from tests.runs.made import cheaply
from tests.runs.open_files import has_lock, open_files
from tests.runs.words import COPY


def files(folder: Path) -> dict[Path, tuple[int, int]]:
    return {path: (path.stat().st_size, path.stat().st_mtime_ns) for path in folder.rglob("*")}


@pytest.mark.parametrize("kind", ["compare", "copy", "convert", "reproduce"])
def test_a_second_command_is_refused(
    kind: str, whole_run: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Run.open(shutil.copytree(whole_run(kind), tmp_path / "run"))
    again = ["copy", "--scale", "tiny", "--out"] if kind == "reproduce" else ["--resume"]
    with run.writing():
        before = files(run.folder)
        capsys.readouterr()
        with cheaply():
            assert main([run.about["kind"], *again, str(run.folder)]) == 2
        said = capsys.readouterr().err
        assert f"another command is writing to {run.folder} at this moment: wait for it to end" in said
        assert said.count("\n") == 1
        assert files(run.folder) == before
    with cheaply():
        assert main([run.about["kind"], *again, str(run.folder)]) == 0


def test_a_folder_that_is_being_made_is_refused(
    whole_run: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = whole_run("mlm")
    for words in (["train", *COPY], ["spectrum", str(model), "--sequences", "1", "--length", "8"]):
        with Run(tmp_path / "run", {}).writing():
            capsys.readouterr()
            assert main([*words, "--out", str(tmp_path / "run")]) == 2
        assert "another command is writing to" in capsys.readouterr().err
        assert [path.name for path in (tmp_path / "run").iterdir()] == [LOCK]


def test_the_lock_of_a_killed_process_is_free(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", "train", {})
    script = (
        "import sys, time; from pathlib import Path; from subquad.results import Run\n"
        "with Run.open(Path(sys.argv[1])).writing():\n    print('locked', flush=True)\n    time.sleep(600)"
    )
    process = subprocess.Popen([sys.executable, "-c", script, str(run.folder)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "locked\n"
    with pytest.raises(Exception, match="another command is writing"), run.writing():
        pass
    process.send_signal(signal.SIGKILL)
    process.communicate()
    with run.writing():
        pass


@pytest.mark.skipif(sys.platform != "linux", reason="open files are read from /proc")
def test_children_do_not_inherit_the_lock(tmp_path: Path) -> None:
    """A child that outlives its parent would keep it."""
    folder = tmp_path.resolve() / "run"
    with Run(folder, {}).writing():
        assert str(folder / LOCK) in open_files()
        assert str(folder / LOCK) not in in_fresh_process(open_files)
        outcome = visit({"it": Candidate(partial(has_lock, folder), partial(has_lock, folder))}, Limits())["it"]
        assert (outcome.failure, outcome.message) == ("", "")
        listed = subprocess.run(["ls", "-l", "/proc/self/fd"], capture_output=True, text=True, check=True)
        assert LOCK not in listed.stdout


def test_reading_needs_no_lock(whole_run: Callable[[str], Path], tmp_path: Path) -> None:
    run = Run.open(shutil.copytree(whole_run("copy"), tmp_path / "run"))
    (run.folder / LOCK).unlink()
    before = files(run.folder)
    assert main(["predict", str(run.folder), "1"]) == 0
    assert main(["report", str(run.folder), "--out", str(tmp_path / "page.html")]) == 0
    assert files(run.folder) == before
    with run.writing():
        assert main(["predict", str(run.folder), "1"]) == 0
        assert main(["report", str(run.folder)]) == 0


def test_of_many_processes_the_main_one_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run.create(tmp_path / "run", "train", {})
    with run.writing():
        monkeypatch.setitem(os.environ, "RANK", "1")
        with train._writing(run):
            pass
        monkeypatch.setitem(os.environ, "RANK", "0")
        with pytest.raises(Exception, match="another command is writing"), train._writing(run):
            pass
