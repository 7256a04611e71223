"""The commands, as they are typed."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest

from subquad.cli import COMMANDS, main
from subquad.results import Run
from tests.report.runs import make_run

SMALL = ["--mechanisms", "linear", "--what", "forward", "--causal", "--heads", "2", "--head-dim", "8", "--threads", "1"]


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == main([]) == 0
    printed = capsys.readouterr().out
    assert all(name in printed for name in COMMANDS)


@pytest.mark.parametrize(
    "arguments", [["--help"], ["--version"], ["report", "--help"], ["advise", "--help"], ["advise", "--length", "4"]]
)
def test_what_needs_no_pytorch_does_not_import_it(arguments: list[str], tmp_path: Path) -> None:
    """Importing it takes seconds. Importing SciPy's statistics takes most of one."""
    script = (
        "import sys\nfrom subquad.cli import main\n"
        f"try:\n    main({arguments!r})\nexcept SystemExit:\n    pass\n"
        "sys.exit(' '.join({'torch', 'scipy.optimize', 'scipy.stats'} & sys.modules.keys()) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_importing_the_package_does_not_import_pytorch() -> None:
    done = subprocess.run([sys.executable, "-c", "import subquad, sys; sys.exit('torch' in sys.modules)"], check=False)
    assert done.returncode == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["compair"], "there is no command 'compair': did you mean 'compare'?"),
        (["compare", "--mechanisms", "lineer"], "there is no attention 'lineer': did you mean 'linear'?"),
        (["compare", "--lengths", "8192..128"], "--lengths 8192..128 ends before it starts: write 128..8192"),
        (["compare", "--lengths", "0"], "--lengths must be positive"),
        (["compare", "--heads", "0"], "--heads [0] must be positive, but is 0"),
        (["compare", "--budget", "0"], "--budget must be positive, but is 0.0"),
        (["compare", "--memory-limit", "lots"], "--memory-limit takes an amount such as 2GiB"),
        (["compare", "--device", "abacus"], "'abacus' is no device that PyTorch knows"),
        (["compare", "--what", "step", "--bidirectional"], "there is nothing to measure: a decoding step is causal"),
        (["compare", "--resume", "nowhere"], "nowhere is not a run: it has no run.json"),
        (["compare", "--resume", "old", "--seed", "3"], "leave --seed out, or start a new run"),
        (["compare", "--resume", "newer"], "newer was made by a newer subquad (9.9): update subquad to read it"),
        (["compare", "--out", "old"], "old holds a run already: continue it with --resume old"),
        (["compare", "--out", "file/run"], "cannot write file/run: Not a directory; check the path: a part of it is a file"),
        (["report", "nowhere"], "nowhere is not a run"),
        (["report"], "name at least one run"),
        (["report", "empty"], "empty has no measurements yet"),
        (["advise", "--length", "0"], "--length must be positive, but is 0"),
        (["advise", "--length", "64", "--exact", "--approximate"], "--exact and --approximate exclude each other"),
        (["advise", "--length", "64", "--run", "other"], "other is a run of `subquad train`"),
        (["advise", "--length", "64", "--memory", "x", "--run", "old"], "--memory takes an amount"),
        (["advise", "--length", "64", "--what", "layer", "--run", "old"], "the run has no rows for bidirectional layer"),
        (
            ["advise", "--length", "4096", "--memory", "1kB", "--exact", "--run", "old"],
            "no exact attention that was measured",
        ),
        (["advise", "--length", "64"], "there is no comparison of this machine under runs/: run `subquad compare` first"),
    ],
)
def test_mistakes_get_one_sentence_and_code_2(
    arguments: list[str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    make_run(Path("old"))
    Run.create(Path("empty"), "compare", {})
    Run.create(Path("other"), "train", {})
    Run.create(Path("newer"), "compare", {})
    Path("newer/run.json").write_text(json.dumps({"format": 99, "kind": "compare", "versions": {"subquad": "9.9"}}))
    Path("file").write_text("")
    before = Path("old/rows.jsonl").read_bytes()
    assert main(arguments) == 2
    said = capsys.readouterr().err
    assert said.startswith("subquad: ")
    assert words in said
    assert said.count("\n") == 1
    assert Path("old/rows.jsonl").read_bytes() == before


def test_advice_comes_from_the_newest_run_that_can_give_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A newer run that measured other work, Linformer's grid say, is passed over."""
    monkeypatch.chdir(tmp_path)
    make_run(Path("runs/older"), seed=1)
    other = make_run(Path("runs/newer"), seed=2)
    other.keep_rows(lambda row: row.get("what") == "step")
    assert main(["advise", "--length", "1024", "--causal"]) == 0
    assert "From runs/older" in capsys.readouterr().out
    assert main(["advise", "--length", "1024", "--what", "step"]) == 0
    assert "From runs/newer" in capsys.readouterr().out


def subquad(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "subquad", *arguments], cwd=cwd, capture_output=True, text=True, check=False
    )


def test_from_comparing_to_advice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Compare, resume, report with figures, advise: one after the other, for real."""
    monkeypatch.chdir(tmp_path)
    options = ("--lengths", "16..64", "--budget", "300", "--verbose")
    assert main(["compare", *SMALL, *options, "--out", "runs/a"]) == 0
    printed = capsys.readouterr().out
    for words in (
        "forward, causal, 16: softmax",
        "Pays from, tokens",
        "Attention, forward, causal",
        "linear",
        "runs/a/report.html",
    ):
        assert words in printed
    run = Run.open(tmp_path / "runs" / "a", "compare")
    cells = [row for row in run.rows() if row["metric"] == "seconds"]
    assert sorted((row["mechanism"], row["length"], row["visit"]) for row in cells) == sorted(
        (name, length, visit) for name in ("softmax", "linear") for length in (16, 32, 64) for visit in range(3)
    )
    assert all(row["low"] <= row["value"] <= row["high"] for row in cells)
    assert run.about["command"].startswith("subquad compare --mechanisms linear")

    before = run.rows()
    assert main(["compare", "--resume", "runs/a"]) == 0
    assert Run.open(run.folder).rows() == before  # nothing was missing
    capsys.readouterr()

    with run.rows_path.open("ab") as file:
        file.write(b'{"metric": "sec')  # killed while writing
    assert main(["report", "runs/a", "--figures", "figures"]) == 0
    assert "charts, each as PNG and SVG: figures" in capsys.readouterr().out
    assert (tmp_path / "figures" / "time-attention-forward-causal.png").stat().st_size > 1000

    assert main(["advise", "--length", "48", "--causal", "--what", "forward", "--memory", "2GiB"]) == 0
    advice = capsys.readouterr().out
    assert re.search(r"Use \w+ for 48 tokens: attention, forward, causal takes", advice)
    assert "What is given up" in advice


@pytest.mark.slow
def test_missing_cells_are_measured_on_resuming(tmp_path: Path) -> None:
    subquad("compare", *SMALL, "--lengths", "16", "32", "--budget", "300", "--out", "runs/a", cwd=tmp_path)
    run = Run.open(tmp_path / "runs" / "a")
    whole = run.rows()
    kept = [row for row in whole if (row.get("visit") == 0 and row["length"] == 16) or row["metric"].startswith("param")]
    run.rows_path.write_text("".join(json.dumps(row) + "\n" for row in kept))
    done = subquad("compare", "--resume", "runs/a", "--budget", "300", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    after = run.rows()
    assert after[: len(kept)] == kept
    assert len(after) == len(whole)


def interrupt_after_first_rows(command: Sequence[str], rows: Path, cwd: Path) -> tuple[int, str]:
    # a shell starts what it puts in the background deaf to Ctrl-C, and children inherit that: the tests may be run so
    hearing = "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); os.execv(sys.argv[1], sys.argv[1:])"
    process = subprocess.Popen(
        [sys.executable, "-c", hearing, *command],
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    deadline = time.monotonic() + 300  # it may share its cores
    while not (rows.exists() and '"seconds"' in rows.read_text()):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to all of the group
    _, said = process.communicate(timeout=60)
    return process.returncode, said


def test_ctrl_c_leaves_a_run_that_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = [sys.executable, "-m", "subquad", "compare", *SMALL, "--lengths", "16..65536", "--out", "runs/a"]
    code, said = interrupt_after_first_rows(command, tmp_path / "runs" / "a" / "rows.jsonl", tmp_path)
    assert code == 130
    assert said == "subquad: interrupted; what was measured is kept, go on with: subquad compare --resume runs/a\n"
    assert (tmp_path / "runs" / "a" / "report.html").exists()
    before = Run.open(tmp_path / "runs" / "a").rows()
    monkeypatch.chdir(tmp_path)
    assert main(["compare", "--resume", "runs/a", "--budget", "3"]) == 0
    after = Run.open(tmp_path / "runs" / "a").rows()
    assert after[: len(before)] == before
    assert len(after) > len(before)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process that its parent has died")
def test_a_killed_run_leaves_no_processes_behind(tmp_path: Path) -> None:
    """Some of them are suspended, waiting for their turn, and could not end by themselves."""
    command = [sys.executable, "-m", "subquad", "compare", *SMALL, "--lengths", "16..65536", "--out", "run"]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 300  # it may share its cores
    while len(family := psutil.Process(process.pid).children(recursive=True)) < 4:  # server, tracker, two workers
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.kill()
    process.wait()
    _, alive = psutil.wait_procs(family, timeout=20)
    assert alive == []


@pytest.mark.slow
def test_linformers_grid(tmp_path: Path) -> None:
    small = ["--heads", "1", "--head-dim", "8", "--threads", "1", "--budget", "300"]
    done = subquad("compare", "--grid", "linformer", "--lengths", "512", "1024", *small, "--out", "grid", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "k=512" in done.stdout
    assert "1.5 | 1.7" in " ".join(done.stdout.split())
    cells = {(row["mechanism"], row["length"]) for row in Run.open(tmp_path / "grid").rows() if row["metric"] == "seconds"}
    assert ("linformer k=512", 1024) in cells
    assert ("linformer k=512", 512) not in cells  # as in the published table


def test_options_of_mechanisms_reach_them(tmp_path: Path) -> None:
    tuned = ["--mechanisms", "favor", "linear", "--features", "32", "--kernel", "hyperbolic", "--feature-map", "relu"]
    rest = ["--lengths", "16", "--what", "forward", "--threads", "1", "--budget", "0.1", "--out", str(tmp_path / "run")]
    assert main(["compare", *tuned, *rest]) == 0
    variants = Run.open(tmp_path / "run").about["options"]["variants"]
    assert variants["favor"]["features"] == 32
    assert variants["favor"]["kernel"] == "hyperbolic"
    assert variants["linear"]["feature_map"] == {"kind": "relu"}
