"""`subquad check`."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TimeElapsedColumn

from subquad.check.findings import Finding, not_asked
from subquad.check.growth import check_lengths
from subquad.check.models import ModelRequest
from subquad.check.processes import Helper
from subquad.check.request import Length, Request
from subquad.check.suite import CHECKS, GROWTH, MODELS, AttentionCase, Case, Plan, examine, open_attention, open_model
from subquad.checking import Count, FileName, FilePath, Positive, Several, Words
from subquad.cli import CHECK_FAILED, INTERRUPTED
from subquad.cli.outside import Calling, read_arguments, request_of
from subquad.cli.parsing import parse
from subquad.cli.pretrained import check_pretrained
from subquad.cli.show import Output, PlainColumn, show
from subquad.cli.streams import say
from subquad.cli.values import Flag, parse_bytes, parse_lengths
from subquad.errors import SubquadError
from subquad.report.check import check_answer, failures, findings_of, findings_table, unasked, write_check_page
from subquad.results import Row, Run, describe_run, holds_run, refuse_taken
from subquad.words import is_import_name

Name = Literal[
    "padding",
    "future",
    "batch",
    "chunks",
    "steps",
    "generate",
    "half",
    "gradients",
    "determinism",
    "threads",
    "time",
    "memory",
]


@dataclass(frozen=True)
class Check(Calling):
    """Asks whether an attention, or a whole model, is what it says.

    Padding, the future and the other sequences of a batch must change nothing; chunks and steps must equal the whole; half
    precision, gradients, determinism and threads are asked too, and how time and memory grow is measured. What cannot be
    asked is listed with the reason. Ends with exit code 1 if a property does not hold.
    """

    attention: Annotated[Words, tyro.conf.Positional, tyro.conf.arg(metavar="[MODULE:NAME]")] = ""
    """What is asked about, such as mypackage.attention:MyAttention: a function or module on (q, k, v) or (x), a class, a
    function of sizes that makes one; or a mechanism of this package. Modules in the current folder are found too."""
    model: FileName = ""
    """Folder of a transformers model, or MODULE:NAME of a PyTorch model that takes token ids, instead of an attention."""
    heads: Count = 8
    """Number of attention heads."""
    head_dim: Count = 64
    """Dimension of one head."""
    layer: Flag = False
    """Call it on x, of shape (batch, positions, heads * head_dim), instead of on q, k and v."""
    causal: Flag = False
    """Ask about the causal form only, also if it does not say that it is causal."""
    length: Length | None = None
    """Number of positions; by default one that it takes is found by trying."""
    checks: tuple[Name, ...] = ()
    """Properties to ask about; all by default."""
    growth: Positive | None = None
    """Largest exponent with which time and memory may grow with the length; by default they are only measured."""
    lengths: Several[Words] = ("256..2048",)
    """Lengths at which time and memory are measured: numbers, and ranges that double from their start."""
    time_limit: Positive = 60.0
    """Time limit in seconds for one property."""
    memory_limit: Words = "4GiB"
    """Memory limit of the process that is asked."""
    json: Flag = False
    """Print the findings as JSON."""
    out: FilePath | None = None
    """Folder for a run with the rows and a page; none is written by default."""

    def check(self) -> None:
        if bool(self.attention) == bool(self.model):
            raise SubquadError("name an attention, as in subquad check mypackage.attention:MyAttention, or a --model")
        if not self.model and set(self.checks) & set(MODELS):
            raise SubquadError(f"{MODELS[0]} is asked of whole models: name one with --model, or leave it out of --checks")


def main(arguments: Sequence[str]) -> int:
    """Asks, prints the table and returns 1 if something does not hold."""
    options = parse(Check, arguments, prog="subquad check")
    plan, request = _plan(options), _request(options)
    if options.out is not None:
        refuse_taken(options.out)
    console = Output(quiet=options.json)
    rows: list[Row] = []
    opened: Case | None = None
    is_interrupted = False
    with Helper(plan.memory_bytes) as helper, _bar(console) as bar:
        task = bar.add_task("importing", total=None)
        try:
            found = _open(helper, request, plan.seconds)
            opened = None if isinstance(found, Finding) else found
            rows += _call_rows(found, plan)
            if opened is not None:
                for asked in examine(helper, opened, plan, lambda check, form: _started(bar, task, check, form)):
                    rows += [asked.finding.row(), *asked.rows]
        except KeyboardInterrupt:
            is_interrupted = True
    if is_interrupted and not rows:
        say("interrupted before anything was asked")
        return INTERRUPTED
    notes = opened.guessed.notes if isinstance(opened, AttentionCase) else ()
    _show(options, rows, notes, console)
    if options.out is not None:
        _keep(options, rows, notes, arguments, console)
    if is_interrupted:
        say("interrupted; the properties above were asked")
        return INTERRUPTED
    return CHECK_FAILED if any(finding.verdict == "fails" for finding in findings_of(rows)) else 0


def _bar(console: Console) -> Progress:
    columns = (SpinnerColumn(), PlainColumn(), TimeElapsedColumn())
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


def _started(bar: Progress, task: Any, check: str, form: str) -> None:
    bar.update(task, description=f"{check}, {form}" if form else check)


def _plan(options: Check) -> Plan:
    lengths = parse_lengths(options.lengths)
    checks: Sequence[str] = options.checks or (*CHECKS, *GROWTH)
    if set(checks) & set(GROWTH):
        check_lengths(lengths)
    memory = parse_bytes("--memory-limit", options.memory_limit)
    return Plan(tuple(dict.fromkeys(checks)), options.time_limit, memory, lengths, limit=options.growth)


def _request(options: Check) -> Request | ModelRequest:
    built = read_arguments("--arguments", options.arguments)
    if options.model:
        if not is_import_name(options.model):
            _check_folder(options.model)
        return ModelRequest(options.model, options.causal, built, options.heads, options.head_dim, options.length)
    known = request_of(options.attention, options, heads=options.heads, head_dim=options.head_dim)
    return replace(known, layer=options.layer, causal=options.causal, length=options.length)


def _check_folder(path: str) -> None:
    """Raises `SubquadError` for a file or a folder that holds no transformers model, with what to do instead."""
    folder = Path(path).expanduser()
    if holds_run(folder):
        raise SubquadError(
            f"{path} is a run of this package, whose models are not asked whole: ask about its attention by name, as in "
            "subquad check linear"
        )
    if folder.is_file() or (folder.is_dir() and not (folder / "config.json").exists()):
        raise SubquadError(
            f"{path} is no folder that save_pretrained wrote, with a config.json; name a PyTorch model by the code that "
            "builds it, as in subquad check --model mypackage.models:Writer, as saved weights do not say how it computes"
        )
    check_pretrained(path)


def _open(helper: Helper, request: Request | ModelRequest, seconds: float) -> Case | Finding:
    if isinstance(request, ModelRequest):
        return open_model(helper, request, seconds)
    return open_attention(helper, request, seconds)


def _call_rows(opened: Case | Finding, plan: Plan) -> list[Row]:
    """The rows about calling it at all: if that fails, nothing else can be asked."""
    if not isinstance(opened, Finding):
        results = "have the shape of its inputs" if isinstance(opened, AttentionCase) else "are those of tokens or sequences"
        return [Finding("call", "holds", f"it can be called, and its results {results}").row()]
    others = [not_asked(check, "it cannot be called") for check in plan.checks if check not in MODELS]
    return [finding.row() for finding in (opened, *others)]


def _show(options: Check, rows: Sequence[Row], notes: Sequence[str], console: Console) -> None:
    """Prints the table, then what fails with its reproducers, then what was not asked."""
    findings = findings_of(rows)
    name = options.attention or options.model
    if options.json:
        holds = not any(finding.verdict == "fails" for finding in findings)
        print(json.dumps({"name": name, "holds": holds, "guessed": list(notes), "rows": list(rows)}, indent=2))
        return
    if notes:
        console.print(f"Guessed: {'; '.join(notes)}.")
    show(findings_table(findings, name), console)
    for sentence, lines in failures(findings):
        console.print(sentence)
        for line in lines.splitlines():
            console.print(f"  {line}", soft_wrap=True)
    for sentence in unasked(findings):
        console.print(sentence)
    console.print(check_answer(findings))


def _keep(options: Check, rows: Sequence[Row], notes: Sequence[str], words: Sequence[str], console: Console) -> None:
    """Writes a run with the rows, and its page."""
    folder: Path = options.out or Path()
    plain = {name: str(value) if isinstance(value, Path) else value for name, value in asdict(options).items()}
    about = {**plain, "name": options.attention or options.model, "notes": "; ".join(notes)}
    run = Run.create(folder, "check", describe_run(about, ["check", *words]), rows)
    write_check_page([run], folder / "report.html")
    console.print(f"The page: {folder / 'report.html'}   The rows: {run.rows_path}", soft_wrap=True)
