"""`subquad spectrum`."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import torch
import tyro
from rich.console import Console
from rich.progress import track
from torch import Tensor, nn

from subquad.attention import MECHANISMS
from subquad.attention.looking import watched
from subquad.capacity import require_memory
from subquad.checking import Checked, Count, FilePath, GivenFileName, Seed
from subquad.cli.parsing import parse
from subquad.cli.pretrained import check_pretrained
from subquad.cli.show import Output, show
from subquad.cli.streams import say
from subquad.data.texts import load_texts, python_topics
from subquad.errors import SubquadError
from subquad.files import require_folder
from subquad.measure.spectrum import singular_values, spectrum_rows
from subquad.models import MultiheadAttention
from subquad.report.spectrum import layer_table, rank_table, write_spectrum_figures, write_spectrum_page
from subquad.results import Row, Run, describe_run, holds_run, new_folder, refuse_taken
from subquad.runs import load, rebuild

Matrices = list[Tensor]
"""Attention matrices of one sequence, layer by layer, each 1 h n s."""
SEQUENCE_BYTES = 500
"""Memory of a sequence that a task makes, at least."""
USUAL = 512  # tokens of a sequence, as in Linformer's figure 1, where a model takes so many


@dataclass(frozen=True)
class Spectrum(Checked):
    """The singular values of a model's attention matrices: how low a rank would do, layer by layer and head by head.

    Measured on text, beside the same model with fresh weights, and beside the rank that each mechanism can have. The answer
    is printed, and kept as a folder with the rows and a page. The folder is made when all is measured: a command that is
    interrupted leaves none, and is given again.
    """

    model: Annotated[GivenFileName, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")]
    """A run of `subquad train`, a folder with a model of Hugging Face, or a model's name on its hub."""
    text: FilePath | None = None
    """A folder or file: *.txt, *.md, *.jsonl(.gz). A run's held-out text, or Python's help topics, unless told."""
    length: Count | None = None
    """Tokens of a sequence: 512, or what the model takes, unless told."""
    sequences: Count = 8
    random: bool = True
    """Whether the same model with fresh weights is measured too."""
    figures: FilePath | None = None
    """A folder for each chart as PNG and SVG."""
    out: FilePath | None = None
    """The folder of the run: runs/spectrum-DATE-TIME unless told."""
    seed: Seed = 0


class Looked(NamedTuple):
    """A model to look at: what its matrices are, sequence by sequence, trained and fresh, and what it is made of."""

    trained: Callable[[], Iterator[Matrices]]
    fresh: Callable[[], Iterator[Matrices]]
    sequences: int
    about: dict[str, Any]
    bounds: dict[str, int]


def main(arguments: Sequence[str]) -> int:
    """Measures, prints the answer and leaves a page."""
    options = parse(Spectrum, arguments, prog="subquad spectrum")
    console = Output()
    folder = options.out or new_folder("spectrum")
    refuse_taken(folder)
    if options.figures is not None:
        require_folder(options.figures)
    looked = look(options, console)
    rows = measured(looked, console, random=options.random)
    run = Run.create(folder, "spectrum", about_run(options, looked, ["spectrum", *arguments]), rows)
    page = run.folder / "report.html"
    write_spectrum_page([run], page)
    for table in (layer_table(rows), rank_table(rows)):
        show(table, console)
    console.print(f"The page: {page}   The rows: {run.rows_path}", soft_wrap=True)
    if options.figures is not None:
        count = sum(1 for _ in write_spectrum_figures([run], options.figures))
        console.print(f"{count} charts, each as PNG and SVG: {options.figures}", soft_wrap=True)
    return 0


def look(options: Spectrum, console: Console) -> Looked:
    """The model that is meant, and what it is looked at with."""
    return _run(options, console) if holds_run(Path(options.model)) else _hub(options, console)


def measured(looked: Looked, console: Console, *, random: bool) -> list[Row]:
    """Rows of the trained model, and of the same with fresh weights."""
    models = {"trained": looked.trained} | ({"random": looked.fresh} if random else {})
    rows: list[Row] = []
    for name, matrices in models.items():
        each = track(matrices(), f"{name} weights", looked.sequences, console=console, transient=True)
        rows += spectrum_rows(_values(each), {"model": name}, looked.bounds)
    return rows


def about_run(options: Spectrum, looked: Looked, command: Sequence[str]) -> dict[str, Any]:
    """The contents of run.json."""
    described = {"model": options.model, "sequences": looked.sequences, **looked.about}
    return describe_run(described, command, seed=options.seed)


