"""`subquad error`."""

import dataclasses
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import torch
import tyro
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

from subquad.attention import Favor, Softmax
from subquad.attention.looking import Call, LayerOutputs, watched
from subquad.checking import Count, FileName, FilePath, read
from subquad.cli import INTERRUPTED
from subquad.cli.examined import Examination, open_pretrained, open_run
from subquad.cli.options import Resume, is_resumed
from subquad.cli.parsing import parse
from subquad.cli.show import Output, PlainColumn, show
from subquad.cli.streams import say
from subquad.compare.error import (
    LENGTH,
    ErrorGrid,
    Inputs,
    Sample,
    SwapLayers,
    check_memory,
    measure,
    plan,
    random_inputs,
)
from subquad.compare.error_cell import Cell
from subquad.errors import SubquadError
from subquad.files import require_folder
from subquad.models import mechanisms_of
from subquad.report.error import error_answer, summary_table, write_error_figures, write_error_page
from subquad.results import Run, describe_run, holds_run, new_folder, place_of, refuse_taken


@dataclass(frozen=True)
class Error(ErrorGrid):
    """Measures the error of FAVOR+ beside exact attention, by number of features, kernel, projection and size of inputs.

    It is measured on random queries and keys and on those of a model, with the published bounds beside it, and for a Hugging
    Face model layer by layer. The answer is printed, and saved in a folder with the rows and a page. `subquad error --resume
    RUN` continues an interrupted measurement.
    """

    model: Annotated[FileName, tyro.conf.Positional, tyro.conf.arg(metavar="[MODEL]")] = ""
    """Folder of a run of `subquad train` or of a Hugging Face model, or name of a model on its hub; none by default."""
    text: FilePath | None = None
    """Text for a model, a folder or file: *.txt, *.md, *.jsonl(.gz); by default a run's held-out text, or Python's help
    topics."""
    sequences: Count = 2
    """Number of sequences that a model reads."""
    random: bool = True
    """Also measure random queries and keys."""
    figures: FilePath | None = None
    """Folder to which each chart is written as PNG and SVG."""
    out: FilePath | None = None
    """Folder of the run; runs/error-DATE-TIME by default."""

    def check(self) -> None:
        super().check()
        if not self.model and not self.random:
            raise SubquadError("there is nothing to measure: name a model, or leave out --no-random")
        if not self.model and self.text is not None:
            raise SubquadError("--text is read by a model: name one, or leave it out")


@dataclass(frozen=True)
class Kept(ErrorGrid):
    """Options of a measurement as stored in run.json."""

    model: FileName = ""
    text: FileName | None = None
    sequences: Count = 2
    random: bool = True
    origin: dict[str, Any] = field(default_factory=dict)
    """Facts about the model: its class or its task."""


class Source(NamedTuple):
    """Queries, keys and values of a model, how to run it with FAVOR+, and facts about it."""

    inputs: Inputs
    swap_layers: SwapLayers | None
    origin: dict[str, Any]


class Opened(NamedTuple):
    """What is to be measured, with the facts about its model."""

    cells: list[Cell]
    origin: dict[str, Any]


def main(arguments: Sequence[str]) -> int:
    """Measures errors, prints the answer and writes the page."""
    words, console = list(arguments), Output()
    if is_resumed(words):
        resume = parse(Resume, words, prog="subquad error")
        run = Run.open(resume.resume, "error")
        cells = _opened(_kept(run.about), console).cells
        with run.writing():
            if resume.restart:
                run.keep_first_rows(0)
            return _measure(run, cells, None, console)
    options = parse(Error, words, prog="subquad error")
    folder = options.out or new_folder("error")
    refuse_taken(folder)
    if options.figures is not None:
        require_folder(options.figures)
    kept = _chosen(options)
    opened = _opened(kept, console)
    described = dataclasses.asdict(dataclasses.replace(kept, origin=opened.origin))
    run = Run.create(folder, "error", describe_run(described, ["error", *words], seed=kept.seed))
    with run.writing():
        return _measure(run, opened.cells, options.figures, console)


def _chosen(options: Error) -> Kept:
    text = None if options.text is None else str(options.text)
    shared = {part.name: getattr(options, part.name) for part in dataclasses.fields(ErrorGrid)}
    return Kept(**shared, model=options.model, text=text, sequences=options.sequences, random=options.random)


def _kept(about: Mapping[str, Any]) -> Kept:
    return read(Kept, about["options"], f"{place_of(about)}: options")


