"""What the tasks of the Long Range Arena share: padding, learning, answers, and the command line."""

import json
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from subquad import Linear, Linformer, ModelOptions, SubquadError
from subquad.attention import MECHANISMS
from subquad.checking import read_kind
from subquad.cli import main
from subquad.results import Run
from subquad.tasks import TASKS, Image, ListOps, Pathfinder, Retrieval, Text
from subquad.tasks.lra import ArenaOptions, SequenceBatch
from subquad.tasks.lra.sources import CLASS, PAD, Example, collate, stored
from tests.tasks.lra.test_image import archive
from tests.tasks.lra.test_texts import write_reviews

SMALL = ModelOptions(layers=1, heads=2, head_dim=8)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.fixture
def tasks(tmp_path: Path) -> dict[str, ArenaOptions]:
    """Every task on something tiny."""
    few: dict[str, Any] = {"held_out": 8, "tested": 12}
    pairs = ["sentence1\tsentence2\tlabel", *(f"{'ab'[at % 2]} {at}\t{at}\t{at % 2}" for at in range(40))]
    (tmp_path / "pairs.tsv").write_text("\n".join(pairs) + "\n")
    return {
        "lra-listops": ListOps(shortest=3, largest=20, **few),
        "lra-text": Text(data=str(write_reviews(tmp_path / "a.jsonl")), length=12, **few),
        "lra-retrieval": Retrieval(data=str(tmp_path / "pairs.tsv"), length=12, **few),
        "lra-image": Image(data=str(archive(tmp_path / "a.npz")), **few),
        "lra-pathfinder": Pathfinder(difficulty="easy", **few),
    }


ALL = ("lra-listops", "lra-text", "lra-retrieval", "lra-image", "lra-pathfinder")


def test_padding_and_the_class_token() -> None:
    examples = [Example(np.array([3, 4]), 1), Example(np.array([5]), 0)]
    batch = collate(examples, class_token=False)
    assert batch.tokens.tolist() == [[5, 6], [7, PAD]]
    assert batch.keep.tolist() == [[True, True], [True, False]]
    assert batch.second.shape == (2, 0)
    assert batch.label.tolist() == [1, 0]
    assert collate(examples, class_token=True).tokens.tolist() == [[CLASS, 5, 6], [CLASS, 7, PAD]]
    paired = collate([Example(np.array([3]), 1, np.array([4, 5, 6]))], class_token=True)
    assert (paired.tokens.tolist(), paired.second.tolist()) == ([[CLASS, 5]], [[CLASS, 6, 7, 8]])


def test_batches_have_similar_lengths_where_these_are_known() -> None:
    source = stored([np.zeros(length, np.int64) for length in (5, 5, 5, 50, 50, 50)], [0] * 6)
    for seed in range(10):
        assert len({len(example.tokens) for example in source.draw(3, seeded(seed))}) == 1


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("pooling", ["mean", "first"])
def test_a_sequence_is_the_same_whatever_stands_beside_it(name: str, pooling: str, tasks: dict[str, ArenaOptions]) -> None:
    task = replace(tasks[name], pooling=pooling).prepare()  # type: ignore[arg-type]
    model = task.build(Linear(), SMALL, seeded())
    batch = task.batch(6, seeded())
    whole = task.loss(model, batch)
    parts = [task.loss(model, SequenceBatch(*(part[at : at + 1] for part in batch))) for at in range(6)]
    assert sum(float(part.total.detach()) for part in parts) == pytest.approx(float(whole.total.detach()), rel=1e-4)
    assert whole.number == task.count(batch) == 6
    narrow = replace(task.options, evaluation_tokens=1).prepare()
    assert narrow.scores(model, task.test) == pytest.approx(task.scores(model, task.test), abs=1e-5)


@pytest.mark.parametrize("name", ALL)
def test_a_task_answers_as_all_do(name: str, tasks: dict[str, ArenaOptions]) -> None:
    task = tasks[name].prepare()
    model = task.build(Linear(), SMALL, seeded())
    accuracy, guessing = task.final(model)
    assert accuracy["low"] < accuracy["high"]  # of a few sequences, even if none or all are right
    assert accuracy["low"] <= accuracy["value"] <= accuracy["high"]
    assert 0 <= guessing["value"] <= 1
    assert task.evaluate(model, seeded()).keys() == {"accuracy"}
    (sample,) = task.samples(model, seeded(), 1)
    assert sample["answered"] in task.labels
    assert sample["right"] in task.labels
    learned = json.loads(json.dumps(task.learned))
    later = tasks[name].prepare(learned)
    assert later.labels == task.labels
    assert later.longest == task.longest
    assert read_kind(TASKS, asdict(tasks[name]), "run.json") == tasks[name]
    with pytest.raises(SubquadError, match="are not those that the run was made with"):
        _ = tasks[name].prepare({**learned, "sequences": 1}).train


