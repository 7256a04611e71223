"""Training on events and forecasting, as they are typed."""

import csv
import io
import json
import shutil
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from subquad.cli import main
from subquad.results import Run
from tests.cli.resuming import check_it_goes_on

SMALL = ["--layers", "1", "--heads", "2", "--head-dim", "8", "--batch", "8", "--steps", "6", "--evaluate-every", "2"]
SMALL += ["--checkpoint-every", "3", "--inner", "8", "--learning-rate", "0.01", "--optimizer", "adamw"]


def write(path: Path, sequences: int = 20, start: float = 1.6e9) -> Path:
    rows = [
        f"s{s},{start + 60 * t + 7 * (s * t % 5)},{'ab'[(s + t) % 2]}" for s in range(sequences) for t in range(5 + s % 4)
    ]
    path.write_text("\n".join(["sequence,time,type", *rows]) + "\n")
    return path


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, str]:
    """A run, and what was printed while it was made."""
    folder = tmp_path_factory.mktemp("trained")
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        data = write(folder / "e.csv")
        assert main(["train", "events", "--data", str(data), *SMALL, "--chunk", "3", "--out", str(folder / "run")]) == 0
    return folder / "run", out.getvalue(), err.getvalue()


@pytest.fixture
def run(trained: tuple[Path, str, str], tmp_path: Path) -> Path:
    """A copy of it, to do anything with."""
    return Path(shutil.copytree(trained[0], tmp_path / "run"))


def predict(run: Path, *arguments: str) -> int:
    return main(["predict", str(run), *arguments])


