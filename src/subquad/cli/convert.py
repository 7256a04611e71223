"""`subquad convert`."""

import dataclasses
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import psutil
import tyro
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from subquad.attention import MECHANISMS, Linear, Softmax, options_from
from subquad.attention import joined as joined_layers
from subquad.capacity import require_memory
from subquad.checking import Checked, Count, FilePath, GivenFileName, Seed, Words, read
from subquad.cli import INTERRUPTED
from subquad.cli.options import Resume, attention_in, clashing, is_resumed, joined, registry
from subquad.cli.parsing import parse
from subquad.cli.pretrained import check_pretrained
from subquad.cli.show import Output, PlainColumn, show
from subquad.cli.streams import say
from subquad.cli.values import parse_attention
from subquad.conversion import ConversionOptions, Convertible, Progress, convert
from subquad.conversion.engine import check
from subquad.conversion.layers import choose_heads, choose_layers
from subquad.conversion.trained import open_trained
from subquad.data.texts import load_texts, python_topics
from subquad.errors import SubquadError
from subquad.feature_maps import FEATURE_MAPS
from subquad.report.conversion import answers, cost_table, length_tables, stage_table, write_conversion_page
from subquad.report.conversion_charts import by_length
from subquad.results import Run, describe_run, folder_name, holds_run, new_folder, place_of
from subquad.runs import load
from subquad.types import AttentionOptions
from subquad.words import run_lengths

ATTENTIONS: dict[str, type[Any]] = {
    **{name: options for name, options in FEATURE_MAPS.items() if name != "random"},  # its attention is favor
    **{name: options for name, options in MECHANISMS.items() if name != "softmax"},
}
"""Options of the attentions that a model can be converted to. A feature map means linear attention with that map."""
SOFTMAX = "softmax"
"""Name of the layers that stay as they are, among several attentions by layer."""


