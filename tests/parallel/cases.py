"""What each of several real processes computes, and compares with one process that holds the whole sequence."""

import itertools
import json
import multiprocessing
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import FileStore

import subquad as sq
from subquad.feature_maps import Elu, Learned, Random
from subquad.models import Decoder, Encoder, ModelOptions
from subquad.models.embeddings import TokenEmbedding
from subquad.parallel import Group, Stretch, points_for, shared
from subquad.parallel.group import Way
from subquad.parallel.sharing import _mix
from subquad.types import AttentionOptions

WORLD = 4
LENGTH = 61  # divided by none of the numbers of processes
LENGTHS = (61, 64)  # at which bytes are counted

MECHANISMS: dict[str, AttentionOptions] = {
    "linear": sq.Linear(),
    "linear learned": sq.Linear(Learned()),
    "favor": sq.Favor(features=8),
    "hybrid": sq.Hybrid(block=5),
    "hybrid favor": sq.Hybrid(block=5, rest=Random(features=8)),
    "hybrid elu": sq.Hybrid(block=7, rest=Elu()),
    "window": sq.Window(reach=4),
    "window dilated": sq.Window(reach=3, dilation=2),
    "infinity": sq.Infinity(segment=6, basis=8, points=8, widths=(0.1, 0.2)),
    "cosformer": sq.Cosformer(max_length=64),
    "softmax": sq.Softmax(),
}
CAUSAL_ONLY: dict[str, AttentionOptions] = {
    "window global": sq.Window(reach=4, global_tokens=3),
    "infinity previous": sq.Infinity(segment=6, basis=8, points=8, widths=(0.1, 0.2), previous=True),
    "infinity detached": sq.Infinity(segment=6, basis=8, points=8, widths=(0.1, 0.2), detached=True),
}
BIDIRECTIONAL_ONLY: dict[str, AttentionOptions] = {"linformer": sq.Linformer(k=4, max_length=64)}
ALL = MECHANISMS | CAUSAL_ONLY | BIDIRECTIONAL_ONLY


def names(causal: bool) -> list[str]:
    return [*MECHANISMS, *(CAUSAL_ONLY if causal else BIDIRECTIONAL_ONLY)]


def all_cases() -> Iterator[tuple[str, bool, int]]:
    for causal, size in itertools.product((True, False), range(1, WORLD + 1)):
        for name in names(causal):
            yield name, causal, size


def largest_difference(found: Tensor, wanted: Tensor) -> float:
    found, wanted = found.detach(), wanted.detach()
    return float((found - wanted).abs().max() / wanted.abs().max().clamp(min=1e-3)) if wanted.numel() else 0.0


def compare_mechanism(group: Group, name: str, *, causal: bool, length: int = LENGTH, loud: float = 1.0) -> float:
    """The largest relative difference in values and in gradients of inputs and weights."""
    options = ALL[name]
    generator = torch.Generator().manual_seed(1)
    attend: Any = options.build(heads=2, head_dim=4, generator=generator).double()
    whole = [torch.randn(2, 2, length, 4, dtype=torch.float64, generator=generator) * loud for _ in range(3)]
    back = torch.randn(2, 2, length, 4, dtype=torch.float64, generator=generator)
    inputs = [x.clone().requires_grad_() for x in whole]
    wanted = attend.causal(*inputs)[0] if causal else attend(*inputs)
    weights = [weight for weight in attend.parameters() if weight.requires_grad]
    used = torch.autograd.grad(wanted, [*inputs, *weights], back, allow_unused=True)

    stretch = Stretch(group, points_for([options], length, group.size))
    here = slice(stretch.start, stretch.stop)
    q, k, v = (x[:, :, here].clone().requires_grad_() for x in whole)
    found = _mix(stretch, attend, lambda: q * 1.0, k, v, None, causal=causal)
    got = torch.autograd.grad(found, [q, k, v, *weights], back[:, :, here], allow_unused=True)
    differences = [largest_difference(found, wanted[:, :, here])]
    for ours, theirs in zip(got[:3], used[:3], strict=True):
        differences.append(largest_difference(ours, theirs[:, :, here]))
    for ours, theirs, weight in zip(got[3:], used[3:], weights, strict=True):
        total = torch.zeros_like(weight) if ours is None else ours.clone()
        dist.all_reduce(total, group=group.processes)
        differences.append(largest_difference(total, torch.zeros_like(weight) if theirs is None else theirs))
    return max(differences)


