"""`subquad compare`."""

import dataclasses
import shlex
import sys
from collections.abc import Sequence
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

from subquad import native
from subquad.attention import COMMON, MECHANISMS
from subquad.checking import Checked, Count, FilePath, Positive, Seed, Several, Words
from subquad.cli import INTERRUPTED
from subquad.cli.compare_nodes import compare_nodes
from subquad.cli.compared import ALL, Attentions, choose_attentions, without_form
from subquad.cli.kernels import kernels_on, tell_kernels, tell_roofline
from subquad.cli.options import clashing, registry
from subquad.cli.outside import FLAGS, Calling, trust_prefix
from subquad.cli.parsing import parse
from subquad.cli.show import Output, PlainColumn, show
from subquad.cli.streams import say
from subquad.cli.values import Flag, parse_bytes, parse_lengths
from subquad.compare import linformer_table
from subquad.compare.cells import Dtype, Setting
from subquad.compare.plan import Group, Plan, Progress, linformer_plan, measure
from subquad.compare.runs import describe_run, read_plan
from subquad.compare.views import BASELINE, FORMS, MATERIALISED, Form, What
from subquad.errors import SubquadError
from subquad.measure.devices import require_device
from subquad.measure.workers import Limits
from subquad.places.options import Where
from subquad.report import tables
from subquad.report.compare import Measured, answers, headline, load, remarks, telling_views, write_comparison
from subquad.results import Row, Run
from subquad.words import capitalized

# Options of every mechanism except softmax, whose two variants are always measured.
Tuning: Any = make_dataclass(
    "Tuning",
    [(name, options, field(default_factory=options)) for name, options in MECHANISMS.items() if name != BASELINE],
    frozen=True,
)

BUDGETS = {"some": 120.0, ALL: 560.0}
"""Time for measuring in seconds: for the mechanisms that are named or common, and for all.

The whole command takes ten minutes for all: its start, a measurement that exceeds the budget and the page come on top."""


def _others() -> list[str]:
    """Returns the mechanisms that are measured only if they are named, so that the usual comparison stays short."""
    return [name for name in MECHANISMS if name not in (BASELINE, *COMMON)]


def _mechanisms_help() -> str:
    usual, others = ", ".join([MATERIALISED, *COMMON]), ", ".join(_others())
    ours = f"{usual} (these by default), {others}; {ALL} for all of them"
    by_layer = "different ones by layer, such as linear*3,softmax"
    return f"Attentions to compare with softmax: {ours}; {by_layer}; and any on q, k and v, as MODULE:NAME."


@dataclass(frozen=True)
class Compare(Checked):
    """Measures from which length each attention pays on this machine, in time and in memory.

    Every attention is compared with PyTorch's fused softmax, in processes that take turns. The answer is printed, and saved
    in a folder with the rows and a page.
    """

    mechanisms: Annotated[tuple[Words, ...], tyro.conf.arg(help=_mechanisms_help())] = ()
    lengths: Several[Words] = ("128..16384",)
    """Lengths in tokens: numbers, and ranges that double from their start, such as 128..65536."""
    causal: Flag = False
    """Measure the causal form only. Both forms are measured by default."""
    bidirectional: Flag = False
    """Measure the bidirectional form only."""
    what: Several[What] = ("forward", "training", "layer", "step")
    """Kinds of work: attention forward (forward); forward and backward (training); a whole transformer layer (layer); one
    decoding step after that many tokens (step); one training step of a 4 + 4 layer encoder-decoder on the copy task
    (update)."""
    batch: Several[Count] = (1,)
    """Number of sequences in a batch. If several options have several values, every combination is measured."""
    heads: Several[Count] = (8,)
    """Number of attention heads."""
    head_dim: Several[Count] = (64,)
    """Dimension of one head's queries, keys and values."""
    threads: tuple[Count, ...] = ()
    """Number of threads that PyTorch uses; all cores by default."""
    dtype: Several[Dtype] = ("float32",)
    """Data type of the inputs."""
    device: Several[Words] = ("cpu",)
    """Devices: cpu, cuda, cuda:1, mps (Apple), xpu (Intel)."""
    kernels: tuple[native.Kernels, ...] = ()
    """Who computes linear attention, FAVOR+ and the hybrid: native kernels (C on a CPU, Triton on CUDA), PyTorch's
    operations (torch), or flash-linear-attention on CUDA (fla). Native ones by default where they are there."""
    outside: Calling = field(default_factory=Calling)
    grid: Literal["linformer"] | None = None
    """linformer: measure the speed-up and memory of Linformer by length and slots, next to the published table."""
    budget: Positive | None = None
    """Time for measuring in seconds; 120 by default, 560 for all attentions. The most informative measurements come first;
    `--resume` continues with the others."""
    memory_limit: Words = "1GiB"
    """Memory limit of one measurement. A measurement that needs more is recorded as out of memory."""
    run_limit: Positive = 30.0
    """Time limit in seconds for one run of a measurement."""
    tuning: Annotated[Tuning, tyro.conf.OmitArgPrefixes] = field(default_factory=Tuning)
    out: FilePath | None = None
    """Folder of the run; runs/compare-DATE-TIME by default."""
    resume: FilePath | None = None
    """Folder of a run to continue with its options. Only --budget and --verbose can be given with it."""
    seed: Seed = 0
    """Random seed of inputs and random features."""
    where: Annotated[Where, tyro.conf.OmitArgPrefixes] = field(default_factory=Where)
    verbose: Flag = False
    """Print every result as it is measured, all tables, and a sentence for each attention."""


