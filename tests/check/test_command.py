"""`subquad check` from end to end: code of others may do anything, and the table goes on."""

import json
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from typing import Any

import pytest

from subquad.attention import MECHANISMS
from subquad.check.processes import BrokenCallError, Helper
from subquad.check.request import Request
from subquad.check.suite import open_attention
from subquad.cli import installed, main
from subquad.cli.installed import join_installed
from subquad.results import Run

HERE = "tests.check.faults"
FEW = ["--heads", "2", "--head-dim", "4", "--checks", "batch", "determinism"]


def test_a_clean_attention_ends_with_0(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["check", f"{HERE}:prints", *FEW]) == 0
    printed = capfd.readouterr()
    assert "3 of 3 properties hold." in printed.out
    assert "Guessed: layout b h n d." in printed.out
    assert "noise" not in printed.out + printed.err


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("hangs_for_three", "it does not return within 3 s"),
        ("crashes_for_three", "it crashes the process (SIGSEGV)"),
        ("leaves_for_three", "it ends the process, with exit code 4"),
        ("exits_for_three", "it ends the process (SystemExit: 3)"),
        ("raises_for_three", "it raises ValueError: three are a crowd"),
    ],
)
def test_what_breaks_is_one_row_and_the_table_goes_on(name: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", f"{HERE}:{name}", *FEW, "--time-limit", "3", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    verdicts = {row["check"]: row["verdict"] for row in found["rows"]}
    assert verdicts == {"call": "holds", "batch": "fails", "determinism": "holds"}
    assert [row["sentence"] for row in found["rows"] if row["check"] == "batch"] == [says]
    assert found["holds"] is False


def test_what_cannot_be_called_is_a_row_and_the_rest_is_not_asked(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", f"{HERE}:returns_nothing", *FEW, "--json"]) == 1
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [(row["check"], row["verdict"]) for row in rows] == [
        ("call", "fails"),
        ("batch", "not asked"),
        ("determinism", "not asked"),
    ]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["no_such_module:f"], "there is no module no_such_module"),
        (["mypackage.attention"], "'mypackage.attention' is no attention: write MODULE:NAME"),
        ([f"{HERE}:Needs"], "--arguments feature_map=VALUE"),
        (["lineer"], "did you mean 'linear'?"),
        ([], "name an attention"),
        (["linear", "--model", "folder"], "name an attention"),
        (["--model", "no-such-folder/at/all"], "there is no folder no-such-folder/at/all"),
        (["linear", "--layout", "hnd"], "--layout must be"),
        (["linear", "--checks", "everything"], "--checks"),
        (["linear", "--arguments", "features"], "--arguments takes words"),
        (["linear", "--length", "3"], "--length must be at least 16"),
        (["linear", "--checks", "generate"], "generate is asked of whole models"),
        (["linear", "--lengths", "64"], "--lengths needs at least 3 lengths"),
    ],
)
def test_mistakes_are_one_sentence_and_2(words: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", *words]) == 2
    printed = capsys.readouterr()
    assert says in printed.err
    assert printed.err.count("\n") == 1
    assert printed.out == ""


def test_what_holds_no_model_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "model.pt").write_bytes(b"weights")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text("{}")
    for name, says in (
        ("model.pt", "name a PyTorch model by the code that builds it"),
        (".", "name a PyTorch model by the code that builds it"),
        ("run", "ask about its attention by name, as in subquad check linear"),
    ):
        assert main(["check", "--model", str(tmp_path / name)]) == 2
        printed = capsys.readouterr().err
        assert says in printed
        assert printed.count("\n") == 1


def test_a_module_that_exits_or_hangs_while_it_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "exiting.py").write_text("import os\nos._exit(5)\n")
    (tmp_path / "hanging.py").write_text("import time\ntime.sleep(100)\n")
    monkeypatch.chdir(tmp_path)
    assert main(["check", "exiting:f"]) == 2
    assert "exiting:f cannot be imported: it ends the process, with exit code 5" in capsys.readouterr().err
    assert main(["check", "hanging:f", "--time-limit", "2"]) == 2
    assert "hanging:f cannot be imported: it does not return within 2 s" in capsys.readouterr().err


