"""Sizes by arithmetic, beside those of what is really built; and what is refused by them."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from subquad import capacity
from subquad.attention import MECHANISMS, Favor, Hybrid, Infinity, Linear, Linformer, Softmax
from subquad.capacity import memory_bytes, require_memory
from subquad.errors import SubquadError
from subquad.feature_maps import FEATURE_MAPS, Learned, Random
from subquad.measure.memory import give_back_at_once, in_fresh_process, peak_extra_bytes
from subquad.models import CausalEncoder, Encoder, ModelOptions
from subquad.models.sizes import stack_numbers
from subquad.tasks import Classify, Copy, Events, Mlm, Sorting, Transactions
from subquad.training import TrainOptions
from subquad.training.loop import generator
from subquad.types import AttentionOptions

SMALL = ModelOptions(layers=3, heads=2, head_dim=6)

VARIANTS: list[AttentionOptions] = [
    *(options() for name, options in MECHANISMS.items() if name != "linformer"),
    *(Linear(options()) for options in FEATURE_MAPS.values()),
    Linear(Learned(features=10)),
    Linear(Random(features=8, kernel="hyperbolic", per_head=True)),
    *(Favor(features=8, projections=how) for how in ("fixed", "calibrated", "learned")),
    Favor(features=8, kernel="trigonometric"),
    Favor(features=8, per_head=True, projections="calibrated"),
    *(
        Linformer(k=3, max_length=20, method=method, sharing=sharing)
        for method in ("learned", "mean", "convolution")
        for sharing in ("none", "heads", "keys-values", "layerwise")
    ),
    Infinity(segment=5, basis=6, points=7, bins=3),
    Infinity(segment=5, basis=0, points=7),
    Hybrid(block=4, rest="none"),
    Hybrid(block=4, rest=Random(features=8)),
]


def held(model: nn.Module) -> int:
    return sum(part.numel() for part in (*model.parameters(), *model.buffers()))


@pytest.mark.parametrize("attention", VARIANTS, ids=str)
def test_a_stack_holds_what_arithmetic_says(attention: AttentionOptions) -> None:
    changed = replace(SMALL, positions="learned", longest=11, norm="post", feed_dim=5)
    for options in (SMALL, changed, replace(SMALL, share_attention=2, fewer_heads=1)):
        assert stack_numbers(attention, options) == held(Encoder(nn.Identity(), attention, options))


@pytest.mark.parametrize("form", ["decoder", "encoder-decoder"])
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("attention", [Linear(), Favor(features=8), Softmax()], ids=str)
def test_tasks_without_data_know_their_models(form: Any, tied: bool, attention: AttentionOptions) -> None:
    model = replace(SMALL, tied=tied)
    for task in (Copy(length=4, symbols=7, form=form), Sorting(length=10, symbols=7)):
        size = task.size(attention, model)
        built = task.build(attention, model)
        assert size.numbers == held(built)
        assert size.trained == sum(part.numel() for part in built.parameters())


def test_tasks_with_data_know_their_models_once_they_are_read(tmp_path: Path) -> None:
    lines = [f'{{"text": "some words and number {n}", "label": "{n % 2}"}}' for n in range(40)]
    (tmp_path / "texts.jsonl").write_text("\n".join(lines) + "\n")
    text = str(tmp_path / "texts.jsonl")
    for tied in (True, False):
        model = replace(SMALL, tied=tied)
        mlm = Mlm(text=text, vocabulary="characters", length=8)
        assert mlm.size(Linear(), model, _read(mlm).vocabulary.size).numbers == held(_read(mlm).build(Linear(), model))
    classify = Classify(text=text, vocabulary="characters", length=8)
    assert classify.size(Linear(), SMALL, _read(classify).vocabulary.size).numbers == held(
        _read(classify).build(Linear(), SMALL)
    )


@pytest.mark.parametrize("pooling", ["mean", "last", "attention"])
def test_transactions_know_their_model(pooling: Any) -> None:
    clients = Transactions(clients=60, shortest_history=2, longest_history=4, pooling=pooling)
    prepared = clients.prepare()
    assert clients.size(Linear(), SMALL, prepared.features).numbers == held(prepared.build(Linear(), SMALL))


@pytest.mark.parametrize("head", ["mixture", "hawkes"])
def test_events_know_their_model(head: Any) -> None:
    for weight in (0.0, 1.0):
        events = Events(sequences=4, head=head, inner=5, components=3, type_weight=weight, time_weight=weight)
        size = events.size(Linear(), SMALL, types=2)
        assert size.numbers == held(events.prepare().build(Linear(), SMALL))


def _read(options: Any) -> Any:
    return options.prepare()


@pytest.mark.parametrize(
    "attention",
    [Linear(), *(pytest.param(other, marks=pytest.mark.slow) for other in (Softmax(), Favor(features=64)))],
    ids=str,
)
@pytest.mark.parametrize("recompute", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_training_needs_at_least_what_is_estimated(attention: AttentionOptions, recompute: bool) -> None:
    """Otherwise something could be refused that fits. And not a small part of it, so that what is too large is refused."""
    estimated, measured = in_fresh_process(_estimated_and_measured, attention, recompute)
    assert 0.3 * measured < estimated < measured


def _estimated_and_measured(attention: AttentionOptions, recompute: bool) -> tuple[int, int]:
    torch.set_num_threads(1)
    give_back_at_once()
    task, training = Copy(length=127, held_out=1), TrainOptions(batch=16, recompute=recompute)
    model = ModelOptions(layers=4, heads=4, head_dim=32)
    _step(replace(task, length=3), attention, replace(model, layers=1), replace(training, batch=1))
    estimated = training.memory_bytes(task.size(attention, model), attention, model)
    return estimated, peak_extra_bytes(lambda: _step(task, attention, model, training))


def _step(task: Copy, attention: AttentionOptions, size: ModelOptions, options: TrainOptions) -> None:
    model: Any = task.build(attention, size, generator(0, 0))
    model.recompute = options.recompute
    optimizer = options.build_optimizer(model.parameters())
    task.loss(model, task.batch(options.batch, generator(0, 1))).total.backward()
    optimizer.step()


@pytest.mark.parametrize(
    ("attention", "model"),
    [
        (Linear(), replace(SMALL, layers=10**9)),
        (Linear(), replace(SMALL, heads=2**40)),
        (Linear(), replace(SMALL, feed_dim=2**48)),
        (Linear(), replace(SMALL, positions="learned", longest=10**12)),
        (Favor(features=10**12), SMALL),
        (Infinity(basis=2**40, widths=(0.1,)), SMALL),
    ],
    ids=str,
)
def test_a_stack_that_is_too_large_is_not_built(attention: AttentionOptions, model: ModelOptions) -> None:
    with pytest.raises(SubquadError, match=r"would need at least .*B of memory, but there are .*B: make"):
        (Encoder if model.positions == "learned" else CausalEncoder)(nn.Identity(), attention, model)


def test_a_linformer_that_is_too_large_is_not_built() -> None:
    with pytest.raises(SubquadError, match="would need at least"):
        Encoder(nn.Identity(), Linformer(max_length=2**40), SMALL)


def test_memory_is_limited_by_what_the_system_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    installed = memory_bytes()
    assert installed > 2**28
    monkeypatch.setattr(capacity, "_cgroup_limits", lambda: iter([1_000_000]))
    assert memory_bytes() == 1_000_000
    with pytest.raises(SubquadError, match=r"this would need at least 2 MB of memory, but there are 1 MB: buy more"):
        require_memory("this", 2_000_000, "buy more")
    require_memory("this", 1_000_000, "buy more")