@pytest.mark.parametrize(("name", "attention"), list(product(ALL, MECHANISMS)))
def test_every_mechanism_takes_every_task(name: str, attention: str, tasks: dict[str, ArenaOptions]) -> None:
    if name == "lra-pathfinder" and attention != "softmax":
        pytest.skip("its pictures are as long as those of lra-image are in general, and slower to draw")
    options = tasks[name]
    mechanism: Any = MECHANISMS[attention]
    task = options.prepare()
    model = task.build(mechanism(**options.defaults(attention).attention), SMALL, seeded())
    losses = task.loss(model, task.batch(2, seeded()))
    losses.total.backward()
    assert torch.isfinite(losses.total.detach())


def test_lists_can_be_learned() -> None:
    """Single operators of two digits are learned in seconds, from the mean and from the class token."""
    options = ListOps(shortest=3, largest=5, depth=2, arguments=2, held_out=100, tested=100)
    task = options.prepare()
    model = task.build(Linear(), replace(SMALL, layers=2), seeded())
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for step in range(150):
        losses = task.loss(model, task.batch(64, seeded(step)))
        optimizer.zero_grad()
        (losses.total / losses.number).backward()
        optimizer.step()
    accuracy, guessing = (row["value"] for row in task.final(model))
    assert accuracy > 2 * guessing
    assert task.reply(model, ["[MAX", "9", "9", "]"]).startswith("9  (9 ")


def test_from_training_to_an_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Trained, resumed, asked for a sequence and for a file, each as it is typed."""
    run = str(tmp_path / "run")
    size = ["--layers", "1", "--heads", "2", "--head-dim", "4", "--batch", "4", "--held-out", "8", "--tested", "8"]
    words = ["train", "lra-listops", "--attention", "favor", "--features", "4", "--shortest", "3", "--largest", "20"]
    assert main([*words, *size, "--steps", "3", "--out", run]) == 0
    assert (tmp_path / "run" / "report.html").exists()
    assert main(["train", "--resume", run]) == 0
    assert {row["metric"] for row in Run.open(Path(run)).rows()} >= {"loss", "accuracy", "accuracy_of_most_frequent"}
    capsys.readouterr()
    assert main(["predict", run, "[MAX", "1", "[MIN", "2", "3", "]", "]"]) == 0
    answer = capsys.readouterr().out
    assert answer.count("%") == 10
    assert main(["predict", run, "[MAX 1 2 ]"]) == 0
    (tmp_path / "new.tsv").write_text("Source\n[MAX 1 2 ]\n[MIN 3 4 ]\n")
    capsys.readouterr()
    assert main(["predict", run, "--data", str(tmp_path / "new.tsv")]) == 0
    assert capsys.readouterr().out.splitlines()[1].startswith("new.tsv:2,")
    assert main(["predict", run, "[MAX", "1"]) == 2
    assert "the expression lacks 1 of its ]" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["lra-image", "--data", "nowhere"], "there is no file or folder nowhere"),
        (["lra-text", "--data", "nowhere"], "there is no file or folder nowhere"),
        (["lra-listops", "--data", "nowhere"], "there is no file or folder nowhere"),
        (["lra-pathfinder", "--data", "nowhere"], "there is no folder nowhere"),
        (["lra-pathfinder", "--side", "33"], "--side must be 32, 64 or 128, but is 33"),
        (["lra-listops", "--attention", "linformer", "--max-length", "50"], "sequences have up to 256 positions"),
        (["lra-text", "--positions", "learned", "--longest", "9"], "but the model learns 9: give a larger --longest"),
    ],
)
def test_mistakes_get_one_sentence(
    words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["train", *words]) == 2
    refused = capsys.readouterr().err
    assert said in refused
    assert refused.count("\n") == 1
    assert not (tmp_path / "runs").exists()


def test_one_class_is_nothing_to_learn(tmp_path: Path) -> None:
    lines = [json.dumps({"text": f"text {at}", "label": 1}) for at in range(20)]
    (tmp_path / "a.jsonl").write_text("\n".join(lines) + "\n")
    with pytest.raises(SubquadError, match="all sequences have the label '1': there is nothing to learn"):
        Text(data=str(tmp_path / "a.jsonl")).prepare().build(Linear(), SMALL)


def test_pictures_longer_than_the_attention_takes_are_refused(tmp_path: Path) -> None:
    big = np.zeros((30, 40, 40), np.uint8)
    options = Image(data=str(archive(tmp_path / "a.npz", train_images=big, test_images=big[:6])))
    with pytest.raises(SubquadError, match="sequences have up to 1600 positions: k has 1600 positions, but linformer"):
        options.prepare().build(Linformer(k=4, max_length=1025), SMALL)
