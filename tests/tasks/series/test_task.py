"""Series: splits, scales, windows, forecasts beside baselines, labels, and what models answer."""

import json
import math
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import torch

from subquad import Linear, Linformer, ModelOptions, Softmax, SubquadError
from subquad.tasks import TASKS, Series
from subquad.tasks.series import ForecastTask, LabelSeries
from subquad.tasks.series.baselines import Autoregression, drift, filled, last_value, seasonal
from subquad.tasks.series.judging import judge
from subquad.tasks.series.model import LEVELS, MIDDLE, Forecaster, SeriesClassifier, pinball
from subquad.tasks.series.scales import find_season, learn_scales
from subquad.tasks.series.sets import from_arrays
from subquad.tasks.series.simulator import Simulator, best_crps
from subquad.tasks.series.windows import ForecastBatch, Windows, cut_windows, find_windows

SMALL = ModelOptions(layers=1, heads=2, head_dim=8, positions="rotary")


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def waves(path: Path, steps: int = 200, *, missing: int = 0) -> Path:
    """One series with a season of 8 steps, a constant channel and a text."""
    rng = np.random.default_rng(0)
    rows = ["time,load,still,note"]
    for at in range(steps):
        value = 5 + 2 * math.sin(2 * math.pi * at / 8) + 0.1 * rng.normal()
        rows.append(f"{at},{'' if missing and at % missing == 0 else f'{value:.4f}'},7,n{at % 3} is here now")
    path.write_text("\n".join(rows) + "\n")
    return path


def classes(path: Path, count: int = 40) -> Path:
    """Two classes of series of different lengths: fast and slow waves."""
    rng = np.random.default_rng(0)
    rows = ["series,time,x,label"]
    for number in range(count):
        speed = 1.5 if number % 2 else 0.3
        for at in range(10 + number % 7):
            rows.append(f"u{number},{at},{math.sin(speed * at) + 0.1 * rng.normal():.4f},{'fast' if number % 2 else 'slow'}")
    path.write_text("\n".join(rows) + "\n")
    return path


def forecasts(options: Series) -> ForecastTask:
    task = options.prepare()
    assert isinstance(task, ForecastTask)
    return task


def test_options_come_back_from_json() -> None:
    some = Series(data="x", horizon=3, value_columns=("a", "b"), season=7)
    kept = json.loads(json.dumps(asdict(some)))
    assert TASKS[kept.pop("kind")](**kept) == some