RESUMED_WITH = ("resume", "budget", "verbose", "where")
"""Options that can be given when a run is resumed."""


def main(arguments: Sequence[str]) -> int:
    """Runs a comparison, prints the answer and writes the page."""
    flags = clashing({"shared": Compare, **{name: options for name, options in MECHANISMS.items() if name != BASELINE}})
    rules = registry(MECHANISMS.values(), flags)
    options = parse(Compare, arguments, prog="subquad compare", registry=rules, flags=flags | FLAGS)
    options.where.require_cluster()
    if options.resume is not None:
        _refuse_other_options(options)
    if options.where.on:
        return compare_nodes(arguments, options.where, options.out, options.resume, Output())
    if options.resume is not None:
        run = Run.open(options.resume, "compare")
        plan, limits = read_plan(run.about["options"])
    else:
        (plan, left_out), limits = _plan(options), _limits(options)
        about = describe_run(plan, limits, shlex.join(["subquad", "compare", *arguments]))
        about |= {"left_out": left_out} if left_out else {}
        folder = options.out or Path("runs") / f"compare-{datetime.now(UTC):%Y%m%d-%H%M%S}"
        run = Run.create(folder, "compare", about)
    with run.writing():
        try:
            measure_run(run, plan, limits, _budget(options), Output(), verbose=options.verbose)
        except KeyboardInterrupt:
            print(
                f"subquad: interrupted; what was measured is kept, go on with: {_resume_command(run, plan)}", file=sys.stderr
            )
            return INTERRUPTED
    if not (options.resume or options.mechanisms or options.grid):
        Output().print(f"There are more: --mechanisms {ALL} also measures {', '.join(_others())}.", soft_wrap=True)
    return 0


def _budget(options: Compare) -> float:
    return options.budget or BUDGETS[ALL if ALL in options.mechanisms else "some"]


def measure_run(run: Run, plan: Plan, limits: Limits, budget: float, console: Console, *, verbose: bool = False) -> None:
    """Measures what a run lacks, writes its page and prints the answer; then re-raises an interrupt."""
    watch = _Watch(console, budget, verbose=verbose)
    left: list[Group] = []
    interrupt: KeyboardInterrupt | None = None
    try:
        with watch.bar:
            left = measure(plan, run, budget=budget, limits=limits, progress=Progress(watch.started, watch.finished))
    except KeyboardInterrupt as raised:
        interrupt = raised
    measured = load([run.folder])[0]
    if measured.comparison.views:
        page = run.folder / "report.html"
        write_comparison([measured], page)
        _answer(measured, console, verbose=verbose)
        for remark in remarks(measured):
            console.print(remark, markup=False)
        tell_kernels(plan, console)
        tell_roofline(plan, measured, console)
        console.print(f"The page: {page}", soft_wrap=True)
    if interrupt is not None:
        raise interrupt
    if left:
        names = ", ".join(_name(group) for group in left[:3]) + (", ..." if len(left) > 3 else "")
        groups = ("1 group" if len(left) == 1 else f"{len(left)} groups") + " of measurements"
        groups += f" ({names})" if verbose else ""
        console.print(f"The budget had no time for {groups}. Go on with: {_resume_command(run, plan)}", soft_wrap=True)


def _resume_command(run: Run, plan: Plan) -> str:
    return f"{trust_prefix(plan.variants.values())}subquad compare --resume {shlex.quote(str(run.folder))}"


def _refuse_other_options(options: Compare) -> None:
    for option in dataclasses.fields(Compare):
        if option.name not in RESUMED_WITH and getattr(options, option.name) != getattr(Compare(), option.name):
            name = option.name.replace("_", "-")
            raise SubquadError(f"--resume goes on with the options of the run: leave --{name} out, or start a new run")


