"""Questions about numbers: lower precision, and gradients against differences of results."""

from dataclasses import replace

import torch
from torch import Tensor

from subquad.attention.outside.importing import sentence_of
from subquad.check.attempts import deviation
from subquad.check.findings import Finding, judged, not_asked
from subquad.check.properties import RANDOM
from subquad.check.subjects import Inputs, Subject

LOUD = 8.0
"""Factor on the inputs with which results must still be finite."""
DIRECTIONS = 2
"""Number of random directions in which a derivative is compared, beside that of the gradient itself."""


@torch.no_grad()
def half_precision(subject: Subject) -> Finding:
    """Asks whether results in float32, bfloat16 and float16 are those of exact inputs up to rounding, and finite for loud
    ones. What is asked about in float32 anyway is not asked in it again."""
    if subject.is_random():
        return not_asked("half", RANDOM)
    findings, refused = [], []
    x = subject.draw(2, subject.whole)
    for dtype in subject.allowed_half:
        name = str(dtype).removeprefix("torch.")
        try:
            findings.append(_half(subject, x, dtype, name))
        except Exception as error:  # a dtype may be refused in any way
            refused.append(f"{name} ({sentence_of(error)})")
    if not findings:
        return not_asked("half", f"it does not take {' or '.join(refused)}")
    worst = max(findings, key=lambda found: (found.verdict == "fails", (found.value or 0.0) / (found.allowed or 1.0)))
    return replace(worst, sentence=worst.sentence + (f"; it does not take {refused[0]}" if refused else ""))


def _half(subject: Subject, x: Inputs, dtype: torch.dtype, name: str) -> Finding:
    """The error in one dtype. The exact results are those of inputs and weights that are rounded to it."""
    exact, weights = subject.dtype, [*subject.module.parameters(), *subject.module.buffers()]
    kept = [weight.clone() for weight in weights]
    try:
        subject.to(dtype)
        rough = subject.mix(subject.cast(x, dtype))
        loud = subject.mix(tuple(LOUD * part if part.is_floating_point() else part for part in subject.cast(x, dtype)))
        subject.to(exact)
        expected = subject.mix(subject.cast(subject.cast(x, dtype), exact))
    finally:
        subject.to(exact)
        for weight, before in zip([*subject.module.parameters(), *subject.module.buffers()], kept, strict=True):
            weight.copy_(before)
    sizes = {f"{name}, beside exact results": deviation(expected, rough)}
    if not bool(loud.isfinite().all()):
        sizes[f"{name}, inputs {LOUD:.0f} times as large"] = float("inf")
    return judged("half", sizes, subject.allowed_half[dtype], "lower precision moves the results")


def gradients(subject: Subject) -> Finding:
    """Asks whether derivatives in random directions are those that small differences of inputs and weights give."""
    x = subject.draw(1, subject.part or subject.whole)
    groups = subject.leaves(x)
    leaves = [leaf for group in groups.values() for leaf in group]
    if not leaves:
        return not_asked("gradients", "neither its inputs nor weights take gradients")
    for leaf in leaves:
        leaf.requires_grad_()
    mixed = subject.mix(x)
    if not mixed.requires_grad:
        return not_asked("gradients", "its results record no gradients")
    drawing = torch.Generator().manual_seed(3)
    weights = _randn(mixed, drawing)
    found = torch.autograd.grad((mixed * weights).sum(), leaves, allow_unused=True)
    slopes = dict(zip(map(id, leaves), found, strict=True))
    sizes = {}
    for name, group in groups.items():
        known: list[Tensor | None] = [slopes[id(leaf)] for leaf in group]
        own = [torch.zeros_like(leaf) if slope is None else slope for leaf, slope in zip(group, known, strict=True)]
        ways = [_unit(own), *(_unit([_randn(leaf, drawing) for leaf in group]) for _ in range(DIRECTIONS))]
        sizes[name] = max(_gap(subject, x, group, known, way, weights) for way in ways)
    return judged("gradients", sizes, subject.allowed_gradient, "derivatives differ from those of small steps")


def _randn(like: Tensor, drawing: torch.Generator) -> Tensor:
    return torch.randn(like.shape, generator=drawing, dtype=torch.float64).to(like.dtype)


def _unit(directions: list[Tensor]) -> list[Tensor]:
    """Directions scaled so that their numbers have a root mean square of 1."""
    count = sum(way.numel() for way in directions)
    size = (sum(float(way.double().square().sum()) for way in directions) / max(count, 1)) ** 0.5
    return [way / size if size > 0 else way for way in directions]


def _gap(
    subject: Subject, x: Inputs, leaves: list[Tensor], slopes: list[Tensor | None], ways: list[Tensor], weights: Tensor
) -> float:
    """The difference of a directional derivative from that of a small step, over the size that it usually has."""
    directions = [way * _size(leaf) for leaf, way in zip(leaves, ways, strict=True)]
    known = [(slope.double(), way.double()) for slope, way in zip(slopes, directions, strict=True) if slope is not None]
    analytical = sum(float((slope * way).sum()) for slope, way in known)
    usual = sum(float((slope * way).square().sum()) for slope, way in known) ** 0.5
    numericals = [_difference(subject, x, leaves, directions, step, weights) for step in subject.gradient_steps]
    return min(abs(numerical - analytical) / max(usual, abs(numerical), 1e-12) for numerical in numericals)


def _size(leaf: Tensor) -> float:
    """Root mean square of a tensor, 1 if it is zero."""
    return float(leaf.detach().double().square().mean().sqrt()) or 1.0


@torch.no_grad()
def _difference(
    subject: Subject, x: Inputs, leaves: list[Tensor], directions: list[Tensor], step: float, weights: Tensor
) -> float:
    """The derivative of the weighted results in a direction, from a step forth and a step back."""
    kept, ends = [leaf.clone() for leaf in leaves], []
    for sign in (step, -step):
        for leaf, before, way in zip(leaves, kept, directions, strict=True):
            leaf.copy_(before + sign * way)
        ends.append(float((subject.mix(x).double() * weights.double()).sum()))
    for leaf, before in zip(leaves, kept, strict=True):
        leaf.copy_(before)
    return (ends[0] - ends[1]) / (2 * step)
