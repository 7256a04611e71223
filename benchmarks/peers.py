"""How do the attentions of other packages compare on this machine? Run by `make bench-peers`.

Some rows alone: `python benchmarks/peers.py --only lsh linformer --parts time --lengths 128 1024 4096`.

Times are ratios to PyTorch's fused softmax within one run, candidates in turns; layers are measured beside fused softmax in
a layer. What fails is named, and the run goes on. The leak of a causal form: how much its outputs change in the first half,
relative to the largest of them, when the keys of the second are ten times as loud.
"""

import contextlib
import os
import platform
import resource
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from importlib import import_module
from itertools import product
from math import isnan, nan
from pathlib import Path
from typing import Any, Literal, get_args

import psutil
import torch
import tyro
from rich.console import Console
from rich.progress import Progress
from rich.table import Column, Table

from peer_candidates import CANDIDATES, FAST, OTHER_NAMES, OWN, SOFTMAX
from peer_landmarks import HEAD_DIM, HEADS, Kind, Mix
from subquad import Linear
from subquad.measure.fits import pays_from
from subquad.measure.memory import in_fresh_process, peak_extra_bytes
from subquad.measure.timing import interleave
from subquad.results import Row, append_rows
from subquad.statistics import median_interval, ratio_interval

LEAK_LENGTH = 512
COMPILED = "subquad linear, compiled"
WARM_UPS = (128, 768)  # lengths of a call before memory is measured, the second for those that do not take the first
STEPS = 50  # in one measurement of decoding, because one step is short for a clock

What = Literal["forward", "with backward"]
Mechanism = Literal["linear", "favor", "linformer", "window", "sparse", "nystrom", "lsh"]
Part = Literal["time", "decoding", "memory", "leak"]
Run = Callable[[], object]
Have = Mapping[Kind, list[str]]
"""Candidates that have a form."""


@dataclass(frozen=True)
class Comparison:
    """subquad's mechanisms beside the same mechanisms of other packages."""

    only: tuple[Mechanism, ...] = ()
    """Mechanisms to measure beside fused softmax; all by default."""
    parts: tuple[Part, ...] = get_args(Part)
    """What to measure: times, decoding steps of linear attention, memory, and the leak of causal forms."""
    lengths: tuple[int, ...] = (128, 512, 1024, 4096)
    memory_lengths: tuple[int, ...] = (4096,)
    batches: tuple[int, ...] = (1, 32)
    """Sequences in a decoding step."""
    threads: int = 1
    seconds: float = 2.0
    """Time for the rounds of one cell, beyond the three that every cell gets."""
    out: Path = Path("runs/bench-peers")
    """Where the rows go."""
    seed: int = 0


def work(mix: Mix, what: What, length: int, seed: int) -> Run:
    """A function that runs one forward, or a forward with its backward."""
    draw = partial(torch.randn, 1, HEADS, length, HEAD_DIM, generator=torch.Generator().manual_seed(seed))
    q, k, v = draw(), draw(), draw()
    if what == "forward":
        return torch.no_grad()(lambda: mix(q, k, v))
    gradient = draw()
    inputs = tuple(x.requires_grad_() for x in (q, k, v))
    # a reformer does not read its queries
    return lambda: torch.autograd.grad(mix(*inputs), inputs, gradient, allow_unused=True)


def mechanism_of(name: str) -> str:
    """The mechanism of a candidate, such as lsh of "reformer-pytorch lsh"."""
    word = name.split()[1].rstrip(",")
    return OTHER_NAMES.get(word, word)


def chosen(kind: Kind, only: tuple[Mechanism, ...]) -> list[str]:
    """The candidates of a form, the baseline first; none if there are only candidates that are not asked for."""
    names = [name for name, (kinds, _) in CANDIDATES.items() if kind in kinds]
    kept = [name for name in names if name == SOFTMAX or not only or mechanism_of(name) in only]
    return kept if len(kept) > 1 else []


# These take so long and so much that the others would get few rounds beside them.
HEAVY = {("linear-attention-transformer linear", "causal"), ("performer-pytorch favor", "causal")}