def _values(sequences: Iterable[Matrices]) -> list[list[Tensor]]:
    """The singular values of each layer, sequence by sequence. Matrices are let go of at once."""
    by_layer: list[list[Tensor]] = []
    for matrices in sequences:
        for layer, matrix in enumerate(matrices):
            if layer == len(by_layer):
                by_layer.append([])
            by_layer[layer].append(singular_values(matrix[0]))
    return by_layer


def _run(options: Spectrum, console: Console) -> Looked:
    """The model of a run of `subquad train`."""
    trained = load(options.model, say=say)
    task, model, run = trained.task, trained.model, trained.run
    if options.text is not None or options.length is not None:
        task.require_texts()
    require_memory("so many sequences", options.sequences * SEQUENCE_BYTES, "give fewer --sequences")
    texts = None if options.text is None else _texts(options.text)
    drawing = torch.Generator().manual_seed(options.seed)
    examples = task.examples(options.sequences, drawing, texts=texts, length=options.length)
    _check_number(len(examples), options, examples[0][0].shape[1], console)

    def matrices(model: nn.Module) -> Iterator[Matrices]:
        model.eval()
        mechanisms = [module.attend for module in model.modules() if isinstance(module, MultiheadAttention)]
        for example in examples:
            with torch.no_grad(), watched(mechanisms) as calls:
                task.loss(model, example)
            yield [call.matrix() for call in calls if min(call.q.shape[2], call.k.shape[2])]

    own = run.about["options"]["mechanism"]["kind"]
    attend = next(module.attend for module in model.modules() if isinstance(module, MultiheadAttention))
    bounds = _bounds(attend.head_dim, skip=own)
    if (bound := attend.options.rank_bound(attend.head_dim)) is not None:
        bounds = {f"{own}, its own: {bound.words}": bound.rank} | bounds
    about = {"attention": own, "task": task.kind, "head_dim": attend.head_dim}
    return Looked(lambda: matrices(model), lambda: matrices(rebuild(run.about)[1].model), len(examples), about, bounds)


def _hub(options: Spectrum, console: Console) -> Looked:
    """A model of Hugging Face."""
    check_pretrained(options.model)
    from subquad.hub._compat import implementation_of
    from subquad.hub.looking import (
        attention_matrices,
        head_dim_of,
        load_with_tokenizer,
        longest_input,
        random_like,
        stretches,
    )

    texts = python_topics().texts if options.text is None else _texts(options.text)
    model, tokenizer = load_with_tokenizer(options.model)
    longest = longest_input(model) or USUAL
    length = options.length or min(USUAL, longest)
    if length > longest:
        raise SubquadError(f"--length is {length}, but the model has {longest} positions: give a smaller one")
    tokens = stretches(tokenizer, texts, options.sequences, length, torch.Generator().manual_seed(options.seed))
    _check_number(len(tokens), options, length, console)

    def matrices(model: Any) -> Iterator[Matrices]:
        for sequence in tokens:
            yield attention_matrices(model, sequence[None])

    head_dim = head_dim_of(model)
    about = {"attention": implementation_of(model), "class": type(model).__name__, "head_dim": head_dim}
    fresh = random_like(model, options.seed) if options.random else model
    return Looked(lambda: matrices(model), lambda: matrices(fresh), len(tokens), about, _bounds(head_dim))


def _texts(path: Path) -> list[str]:
    """The texts of a file or folder. What cannot be read is said."""
    documents = load_texts(path)
    for complaint in documents.complaints:
        say(complaint)
    return documents.texts


def _check_number(number: int, options: Spectrum, length: int, console: Console) -> None:
    """Refuses a text without a stretch of the length, and says if there are fewer than were asked for."""
    if not number:
        where = "the text" if options.text is None else options.text
        raise SubquadError(f"{where} has no stretch of {length} tokens: give more text or a smaller --length")
    if number < options.sequences:
        console.print(f"There are {number} stretches of {length} tokens, so not {options.sequences}.")


def _bounds(head_dim: int, skip: str = "") -> dict[str, int]:
    """The ranks that mechanisms have with the options that they come with, in heads of that size."""
    found = {name: options().rank_bound(head_dim) for name, options in MECHANISMS.items() if name != skip}
    return {f"{name}, {bound.words}": bound.rank for name, bound in found.items() if bound is not None}
