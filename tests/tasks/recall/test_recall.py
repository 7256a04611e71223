"""Tasks that ask for what was seen: answers that a dictionary finds too, states, and a user's sequences."""

import math
from collections.abc import Sequence
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from subquad import Linear, ModelOptions, Softmax, SubquadError
from subquad.attention import MECHANISMS
from subquad.checking import read_kind
from subquad.cli import main
from subquad.results import Run
from subquad.tasks import TASKS, Induction, Recall
from subquad.tasks.comparing import TEST_SEED
from subquad.tasks.recall.answering import UNASKED, AnswerBatch
from subquad.types import AttentionOptions

SMALL = ModelOptions(layers=2, heads=2, head_dim=4)
Task = Recall | Induction
TASKS_HERE: tuple[Task, ...] = (Recall(length=20, pairs=4, keys=6, values=5), Induction(length=12, symbols=5))


def drawn(task: Task, size: int = 64, seed: int = 0) -> AnswerBatch:
    return task.batch(size, torch.Generator().manual_seed(seed))


def looked_up(task: Task, tokens: Sequence[int]) -> list[int]:
    """The answer at each position, by a dictionary of what followed each token: the last time, or in a pair."""
    answers: list[int] = []
    followers: dict[int, int] = {}
    for at, token in enumerate(tokens):
        is_asked = (
            at >= 2 * task.pairs and token != 0
            if isinstance(task, Recall)
            else token == task.symbols and at + 1 == len(tokens)
        )
        answers.append(followers[token] if is_asked else UNASKED)
        if at:
            followers.setdefault(tokens[at - 1], token)
    return answers


@pytest.mark.parametrize("task", TASKS_HERE, ids=lambda task: task.kind)
def test_answers_are_what_followed_before(task: Task) -> None:
    batch = drawn(task, 200)
    for tokens, answers in zip(batch.tokens.tolist(), batch.answers.tolist(), strict=True):
        assert answers == looked_up(task, tokens)
    assert batch.tokens.shape == (200, task.length)
    assert batch.tokens.max() < task.vocabulary
    assert task.count(batch) == 200 * (task.pairs if isinstance(task, Recall) else 1)


def test_every_pair_has_another_key_and_is_asked_once() -> None:
    task = Recall(length=24, pairs=5, keys=5, values=3)
    tokens = drawn(task, 50).tokens
    pairs, questions = tokens[:, 0:10:2].sort(1).values, tokens[:, 10:]
    assert torch.equal(pairs, torch.arange(1, 6).expand(50, 5))
    assert torch.equal(questions.sort(1, descending=True).values[:, :5].flip(1), pairs)
    assert len({tuple(row) for row in (questions != 0).tolist()}) > 20


def test_questions_come_near_as_told() -> None:
    """Positions have probabilities in proportion to i^(near - 1): with one question they can be counted."""
    for near in (1.0, 0.01):
        task = Recall(length=2 + 8, pairs=1, keys=2, values=2, near=near)
        places = drawn(task, 20_000).answers[:, 2:].argmax(1)
        wanted = torch.arange(1, 9, dtype=torch.float64) ** (near - 1)
        shares = torch.bincount(places, minlength=8) / 20_000
        assert shares.tolist() == pytest.approx((wanted / wanted.sum()).tolist(), abs=0.015)


@pytest.mark.parametrize(("pairs", "values"), [(1, 3), (2, 2), (3, 4), (4, 3)])
def test_naming_the_most_frequent_value_is_right_as_often_as_by_counting(pairs: int, values: int) -> None:
    every = list(product(range(values), repeat=pairs))
    counted = sum(max(map(drawn_values.count, drawn_values)) for drawn_values in every) / len(every) / pairs
    task = Recall(length=3 * pairs, pairs=pairs, keys=pairs + 1, values=values)
    assert task.share_of_frequent == pytest.approx(counted, abs=1e-12)


