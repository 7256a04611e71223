"""No traceback, no exit code but 0, 1, 2 and 130, one sentence for what is refused, and nothing changed by it."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.robustness.cases import Case, Edit, sample
from tests.robustness.runner import run_all

ROOT = Path(__file__).parents[2]


@pytest.mark.first
def test_a_sample_of_cases_ends_as_it_must() -> None:
    """The same every time, at least one of every kind. `make test-robustness` runs two thousand."""
    _run("--sample", "80", "--jobs", "1")


@pytest.mark.robustness
def test_two_thousand_cases_end_as_they_must() -> None:
    """`python -m tests.robustness` runs all, which takes longer."""
    _run("--sample", "2000")


def _run(*options: str) -> None:
    """In a process of its own, which the children are forked from: it has not computed anything, as this one has."""
    command = [sys.executable, "-m", "tests.robustness", *options]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    print(done.stdout)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("script", "problem"),
    [
        ("raise RuntimeError('a bug')", "exit code 70"),
        ("import sys; print('Traceback (most recent call last)', file=sys.stderr); code = 2", "a traceback"),
        ("code = 3", "exit code 3"),
        ("import faulthandler, os; faulthandler.disable(); os.kill(os.getpid(), 11)", "exit code -11"),
        ("code = 2", "not one sentence but 0 lines"),
        ("import sys; print('subquad: one\\nsubquad: two', file=sys.stderr); code = 2", "not one sentence but 2 lines"),
        ("SAY; open('new', 'w').close(); code = 2", "refused, but changed ['work/new']"),
        ("SAY; open('kept', 'w').close(); code = 2", "refused, but changed ['work/kept']"),
        ("SAY; import os; os.mkdir('runs'); code = 2", "refused, but changed ['work/runs']"),
        ("open('../outside', 'w').close(); code = 0", "wrote outside of its folder: ['outside']"),
        ("bytearray(2**40); code = 0", "exit code 70"),
        ("SAY; code = 2", None),
        ("open('kept', 'w').close(); code = 0", None),
    ],
)
def test_the_runner_sees_what_must_not_be(script: str, problem: str | None, tmp_path: Path) -> None:
    """The runner itself: with commands that misbehave in the place of subquad."""
    said = "import sys; print('subquad: no', file=sys.stderr)"
    case = Case("fake", "one", (script.replace("SAY", said),), edits=(Edit("write", "kept", b"text"),), entry="script")
    (tmp_path / "templates").mkdir()
    (outcome,) = run_all([case], tmp_path / "templates", tmp_path, jobs=1)
    assert (problem is None) == (not outcome.problems)
    assert problem is None or problem in outcome.problems


def test_a_case_that_takes_too_long_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.robustness.runner.SECONDS", 0.5)
    script = "import os, subprocess, time; print(os.getpid(), flush=True); subprocess.Popen(['sleep', '9']); time.sleep(9)"
    (tmp_path / "templates").mkdir()
    (outcome,) = run_all([Case("fake", "slow", (script,), entry="script")], tmp_path / "templates", tmp_path, jobs=1)
    assert outcome.problems == ("not done after 0 s",)
    group = (tmp_path / "case-0" / "stdout").read_text().strip()
    assert group
    fields = [path.read_text().rpartition(")")[2].split() for path in Path("/proc").glob("[0-9]*/stat") if path.exists()]
    assert not [state for state, _, its_group, *_ in fields if its_group == group and state != "Z"]


def test_a_sample_has_some_of_every_kind_and_is_always_the_same() -> None:
    cases = [Case(kind, str(number), ()) for kind, count in {"a": 500, "b": 100, "c": 1}.items() for number in range(count)]
    chosen = sample(cases, 60)
    assert set(chosen) == set(sample(reversed(cases), 60))
    counts = {kind: sum(case.kind == kind for case in chosen) for kind in "abc"}
    assert counts == {"a": 50, "b": 10, "c": 1}
