"""Training on transactions and scoring new clients, as they are typed."""

import csv
import io
import json
import shutil
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout, suppress
from pathlib import Path

import numpy as np
import pytest

from subquad.cli import main
from subquad.experiments.base import is_finished
from subquad.results import Run
from tests.cli.resuming import check_it_goes_on

SMALL = ["--layers", "1", "--heads", "2", "--head-dim", "8", "--batch", "8", "--steps", "6", "--evaluate-every", "3"]
SMALL += ["--checkpoint-every", "3"]


def write(path: Path, *, label: bool = True) -> Path:
    """Clients named by a number, one of whose rows is bad."""
    heads = "who,when,what" + (",good" if label else "")
    rows = [f"c{c},{t},code{(c + t) % 4}" + (f",{c % 2}" if label else "") for c in range(60) for t in range(5 + c % 7)]
    rows[10] = rows[10].replace(",0,", ",noon,", 1) if ",0," in rows[10] else "c0,noon,x" + (",0" if label else "")
    path.write_text("\n".join([heads, *rows]) + "\n")
    return path


def train(tmp_path: Path, *more: str) -> int:
    columns = ["--client-column", "who", "--time-column", "when", "--code-column", "what", "--label", "good"]
    data = write(tmp_path / "old.csv")
    return main(["train", "transactions", "--data", str(data), *columns, *SMALL, *more, "--out", str(tmp_path / "run")])


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, str]:
    """A run, and what was printed while it was made."""
    folder = tmp_path_factory.mktemp("trained")
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        assert train(folder) == 0
    return folder / "run", out.getvalue(), err.getvalue()


@pytest.fixture
def run(trained: tuple[Path, str, str], tmp_path: Path) -> Path:
    """A copy of it, to do anything with."""
    return Path(shutil.copytree(trained[0], tmp_path / "run"))


def test_training_says_what_it_left_out_and_keeps_the_test(trained: tuple[Path, str, str]) -> None:
    folder, out, err = trained
    assert "subquad: old.csv: 1 row is left out, with a time that cannot be read: at line 12" in err
    run = Run.open(folder)
    assert set(run.about["learned"]["codes"]) == {f"code{number}" for number in range(4)}
    rows = [row for row in run.rows() if row.get("split") == "test"]
    assert [row["metric"] for row in rows] == ["auroc", "accuracy", "average_precision", "log_loss"]
    for row in rows:
        assert row["low"] <= row["value"] <= row["high"]
        name = row["metric"].replace("_", " ")
        assert f"test {name}: {row['value']:.6g} ({row['low']:.6g} to {row['high']:.6g})" in out
        assert row["step"] == 6
    watched = [row for row in run.rows() if row["metric"] == "auroc" and row["split"] == "held out"]
    assert [row["step"] for row in watched] == [3, 6]
    page = (folder / "report.html").read_text()
    assert "On the test" in page
    assert len([row for row in run.rows() if row["metric"] == "sample"]) > 3


def test_a_run_goes_on_as_if_it_had_not_stopped(run: Path) -> None:
    check_it_goes_on(run)


