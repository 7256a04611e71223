"""The copy task."""

import math

import pytest
import torch

from subquad import Linear, ModelOptions, SubquadError
from subquad.tasks import Copy
from subquad.tasks.copy import BLANK, FIRST, SEPARATOR, CopyBatch

SMALL = ModelOptions(layers=1, heads=2, head_dim=8)


def drawn(task: Copy, size: int = 64) -> CopyBatch:
    return task.batch(size, torch.Generator().manual_seed(0))


def test_batches_hold_symbols_and_blanks() -> None:
    task = Copy(length=20, symbols=4)
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
    task = Copy(length=10, moving=moving)
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
    task = Copy(length=14, form=form, moving=moving)  # type: ignore[arg-type]
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
    task = Copy(length=12, held_out=10)

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
    task = Copy(length=14)
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
        Copy(length=14).read(words)


def test_a_decoder_holds_everything_twice() -> None:
    assert Copy(length=128).capacity == 63  # the paper's
    assert Copy(length=64, form="encoder-decoder").capacity == 64
    with pytest.raises(SubquadError, match="length must be at least 4, for a symbol, its copy and a separator, but is 3"):
        Copy(length=3)
