"""`subquad compare`."""

import dataclasses
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, make_dataclass
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import tyro
from rich.console import Console, RenderableType
from rich.progress import Progress as Bar
from rich.progress import ProgressColumn, SpinnerColumn, Task
from rich.text import Text

from subquad.attention import MECHANISMS, Softmax, options_from
from subquad.capacity import require_memory
from subquad.checking import Checked, Count, FilePath, Positive, Seed, Several, Words, read
from subquad.cli import INTERRUPTED
from subquad.cli.options import registry
from subquad.cli.parsing import parse
from subquad.cli.show import Output, PlainColumn, show
from subquad.cli.values import choose, parse_bytes, parse_lengths
from subquad.compare import linformer_table as linformer
from subquad.compare.cells import Dtype, Setting
from subquad.compare.plan import Group, Plan, Progress, measure
from subquad.compare.views import BASELINE, FORMS, MATERIALISED, Form, What
from subquad.errors import SubquadError
from subquad.measure.devices import require_device
from subquad.measure.machine import describe, versions
from subquad.measure.workers import Limits
from subquad.report import tables
from subquad.report.compare import Measured, answers, load, write_page
from subquad.results import Row, Run, place_of
from subquad.types import AttentionOptions
from subquad.words import capitalized

# The options of every mechanism but softmax, whose two forms are both measured anyway.
Tuning: Any = make_dataclass(
    "Tuning",
    [(name, options, field(default_factory=options)) for name, options in MECHANISMS.items() if name != BASELINE],
    frozen=True,
)
Flag = Annotated[bool, tyro.conf.FlagCreatePairsOff]


ASKED_FOR = ("infinity", "hybrid")
"""Measured only where they are named: they would take their time from all others' budget."""


@dataclass(frozen=True)
class Compare(Checked):
    """From which length on does each attention pay on this machine, in time and in memory?

    Every mechanism is measured against PyTorch's fused attention, in processes that take turns. The answer is printed, and
    kept as a folder with the rows and a page.
    """

    mechanisms: tuple[Words, ...] = ()
    """Which to measure against softmax: materialised, linear, favor, linformer (the ones unless told), infinity, hybrid."""
    lengths: Several[Words] = ("128..16384",)
    """Numbers, and ranges that double from their start: 128..65536."""
    causal: Flag = False
    """The causal form only. Both forms are measured unless told."""
    bidirectional: Flag = False
    """The bidirectional form only."""
    what: Several[What] = ("forward", "training", "layer", "step")
    """Attention forward; attention forward and backward; a whole transformer layer; one decoding step at that context; one
    update of a whole encoder-decoder of 4 + 4 layers on the copy task."""
    batch: Several[Count] = (1,)
    """Sequences at a time. Several numbers here and below measure every combination."""
    heads: Several[Count] = (8,)
    head_dim: Several[Count] = (64,)
    """Numbers of a query, key or value of one head."""
    threads: tuple[Count, ...] = ()
    """Threads that PyTorch uses: all cores unless told."""
    dtype: Several[Dtype] = ("float32",)
    device: Several[Words] = ("cpu",)
    """cpu, cuda, cuda:1, ..."""
    grid: Literal["linformer"] | None = None
    """linformer: its table of speed-up and memory saved by length and slots, beside the published one."""
    budget: Positive = 120.0
    """Seconds to measure for. The most informative cells come first; `--resume` goes on."""
    memory_limit: Words = "1GiB"
    """What one cell may use. One that needs more becomes a row that says so."""
    run_limit: Positive = 30.0
    """Seconds that one run of a cell may take."""
    tuning: Annotated[Tuning, tyro.conf.OmitArgPrefixes] = field(default_factory=Tuning)
    out: FilePath | None = None
    """The folder of the run: runs/compare-DATE-TIME unless told."""
    resume: FilePath | None = None
    """Goes on with a run: measures only what it has not. Its other options stay as they were; --budget may be given."""
    seed: Seed = 0


