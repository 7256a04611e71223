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
from subquad.checking import Checked, Count, FilePath, GivenFileName, Seed
from subquad.cli.examined import Examination, open_pretrained, open_run
from subquad.cli.parsing import parse
from subquad.cli.show import Output, show
from subquad.files import require_folder
from subquad.measure.spectrum import singular_values, spectrum_rows
from subquad.models import mechanisms_of
from subquad.report.spectrum import layer_table, rank_table, write_spectrum_figures, write_spectrum_page
from subquad.results import Row, Run, describe_run, holds_run, new_folder, refuse_taken
from subquad.runs import rebuild

Matrices = list[Tensor]
"""Attention matrices of one sequence, one for each layer, each of shape 1 h n s."""
USUAL = 512  # default length of a sequence in tokens, as in Linformer's figure 1


@dataclass(frozen=True)
class Spectrum(Checked):
    """Measures the singular values of a model's attention matrices, by layer and head.

    They are measured on text and compared with the same model with fresh weights, and with the rank of each mechanism. The
    answer is printed, and saved in a folder with the rows and a page. The folder is made at the end: an interrupted command
    leaves none.
    """

    model: Annotated[GivenFileName, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")]
    """Folder of a run of `subquad train` or of a Hugging Face model, or name of a model on its hub."""
    text: FilePath | None = None
    """Text, a folder or file: *.txt, *.md, *.jsonl(.gz); by default a run's held-out text, or Python's help topics."""
    length: Count | None = None
    """Number of tokens in a sequence; by default 512, or as many as the model takes."""
    sequences: Count = 8
    """Number of sequences to measure."""
    random: bool = True
    """Also measure the same model with fresh weights."""
    figures: FilePath | None = None
    """Folder to which each chart is written as PNG and SVG."""
    out: FilePath | None = None
    """Folder of the run; runs/spectrum-DATE-TIME by default."""
    seed: Seed = 0
    """Random seed of the sequences and fresh weights."""


class Looked(NamedTuple):
    """Functions that yield a model's attention matrices, trained and with fresh weights, and facts about the model."""

    trained: Callable[[], Iterator[Matrices]]
    fresh: Callable[[], Iterator[Matrices]]
    sequences: int
    about: dict[str, Any]
    bounds: dict[str, int]


def main(arguments: Sequence[str]) -> int:
    """Measures the spectrum, prints the answer and writes the page."""
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
    """Opens the model of a run or of Hugging Face, with the sequences that it is measured on."""
    return _run(options, console) if holds_run(Path(options.model)) else _hub(options, console)


def measured(looked: Looked, console: Console, *, random: bool) -> list[Row]:
    """Measures the trained model and, with `random`, the same model with fresh weights, and returns the rows."""
    models = {"trained": looked.trained} | ({"random": looked.fresh} if random else {})
    rows: list[Row] = []
    for name, matrices in models.items():
        sequences = track(matrices(), f"{name} weights", looked.sequences, console=console, transient=True)
        rows += spectrum_rows(_values(sequences), {"model": name}, looked.bounds)
    return rows


def about_run(options: Spectrum, looked: Looked, command: Sequence[str]) -> dict[str, Any]:
    """Returns the contents of run.json."""
    described = {"model": options.model, "sequences": looked.sequences, **looked.about}
    return describe_run(described, command, seed=options.seed)


def _values(sequences: Iterable[Matrices]) -> list[list[Tensor]]:
    """Returns the singular values by layer, then by sequence. Each matrix is freed at once."""
    by_layer: list[list[Tensor]] = []
    for matrices in sequences:
        for layer, matrix in enumerate(matrices):
            if layer == len(by_layer):
                by_layer.append([])
            by_layer[layer].append(singular_values(matrix[0]))
    return by_layer


def _run(options: Spectrum, console: Console) -> Looked:
    """Opens the model of a run of `subquad train`."""
    trained, examples = open_run(_examination(options), console)
    task, model, run = trained.task, trained.model, trained.run

    def matrices(model: nn.Module) -> Iterator[Matrices]:
        model.eval()
        mechanisms = mechanisms_of(model)
        for example in examples:
            with torch.no_grad(), watched(mechanisms) as calls:
                task.loss(model, example)
            yield [call.matrix() for call in calls if min(call.q.shape[2], call.k.shape[2])]

    mechanism = run.about["options"]["mechanism"]["kind"]
    attend = mechanisms_of(model)[0]
    bounds = _bounds(attend.head_dim, skip=mechanism)
    if (bound := attend.options.rank_bound(attend.head_dim)) is not None:
        bounds = {f"{mechanism}, its own: {bound.words}": bound.rank} | bounds
    about = {"attention": mechanism, "task": task.kind, "head_dim": attend.head_dim}
    return Looked(lambda: matrices(model), lambda: matrices(rebuild(run.about)[1].model), len(examples), about, bounds)


def _hub(options: Spectrum, console: Console) -> Looked:
    """Opens a Hugging Face model."""
    model, tokens = open_pretrained(_examination(options), USUAL, console)
    from subquad.hub._compat import implementation_of
    from subquad.hub.looking import attention_matrices, head_dim_of, random_like

    def matrices(model: Any) -> Iterator[Matrices]:
        for sequence in tokens:
            yield attention_matrices(model, sequence[None])

    head_dim = head_dim_of(model)
    about = {"attention": implementation_of(model), "class": type(model).__name__, "head_dim": head_dim}
    fresh = random_like(model, options.seed) if options.random else model
    return Looked(lambda: matrices(model), lambda: matrices(fresh), len(tokens), about, _bounds(head_dim))


def _examination(options: Spectrum) -> Examination:
    return Examination(options.model, options.text, options.length, options.sequences, options.seed)


def _bounds(head_dim: int, skip: str = "") -> dict[str, int]:
    """Returns the largest rank of each mechanism with its default options, for heads of this dimension."""
    bounds = {name: options().rank_bound(head_dim) for name, options in MECHANISMS.items() if name != skip}
    return {f"{name}, {bound.words}": bound.rank for name, bound in bounds.items() if bound is not None}