@contextlib.contextmanager
def limited() -> Iterator[None]:
    """What wants more memory than there is gets an error, which is reported, instead of being killed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limit = int(0.9 * psutil.virtual_memory().available)
    resource.setrlimit(resource.RLIMIT_DATA, (limit if soft == resource.RLIM_INFINITY else min(limit, soft), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def build(name: str, kind: Kind, length: int, seed: int) -> Mix:
    """The other packages draw from the global generator."""
    torch.manual_seed(seed)
    return CANDIDATES[name][1](kind, length)


def prepare(name: str, kind: Kind, what: What, length: int, seed: int) -> Run:
    """A function that runs one forward, or a forward with its backward."""
    return work(build(name, kind, length, seed), what, length, seed)


@limited()
def peak(name: str, kind: Kind, what: What, length: int) -> int:
    """Peak extra bytes of one run, to be called in a fresh process."""
    torch.set_num_threads(1)
    for warm_up in WARM_UPS:
        with contextlib.suppress(Exception):  # some packages take no short sequences
            prepare(name, kind, what, warm_up, 0)()
            break
    return peak_extra_bytes(prepare(name, kind, what, length, 0))


def leak(name: str, kind: Kind, seed: int) -> float:
    """How much of the future is seen."""
    mix, half = build(name, kind, LEAK_LENGTH, seed), LEAK_LENGTH // 2
    q, k, v = torch.randn(3, 1, HEADS, LEAK_LENGTH, HEAD_DIM, generator=torch.Generator().manual_seed(seed))
    louder = torch.cat([k[:, :, :half], 10 * k[:, :, half:]], dim=2)
    with torch.no_grad():
        before, after = (mix(q, keys, v)[:, :, :half] for keys in (k, louder))
    if not (before.isfinite().all() and after.isfinite().all()):
        raise ArithmeticError("its output is not finite")
    return float((after - before).abs().max() / before.abs().max())


def decoding(name: str, batch: int) -> Run:
    """Decoding steps, each from the state that the one before left, and in its memory."""
    q, k, v = torch.randn(3, batch, HEADS, 1, HEAD_DIM, generator=torch.Generator().manual_seed(0))
    attend = Linear().build(heads=HEADS, head_dim=HEAD_DIM)
    step: Callable[..., Any] = lambda q, k, v, state: attend.step(q, k, v, state, reuse=True)  # noqa: E731
    if name == COMPILED:
        step = torch.compile(step)
    if name == FAST:
        module = import_module("fast_transformers.recurrent.attention.self_attention.linear_attention")
        step, q, k, v = module.RecurrentLinearAttention(HEAD_DIM), q[:, :, 0], k[:, :, 0], v[:, :, 0]
    state = None

    def run() -> None:
        nonlocal state
        with torch.no_grad():
            for _ in range(STEPS):
                _, state = step(q, k, v, state)

    return run


def failed(error: Exception, cell: Row) -> Row:
    """Why there is no number, in words."""
    said = (str(error).splitlines() or [""])[0]
    where = f"{cell['form']}, {cell['what']}, {cell.get('length')}"
    words = f"not installed: {said}" if isinstance(error, ImportError) else f"{where}: {type(error).__name__}: {said}"
    return {"metric": "failure", "value": None, "unit": "", "words": words, **cell}


def attempt(metric: str, unit: str, cell: Row, measure: Callable[[], float]) -> Row:
    """The row of one number, or of the reason why there is none."""
    try:
        return {"metric": metric, "value": measure(), "unit": unit, **cell}
    except Exception as error:
        return failed(error, cell)


def turns(prepared: Mapping[str, Callable[[], Run]], cell: Row, seconds: float, repeats: int = 1) -> list[Row]:
    """Seconds of each candidate, and its speed relative to the first, with which it took turns. For a fresh process."""
    torch.set_num_threads(int(cell["threads"] or 1))
    runs: dict[str, Run] = {}
    failures: dict[str, Row] = {}

    def once(name: str) -> None:
        if name in failures:
            return
        try:
            runs[name] = runs.get(name) or prepared[name]()  # the first round is not timed
            runs[name]()
        except Exception as error:
            failures[name] = failed(error, cell | {"mechanism": name})

    with limited():
        taken = interleave({name: partial(once, name) for name in prepared}, seconds=seconds)
    first, rows = next(iter(taken)), list(failures.values())
    for name, measured in taken.items():
        for metric, unit, value in (
            ("seconds", "s", median_interval([each / repeats for each in measured])),
            ("speedup", f"times {first}", ratio_interval(taken[first], measured)),
        ):
            spread = {**value._asdict(), "rounds": len(measured)}
            if name not in failures:
                rows.append({"metric": metric, "unit": unit, **spread, **cell, "mechanism": name})
    return rows


def measure(options: Comparison, progress: Progress) -> Iterator[list[Row]]:
    """The rows of one cell after the other, each from a process of its own."""
    have = {kind: names for kind in get_args(Kind) if (names := chosen(kind, options.only))}
    for part in options.parts:
        yield from PARTS[part](options, have, progress)


def times(options: Comparison, have: Have, progress: Progress) -> Iterator[list[Row]]:
    """Seconds, and speed relative to fused softmax, of the candidates of each form."""
    cells = list(product(options.lengths, have, get_args(What)))
    for length, kind, what in progress.track(cells, description="time"):
        cell: Row = {"form": kind, "what": what, "length": length, "threads": options.threads}
        alone = [name for name in have[kind] if (name, kind) in HEAVY]
        together = [name for name in have[kind] if name not in alone]
        for group in (together, *([SOFTMAX, name] for name in alone)):
            ready = {name: partial(prepare, name, kind, what, length, options.seed) for name in group}
            rows = in_fresh_process(turns, ready, cell, options.seconds)
            yield [row for row in rows if group is together or row["mechanism"] != SOFTMAX]


def decoding_steps(options: Comparison, have: Have, progress: Progress) -> Iterator[list[Row]]:
    """Seconds of a decoding step of linear attention."""
    batches = options.batches if not options.only or "linear" in options.only else ()
    for batch in progress.track(batches, description="decoding"):
        cell = {"form": "step", "what": "forward", "batch": batch, "threads": options.threads}
        steps = {name: partial(decoding, name, batch) for name in (OWN, COMPILED, FAST)}
        yield in_fresh_process(turns, steps, cell, options.seconds, STEPS)


def memory(options: Comparison, have: Have, progress: Progress) -> Iterator[list[Row]]:
    """Peak memory of each candidate."""
    cells = list(product(options.memory_lengths, have, get_args(What)))
    for length, kind, what in progress.track(cells, description="memory"):
        for name in have[kind]:
            cell = {"mechanism": name, "form": kind, "what": what, "length": length, "threads": 1}
            yield [attempt("peak_memory", "bytes", cell, partial(in_fresh_process, peak, name, kind, what, length))]


def leaks(options: Comparison, have: Have, progress: Progress) -> Iterator[list[Row]]:
    """How much of the future each causal form sees."""
    for kind in progress.track([kind for kind in have if "causal" in kind], description="leak"):
        for name in have[kind]:
            cell = {"mechanism": name, "form": kind, "what": "forward", "length": LEAK_LENGTH}
            yield [attempt("leak", "share of the largest output", cell, partial(leak, name, kind, options.seed))]


PARTS: dict[Part, Callable[[Comparison, Have, Progress], Iterator[list[Row]]]] = {
    "time": times,
    "decoding": decoding_steps,
    "memory": memory,
    "leak": leaks,
}


def show(rows: list[Row], options: Comparison, console: Console) -> None:
    """A table for each form, the decoding step, and what failed."""
    keys = ("metric", "form", "what", "mechanism", "length", "batch")
    found = {tuple(row.get(key) for key in keys): float(row["value"] or 0) for row in rows}
    sizes = [f"MB at {length}" for length in options.memory_lengths]
    for kind in get_args(Kind):
        title = f"{kind}: speed-up over fused softmax, threads: {options.threads}"
        first = Column("attention", overflow="fold")
        table = Table(first, "what", *map(str, options.lengths), "pays from", *sizes, "leak", title=title)
        for name, what in product(chosen(kind, options.only), get_args(What)):
            speeds = [found.get(("speedup", kind, what, name, length, None), nan) for length in options.lengths]
            start = nan if any(map(isnan, speeds)) else pays_from(options.lengths, speeds) or nan
            memory = [found.get(("peak_memory", kind, what, name, length, None), nan) for length in options.memory_lengths]
            seen = found.get(("leak", kind, what, name, LEAK_LENGTH, None), nan)
            cells = [*(f"{speed:.2f}" for speed in speeds), f"{start:.0f}", *(f"{size / 1e6:.0f}" for size in memory)]
            table.add_row(name, what, *(cell.replace("nan", "-") for cell in (*cells, f"{seen:.1g}")))
        if table.rows:
            console.print(table)
    for row in (row for row in rows if row["form"] == "step" and row["metric"] == "seconds"):
        speed = found["speedup", "step", "forward", row["mechanism"], None, row["batch"]]
        step = f"one decoding step, batch {row['batch']}: {float(row['value'] or 0) * 1e6:.0f} microseconds"
        console.print(f"{row['mechanism']}, {step}, {speed:.2f} times as fast as {OWN}")
    for failure in dict.fromkeys(f"{row['mechanism']}: {row['words']}" for row in rows if row["metric"] == "failure"):
        console.print(failure, markup=False)


def main(options: Comparison) -> None:
    """Measures, keeps the rows and shows them."""
    console = Console()
    rows = options.out / f"rows-{datetime.now(UTC).strftime('%Y%m%d-%H%M%S')}.jsonl"
    measured: list[Row] = []
    with Progress(console=console) as progress:
        for cell in measure(options, progress):
            append_rows(rows, cell)
            measured += cell
    show(measured, options, console)
    machine = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, torch {torch.__version__}"
    console.print(f"Measured on {machine}. Rows: {rows}.")


if __name__ == "__main__":
    main(tyro.cli(Comparison, description=__doc__))