def main(arguments: Sequence[str]) -> int:
    """Measures, prints the answer and leaves a page."""
    given = parse(Compare, arguments, prog="subquad compare", registry=registry(MECHANISMS.values()))
    console = Output()
    if given.resume is not None:
        _refuse_other_options(given)
        run = Run.open(given.resume, "compare")
        plan, limits = _plan(run.about["options"])
    else:
        about = _describe_run(given, ["subquad", "compare", *arguments])
        plan, limits = _plan(about["options"])
        run = Run.create(given.out or Path("runs") / f"compare-{datetime.now(UTC):%Y%m%d-%H%M%S}", "compare", about)
    with run.writing():
        return _measure(run, plan, limits, given.budget, console)


def _measure(run: Run, plan: Plan, limits: Limits, budget: float, console: Console) -> int:
    left: list[Group] = []
    interrupted = False
    watch = _Watch(console, budget)
    try:
        with watch.bar:
            left = measure(plan, run, budget=budget, limits=limits, progress=Progress(watch.started, watch.finished))
    except KeyboardInterrupt:
        interrupted = True
    measured = load([run.folder])[0]
    if measured.comparison.views:
        page = run.folder / "report.html"
        write_page([measured], page)
        _answer(measured, console)
        console.print(f"\nThe page: {page}   The rows: {run.rows_path}", soft_wrap=True)
    return _farewell(run, left, interrupted, console)


def _refuse_other_options(given: Compare) -> None:
    for found in dataclasses.fields(Compare):
        if found.name not in ("resume", "budget") and getattr(given, found.name) != getattr(Compare(), found.name):
            name = found.name.replace("_", "-")
            raise SubquadError(f"--resume goes on with the options of the run: leave --{name} out, or start a new run")


def _describe_run(given: Compare, command: Sequence[str]) -> dict[str, Any]:
    """What run.json keeps."""
    for device in given.device:
        require_device(device)
    options = _options(given)
    return {
        "options": options,
        "mechanisms": {name: options_from(kept).traits._asdict() for name, kept in options["variants"].items()},
        "seed": given.seed,
        "versions": versions(),
        "machine": describe(),
        "command": shlex.join(command),
        "started": f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC",
    }


def _options(given: Compare) -> dict[str, Any]:
    """What run.json keeps, and what a run is continued from."""
    variants, shortest = _variants(given)
    threads = given.threads or (torch.get_num_threads(),)
    counts = {"batch": given.batch, "heads": given.heads, "head_dim": given.head_dim, "threads": threads}
    axes: dict[str, Sequence[object]] = {**counts, "dtype": given.dtype, "device": given.device}
    forms = [form for form in FORMS if getattr(given, form)] or list(FORMS)
    lengths: Sequence[str] = given.lengths
    if given.grid:
        lengths = (linformer.LENGTHS,) if lengths == Compare().lengths else lengths
        forms = ["bidirectional"]
    return {
        "variants": {name: dataclasses.asdict(options) for name, options in variants.items()},  # type: ignore[call-overload]
        "lengths": parse_lengths(lengths),
        "forms": forms,
        "whats": ["layer"] if given.grid else list(dict.fromkeys(given.what)),
        "settings": [dict(zip(axes, values, strict=True)) for values in product(*axes.values())],
        "shortest": shortest,
        "seed": given.seed,
        "memory_bytes": parse_bytes("--memory-limit", given.memory_limit),
        "run_seconds": given.run_limit,
    }


def _variants(given: Compare) -> tuple[dict[str, AttentionOptions], dict[str, int]]:
    """What is measured, by name, and from which length on where not from the first."""
    both: dict[str, AttentionOptions] = {BASELINE: Softmax(), MATERIALISED: Softmax(materialised=True)}
    if given.grid:
        grid = {linformer.name_of(k): dataclasses.replace(given.tuning.linformer, k=k) for k in linformer.SLOTS}
        return both | grid, {linformer.name_of(k): 4 * k if k == linformer.SLOTS[0] else 2 * k for k in linformer.SLOTS}
    known = both | {name: getattr(given.tuning, name) for name in MECHANISMS if name != BASELINE}
    usual = [name for name in known if name not in ASKED_FOR]
    chosen = [choose("attention", name, known) for name in given.mechanisms] or usual
    return {name: known[name] for name in dict.fromkeys([BASELINE, *chosen])}, {}


