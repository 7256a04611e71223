"""Asks every question, in a process that may break without harm, and gives what was found as it comes."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

from subquad.attention.outside.importing import import_named, sentence_of
from subquad.check.findings import Finding, not_asked
from subquad.check.growth import Make, judge_growth, measure_growth
from subquad.check.guessing import CallError, Guessed, guess
from subquad.check.models import ModelRequest, ModelSubject, generation, load_model, usable_ids
from subquad.check.precision import gradients, half_precision
from subquad.check.processes import BrokenCallError, Helper
from subquad.check.properties import Question, batch, chunks, determinism, future, padding, steps, thread_safety
from subquad.check.reproducers import asking, reproducer
from subquad.check.request import Request
from subquad.check.subjects import AttentionSubject, Subject
from subquad.errors import SubquadError
from subquad.measure.workers import Limits

CHECKS: dict[str, Question] = {
    "padding": padding,
    "future": future,
    "batch": batch,
    "chunks": chunks,
    "steps": steps,
    "generate": generation,
    "half": half_precision,
    "gradients": gradients,
    "determinism": determinism,
    "threads": thread_safety,
}
"""The questions by name. Each gives a finding for a subject."""
GROWTH = ("time", "memory")
"""Questions that are answered by measuring at several lengths."""
CAUSAL = ("future", "chunks", "steps")
"""Questions about the causal form only."""
LINES_SECONDS = 30.0
"""Time limit for writing lines that reproduce a failure."""
MODELS = ("generate",)
"""Questions about whole models only."""


@dataclass(frozen=True)
class AttentionCase:
    """An attention that is asked about. It is picklable."""

    request: Request
    guessed: Guessed

    @property
    def forms(self) -> tuple[str, ...]:
        """The forms that it has."""
        return self.guessed.forms

    def subject(self, form: str, thing: Any = None) -> AttentionSubject:
        """Builds it."""
        return AttentionSubject(self.request, self.guessed, form, thing)

    def longer(self, form: str, length: int) -> Subject:
        """Builds it for sequences of a length."""
        guessed = self.guessed._replace(outside=self.guessed.outside.for_length(length), whole=length)
        return AttentionSubject(self.request, guessed, form)

    @property
    def tiny(self) -> int:
        """A number of positions for warming up."""
        return self.guessed.part or self.guessed.whole

    def no_growth(self) -> str:
        """Why growth cannot be measured; empty if it can."""
        outside = self.guessed.outside
        is_stuck = outside.is_fixed and "length" not in outside.sizes.values()
        return "it takes sequences of one length only" if is_stuck else ""


@dataclass(frozen=True)
class ModelCase:
    """A model that is asked about. It is picklable."""

    request: ModelRequest
    forms: tuple[str, ...] = ("",)

    def subject(self, form: str, thing: Any = None) -> ModelSubject:
        """Loads it."""
        return ModelSubject(self.request)

    def longer(self, form: str, length: int) -> Subject:
        """Loads it for sequences of a length."""
        return ModelSubject(replace(self.request, length=length))

    @property
    def tiny(self) -> int:
        """A number of positions for warming up."""
        return 8

    def no_growth(self) -> str:
        """Why growth is not measured."""
        return "growth is measured for attentions only"


Case = AttentionCase | ModelCase


class Plan(NamedTuple):
    """What is asked, and within which limits."""

    checks: Sequence[str] = (*CHECKS, *GROWTH)
    seconds: float = 60.0
    """Time limit of one question."""
    memory_bytes: int = 2**32
    lengths: Sequence[int] = (256, 512, 1024, 2048)
    growth_seconds: float = 15.0
    """Time after which no further length is measured."""
    limit: float | None = None
    """Largest exponent of time and memory; None to measure only."""


class Answer(NamedTuple):
    """What came out of one question: a finding, and rows beside it."""

    finding: Finding
    rows: Sequence[dict[str, Any]] = ()


Started = Callable[[str, str], None]
"""Called with the name of a question and the form before it is asked."""


def open_attention(helper: Helper, request: Request, seconds: float) -> AttentionCase | Finding:
    """Imports an attention and finds out how it is called; the finding says why it cannot be called.

    Raises `SubquadError` if it cannot be imported or built.
    """
    _asked(helper, f"{request.target} cannot be imported: it", import_name, request.target, seconds=seconds)
    try:
        found = helper.ask(guess_or_sentence, request, seconds=seconds)
    except BrokenCallError as error:
        return Finding("call", "fails", f"it {error}")
    return Finding("call", "fails", found) if isinstance(found, str) else AttentionCase(request, found)


def open_model(helper: Helper, request: ModelRequest, seconds: float) -> ModelCase | Finding:
    """Loads a model; the finding says why it cannot be called. Raises `SubquadError` if it cannot be loaded."""
    _asked(helper, f"{request.model} cannot be loaded: it", try_model, request, seconds=seconds)
    try:
        problem = helper.ask(call_model, request, seconds=seconds)
    except BrokenCallError as error:
        problem = f"it {error}"
    return Finding("call", "fails", problem) if problem else ModelCase(request)


def _asked(helper: Helper, says: str, question: Callable[..., Any], *arguments: Any, seconds: float) -> None:
    try:
        helper.ask(question, *arguments, seconds=seconds)
    except BrokenCallError as error:
        raise SubquadError(f"{says} {error}") from None


def import_name(target: str) -> None:
    """Imports a name, in a helper's process."""
    import_named(target)