def compare_model(group: Group, positions: Any, options: AttentionOptions, *, causal: bool, **more: Any) -> float:
    """The largest relative difference of a model's outputs and of the gradients of all of its weights."""
    generator = torch.Generator().manual_seed(2)
    about = ModelOptions(layers=2, heads=2, head_dim=4, positions=positions, longest=64, **more)
    model: Any
    if causal:
        model = Decoder(11, options, about, generator=generator)
    else:
        model = Encoder(TokenEmbedding(11, 8, generator), options, about, generator=generator)
    model = model.double()
    model.recompute = True
    tokens = torch.randint(11, (2, LENGTH), generator=generator)
    wanted = model(tokens)
    back = torch.randn(wanted.shape, dtype=torch.float64, generator=generator)
    weights = list(model.parameters())
    used = torch.autograd.grad(wanted, weights, back)
    with shared(model, options.parts, group, LENGTH) as stretch:
        here = slice(stretch.start, stretch.stop)
        found = model(tokens[:, here])
        got = torch.autograd.grad(found, weights, back[:, here])
    differences = [largest_difference(found, wanted[:, here])]
    for ours, theirs in zip(got, used, strict=True):
        total = ours.clone()  # gradients may share memory
        dist.all_reduce(total, group=group.processes)
        differences.append(largest_difference(total, theirs))
    return max(differences)


def bytes_of(group: Group, name: str, length: int) -> int:
    """The bytes that this process sends for a layer, forwards and backwards."""
    before = group.sent_bytes
    compare_mechanism(group, name, causal=name not in BIDIRECTIONAL_ONLY, length=length)
    return group.sent_bytes - before


def run_all(rank: int) -> dict[str, Any]:
    """All cases, by name; the larger value of all processes is compared by the test."""
    results: dict[str, Any] = {}
    ways: tuple[Way, ...] = ("scan", "ring")
    processes = {size: dist.new_group(list(range(size)), timeout=timedelta(seconds=60)) for size in range(1, WORLD + 1)}
    groups = {size: Group(part) if rank < size else None for size, part in processes.items()}

    def keep(case: str, size: int, compute: Callable[..., Any], *arguments: Any, **named: Any) -> None:
        group = groups[size]
        if group is not None:
            results[case] = compute(group, *arguments, **named)

    for name, causal, size in all_cases():
        keep(f"{name}, {causal}, {size}", size, compare_mechanism, name, causal=causal)
    for way in ways:
        group = Group(processes[WORLD], way=way, overlaps=way == "scan")
        for name in ("favor", "infinity"):
            results[f"{name} by {way}"] = compare_mechanism(group, name, causal=True)
    for causal in (True, False):
        keep(f"loud keys, {causal}", WORLD, compare_mechanism, "favor", causal=causal, loud=12.0)
    for positions in ("rotary", "sinusoidal", "learned"):
        for causal in (True, False):
            keep(f"model {positions}, {causal}", 3, compare_model, positions, sq.Favor(features=8), causal=causal)
    mixed = sq.Layers((sq.Hybrid(block=5), sq.Infinity(segment=4, basis=8, points=8, widths=(0.1, 0.2))))
    keep("model of two kinds", 3, compare_model, "rotary", mixed, causal=True)
    keep("reversible model", 3, compare_model, "rotary", sq.Linear(), causal=True, reversible=True)
    keep("model with shared weights", 3, compare_model, "rotary", sq.Linear(), causal=True, share_attention=2)
    for name in ALL:
        if name != "softmax":
            for length in LENGTHS:
                keep(f"bytes of {name} at {length}", WORLD, bytes_of, name, length)
    return results


def run_process(rank: int, folder: Path) -> None:
    """One of the processes: writes its results into a file."""
    torch.set_num_threads(1)
    store = FileStore(str(folder / "store"), WORLD)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=WORLD, timeout=timedelta(seconds=120))
    try:
        results = run_all(rank)
    except Exception:
        results = {"failure": traceback.format_exc()}
    (folder / f"{rank}.json").write_text(json.dumps(results))
    os._exit(0)


def main(folder: Path) -> None:
    """Starts the processes by forking this one, which has imported everything, and waits for them."""
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=run_process, args=(rank, folder)) for rank in range(WORLD)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