@dataclass(frozen=True)
class Kept(Checked):
    """The options of a comparison in its run.json."""

    variants: dict[str, dict[str, Any]]
    lengths: tuple[Count, ...]
    forms: tuple[Form, ...]
    whats: tuple[What, ...]
    settings: tuple[dict[str, Any], ...]
    shortest: dict[str, Count]
    seed: Seed
    memory_bytes: Count
    run_seconds: Positive


def _plan(options: Mapping[str, Any]) -> tuple[Plan, Limits]:
    place = f"{place_of(options)}: options"
    kept = read(Kept, options, place)
    plan = Plan(
        variants={name: options_from(values, f"{place}: variants: {name}") for name, values in kept.variants.items()},
        lengths=kept.lengths,
        forms=kept.forms,
        whats=kept.whats,
        settings=[read(Setting, setting, f"{place}: settings") for setting in kept.settings],
        shortest=kept.shortest,
        seed=kept.seed,
    )
    for setting in plan.settings:
        require_device(setting.device)
        for name, variant in plan.variants.items():
            numbers = variant.size(heads=setting.heads, head_dim=setting.head_dim).numbers
            require_memory(name, 4 * numbers, "make its own sizes, --heads or --head-dim smaller")
    if not plan.groups:
        raise SubquadError("there is nothing to measure: a decoding step is causal, so leave --bidirectional out")
    return plan, Limits(memory_bytes=kept.memory_bytes, run_seconds=kept.run_seconds)


class _Watch:
    """Shows what is running, how long is left, and each group's first result."""

    def __init__(self, console: Console, budget: float) -> None:
        columns = (SpinnerColumn(), PlainColumn(), _Left(budget))
        self.bar = Bar(*columns, console=console, refresh_per_second=2, transient=True)
        self.task = self.bar.add_task("starting", total=None)
        self.seen: set[Group] = set()

    def started(self, group: Group, mechanism: str) -> None:
        self.bar.update(self.task, description=f"{_name(group)}: {mechanism}")

    def finished(self, group: Group, rows: Sequence[Row]) -> None:
        seconds = {row["mechanism"]: row for row in rows if row["metric"] == "seconds"}
        if group in self.seen or not seconds:
            return
        self.seen.add(group)
        words = ", ".join(_result(name, row, seconds.get(BASELINE)) for name, row in seconds.items())
        self.bar.console.print(f"{_name(group)}: {words}", soft_wrap=True)


class _Left(ProgressColumn):
    """How much of the budget is left."""

    def __init__(self, budget: float) -> None:
        super().__init__()
        self.budget = budget

    def render(self, task: Task) -> RenderableType:
        return Text(f"at most {max(0.0, self.budget - (task.elapsed or 0)):.0f} s left", style="dim")


def _name(group: Group) -> str:
    names = {"step": f"step after {group.length}", "update": f"update, {group.length}"}
    return names.get(group.what, f"{group.what}, {group.form}, {group.length}")


def _result(name: str, row: Row, baseline: Row | None) -> str:
    if row["value"] is None:
        return f"{name} {row['failure']}"
    if name == BASELINE or baseline is None or baseline["value"] is None:
        return f"{name} {row['value'] * 1e3:.3g} ms"
    return f"{name} {baseline['value'] / row['value']:.3g}x"


def _answer(measured: Measured, console: Console) -> None:
    grids = list(tables.linformer_grids(measured.comparison))
    for table in grids or tables.crossovers(measured.comparison):
        show(table, console)
    if grids:
        return
    for view, sentences in answers(measured):
        console.print(capitalized(view), style="bold")
        for sentence in sentences:
            console.print(f"  {sentence}")


def _farewell(run: Run, left: Sequence[Group], interrupted: bool, console: Console) -> int:
    go_on = f"subquad compare --resume {shlex.quote(str(run.folder))}"
    if interrupted:
        print(f"subquad: interrupted; what was measured is kept, go on with: {go_on}", file=sys.stderr)
        return INTERRUPTED
    if left:
        names = ", ".join(_name(group) for group in left[:3]) + (", ..." if len(left) > 3 else "")
        console.print(
            f"The budget had no time for {len(left)} groups of cells ({names}). They are measured by: {go_on}",
            soft_wrap=True,
        )
    return 0