def test_a_run_is_kept_and_its_page_rebuilt(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    assert main(["check", f"{HERE}:mixes_the_batch", *FEW, "--out", str(run)]) == 1
    printed = capsys.readouterr().out
    assert "batch does not hold: other sequences move a sequence's results" in " ".join(
        printed.replace(" (full)", "").split()
    )
    assert "  y = attend(*x); x[:, 1:] *= 10" in printed
    kept = Run.open(run, "check")
    assert [row["value"] for row in kept.rows() if row["metric"] == "held"] == [True, False, True]
    page = (run / "report.html").read_text()
    assert "x[:, 1:] *= 10" in page
    (run / "report.html").unlink()
    assert main(["report", str(run)]) == 0
    assert (run / "report.html").read_text() == page
    assert main(["check", "linear", *FEW, "--out", str(run)]) == 2


def test_the_table_fits_into_60_columns(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    assert main(["check", f"{HERE}:clean", *FEW]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 60
    assert any("determinism" in line and "causal" in line and "holds" in line for line in lines)


def test_memory_grows_with_the_square_or_not(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--heads", "4", "--head-dim", "64", "--checks", "memory", "--lengths", "512..2048", "--growth", "1.5", "--json"]
    exponents = {}
    for name, code in (("linear", 0), ("mixes_the_batch", 1)):
        assert main(["check", f"{HERE}:{name}", *words]) == code
        rows = json.loads(capsys.readouterr().out)["rows"]
        exponents[name] = next(row["measured"] for row in rows if row.get("check") == "memory")
        lengths = {row["length"] for row in rows if row["metric"] == "peak_memory"}
        assert lengths == {512, 1024, 2048}
    assert exponents["linear"] < 1.3 < 1.7 < exponents["mixes_the_batch"]


def test_a_helper_starts_again_after_its_process_ended() -> None:
    with Helper(2**32) as helper:
        with pytest.raises(BrokenCallError, match="exit code 4"):
            helper.ask(exec, "import os; os._exit(4)", seconds=20)
        assert helper.ask(max, 1, 2, seconds=20) == 2
        case = open_attention(helper, Request(f"{HERE}:clean", 2, 4), 20)
        assert not hasattr(case, "verdict")


def test_compare_measures_an_attention_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("subquad.compare.plan.VISITS", 1)
    run = tmp_path / "run"
    sizes = ["--lengths", "16", "32", "--heads", "2", "--head-dim", "8", "--threads", "1", "--budget", "6"]
    words = ["--mechanisms", f"{HERE}:clean", "--causal", "--what", "forward", "step", *sizes]
    assert main(["compare", *words, "--out", str(run)]) == 0
    measured = {(row["mechanism"], row["what"]) for row in Run.open(run).rows() if row["metric"] == "seconds"}
    assert (f"{HERE}:clean", "forward") in measured
    assert (f"{HERE}:clean", "step") not in measured  # it has no state
    monkeypatch.setenv("SUBQUAD_TRUST", "tests.check")
    assert main(["compare", "--resume", str(run), "--budget", "0.001"]) == 0
    capsys.readouterr()
    assert main(["compare", "--mechanisms", f"{HERE}:Layer", *sizes]) == 2
    assert "takes x, not q, k and v" in capsys.readouterr().err


def test_compare_goes_on_without_what_cannot_be_measured(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Attentions of others that raise at once, at some length or in the backward, beside others."""
    monkeypatch.setattr("subquad.compare.plan.VISITS", 1)
    run = tmp_path / "run"
    sizes = ["--lengths", "16", "512", "--heads", "2", "--head-dim", "8", "--threads", "1", "--bidirectional"]
    broken = [
        "raises",
        "returns_nothing",
        "returns_less",
        "Needs",
        "needs_a_gpu",
        "raises_in_the_backward",
        "raises_when_long",
    ]
    names = ["linear", "no_such_module:f", *(f"{HERE}:{name}" for name in broken), f"{HERE}:prints"]
    words = ["--mechanisms", *names, "--what", "forward", "training", *sizes, "--budget", "600"]
    assert main(["compare", *words, "--out", str(run)]) == 0
    printed = capfd.readouterr()
    out, err = " ".join(printed.out.split()), printed.err
    assert "noise" not in out + err
    for says in (
        "no_such_module:f is left out: there is no module no_such_module",
        f"{HERE}:raises is left out: {HERE}:raises cannot be called on q, k and v (ValueError: no such thing): --outside.",
        f"{HERE}:returns_nothing is left out: ",
        f"{HERE}:returns_less is left out: {HERE}:returns_less cannot be called on q, k and v (it returns the shape",
        "give it with --outside.arguments feature_map=VALUE",
        "(AssertionError: Torch not compiled with CUDA enabled): it seems to need a GPU",
    ):
        assert says in err
    assert len(err.splitlines()) == 6
    assert f"{HERE}:raises_in_the_backward failed at 16 tokens (NotImplementedError: no gradient): bidirectional" in out
    assert f"{HERE}:raises_when_long failed at 512 tokens (ValueError: 512 are too many): bidirectional" in out
    rows = [row for row in Run.open(run).rows() if row["metric"] == "seconds" and row["value"] is not None]
    measured = {(row["mechanism"].removeprefix(f"{HERE}:"), row["what"], row["length"]) for row in rows}
    assert {("linear", "training", 512), ("prints", "training", 512), ("raises_in_the_backward", "forward", 512)} <= measured
    assert {("raises_when_long", "training", 16)} <= measured
    assert "was left out" in (run / "report.html").read_text()


def _offer(monkeypatch: pytest.MonkeyPatch, *entries: tuple[str, str]) -> None:
    offered = EntryPoints(EntryPoint(name, value, installed.GROUP) for name, value in entries)
    monkeypatch.setattr(installed, "entry_points", lambda group: offered)
    monkeypatch.setattr("subquad.attention.MECHANISMS", MECHANISMS.copy())


def test_installed_mechanisms_join(monkeypatch: pytest.MonkeyPatch) -> None:
    import subquad.attention

    _offer(monkeypatch, ("offered", "tests.check.offered:Offered"))
    said: list[str] = []
    join_installed(said.append)
    join_installed(said.append)  # a second command in the same process
    assert list(subquad.attention.MECHANISMS)[-1] == "offered"
    assert said == []


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("linear", "tests.check.offered:Offered", "there is another one of that name"),
        ("other", "tests.check.offered:Offered", "its kind is 'offered', which must be its name"),
        ("gone", "tests.no_such_module:Gone", "it cannot be imported (ModuleNotFoundError"),
        ("clean", f"{HERE}:clean", "does not inherit from subquad.types.AttentionOptions"),
    ],
)
def test_installed_mechanisms_that_do_not_fit_are_left_out(
    name: str, value: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import subquad.attention

    _offer(monkeypatch, (name, value))
    said: list[Any] = []
    join_installed(said.append)
    assert len(said) == 1
    assert says in said[0]
    assert subquad.attention.MECHANISMS == MECHANISMS