def following(run: Path, text: str, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    return predict(run, "--follow", *arguments)


def test_training_keeps_the_test_and_the_best(trained: tuple[Path, str, str]) -> None:
    folder, out, _ = trained
    run = Run.open(folder)
    rows = run.rows()
    watched = {row["step"]: row["value"] for row in rows if row["metric"] == "nll" and row["split"] == "held out"}
    assert sorted(watched) == [2, 4, 6]
    assert {row["unit"] for row in rows if row["metric"] == "nll"} == {"nats"}
    (best,) = (row["value"] for row in rows if row["metric"] == "best_step")
    assert watched[best] == min(watched.values())
    tested = {row["metric"]: row for row in rows if row.get("split") == "test"}
    assert {"nll", "accuracy", "macro_f1", "rmse", "mae", "rmse_of_mean_gap", "residual_p_value"} <= tested.keys()
    assert "nll_of_truth" not in tested
    assert f"test nll: {tested['nll']['value']:.6g}" in out
    assert "residual quantile" not in out
    assert len([row for row in rows if row["metric"] == "residual_quantile"]) == 100
    assert run.about["learned"]["type_names"] == ["a", "b"]
    assert "On the test" in (folder / "report.html").read_text()


def test_a_run_goes_on_as_if_it_had_not_stopped(run: Path) -> None:
    check_it_goes_on(run)


def test_forecasts_without_the_old_data(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By --data and by --follow the same."""
    about = json.loads((run / "run.json").read_text())
    about["options"]["task"]["data"] = "gone.csv"
    (run / "run.json").write_text(json.dumps(about))
    new = write(tmp_path / "new.csv", 4)
    assert predict(run, "--data", str(new)) == 0
    printed = capsys.readouterr()
    lines = list(csv.DictReader(printed.out.splitlines()))
    assert [line["sequence"] for line in lines] == ["s0", "s1", "s2", "s3"]
    for line in lines:
        assert float(line["last_time"]) < float(line["low"]) < float(line["expected_time"]) < float(line["high"])
        assert float(line["p_a"]) + float(line["p_b"]) == pytest.approx(1.0, abs=1e-5)
    assert predict(run, "--data", str(new), "--output", str(tmp_path / "f.csv")) == 0
    assert capsys.readouterr().out == ""
    assert (tmp_path / "f.csv").read_text() == printed.out
    text = "\n".join(new.read_text().splitlines()[1:])
    assert following(run, text, monkeypatch) == 0
    each = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    assert len(each) == len(text.splitlines())
    last = {line["sequence"]: line for line in each}
    assert following(run, text.replace(",", " "), monkeypatch, "--every", "0") == 0
    ends = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    for one, followed, end in zip(lines, last.values(), ends, strict=True):
        for name in ("last_time", "expected_time", "low", "high"):
            # floats of the model, in seconds since 1970: a thousandth of the gap between them is far below a second
            assert float(followed[name]) == pytest.approx(float(one[name]), abs=0.1)
            assert float(end[name]) == pytest.approx(float(one[name]), abs=0.1)
        assert float(followed["p_a"]) == pytest.approx(float(one["p_a"]), abs=1e-4)
        assert (followed["events"], end["events"]) == (one["events"], one["events"])
    assert following(run, text, monkeypatch, "--every", "5") == 0
    assert len(capsys.readouterr().out.splitlines()) == 1 + len(each) // 5


def test_a_stream_without_names(run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert following(run, "1 a\n\n2,b\n2024-05-01T12:00 a\n", monkeypatch) == 0
    lines = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    assert [line["sequence"] for line in lines] == ["stream"] * 3
    assert [line["events"] for line in lines] == ["1", "2", "3"]
    assert following(run, "x 1 a\ny 1 a\nx 2 b\n", monkeypatch, "--remember", "1") == 0
    printed = capsys.readouterr()
    assert [line["events"] for line in csv.DictReader(printed.out.splitlines())] == ["1", "1", "1"]
    assert "2 times a sequence was forgotten, as more than" in printed.err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("1 a\n0.5 a\n", "line 2: sequence 'stream' goes back in time, from 1 to 0.5: sort its events"),
        ("1 a\n2 c\n", "line 2: the model knows no type 'c': it was trained on 'a', 'b'"),
        ("1 a\nnoon b\n", "line 2: 'noon' is no time"),
        ("s 1 a\n\ns 2 a 3 4\n", "line 3: an event is `time type`"),
        ("s 1 a\nt\n", "line 2: there is no sequence 't' to end"),
    ],
)
def test_bad_lines(
    text: str, said: str, run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert following(run, text, monkeypatch) == 2
    printed = capsys.readouterr().err
    assert said in printed
    assert printed.count("\n") == 1


def test_bad_lines_can_be_skipped(run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """What follows is as if they had not been there."""
    good = ["s 1 a", "s 2 b", "t 5 a", "s 4 a"]
    bad = ["s 1.5 a", "s 3 q", "s noon a", "s nan a", "s 1e999 a", "s -inf b", "s 3 a 4", "nobody", "\0 3 a", "s 1e300 a"]
    assert following(run, "\n".join(good), monkeypatch) == 0
    wanted = capsys.readouterr().out
    assert following(run, "\r\n".join([*good[:3], "", *bad, good[3]]), monkeypatch, "--bad-lines", "skip") == 0
    printed = capsys.readouterr()
    assert printed.out == wanted
    said = printed.err.splitlines()
    assert len(said) == 4
    assert said[0] == (
        "subquad: line 5 is left out: sequence 's' goes back in time, from 2 to 1.5: sort its events (it is 's 1.5 a')"
    )
    assert said[3] == f"subquad: {len(bad)} lines were left out, as they could not be used"


def test_a_huge_line_is_not_echoed(run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for text in ("1 a\n" + "x" * 30_000_000 + "\n", "1 a\n2 " + "y" * 10_000_000 + "\n", "1 a\n" + "z " * 5_000_000):
        assert following(run, text, monkeypatch) == 2
        said = capsys.readouterr().err
        assert said.startswith("subquad: line 2: ")
        assert len(said) < 400


def test_formulas_in_names(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A sequence that is called as a formula gets an apostrophe, one that is called by a negative number stays."""
    path = tmp_path / "new.csv"
    path.write_text("sequence,time,type\n=1+2,1,a\n=1+2,2,b\n-5,1,a\n-5,3,b\n")
    assert predict(run, "--data", str(path), "--output", str(tmp_path / "out.csv")) == 0
    lines = list(csv.DictReader((tmp_path / "out.csv").read_text().splitlines()))
    assert [line["sequence"] for line in lines] == ["'=1+2", "-5"]


def test_mistakes_in_predicting(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "other.csv").write_text("sequence,time,type\na,1,zzz\n")
    for arguments, said in (
        (["--data", str(tmp_path / "none.csv")], "there is no file or folder"),
        (["--data", str(tmp_path / "other.csv")], "zzz"),
        (["3", "1"], "a model of events forecasts events: give sequences by --data, or events line by line with --follow"),
        (["--follow", "--data", "x"], "--follow reads standard input"),
        (["--follow", "--every", "-1"], "--every must be 0 or more, but is -1"),
    ):
        assert predict(run, *arguments) == 2
        printed = capsys.readouterr().err
        assert said in printed
        assert printed.count("\n") == 1


def test_one_unknown_type_blocks_no_file(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nor do times that go back. All sequences are forecast, and after a single event there is one to predict."""
    new = tmp_path / "new.csv"
    new.write_text("sequence,time,type\ns,1,a\ns,2,unheard\ns,3,b\nt,5,a\nt,4,b\nalone,1,b\nu,,a\nu,1,a\n")
    assert predict(run, "--data", str(new)) == 0
    printed = capsys.readouterr()
    lines = list(csv.DictReader(printed.out.splitlines()))
    assert [(line["sequence"], line["events"]) for line in lines] == [("s", "2"), ("t", "2"), ("alone", "1"), ("u", "1")]
    assert "1 event is left out, with the type 'unheard', which is none of the 2 known" in printed.err
    assert "1 event is before the one before, which is mended by sorting" in printed.err
    assert "nothing to predict" not in printed.err
    assert "--" not in printed.err


def test_advice_names_options_that_the_command_has(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = tmp_path / "bad.csv"
    bad.write_text("sequence,when,type\ns,1,a\n")
    assert predict(run, "--data", str(bad)) == 2
    said = capsys.readouterr().err
    assert "(--time-column is an option of `subquad train`; a run keeps those that it was trained with" in said
    bad.write_text("sequence,time,type\n" + "".join(f"s{at},{time},a\n" for at in range(9) for time in (1, 3, 2)))
    assert main(["reproduce", "events", "--data", str(bad), "--out", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    assert "time goes backwards" in said
    assert "(--backwards is an option of `subquad train`; `subquad reproduce` takes data as they are" in said
    assert not (tmp_path / "out").exists()


def test_data_are_looked_for_before_the_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert predict(tmp_path / "no-run", "--data", str(tmp_path / "none.csv")) == 2
    assert "there is no file or folder" in capsys.readouterr().err


def test_progress_is_printed_where_there_is_no_terminal(trained: tuple[Path, str, str]) -> None:
    steps = [line for line in trained[1].splitlines() if line.startswith("step ")]
    assert [line.split(":")[0] for line in steps] == ["step 2 of 6", "step 4 of 6", "step 6 of 6"]
    assert f"{steps[-1]}\ntrained; final measurements follow\n" in trained[1]
    assert all("loss" in line and "nll" in line for line in steps)


def test_other_models_follow_no_stream(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    size = ["--layers", "1", "--heads", "1", "--head-dim", "4", "--length", "2", "--steps", "1", "--held-out", "2"]
    assert main(["train", "copy", *size, "--out", str(tmp_path / "copy")]) == 0
    assert predict(tmp_path / "copy", "--follow") == 2
    assert "a model of copy follows no stream: --follow is for runs on events" in capsys.readouterr().err


def test_what_cannot_be_causal_leaves_no_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "none"
    assert main(["train", "events", "--attention", "linformer", "--out", str(out)]) == 2
    assert "linformer has no causal form" in capsys.readouterr().err
    assert not out.exists()


def test_training_shows_baselines_and_the_data(trained: tuple[Path, str, str]) -> None:
    folder, out, _ = trained
    rows = Run.open(folder).rows()
    tested = {row["metric"]: row for row in rows if row.get("split") == "test"}
    for name in ("poisson", "markov", "renewal", "renewal-markov", "hawkes"):
        above = tested[f"nll_above_{name}"]
        assert above["value"] == pytest.approx(tested["nll"]["value"] - tested[f"nll_of_{name}"]["value"], abs=1e-6)
        assert f"test nll of {name}: " in out
    assert {"crps", "coverage_80", "coverage_ahead", "type_calibration_error"} <= tested.keys()
    counts = {row["part"]: row["value"] for row in rows if row["metric"] == "data" and row["what"] == "sequences"}
    assert sum(counts.values()) == 20
    confused = sum(row["value"] for row in rows if row["metric"] == "type_confusion")
    assert confused == sum(row["events"] for row in rows if row["metric"] == "sequence_nll")
    page = (folder / "report.html").read_text()
    about = "Data: 12 training sequences of 5 to 8 events"
    assert page.index(about) < page.index("What the data hold") < page.index("chart-")
    for name in ("timeline_1", "type_calibration", "type_confusion"):
        assert f'id="chart-{name}"' in page


def test_forecasts_of_several_events(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    new = write(tmp_path / "new.csv", 2)
    assert predict(run, "--data", str(new), "--horizon", "3", "--samples", "20") == 0
    text = capsys.readouterr().out
    lines = list(csv.DictReader(text.splitlines()))
    assert [(line["sequence"], line["event"]) for line in lines] == [(s, e) for s in ("s0", "s1") for e in "123"]
    assert all(float(line["low"]) <= float(line["median"]) <= float(line["high"]) for line in lines)
    assert predict(run, "--data", str(new), "--horizon", "3", "--samples", "20", "--seed", "0") == 0
    assert capsys.readouterr().out == text
    assert predict(run, "--data", str(new), "--window", "600", "--points", "2", "--samples", "20") == 0
    counts = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    assert [float(line["to"]) - float(line["from"]) for line in counts] == [300.0] * 4
    assert all(float(line["expected_count"]) >= 0 and float(line["intensity"]) >= 0 for line in counts)


def test_scores_of_a_stream(run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert following(run, "0 a\n60 b\n100060 a\n", monkeypatch, "--score") == 0
    lines = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    assert [line["type"] for line in lines] == ["a", "b", "a"]
    assert lines[0]["score"] == ""
    assert float(lines[2]["score"]) > float(lines[1]["score"])  # a day without an event
    assert float(lines[2]["shorter"]) > 0.99
    assert predict(run, "--score") == 2
    assert "--score is for events as they come: give --follow too" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--horizon", "3"], "give it by --data"),
        (["--horizon", "3", "--window", "2", "--data", "{}"], "give one of them"),
        (["--samples", "3", "--data", "{}"], "give --horizon or --window too"),
        (["--horizon", "3", "--points", "2", "--data", "{}"], "give --window instead of --horizon"),
        (["--window", "-1", "--data", "{}"], "window"),
    ],
)
def test_options_of_forecasts_that_do_not_fit(
    words: list[str], said: str, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    new = write(tmp_path / "new.csv", 2)
    assert predict(run, *(word.format(new) for word in words)) == 2
    assert said in capsys.readouterr().err


def test_columns_that_are_not_used_are_named(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "wide.csv"
    path.write_text("sequence,time,type,amount,shop\ns,1.6e9,a,3,x\ns,1600000060,b,4,y\n")
    assert predict(run, "--data", str(path)) == 0
    assert "wide.csv: the columns 'amount', 'shop' are not used: they were not used in training" in capsys.readouterr().err


def test_further_columns_from_training_to_streams(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [line.split(",") for line in write(tmp_path / "e.csv").read_text().splitlines()[1:]]
    heads = "sequence,time,type,city,sum,row_id"
    lines = [",".join([*row, ("Rome", "Oslo")[at % 2], f"{at % 31}.5", str(at)]) for at, row in enumerate(rows)]
    (tmp_path / "e.csv").write_text("\n".join([heads, *lines]) + "\n")
    run = tmp_path / "run"
    assert main(["train", "events", "--data", str(tmp_path / "e.csv"), *SMALL, "--out", str(run)]) == 0
    said = capsys.readouterr().out
    assert "city: category (2 values)" in said
    assert "not used: row_id (an identifier" in said
    page = (run / "report.html").read_text()
    assert "What the data hold" in page
    assert "Rise of the negative log-likelihood per event" in page
    check_it_goes_on(run)
    (tmp_path / "new.csv").write_text("\n".join([heads, *lines[:3]]) + "\n")
    assert predict(run, "--data", str(tmp_path / "new.csv")) == 0
    assert predict(run, "--data", str(tmp_path / "new.csv"), "--horizon", "2", "--samples", "4") == 0
    capsys.readouterr()
    for form in ("csv", "npy"):
        vectors = tmp_path / f"v.{form}"
        assert main(["embed", str(run), "--data", str(tmp_path / "new.csv"), "--output", str(vectors)]) == 0
    assert (tmp_path / "v.csv").read_text().splitlines()[0].startswith("sequence,event,v0,")
    assert (tmp_path / "v.names.txt").read_text().splitlines() == ["s0\t1", "s0\t2", "s0\t3"]
    assert "3 vectors of 16 numbers" in capsys.readouterr().out
    record = {"sequence": "s", "time": 1.6e9, "type": "a", "city": "Rome", "sum": 2.5}
    stream = "\n".join([json.dumps(record), "s 1600000060 b city=Oslo sum=3.5", "s 1600000070 a", '{"time": 1'])
    assert following(run, stream, monkeypatch, "--bad-lines", "skip") == 0
    out = capsys.readouterr()
    assert [line.split(",")[:2] for line in out.out.splitlines()[1:]] == [["s", "1"], ["s", "2"], ["s", "3"]]
    assert "it is no JSON object" in out.err
