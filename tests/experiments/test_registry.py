"""The contract of experiments: one from outside, and what their trainings are started with."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from subquad.attention import MECHANISMS, Linear, Softmax
from subquad.cli import convert, main, trainings
from subquad.cli.options import joined, registry
from subquad.cli.parsing import parse
from subquad.cli.reproduce import page_of
from subquad.cli.training_options import CommandLine
from subquad.conversion import ConversionOptions
from subquad.experiments.base import Conversion, Experiment, Instruments, Scale, Training, Trial, finished_rows, last_value
from subquad.experiments.registry import EXPERIMENTS
from subquad.models import ModelOptions
from subquad.report.curves import curves
from subquad.report.page import Page, Picture
from subquad.report.training import Trained, points
from subquad.report.verdicts import verdict_answer, verdict_fold
from subquad.results import Run
from subquad.statistics import Verdict
from subquad.tasks import Copy
from subquad.training import TrainOptions
from tests.experiments.test_linformer import Done


class Pair(Scale):
    """Softmax and linear attention, once each."""

    def trials(self) -> Iterator[Trial]:
        for name, attention in (("softmax", Softmax()), ("linear", Linear())):
            model = ModelOptions(layers=1, heads=1, head_dim=4)
            work = Training(Copy(length=2, held_out=2), attention, model, TrainOptions(steps=2, batch=2))
            yield Trial(f"pair-{name}", name, 6, 0, work)


class PairExperiment(Experiment):
    """An experiment as small as can be."""

    claim = "both attentions can be trained at all"
    scales = {"quick": Pair(minutes="a second")}  # noqa: RUF012

    def judge(self, folder: Path, scale: str) -> list[Verdict]:
        rows = finished_rows(folder, list(self.scales[scale].trials()))
        return [Verdict(f"{name} has a loss", True, f"{last_value(own, 'loss'):.1f} nats") for name, own in rows.items()]

    def page(self, folder: Path, scale: str) -> Page:
        runs = [Run.open(folder / trial.name, "train") for trial in self.scales[scale].trials()]
        trained = [Trained(run, run.rows(), run.about["options"]["mechanism"]["kind"]) for run in runs]
        verdicts = self.judge(folder, scale)
        return Page(
            "Two attentions",
            verdict_answer(verdicts),
            picture=Picture("loss", "Loss by step", curves(points(trained, "loss"), "loss")),
            folds=[verdict_fold(verdicts)],
        )


def test_an_experiment_is_one_package_and_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(EXPERIMENTS, "pair", PairExperiment())
    monkeypatch.setattr(trainings, "start_process", Done)
    monkeypatch.chdir(tmp_path)
    assert main(["reproduce"]) == 0
    assert "pair: both attentions can be trained at all" in capsys.readouterr().out
    assert main(["reproduce", "pair"]) == 0
    assert "pair-linear has a loss" in " ".join(capsys.readouterr().out.split())
    run = Run.open(Path("runs/reproduce-pair-quick"), "reproduce")
    assert [row["value"] for row in run.rows()] == [1, 1]
    page = (run.folder / "report.html").read_text()
    assert "2 of 2 claims held; the first (pair-softmax has a loss) held." in page
    assert "subquad reproduce pair" in page
    (run.folder / "report.html").unlink()
    assert main(["report", str(run.folder)]) == 0
    assert (run.folder / "report.html").exists()
    assert main(["reproduce", "pair", "--data", "."]) == 2


def test_what_an_experiment_measures_is_nothing_by_default(tmp_path: Path) -> None:
    def refuse(*arguments: object) -> None:
        pytest.fail("nothing is to be measured")

    PairExperiment().measure(tmp_path, "quick", Instruments(time=refuse, look=refuse))


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_commands_of_trainings_say_their_options(name: str) -> None:
    """The words that a process is started with are parsed back into the same options."""
    trials = {_without_seed(trial): trial for trial in EXPERIMENTS[name].scales["quick"].trials()}
    for trial in list(trials.values())[:12]:
        command, *words = trainings.new_command(trial, Path("folder"))
        if isinstance(trial.work, Training):
            if trial.start:  # a run that does not exist here, and that the options are otherwise taken from
                at = words.index("--start")
                assert words[at + 1] == f"folder/{trial.start}"
                del words[at : at + 2]
            parsed = parse_training(words)
            work = trial.work
            assert tuple(parsed.options) == (work.task, work.attention, work.model, work.options)
        else:
            parsed = parse_conversion(words)
            assert (parsed.mechanism, parsed.conversion) == (trial.work.attention, trial.work.options)
            assert parsed.shared.model == f"folder/{trial.start}"
        assert command == ("convert" if isinstance(trial.work, Conversion) else "train")
        assert parsed.shared.seed == trial.seed


def _without_seed(trial: Trial) -> tuple[object, ...]:
    return trial.variant, trial.length, type(trial.work), trial.start.rpartition("-")[0], trial.name.rpartition("-")[0]


def parse_training(words: list[str]) -> Any:
    return CommandLine(words).parse()


def parse_conversion(words: list[str]) -> Any:
    mechanism = MECHANISMS[words[words.index("--attention") + 1]]
    options = joined("Convert", {"shared": convert.Shared, "mechanism": mechanism(), "conversion": ConversionOptions()})
    return parse(options, words, prog="subquad convert", registry=registry([mechanism, ConversionOptions]))


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_a_page_names_the_data_in_its_command(name: str, tmp_path: Path) -> None:
    options = {"experiment": name, "scale": "quick", "data": "some where", "original": None}
    run = Run.create(tmp_path / "run", "reproduce", {"options": options})
    (command,) = page_of(run).commands
    assert command.line == f"subquad reproduce {name} --scale quick --data 'some where'"