def test_scales_come_from_the_training_part_only(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("time,v\n" + "".join(f"{at},{at % 5 if at < 70 else 1000}\n" for at in range(100)))
    source = forecasts(Series(data=str(path))).source
    assert source.scales.means == (2.0,)
    assert source.by_time
    assert len(source.training.times) == 70
    assert source.scaled.values[-1] == pytest.approx((1000 - 2) / math.sqrt(2))  # what came is not cut


def test_what_is_recognised_is_said(tmp_path: Path) -> None:
    task = forecasts(Series(data=str(waves(tmp_path / "a.csv", missing=9))))
    said = "\n".join(task.description)
    assert "1 series of 200 to 200 steps, median 200; each divided by time" in said
    assert "not used: note" in said
    assert "a season of 8 steps" in said
    assert task.complaints == ("the channel 'still' is left out: it has a single value only in the training part",)
    assert task.source.scales.channels == ("load",)


def test_seasons_and_gaps_are_found() -> None:
    waves = [
        np.sin(2 * np.pi * (np.arange(200) / 24 + phase))[:, None] + 0.1 * np.arange(200)[:, None] for phase in (0, 0.3)
    ]
    scales, _ = learn_scales(from_arrays(waves, ["v"]), "here", None)
    assert scales.season == 24
    assert scales.regular
    made = Simulator(5, 200, 0, labelled=False).draw()
    rng = np.random.default_rng(0)
    noise = from_arrays([rng.normal(size=(200, 1))], ["v"])
    assert find_season(noise) == 0
    uneven = made._replace(times=np.cumsum(rng.exponential(2.0, len(made.times))))
    scales, _ = learn_scales(uneven, "here", 0)
    assert not scales.regular
    assert scales.gaps(uneven)[made.offsets[1]] == 0  # the first step of a series has no gap
    assert scales.gaps(uneven).std() > 0.5


def test_windows_never_forecast_another_part() -> None:
    series = from_arrays([np.arange(100.0)[:, None]], ["v"])
    for split, low, high in (("train", 0, 70), ("development", 70, 80), ("test", 80, 100)):
        windows = find_windows(series, context=12, horizon=5, split=split)  # type: ignore[arg-type]
        assert windows.begin.min() == max(low, 12)
        assert windows.begin.max() == high - 5
    batch = cut_windows(series, np.zeros(100), windows.take(np.array([0])), context=12, horizon=5)
    assert batch.values[0, :, 0].tolist() == list(range(68, 80))
    assert batch.future[0, :, 0].tolist() == list(range(80, 85))
    short = find_windows(from_arrays([np.arange(7.0)[:, None]], ["v"]), context=12, horizon=5)
    assert short.begin.tolist() == [2]
    assert not len(find_windows(from_arrays([np.arange(5.0)[:, None]], ["v"]), context=12, horizon=5).begin)


def test_baselines_are_what_they_are_called() -> None:
    context = np.array([[[1.0], [2.0], [4.0], [7.0]]])
    assert last_value(context, 2).ravel().tolist() == [7, 7]
    assert drift(context, 2).ravel().tolist() == [9, 11]
    assert seasonal(context, 5, 3).ravel().tolist() == [2, 4, 7, 2, 4]
    mask = np.array([[[False], [True], [False], [True]]])
    assert filled(context, mask).ravel().tolist() == [2, 2, 2, 7]
    rng = np.random.default_rng(0)
    known = rng.normal(size=(400, 6, 1))
    future = 0.5 * known[:, -1:] - 0.3 * known[:, -2:-1] + np.array([[[1.0]]])
    fitted = Autoregression(known, future, np.ones_like(future, bool))
    np.testing.assert_allclose(fitted(known, 1), future, atol=0.05)


def test_quantiles_are_ordered_and_scored() -> None:
    model = Forecaster(2, 9, 4, Softmax(), SMALL, reach=3, linear=True, generator=seeded())
    values, gaps = torch.randn(3, 9, 2, generator=seeded()), torch.zeros(3, 13)
    quantiles = model(values, torch.ones_like(values, dtype=torch.bool), torch.ones(3, 9, dtype=torch.bool), gaps)
    assert quantiles.shape == (3, 4, 2, len(LEVELS))
    assert (quantiles.diff(dim=-1) > 0).all()
    normal = torch.distributions.Normal(0.0, 1.0).icdf(torch.tensor(LEVELS)).double()
    truth = torch.randn(20_000, generator=seeded()).double()
    score = pinball(normal.expand(len(truth), -1), truth).mean()
    assert float(score) == pytest.approx(1 / math.sqrt(math.pi), rel=0.06)  # the CRPS of a normal distribution
    nothing, known = torch.zeros(20_000, 1, 1), torch.ones(20_000, 1, 1).bool()
    batch = ForecastBatch(nothing, known, known[:, :, 0], nothing[:, :, 0], truth[:, None, None], known)
    judged = judge(normal.expand(len(truth), 1, 1, -1).numpy(), batch, np.arange(20_000))
    assert judged.mean("crps") == pytest.approx(float(score))
    assert judged.mean("coverage_80") == pytest.approx(0.8, abs=0.01)
    assert judged.mean("coverage_90") == pytest.approx(0.9, abs=0.01)


@pytest.mark.parametrize("attention", [Softmax(), Linear()], ids=["softmax", "linear"])
def test_padding_changes_nothing(attention: Softmax | Linear) -> None:
    model = SeriesClassifier(2, 3, attention, SMALL, reach=5, generator=seeded()).eval()
    values, keep = torch.randn(1, 7, 2, generator=seeded()), torch.ones(1, 7, dtype=torch.bool)
    plain = model(values, values > 0, torch.zeros(1, 7), keep=keep)
    values, mask = (torch.nn.functional.pad(part, (0, 0, 0, 4)) for part in (values, values > 0))
    padded = model(values, mask, torch.zeros(1, 11), keep=torch.nn.functional.pad(keep, (0, 4)))
    torch.testing.assert_close(plain, padded, rtol=1e-4, atol=1e-5)


def learn(task: ForecastTask | LabelSeries, steps: int) -> torch.nn.Module:
    model = task.build(Softmax(), SMALL, seeded())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for step in range(steps):
        losses = task.loss(model, task.batch(16, seeded(step)))  # type: ignore[arg-type]
        optimizer.zero_grad()
        (losses.total / losses.number).backward()
        optimizer.step()
    return model


def test_a_forecast_can_be_learned_and_told(tmp_path: Path) -> None:
    path = waves(tmp_path / "a.csv", 400, missing=11)
    task = forecasts(Series(data=str(path), horizon=4))
    model = learn(task, 60)
    rows = task.final(model)
    tested = {row["metric"]: row for row in rows if row.get("split") == "test"}
    assert tested["crps"]["low"] <= tested["crps"]["value"] <= tested["crps"]["high"]
    gains = {row["baseline"]: row["value"] for row in rows if row["metric"] == "crps_gained"}
    assert gains.keys() == {"last value", "drift", "seasonal naive", "linear autoregression"}
    assert gains["last value"] > 0
    trivial = {row["metric"]: row["value"] for row in rows if row.get("split") == "trivial"}
    assert tested["crps"]["value"] < trivial["crps"]
    assert {row["kind"] for row in rows if row["metric"] == "forecast_example"} == {"before", "came", "forecast"}
    again = Series(data="not there any more", horizon=4).prepare(json.loads(json.dumps(task.learned)))
    answers = again.predict(model, path)
    assert answers.columns == ["series", "channel", "step", "time", "low_10", "median", "high_90"]
    assert [line[:4] for line in answers.lines] == [["series", "load", str(at), str(399 + at)] for at in (1, 2, 3, 4)]
    truth = [5 + 2 * math.sin(2 * math.pi * (399 + at) / 8) for at in (1, 2, 3, 4)]
    assert [float(line[5]) for line in answers.lines] == pytest.approx(truth, abs=1.0)
    assert all(float(low) < float(middle) < float(high) for *_, low, middle, high in answers.lines)
    (tmp_path / "other.csv").write_text("time,value\n1,2\n")
    with pytest.raises(SubquadError, match="has no column 'load'"):
        again.predict(model, tmp_path / "other.csv")
    (tmp_path / "one.csv").write_text("time,load,still\n1,2,\n")
    assert len(again.predict(model, tmp_path / "one.csv").lines) == 4


def test_labels_can_be_learned_and_told(tmp_path: Path) -> None:
    path = classes(tmp_path / "a.csv")
    task = Series(data=str(path)).prepare()
    assert isinstance(task, LabelSeries)
    model = learn(task, 25)
    rows = task.final(model)
    tested = {row["metric"]: row for row in rows if row.get("split") == "test"}
    assert tested["auroc"]["value"] > 0.8
    assert "linear model of summary statistics" in {row.get("baseline") for row in rows}
    again = Series(data="not there any more").prepare(json.loads(json.dumps(task.learned)))
    answers = again.predict(model, path)
    assert answers.columns == ["series", "class", "P(fast)", "P(slow)"]
    assert len(answers.lines) == 40
    assert sum(line[1] == ("fast" if at % 2 else "slow") for at, line in enumerate(answers.lines)) > 30


def test_numbers_are_predicted_of_series(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    level = rng.normal(size=60)
    np.savez(tmp_path / "a.npz", X=level[:, None] + 0.1 * rng.normal(size=(60, 12)), y=level)
    task = Series(data=str(tmp_path / "a.npz")).prepare()
    assert isinstance(task, LabelSeries)
    metrics = {row["metric"] for row in task.final(learn(task, 5)) if row.get("split") == "test"}
    assert metrics == {"r2", "mean_absolute_error"}


def test_made_up_series_have_a_known_best() -> None:
    task = forecasts(Series(series=20, mean_length=80))
    assert not task.source.by_time
    assert len(task.source.scales.channels) == 2
    assert best_crps(1) == pytest.approx(0.3 / math.sqrt(math.pi))
    labelled = Series(series=20, goal="label").prepare()
    assert isinstance(labelled, LabelSeries)
    assert LEVELS.index(0.5) == MIDDLE


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    path = waves(tmp_path / "a.csv", 60)
    with pytest.raises(SubquadError, match="is long enough for a forecast of 50 steps"):
        _ = forecasts(Series(data=str(path), horizon=50)).train
    with pytest.raises(SubquadError, match=r"too many for linformer.*--context or --horizon"):
        forecasts(Series(data=str(path), horizon=2)).build(Linformer(k=2, max_length=4), SMALL)
    with pytest.raises(SubquadError, match="reach must be an odd number"):
        Series(reach=4)
    with pytest.raises(SubquadError, match="has no labels: name their column by --label-column"):
        Series(data=str(path), goal="label").prepare()
    with pytest.raises(SubquadError, match="has 4 sequences to learn from: give at least 10"):
        _ = Series(data=str(classes(tmp_path / "b.csv", 4))).prepare().data_size
    (tmp_path / "c.csv").write_text("time,v\n" + "".join(f"{at},3\n" for at in range(40)))
    with pytest.raises(SubquadError, match="there is nothing to learn"):
        _ = forecasts(Series(data=str(tmp_path / "c.csv"))).source.scales
    task = forecasts(Series(data=str(path)))
    with pytest.raises(SubquadError, match="are not those that the run was made with: it had 1 with 3 steps"):
        _ = Series(data=str(path)).prepare({**task.learned, "steps": 3}).source.raw


def test_gaps_of_the_steps_to_forecast_are_not_told() -> None:
    series = from_arrays([np.arange(20.0)[:, None]], ["v"])
    at = Windows(np.array([0]), np.array([12]))
    batch = cut_windows(series, np.arange(1.0, 21.0), at, context=5, horizon=4)
    assert batch.gaps[0].tolist() == [8, 9, 10, 11, 12, 0, 0, 0, 0]


def test_named_steps_are_read_again(tmp_path: Path) -> None:
    months = ("jan", "feb", "mar", "apr", "may", "jun")
    rows = [f"s{at},{20 + at % 9},{at},1,2,{at % 5},4,5.5,{'xy'[at % 2]}" for at in range(40)]
    path = tmp_path / "a.csv"
    path.write_text("\n".join([f"id,age,{','.join(months)},label", *rows, ""]))
    options = Series(data=str(path), layout="wide", value_columns=months)
    again = options.prepare(json.loads(json.dumps(options.prepare().learned)))
    assert set(again.source.load(path).lengths.tolist()) == {6}