def guess_or_sentence(request: Request) -> Guessed | str:
    """How an attention is called, or a sentence on why it cannot be, in a helper's process."""
    try:
        return guess(request)
    except CallError as error:
        return str(error)


def try_model(request: ModelRequest) -> None:
    """Loads a model and looks for its token ids, in a helper's process."""
    model = load_model(request)
    usable_ids(model, getattr(model, "config", None))


def call_model(request: ModelRequest) -> str:
    """Why a model cannot be called, in a helper's process; empty if it can."""
    try:
        subject = ModelSubject(request)
        subject.mix(subject.draw(2, subject.whole))
    except SubquadError as error:
        return str(error)
    except Exception as error:  # a model may raise anything
        return f"it cannot be called on token ids alone: it raises {sentence_of(error)}"
    return ""


def answer(case: Case, check: str, form: str, thing: Any = None) -> Finding:
    """Asks one question, with two lines that reproduce a failure. Runs where the code of others may run."""
    subject = case.subject(form, thing)
    finding = replace(CHECKS[check](subject), form=form)
    if finding.verdict != "fails" or not isinstance(subject, AttentionSubject):
        return with_lines(case, finding)
    thing = import_named(subject.options.target) if thing is None else thing
    return with_lines(case, replace(finding, reproducer=reproducer(subject, finding, thing)))


def with_lines(case: Case, finding: Finding) -> Finding:
    """The finding with lines that ask again through this package, if it failed and has no plainer ones."""
    if finding.verdict != "fails" or finding.reproducer:
        return finding
    return replace(finding, reproducer=asking(case.request, finding.check, finding.form))


def questions(case: Case, checks: Sequence[str]) -> Iterator[tuple[str, str]]:
    """The names of questions with the forms that they are asked of."""
    for check in checks:
        if check in MODELS and isinstance(case, AttentionCase):
            continue
        last = case.forms[-1:]
        yield from ((check, form) for form in (last if check in CAUSAL else case.forms))


def examine(helper: Helper, case: Case, plan: Plan, started: Started = lambda check, form: None) -> Iterator[Answer]:
    """Asks all questions and yields the answers as they come. A question that breaks the process has failed."""
    plain = [check for check in plan.checks if check in CHECKS]
    for check, form in questions(case, plain):
        started(check, form)
        try:
            yield Answer(helper.ask(answer, case, check, form, seconds=plan.seconds))
        except (BrokenCallError, SubquadError) as error:
            sentence = str(error) if isinstance(error, SubquadError) else f"it {error}"
            yield Answer(with_lines(case, Finding(check, "fails", sentence, form=form)))
    if asked := [check for check in GROWTH if check in plan.checks]:
        for form in case.forms:
            started(" and ".join(asked), form)
            yield from _growth(helper, case, plan, form, asked)


def _growth(helper: Helper, case: Case, plan: Plan, form: str, asked: Sequence[str]) -> Iterator[Answer]:
    """Measures at several lengths, and gives the exponents of time and memory."""
    if reason := case.no_growth():
        yield from (Answer(replace(not_asked(check, reason), form=form)) for check in asked)
        return
    make: Make = partial(case.longer, form)
    limits = Limits(memory_bytes=plan.memory_bytes, run_seconds=min(plan.seconds, plan.growth_seconds))
    grown = measure_growth(make, plan.lengths, case.tiny, limits, plan.growth_seconds)
    for check, visits in zip(GROWTH, (grown.seconds, grown.peaks), strict=True):
        if check in asked:
            finding = replace(judge_growth(check, visits, plan.limit, grown.failure), form=form)
            yield Answer(_timed_lines(helper, case, finding), grown.rows(form) if check == asked[0] else ())


def _timed_lines(helper: Helper, case: Case, finding: Finding) -> Finding:
    """The finding with lines that print times or memory at several lengths, if it failed."""
    if finding.verdict != "fails" or isinstance(case, ModelCase):
        return finding
    try:
        lines = helper.ask(growth_lines, case, finding, seconds=LINES_SECONDS)
    except (BrokenCallError, SubquadError):
        lines = ""
    return replace(finding, reproducer=lines)


def growth_lines(case: AttentionCase, finding: Finding) -> str:
    """Two lines that print times or memory at several lengths, in a helper's process."""
    subject = case.subject(finding.form)
    return reproducer(subject, finding, import_named(subject.options.target))
