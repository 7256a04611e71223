"""The model of the events: it looks back only, in one go or in parts."""

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from subquad import MECHANISMS, Linformer, ModelOptions, SubquadError
from subquad.tasks.events import EventSequences
from subquad.tasks.events.batches import EventBatch, count_pieces, pieces
from subquad.tasks.events.model import EventModel, HeadOptions
from subquad.tasks.events.scales import learn
from subquad.tasks.events.scoring import encode
from tests.tasks.events.sequences import random_sequences

CAUSAL = [name for name, options in MECHANISMS.items() if options().traits.causal]
SMALL = ModelOptions(layers=2, heads=2, head_dim=8)
GIVEN = random_sequences([9, 14, 2, 30])
SCALES = learn(GIVEN)


def model(name: str = "linear", size: ModelOptions = SMALL, **heads: object) -> EventModel:
    options = HeadOptions(**({"head": "hawkes", "inner": 8} | heads))  # type: ignore[arg-type]
    return EventModel(SCALES, MECHANISMS[name](), size, options, torch.Generator().manual_seed(0)).eval()


def batch(given: EventSequences = GIVEN, which: list[int] | None = None) -> EventBatch:
    return encode(SCALES, given).pad(np.array(which if which is not None else range(len(given.names))))


def terms(made: EventModel, given: EventBatch, chunk: int = 0) -> Tensor:
    """The log-likelihood of every event but the first, b n; 0 for padding."""
    found, state = [], None
    with torch.no_grad():
        for piece in pieces(given, chunk):
            outcome = made(piece, state)
            state = outcome.state
            each = torch.zeros(piece.counted.shape)
            each[piece.counted] = outcome.terms.time + outcome.terms.type
            found.append(each)
    return torch.cat(found, 1)


@pytest.mark.parametrize("positions", ["sinusoidal", "rotary"])
@pytest.mark.parametrize("head", ["hawkes", "mixture"])
@pytest.mark.parametrize("name", CAUSAL)
def test_the_future_changes_nothing(name: str, head: str, positions: str) -> None:
    """Exactly: what is changed is event j, and everything after it; no term of an event before j moves by a bit."""
    made = model(name, ModelOptions(layers=2, heads=2, head_dim=8, positions=positions), head=head)  # type: ignore[arg-type]
    one = batch(which=[3])
    for j in (1, 7, 20):
        other = one._replace(
            times=torch.cat([one.times[:, :j], one.times[:, j:] + 50.0], 1),
            gaps=torch.cat([one.gaps[:, :j], 3.0 * one.gaps[:, j:] + 1.0], 1),
            types=torch.cat([one.types[:, :j], (one.types[:, j:] + 1) % 3], 1),
        )
        before, after = terms(made, one), terms(made, other)
        assert torch.equal(before[:, : j - 1], after[:, : j - 1])
        assert (before[:, j - 1 :] != after[:, j - 1 :]).all()


@pytest.mark.parametrize("name", CAUSAL)
def test_padding_and_order_change_nothing(name: str) -> None:
    made = model(name)
    together = terms(made, batch())
    for at in range(4):
        alone = terms(made, batch(which=[at]))
        assert_close(together[at, : alone.shape[1]], alone[0], rtol=1e-4, atol=1e-5)
        assert (together[at, alone.shape[1] :] == 0).all()
    turned = terms(made, batch(which=[3, 1, 0, 2]))
    assert_close(turned, together[[3, 1, 0, 2]], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("chunk", [3, 11, 100])
@pytest.mark.parametrize("name", CAUSAL)
def test_chunks_equal_the_whole(name: str, chunk: int) -> None:
    made, given = model(name), batch()
    assert count_pieces(given, chunk) == len(list(pieces(given, chunk)))
    assert_close(terms(made, given, chunk), terms(made, given), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("positions", ["sinusoidal", "rotary"])
@pytest.mark.parametrize("name", CAUSAL)
def test_steps_equal_the_whole(name: str, positions: str) -> None:
    made = model(name, ModelOptions(layers=2, heads=2, head_dim=8, positions=positions))  # type: ignore[arg-type]
    one = batch(which=[3])
    with torch.no_grad():
        whole, _ = made.encode(one)
        parts, state = [], None
        for at in range(30):
            hidden, state = made.step(EventBatch(*(part[:, at : at + 1] for part in one)), state)
            parts.append(hidden)
    assert_close(torch.cat(parts, 1), whole, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("head", ["hawkes", "mixture"])
def test_gradients_reach_everything(head: str) -> None:
    made = model(head=head, type_weight=0.5, time_weight=0.1).train()
    (piece,) = pieces(batch(), 0)
    outcome = made(piece)
    (outcome.extra - outcome.terms.time - outcome.terms.type).sum().backward()
    for name, parameter in made.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        if "to_k.bias" not in name:  # softmax and its kin do not see it
            assert parameter.grad.abs().sum() > 0, name


def test_heads_that_predict_add_their_losses() -> None:
    plain, headed = model(), model(type_weight=2.0, time_weight=3.0)
    (piece,) = pieces(batch(), 0)
    with torch.no_grad():
        assert (plain(piece).extra == 0).all()
        headed.type_head.weight.zero_()  # type: ignore[union-attr]
        headed.time_head.weight.zero_()  # type: ignore[union-attr]
        gaps = piece.following.gaps[piece.counted]
        assert_close(headed(piece).extra, 2.0 * torch.full_like(gaps, 3.0).log() + 3.0 * gaps.square())


def test_mechanisms_that_look_ahead_are_refused() -> None:
    with pytest.raises(SubquadError, match="linformer has no causal form: it mixes positions; choose softmax"):
        EventModel(SCALES, Linformer(), SMALL, HeadOptions())
    with pytest.raises(SubquadError, match="learned positions are whole numbers"):
        model(size=ModelOptions(layers=1, heads=1, head_dim=4, positions="learned"))


def test_extreme_gaps_are_finite() -> None:
    """Gaps of 0, 1e-9 and 1e9 in one sequence, in training."""
    times = np.array([0.0, 0.0, 1e-9, 1.0, 1e9, 2e9])
    given = GIVEN.select(np.array([0]))._replace(
        offsets=np.array([0, 6]), times=times, types=np.zeros(6, np.int64), starts=np.zeros(1), ends=np.array([2e9])
    )
    for head in ("hawkes", "mixture"):
        for name in CAUSAL:
            made = model(name, head=head).train()
            (piece,) = pieces(batch(given), 0)
            found = made(piece).terms
            assert found.time.isfinite().all()
            assert found.type.isfinite().all()
            (-found.time.sum() - found.type.sum()).backward()
            gradients = [parameter.grad for parameter in made.parameters()]
            assert all(gradient is None or gradient.isfinite().all() for gradient in gradients)