def _limits(options: Compare) -> Limits:
    return Limits(memory_bytes=parse_bytes("--memory-limit", options.memory_limit), run_seconds=options.run_limit)


def _plan(options: Compare) -> tuple[Plan, dict[str, str]]:
    """Returns the plan of measurements for the options, and why named attentions are not in it."""
    for device, dtype in product(options.device, options.dtype):
        require_device(device, dtype)
    settings = _settings(options)
    if options.grid:
        words = (linformer_table.LENGTHS,) if options.lengths == Compare().lengths else options.lengths
        plan = linformer_plan(parse_lengths(words), options.tuning.linformer, settings)
        return dataclasses.replace(plan, seed=options.seed), {}
    forms: list[Form] = [form for form in FORMS if getattr(options, form)] or list(FORMS)
    variants, left_out = _attentions(options, forms)
    plan = Plan(
        variants=variants,
        lengths=parse_lengths(options.lengths),
        forms=forms,
        whats=list(dict.fromkeys(options.what)),
        settings=settings,
        seed=options.seed,
    )
    measured = {cell.mechanism for group in plan.groups for cell in plan.cells(group)}
    if plan.groups and len(variants) > 1 and measured <= {BASELINE}:
        raise SubquadError("none of the named attentions does this work: name others by --mechanisms, or another --what")
    return plan, left_out


def _settings(options: Compare) -> list[Setting]:
    """Returns every combination of batch, heads, head dimension, threads, dtype, device and kernels."""
    threads = options.threads or (torch.get_num_threads(),)
    settings: list[Setting] = []
    for device in options.device:
        kernels = kernels_on(device, options.kernels)
        axes = (options.batch, options.heads, options.head_dim, threads, options.dtype, (device,), kernels)
        settings += [Setting(*values) for values in product(*axes)]
    return settings


def _attentions(options: Compare, forms: Sequence[Form]) -> Attentions:
    """Returns the measured attentions, the baseline first, and says in a sentence which of the named ones are left out."""
    known = {name: getattr(options.tuning, name) for name in MECHANISMS if name != BASELINE}
    chosen = choose_attentions(
        options.mechanisms, known, options.outside, heads=options.heads[0], head_dim=options.head_dim[0]
    )
    are_named = options.mechanisms and ALL not in options.mechanisms
    chosen = without_form(chosen, forms) if are_named else chosen
    for name, reason in chosen.left_out.items():
        say(f"{name} is left out: {reason}")
    if chosen.left_out and set(chosen.variants) <= {BASELINE}:
        raise SubquadError("none of the named attentions can be measured: name others by --mechanisms")
    return chosen


class _Watch:
    """Shows the current measurement, the time left, and in verbose mode each group's first result."""

    def __init__(self, console: Console, budget: float, *, verbose: bool) -> None:
        self.verbose = verbose
        columns = (SpinnerColumn(), PlainColumn(), _Left(budget))
        self.bar = Bar(*columns, console=console, refresh_per_second=2, transient=True)
        self.task = self.bar.add_task("starting", total=None)
        self.seen: set[Group] = set()

    def started(self, group: Group, mechanism: str) -> None:
        self.bar.update(self.task, description=f"{_name(group)}: {mechanism}")

    def finished(self, group: Group, rows: Sequence[Row]) -> None:
        seconds = {row["mechanism"]: row for row in rows if row["metric"] == "seconds"}
        if group in self.seen or not seconds or not self.verbose:
            return
        self.seen.add(group)
        words = ", ".join(_result(name, row, seconds.get(BASELINE)) for name, row in seconds.items())
        self.bar.console.print(f"{_name(group)}: {words}", soft_wrap=True)


class _Left(ProgressColumn):
    """Progress column with the time left."""

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


def _answer(measured: Measured, console: Console, *, verbose: bool) -> None:
    """Prints Linformer's grid if there is one, else a table and a sentence, or all tables in verbose mode."""
    comparison = measured.comparison
    grids = list(tables.linformer_grids(comparison))
    for table in grids:
        show(table, console)
    if grids:
        return
    if verbose:
        _verbose_answer(measured, console)
    else:
        show(tables.summary(comparison, telling_views(comparison)), console)
        console.print(headline(measured))


def _verbose_answer(measured: Measured, console: Console) -> None:
    for table in tables.crossovers(measured.comparison):
        show(table, console)
    for view, sentences in answers(measured):
        console.print(capitalized(view), style="bold")
        for sentence in sentences:
            console.print(f"  {sentence}")
    console.print(f"\nThe rows: {measured.run.rows_path}", soft_wrap=True)