def test_new_clients_are_scored_without_the_old_data(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    about = json.loads((run / "run.json").read_text())
    about["options"]["task"]["data"] = "gone.csv"
    (run / "run.json").write_text(json.dumps(about))
    new = write(tmp_path / "new.csv", label=False)
    assert main(["predict", str(run), "--data", str(new)]) == 0
    printed = capsys.readouterr()
    assert "subquad: new.csv: 1 row is left out" in printed.err
    lines = list(csv.reader(printed.out.splitlines()))
    assert lines[0] == ["client", "score", "class"]
    assert [client for client, *_ in lines[1:]] == [f"c{number}" for number in range(60)]
    assert all(0 < float(score) < 1 and name == str(int(float(score) >= 0.5)) for _, score, name in lines[1:])
    assert "the score is the probability of the class '1'" in printed.err
    assert main(["predict", str(run), "--data", str(new), "--output", str(tmp_path / "scores.csv")]) == 0
    assert capsys.readouterr().out == ""
    assert (tmp_path / "scores.csv").read_text() == printed.out


def test_runs_of_earlier_versions_still_predict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Such a run knows neither further columns nor a branch of counts, and its run.json lacks all that is said of them."""
    assert train(tmp_path, "--wide", "off", "--no-further-columns", "--no-baselines", "--no-importance") == 0
    run = tmp_path / "run"
    new = write(tmp_path / "new.csv", label=False)
    capsys.readouterr()
    assert main(["predict", str(run), "--data", str(new)]) == 0
    before = capsys.readouterr().out
    about = json.loads((run / "run.json").read_text())
    for name in ("buckets", "time_form", "further", "static", "unused", "summary", "target", "wide"):
        del about["learned"][name]
    known: tuple[str, ...] = (
        "data",
        "label",
        "client_column",
        "time_column",
        "code_column",
        "type_column",
        "amount_column",
        "amounts",
    )
    known += ("pooling", "latest", "folds", "fold", "split_seed", "clients", "shortest_history", "longest_history")
    known += ("codes", "drift", "data_seed", "evaluation_tokens", "kind")
    about["options"]["task"] = {name: about["options"]["task"][name] for name in known}
    del about["options"]["training"]["patience"]
    (run / "run.json").write_text(json.dumps(about))
    assert main(["predict", str(run), "--data", str(new)]) == 0
    assert capsys.readouterr().out == before
    (last,) = (run / "checkpoint").glob("step-*6")
    shutil.rmtree(last)
    assert main(["train", "--resume", str(run)]) == 0


def test_vectors_of_clients(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    new = write(tmp_path / "new.csv", label=False)
    for form in ("npy", "csv", "parquet"):
        assert main(["embed", str(run), "--data", str(new), "--output", str(tmp_path / f"v.{form}")]) == 0
        assert "60 vectors of 16 numbers" in capsys.readouterr().out
    array = np.load(tmp_path / "v.npy")
    assert array.shape == (60, 16)
    assert array.std(0).min() > 0
    assert (tmp_path / "v.names.txt").read_text().split() == [f"c{number}" for number in range(60)]
    lines = list(csv.reader((tmp_path / "v.csv").read_text().splitlines()))
    assert lines[0] == ["client", *(f"v{at}" for at in range(16))]
    assert np.allclose(np.array([line[1:] for line in lines[1:]], float), array, atol=1e-5)
    assert np.allclose(parquet.read_table(tmp_path / "v.parquet")["v3"].to_numpy(), array[:, 3])
    for arguments, said in (
        (["--data", str(new), "--output", "v.xls"], "--output must end in .parquet, .npy, .csv"),
        (["--data", str(tmp_path / "none.csv"), "--output", "v.csv"], "there is no file or folder"),
    ):
        assert main(["embed", str(run), *arguments]) == 2
        printed = capsys.readouterr().err
        assert said in printed
        assert printed.count("\n") == 1


def test_the_page_has_baselines_curves_and_columns(trained: tuple[Path, str, str]) -> None:
    folder, out, _ = trained
    rows = Run.open(folder).rows()
    page = (folder / "report.html").read_text()
    assert page.index('class="answer"') < page.index("Data: ") < page.index("What the data hold") < page.index("chart-")
    for words in (
        "Which columns matter",
        "order of events",
        "Confusion",
        "chart-roc",
        "chart-precision",
        "chart-calibration",
    ):
        assert words in page
    gaps = {row["baseline"]: row for row in rows if row["metric"] == "auroc_gained"}
    assert "linear model of counts" in gaps
    for name, row in gaps.items():
        is_level = abs(row["value"]) < 0.0005 and row["low"] <= 0 <= row["high"]
        place = "Level with" if is_level else "Behind" if row["value"] < 0 else "Ahead of"
        assert f"{place} the {name}: AUROC" in out
        assert (f"inear: behind the {name}" in page) == (place == "Behind")
    assert "60 clients: " in out


CELLS: dict[str, tuple[str, Callable[[int], str], str, list[str]]] = {
    "classes": ("kind", lambda c: "abc"[c % 3], "accuracy", ["class", "P(a)", "P(b)", "P(c)"]),
    "labels": ("old,rich", lambda c: f"{c % 2},{c // 2 % 2}", "macro auroc", ["labels", "P(old)", "P(rich)"]),
    "number": ("worth", lambda c: f"{c * 1.5}", "r2", ["prediction"]),
    "event": ("days,seen", lambda c: f"{c % 30 + 1},{c % 4 > 0}", "concordance", ["expected_time"]),
}


@pytest.mark.parametrize(
    "target",
    ["classes", "event", pytest.param("labels", marks=pytest.mark.slow), pytest.param("number", marks=pytest.mark.slow)],
)
def test_every_target_from_the_command_to_predictions(
    target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    heads, cells, metric, columns = CELLS[target]
    rows = [f"c{c},{t},code{(c + t) % 4},{cells(c)}" for c in range(60) for t in range(3 + c % 3)]
    path, run = tmp_path / "t.csv", tmp_path / "run"
    path.write_text("\n".join([f"client,time,code,{heads}", *rows]) + "\n")
    named = ["--labels", "old", "rich"] if target == "labels" else ["--label", heads.partition(",")[0]]
    named += ["--observed-column", "seen"] if target == "event" else []
    assert main(["train", "transactions", "--data", str(path), *named, *SMALL, "--no-importance", "--out", str(run)]) == 0
    printed = capsys.readouterr().out
    assert f"test {metric}: " in printed
    assert "the linear model of counts" in printed
    assert main(["predict", str(run), "--data", str(path)]) == 0
    lines = list(csv.reader(capsys.readouterr().out.splitlines()))
    assert lines[0][1 : 1 + len(columns)] == columns
    assert len(lines) == 61


def test_training_stops_early_and_stays_stopped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The learning rate is so high that evaluations soon become worse."""
    rows = "".join(f"c{c},{t},x{(c * 7 + t) % 5},{c * 13 % 7 % 2}\n" for c in range(700) for t in range(3))
    (tmp_path / "t.csv").write_text("client,time,code,label\n" + rows)
    run = tmp_path / "run"
    size = ["--layers", "1", "--heads", "1", "--head-dim", "4", "--batch", "16", "--wide", "off", "--no-baselines"]
    steps = [
        "--steps",
        "400",
        "--evaluate-every",
        "2",
        "--checkpoint-every",
        "2",
        "--patience",
        "2",
        "--learning-rate",
        "0.1",
    ]
    words = ["train", "transactions", "--data", str(tmp_path / "t.csv"), *size, *steps, "--no-importance", "--out", str(run)]
    assert main(words) == 0
    whole = Run.open(run).rows()
    last = max(row["step"] for row in whole)
    best = next(row["value"] for row in whole if row["metric"] == "best_step")
    assert last == best + 4 < 400
    said = f"stopped at step {last} of 400: the last 2 evaluations were no better than that of step {best}"
    assert said in capsys.readouterr().out
    assert is_finished(run)
    assert any(row.get("split") == "test" for row in whole)
    assert main(["train", "--resume", str(run)]) == 0
    assert Run.open(run).rows() == whole
    shutil.rmtree(run / "checkpoint" / f"step-{last:09d}")  # as if it was killed before its last checkpoint
    assert not is_finished(run)


def test_mistakes_in_predicting(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "other.csv").write_text("client,time\na,1\n")
    for arguments, said in (
        (["--data", str(tmp_path / "none.csv")], "there is no file or folder"),
        (["--data", str(tmp_path / "other.csv")], "has no column 'who' but 'client', 'time'"),
        (["3", "1"], "a model of transactions scores clients: give their transactions by --data"),
        (["3", "--data", "x"], "give --data, or a sequence or --file, not both"),
        (["3", "--output", "x"], "--output is for the scores of --data: give both"),
    ):
        assert main(["predict", str(run), *arguments]) == 2
        printed = capsys.readouterr().err
        assert said in printed
        assert printed.count("\n") == 1


def test_a_model_of_sequences_gives_no_scores(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    size = ["--layers", "1", "--heads", "1", "--head-dim", "4", "--length", "2", "--steps", "1", "--held-out", "2"]
    assert main(["train", "copy", *size, "--out", str(tmp_path / "copy")]) == 0
    (tmp_path / "x.csv").write_text("client,amount\n")
    assert main(["predict", str(tmp_path / "copy"), "--data", str(tmp_path / "x.csv")]) == 2
    assert "a model of copy answers sequences and gives no scores" in capsys.readouterr().err


def test_what_cannot_be_read_leaves_no_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "none"
    assert main(["train", "transactions", "--data", str(tmp_path / "no.csv"), "--out", str(out)]) == 2
    assert "there is no file or folder" in capsys.readouterr().err
    assert not out.exists()


def test_what_was_learned_is_json(run: Path) -> None:
    about = json.loads((run / "run.json").read_text())
    assert about["learned"]["labels"] == ["0", "1"]
    assert about["options"]["task"]["client_column"] == "who"


def test_every_option_of_the_task_and_the_model_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    with suppress(SystemExit):
        main(["train", "transactions", "--help"])
    words = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "--client-table STR table with a row for each client" in words
    assert "nelu: elu(x) + 1" in words
