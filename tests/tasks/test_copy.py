"""The copy task."""

import math
from dataclasses import asdict
from typing import Any, Literal

import pytest
import torch

from subquad import Linear, ModelOptions, SubquadError
from subquad.checking import read_kind
from subquad.tasks import TASKS, Copy
from subquad.tasks.copy import BLANK, FIRST, SEPARATOR, CopyBatch

SMALL = ModelOptions(layers=1, heads=2, head_dim=8)


def drawn(task: Copy, size: int = 64) -> CopyBatch:
    return task.batch(size, torch.Generator().manual_seed(0))


def test_batches_hold_symbols_and_blanks() -> None:
    task = Copy(length=9, symbols=4)
    symbols, real = drawn(task)
    assert symbols[real].min() == FIRST
    assert symbols[real].max() == FIRST + 3
    assert (symbols[~real] == BLANK).all()
    lengths = real.sum(1)
    assert (lengths[:32] == 9).all()
    assert set(lengths[32:].tolist()) == set(range(1, 10))
    assert torch.equal(real, torch.arange(9) < lengths[:, None])


@pytest.mark.parametrize("moving", [False, True])
def test_what_is_spoken_twice(moving: bool) -> None:
    task = Copy(length=4, moving=moving)
    symbols = torch.tensor([[5, 6, 7, 8], [5, 6, BLANK, BLANK]])
    tokens, counts = task._spoken_twice(symbols, symbols != BLANK)
    s, b = SEPARATOR, BLANK
    wanted = [[s, 5, 6, 7, 8, s, 5, 6, 7, 8], [s, 5, 6, s, 5, 6, b, b, b, b] if moving else [s, 5, 6, b, b, s, 5, 6, b, b]]
    assert tokens.tolist() == wanted
    assert tokens[counts].tolist() == [5, 6, 7, 8, 5, 6]


@pytest.mark.parametrize("form", ["decoder", "encoder-decoder"])
@pytest.mark.parametrize("moving", [False, True])
def test_the_loss_is_that_of_the_copied_symbols(form: str, moving: bool) -> None:
    """A model that knows nothing pays ln(vocabulary) for each; parts of a batch add up to the whole."""
    task = Copy(length=6, form=form, moving=moving)  # type: ignore[arg-type]
    model = task.build(Linear(), SMALL)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    batch = drawn(task, 8)
    whole = task.loss(model, batch)
    assert whole.number == int(batch.real.sum())
    assert float(whole.total.detach()) / whole.number == pytest.approx(math.log(12), rel=1e-5)
    halves = [task.loss(model, CopyBatch(*(part[at::2] for part in batch))) for at in (0, 1)]
    assert sum(half.number for half in halves) == whole.number
    assert sum(float(half.total.detach()) for half in halves) == pytest.approx(float(whole.total.detach()), rel=1e-5)


class Oracle(torch.nn.Module):
    """Answers as told."""


def test_accuracies_count_symbols_and_sequences(monkeypatch: pytest.MonkeyPatch) -> None:
    task = Copy(length=5, held_out=10)

    def answer(self: Copy, model: torch.nn.Module, batch: CopyBatch) -> torch.Tensor:
        wrong = batch.symbols.clone()
        wrong[:2, 0] = BLANK  # one symbol in two of ten sequences
        return wrong

    monkeypatch.setattr(Copy, "answer", answer)
    found = task.evaluate(Oracle(), torch.Generator().manual_seed(0))
    assert found["token_accuracy"] == pytest.approx(48 / 50)
    assert found["sequence_accuracy"] == pytest.approx(0.8)
    samples = task.samples(Oracle(), torch.Generator().manual_seed(0), 4)
    assert [sample["answered"] == sample["right"] for sample in samples] == [False, False, True, True]


def test_a_users_sequence_is_read_and_spelt() -> None:
    task = Copy(length=6)
    batch = task.read(["3", "1", "4"])
    assert batch.symbols.tolist() == [[5, 3, 6, BLANK, BLANK, BLANK]]
    assert task.spell(batch.symbols[batch.real]) == "3 1 4"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["3", "x"], "'x' is no symbol: write numbers from 0 to 9"),
        (["3", "10"], "the symbol 10 is outside the vocabulary, which goes from 0 to 9"),
        (["-1"], "the symbol -1 is outside"),
        (["1"] * 7, "the model copies 1 to 6 symbols, but was given 7"),
    ],
)
def test_what_is_no_sequence_is_refused(words: list[str], said: str) -> None:
    with pytest.raises(SubquadError, match=said):
        Copy(length=6).read(words)


def test_a_length_is_a_number_of_symbols() -> None:
    """A decoder reads them twice, an encoder-decoder once on each side."""
    forms: tuple[Literal["decoder", "encoder-decoder"], ...] = ("decoder", "encoder-decoder")
    for form in forms:
        symbols, real = drawn(Copy(length=32, form=form))
        assert symbols.shape[1] == real.sum(1).max() == 32
    assert Copy(length=63).positions == 128  # the paper's
    assert Copy(length=64, form="encoder-decoder").positions == 64


@pytest.mark.parametrize(
    ("kept", "symbols"),
    [
        ({"length": 32, "form": "decoder"}, 15),  # before label smoothing, a decoder's length was its positions
        ({"length": 33}, 15),
        ({}, 15),
        ({"length": 32, "form": "encoder-decoder"}, 32),
        ({"length": 32, "form": "decoder", "label_smoothing": 0.0}, 32),
    ],
)
def test_runs_of_earlier_versions_copy_as_many_symbols_as_they_did(kept: dict[str, Any], symbols: int) -> None:
    assert read_kind(TASKS, {"kind": "copy", **kept}, "run.json").length == symbols


def test_options_are_read_as_they_were_written() -> None:
    task = Copy(length=32, shorter=0.25, label_smoothing=0.1)
    assert read_kind(TASKS, asdict(task), "run.json") == task


@pytest.mark.parametrize(("shorter", "full"), [(0.0, 64), (0.25, 48), (1.0, 0)])
def test_some_sequences_are_shorter(shorter: float, full: int) -> None:
    lengths = drawn(Copy(length=10**5, shorter=shorter)).real.sum(1)
    assert (lengths[:full] == 10**5).all()
    assert (lengths[full:] < 10**5).all()


def test_label_smoothing_is_a_divergence_from_smoothed_labels() -> None:
    """It is 0 for a model that predicts the smoothed labels, and its gradient there is 0, too."""
    task = Copy(length=3, symbols=4, form="encoder-decoder", label_smoothing=0.3)
    batch = drawn(task, 2)
    wanted = 0.7 * torch.nn.functional.one_hot(batch.symbols, 6) + 0.3 / 6

    class Knowing(torch.nn.Module):
        """Predicts the smoothed labels, scaled by a weight that is 1."""

        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(()))

        def forward(self, *tokens: torch.Tensor, source_keep: None) -> torch.Tensor:
            return self.weight * wanted.log()

    model = Knowing()
    total, number = task.loss(model, batch)
    total.backward()
    assert float(total.detach()) / number == pytest.approx(0, abs=1e-6)
    assert float(model.weight.grad or 0) == pytest.approx(0, abs=1e-5)
    with torch.no_grad():
        model.weight.fill_(2.0)
        assert float(task.loss(model, batch).total) / number > 0.05