def _measure(run: Run, cells: Sequence[Cell], figures: Path | None, console: Console) -> int:
    """Measures what a run lacks, writes its page and prints the answer."""
    bar = Progress(PlainColumn(), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), console=console, transient=True)
    task = bar.add_task("starting", total=len(cells))

    def advance(cell: Cell) -> None:
        bar.update(task, advance=1, description=_name(cell))

    try:
        with bar:
            measure(cells, run, advance)
    except KeyboardInterrupt:
        command = f"subquad error --resume {shlex.quote(str(run.folder))}"
        say(f"interrupted; what was measured is kept, go on with: {command}")
        return INTERRUPTED
    page = run.folder / "report.html"
    write_error_page([run], page)
    show(summary_table(run.rows()), console)
    console.print(error_answer(run))
    console.print(f"The page: {page}   The rows: {run.rows_path}", soft_wrap=True)
    if figures is not None:
        count = sum(1 for _ in write_error_figures([run], figures))
        console.print(f"{count} charts, each as PNG and SVG: {figures}", soft_wrap=True)
    return 0


def _name(cell: Cell) -> str:
    named = {name: cell.about.get(name) for name in ("kernel", "projection", "features")}
    return ", ".join([str(cell.about["metric"]), *(str(value) for value in named.values() if value is not None)])


def _opened(kept: Kept, console: Console) -> Opened:
    """Opens the model, if there is one, and plans what is measured."""
    source = _source(kept, console) if kept.model else None
    if source is not None and kept.head_dim is None:
        kept = dataclasses.replace(kept, head_dim=source.inputs.samples[0].q.shape[3])
    check_memory(kept)
    inputs = [] if source is None else [source.inputs]
    inputs += [random_inputs(size, kept) for size in dict.fromkeys(kept.sizes)] if kept.random else []
    swap_layers = None if source is None else source.swap_layers
    return Opened(plan(kept, inputs, swap_layers), {} if source is None else source.origin)


def _source(kept: Kept, console: Console) -> Source:
    text = None if kept.text is None else Path(kept.text)
    examination = Examination(kept.model, text, kept.length, kept.sequences, kept.seed)
    return _run(examination, console) if holds_run(Path(kept.model)) else _hub(examination, console)


def _run(examination: Examination, console: Console) -> Source:
    """Opens the model of a run of `subquad train`."""
    trained, examples = open_run(examination, console)
    _require_exact(examination.model, trained.options.attention.traits.exact)
    mechanisms = mechanisms_of(trained.model)
    calls = []
    for example in examples:
        with torch.no_grad(), watched(mechanisms) as example_calls:
            trained.task.loss(trained.model, example)
        calls.append(example_calls)
    return Source(_inputs(calls), None, {"task": trained.task.kind})


def _hub(examination: Examination, console: Console) -> Source:
    """Opens a Hugging Face model, and puts exact attention of this package in place of its own to read its inputs."""
    model, tokens = open_pretrained(examination, LENGTH, console)
    from subquad.hub import attention_modules, swap
    from subquad.hub.attach import options_of
    from subquad.hub.looking import attention_calls, layer_outputs

    swapped = [options_of(module) for module in attention_modules(model).values()]
    _require_exact(examination.model, all(options is None or options.traits.exact for options in swapped))
    swap(model, Softmax())

    def swap_layers(favor: Favor | None, seed: int) -> list[LayerOutputs]:
        swap(model, favor or Softmax(), seed=seed, check=False)
        return [layer_outputs(model, sequence[None]) for sequence in tokens]

    calls = [attention_calls(model, sequence[None]) for sequence in tokens]
    return Source(_inputs(calls), swap_layers, {"class": type(model).__name__})


def _require_exact(model: str, is_exact: bool) -> None:
    if not is_exact:
        raise SubquadError(f"the attention of {model} is not softmax: name a model with exact attention to compare with")


def _inputs(sequences: Sequence[Sequence[Call]]) -> Inputs:
    """Returns queries, keys and values of the calls of all layers, by sequence; empty ones are left out."""
    samples = [
        Sample(layer, call.q, call.k, call.v, call.keep, call.causal)
        for calls in sequences
        for layer, call in enumerate(calls, start=1)
        if min(call.q.shape[2], call.k.shape[2])
    ]
    if not samples:
        raise SubquadError("the model reads nothing with its attention: give longer sequences")
    return Inputs("model", 1.0, samples)