@dataclass(frozen=True)
class Shared(Checked):
    """Options that all conversions have: the model, the new attention and the text."""

    model: Annotated[GivenFileName, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")]
    """Folder of a Hugging Face model, name of a model on its hub, or folder of a run of `subquad train mlm` or `lm`."""
    attention: Annotated[
        Words,
        tyro.conf.arg(
            help=f"{', '.join(ATTENTIONS)}: a feature map means linear attention with that map. Or several by layer, "
            "repeated where there are more layers, such as hybrid*3,softmax: layers with softmax stay as they are."
        ),
    ] = "learned"
    text: FilePath | None = None
    """Training text, a folder or file: *.txt, *.md, *.jsonl(.gz); by default Python's help topics, or a run's own text."""
    length: Count | None = None
    """Number of tokens of the longest texts; by default as many as the model takes."""
    seed: Seed = 0
    """Random seed of the conversion."""
    out: FilePath | None = None
    """Folder of the run, with the result in its folder `model`; runs/convert-ATTENTION-DATE-TIME by default."""
    page: bool = True
    """Write report.html at the end; `subquad report RUN` writes it at any time."""


@dataclass(frozen=True)
class Kept(Checked):
    """Options of a conversion as stored in run.json."""

    model: GivenFileName
    text: FilePath | None
    length: Count | None
    mechanism: dict[str, Any]
    conversion: dict[str, Any]
    original: dict[str, Any] = field(default_factory=dict)


def main(arguments: Sequence[str]) -> int:
    """Converts a model, writes rows and checkpoints, and saves the model and a page."""
    words, begun = list(arguments), _begun()
    if is_resumed(words):
        resume = parse(Resume, words, prog="subquad convert")
        run = Run.open(resume.resume, "convert")
        with run.writing():
            return _convert(run, *_opened(run.about), begun, restart=resume.restart)
    folder, about, opened = plan_run(words)
    run = Run.create(folder, "convert", about)
    with run.writing():
        return _convert(run, *opened, begun)


Opened = tuple[Convertible, AttentionOptions, ConversionOptions]
"""The original model, the new attention, and the options of the conversion."""


def plan_run(words: Sequence[str]) -> tuple[Path, dict[str, Any], Opened]:
    """Returns the folder, run.json and conversion of a command line. Raises `SubquadError` if it cannot be converted."""
    names = _attentions(attention_in(words) or Shared.attention)
    mechanisms = {name: ATTENTIONS[name]() for name in names if name != SOFTMAX}
    parts = {"shared": Shared, **mechanisms, "conversion": ConversionOptions()}
    flags = clashing(parts)
    parsed: Any = parse(
        joined("Convert", parts),
        words,
        prog="subquad convert",
        description=(
            "Replaces the attention of a trained model and trains it to recover the original's quality. "
            "`subquad convert --resume RUN` continues an interrupted conversion."
        ),
        registry=registry([*map(type, mechanisms.values()), ConversionOptions], flags),
        flags=flags,
    )
    shared = parsed.shared
    chosen_options = {name: getattr(parsed, name) for name in mechanisms}
    by_name = {name: Linear(part) if name in FEATURE_MAPS else part for name, part in chosen_options.items()}
    mechanism: Any = joined_layers([by_name.get(name) or Softmax() for name in names])
    chosen = {
        "model": shared.model,
        "text": None if shared.text is None else str(shared.text),
        "length": shared.length,
        "mechanism": dataclasses.asdict(mechanism),
        "conversion": _values(parsed.conversion),
    }
    about = describe_run(chosen, ["convert", *words], seed=shared.seed, page=shared.page)
    original, attention, options = _opened(about)
    about["options"] |= {"mechanism": dataclasses.asdict(attention), "original": original.notes}  # type: ignore[call-overload]
    folder = shared.out or new_folder("convert", folder_name(run_lengths(names)))
    return folder, about, (original, attention, options)


def _attentions(text: str) -> list[str]:
    """Returns the names of the attentions by layer, one for all if there is one."""
    names = parse_attention(text, ATTENTIONS if text.strip() == SOFTMAX else [*ATTENTIONS, SOFTMAX])
    if set(names) == {SOFTMAX}:
        raise SubquadError("all layers would keep their softmax attention: name another for some of them")
    return names


def _opened(about: Mapping[str, Any]) -> Opened:
    """Loads the conversion that a run.json describes. Raises `SubquadError` if it cannot be converted."""
    place = f"{place_of(about)}: options"
    stored = read(Kept, about["options"], place)
    options = read(ConversionOptions, stored.conversion, f"{place}: conversion")
    attention = options_from(stored.mechanism, f"{place}: mechanism")
    original = _original(stored, options, about["seed"])
    attention = attention.for_length(original.longest)
    choose_layers(original, options.layers)
    choose_heads(original, options.heads)
    _require_memory(original, attention, options)
    check(original, attention, options)
    return original, attention, options


def _require_memory(original: Convertible, attention: AttentionOptions, options: ConversionOptions) -> None:
    """Raises `SubquadError` for mechanisms and batches that do not fit into memory, before they are made."""
    mechanisms: list[Any] = original.mechanisms(original.teacher)
    layers = [mechanisms[origin] for origin in original.origins]
    heads, by_layer = len(original.kept_heads), attention.for_layers(len(layers))
    sizes = [each.size(heads=heads, head_dim=layer.head_dim) for each, layer in zip(by_layer, layers, strict=True)]
    numbers = sum(size.numbers + size.state for size in sizes)
    position_numbers = sum(heads * layer.head_dim for layer in layers)  # hidden values of one position in all layers
    positions = options.batch_tokens // original.longest * original.longest  # batches consist of whole texts
    advice = "make the attention's own sizes or --batch-tokens smaller"
    require_memory("this conversion", 4 * (numbers + positions * position_numbers), advice)


def _original(stored: Kept, options: ConversionOptions, seed: int) -> Convertible:
    path = stored.model
    if holds_run(Path(path)):
        if stored.text is not None or stored.length is not None or options.pairs is not None:
            raise SubquadError("a run is converted on its own text and length: leave out --text, --length and --pairs")
        trained = load(path, say=say)
        return open_trained(trained.run, trained.task, trained.model)
    check_pretrained(path)
    documents = python_topics() if stored.text is None else load_texts(stored.text)
    for complaint in documents.complaints:
        say(complaint)
    from subquad.conversion.pretrained import Pretrained, read_pairs

    original = Pretrained(path, documents, seed=seed, length=stored.length)
    if options.pairs is not None:
        if original.kind != "encoder":
            raise SubquadError("--pairs is for models that give vectors, which language models do not: leave it out")
        first, second, scores, complaints = read_pairs(options.pairs)
        for complaint in complaints:
            say(complaint)
        original.compare(first, second, scores)
    return original


def _values(options: ConversionOptions) -> dict[str, Any]:
    values = dataclasses.asdict(options)
    return {**values, "pairs": None if options.pairs is None else str(options.pairs)}


def _begun() -> float:
    """Returns the start time of the command's process on the monotonic clock, which includes imports."""
    program = Path(sys.argv[0])
    is_command = "subquad" in (program.name, program.parent.name)  # not a test or a notebook
    return time.monotonic() - (time.time() - psutil.Process().create_time() if is_command else 0.0)


def _convert(
    run: Run,
    original: Convertible,
    attention: AttentionOptions,
    options: ConversionOptions,
    begun: float,
    *,
    restart: bool = False,
) -> int:
    console = Output()
    console.print(f"The run: {run.folder}", soft_wrap=True)
    columns = (PlainColumn(), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    try:
        with Bar(*columns, console=console, refresh_per_second=4) as bar:
            task = bar.add_task("", total=None)

            def watch(progress: Progress) -> None:
                bar.update(task, completed=progress.step, total=progress.total, description=_words(progress))

            def tell(sentence: str) -> None:
                console.print(sentence, soft_wrap=True)

            seed = run.about["seed"]
            convert(original, attention, options, run, seed=seed, watch=watch, say=tell, begun=begun, restart=restart)
    except KeyboardInterrupt:
        print(f"subquad: interrupted; go on with: subquad convert --resume {shlex.quote(str(run.folder))}", file=sys.stderr)
        return INTERRUPTED
    _results(run, console)
    return 0


def _results(run: Run, console: Console) -> None:
    rows = run.rows()
    show(stage_table(rows), console)
    for table in [*length_tables(rows), *([cost_table(rows)] if by_length(rows) else [])]:
        show(table, console)
    for sentence in answers(rows):
        console.print(sentence, soft_wrap=True)
    console.print(f"The model: {run.folder / 'model'}", soft_wrap=True)
    if run.about.get("page", True):
        page = run.folder / "report.html"
        write_conversion_page([run], page)
        console.print(f"The page: {page}", soft_wrap=True)


DEEDS = {
    "look": "measuring the original",
    "swap": "measuring with nothing trained",
    "calibrate": "calibrating",
    "match": "matching layers",
    "choose": "choosing layers",
    "tune": "tuning",
    "save": "saving",
    "cost": "measuring time and memory",
}


def _words(progress: Progress) -> str:
    judged = [f"{figure.metric} {figure.value:.3f}" for figure in progress.judged[:2]]
    loss = [] if progress.loss is None else [f"loss {progress.loss:.4g}"]
    return f"{progress.recipe}: {', '.join([DEEDS[progress.does], *loss, *judged])}"