class Knowing(nn.Module):
    """Answers by looking up what followed, and wrongly in the first of every four sequences."""

    def __init__(self, task: Task) -> None:
        super().__init__()
        self.task, self.weight = task, nn.Parameter(torch.ones(()))

    def forward(self, tokens: Tensor) -> Tensor:
        answers = torch.tensor([looked_up(self.task, row) for row in tokens.tolist()])
        answers[::4][answers[::4] != UNASKED] = 0
        return self.weight * nn.functional.one_hot(answers.clamp(min=0), self.task.vocabulary).float()


@pytest.mark.parametrize("task", TASKS_HERE, ids=lambda task: task.kind)
def test_accuracies_count_answers_and_sequences(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = task.evaluate(Knowing(task), torch.Generator().manual_seed(0))
    wrong = 0.25 if isinstance(task, Recall) else pytest.approx(0.25 * 0.8, abs=0.06)  # symbol 0 is right by chance
    assert 1 - measured["sequence_accuracy"] == wrong
    assert 1 - measured["accuracy"] == wrong
    monkeypatch.setattr(type(task), "state_bytes", lambda self, model: 7)
    accuracy, guessing, state = task.final(Knowing(task))
    assert accuracy["low"] <= accuracy["value"] <= accuracy["high"]
    assert guessing["value"] == pytest.approx(1 / 5)
    assert (state["value"], state["unit"]) == (7, "B")
    samples = task.samples(Knowing(task), torch.Generator().manual_seed(0), 4)
    assert [sample["answered"] == sample["right"] for sample in samples][1:] == [True] * 3


@pytest.mark.parametrize("task", TASKS_HERE, ids=lambda task: task.kind)
def test_the_most_frequent_answer_is_a_rival(task: Task) -> None:
    batch = task.batch(task.evaluation_batch, torch.Generator().manual_seed(TEST_SEED))
    right = []
    for tokens, answers in zip(batch.tokens.tolist(), batch.answers.tolist(), strict=True):
        values = tokens[1 : 2 * task.pairs : 2] if isinstance(task, Recall) else [each for each in tokens if each < 5]
        most = max(sorted(set(values)), key=values.count)
        right.append(answers.count(most))
    judged = task.rivals()["most frequent answer"].judged
    assert judged.parts[: len(right), 0].tolist() == right
    asked = task.pairs if isinstance(task, Recall) else 1
    assert judged.parts[:, 1].tolist() == [asked] * task.tested
    assert judged.parts[:, 0].mean() / asked > 1.2 * task.chance


@pytest.mark.parametrize("task", TASKS_HERE, ids=lambda task: task.kind)
def test_a_model_that_knows_nothing_pays_for_the_vocabulary(task: Task) -> None:
    model = task.build(Linear(), SMALL)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    batch = drawn(task, 8)
    whole = task.loss(model, batch)
    assert float(whole.total.detach()) / whole.number == pytest.approx(math.log(task.vocabulary), rel=1e-5)
    halves = [task.loss(model, AnswerBatch(*(part[at::2] for part in batch))) for at in (0, 1)]
    assert sum(half.number for half in halves) == whole.number


@pytest.mark.parametrize(
    ("attention", "numbers"),
    [
        (Softmax(), lambda n: 4 * 2 * n * 8 + n),  # keys and values of 2 heads of 4, and a mask in bytes
        (Linear(), lambda n: 4 * 2 * (4 * 4 + 4 + 1)),  # sums, norms and an exponent of each head
    ],
)
def test_the_state_is_measured(attention: AttentionOptions, numbers: Any) -> None:
    for length in (12, 30):
        task = Induction(length=length, symbols=5)
        assert task.state_bytes(task.build(attention, SMALL)) == SMALL.layers * numbers(length)


@pytest.mark.parametrize("name", [name for name, options in MECHANISMS.items() if options().traits.causal])
def test_every_causal_mechanism_has_a_state_and_defaults(name: str) -> None:
    for task in TASKS_HERE:
        attention: Any = MECHANISMS[name](**task.defaults(name).attention)
        model = task.build(attention, SMALL)
        assert task.state_bytes(model) > 0
        assert torch.isfinite(task.loss(model, drawn(task, 2)).total)


@pytest.mark.parametrize(
    ("task", "words", "said"),
    [
        (TASKS_HERE[0], "1:2 3", "the key 3 is asked but is in no pair"),
        (TASKS_HERE[0], "1:2 x", "'x' is no key: write numbers from 0 to 5"),
        (TASKS_HERE[0], "6:2 6", "'6' is no key: write numbers from 0 to 5"),
        (TASKS_HERE[0], "1:5 1", "'5' is no value: write numbers from 0 to 4"),
        (TASKS_HERE[0], f"1:{'0' * 30}4 1", "is no value: write numbers from 0 to 4"),
        (TASKS_HERE[0], "1:2", "recall takes pairs, then the keys whose values are asked"),
        (TASKS_HERE[0], "1 1:2", "give both, pairs first"),
        (TASKS_HERE[0], "1:2 1:3 1 " * 9, "give both, pairs first"),
        (TASKS_HERE[0], "1:2 " + "1 " * 19, "the model reads 20 positions, but 1 pairs and 19 questions take 21"),
        (TASKS_HERE[1], "1 2 3", "induction takes symbols with one * before another symbol"),
        (TASKS_HERE[1], "1 * *", "induction takes symbols"),
        (TASKS_HERE[1], "* 1 * 2 *", "induction takes symbols"),
        (TASKS_HERE[1], "* 5 *", "'5' is no symbol: write numbers from 0 to 4"),
        (TASKS_HERE[1], "* 1" + " 1" * 20 + " *", "the model reads 12 positions, but was given 23"),
    ],
)
def test_what_cannot_be_asked_is_refused(task: Task, words: str, said: str) -> None:
    with pytest.raises(SubquadError) as refused:
        task.read(task.words(words))
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("task", "words"), [(Recall(pairs=2), "3:7 1:2 3 1 3"), (Recall(pairs=2), "3:7 1:2 _ 3"), (TASKS_HERE[1], "* 3 1 *")]
)
def test_a_users_sequence_is_read_and_spelt(task: Task, words: str) -> None:
    read = task.read(words.replace("_ ", "").split())
    assert task.spell(read.tokens[0].tolist()) == words.replace("_ ", "")
    wanted = looked_up(task, read.tokens[0].tolist())
    assert task.spell_answers([answer for answer in wanted if answer != UNASKED]) in ("7 2 7", "7", "3")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"pairs": 9, "keys": 8}, "each pair has another key: --keys must be at least 9, but is 8"),
        ({"pairs": 9, "length": 26}, "9 pairs and as many questions take 27 positions, but --length is 26"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(options: dict[str, int], said: str) -> None:
    with pytest.raises(SubquadError, match=said):
        Recall(**options)


@pytest.mark.parametrize("task", TASKS_HERE, ids=lambda task: task.kind)
def test_options_are_read_as_they_were_written(task: Task) -> None:
    assert read_kind(TASKS, asdict(task), "run.json") == task


def test_from_training_to_an_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two pairs can be recalled after a few seconds, and a run that stopped goes on."""
    run = str(tmp_path / "run")
    size = ["--length", "6", "--pairs", "1", "--keys", "4", "--values", "4", "--head-dim", "8", "--tested", "64"]
    training = ["--steps", "150", "--learning-rate", "1e-2", "--held-out", "64", "--warm-up", "10", "--batch", "32"]
    assert main(["train", "recall", "--attention", "softmax", *size, *training, "--out", run]) == 0
    rows = Run.open(Path(run)).rows()
    assert [row["value"] for row in rows if row["metric"] == "accuracy"][-1] > 0.9
    assert (tmp_path / "run" / "report.html").exists()
    capsys.readouterr()
    assert main(["predict", run, "3:2", "3"]) == 0
    assert capsys.readouterr().out == "2\n"
    assert main(["predict", run, "3:2", "1"]) == 2
    assert "the key 1 is asked but is in no pair: ask for one that is" in capsys.readouterr().err
    assert main(["train", "--resume", run]) == 0
