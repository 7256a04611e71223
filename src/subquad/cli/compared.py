"""Which attentions `subquad compare` measures: mechanisms, different ones by layer, and attentions of other packages."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from subquad.attention import COMMON, Softmax, joined
from subquad.checking import excerpt
from subquad.cli.outside import Calling, open_outside
from subquad.cli.values import choose, parse_attention
from subquad.compare.views import BASELINE, MATERIALISED, Form
from subquad.errors import SubquadError
from subquad.types import AttentionOptions
from subquad.words import is_by_layer, is_import_name, run_lengths

ALL = "all"
"""Name that stands for all mechanisms."""


class Attentions(NamedTuple):
    """Attentions to measure by name, the baseline first, and for each that is left out a sentence that says why."""

    variants: dict[str, AttentionOptions]
    left_out: dict[str, str]


def choose_attentions(
    names: Sequence[str], known: Mapping[str, AttentionOptions], calling: Calling, *, heads: int, head_dim: int
) -> Attentions:
    """Returns the attentions that names stand for; the common ones if there are no names.

    Args:
        names: mechanisms, several by layer such as linear*3,softmax, attentions as MODULE:NAME, or all.
        known: the mechanisms but the baseline, with their options.
        calling: how attentions of other packages are called.
        heads: number of heads with which attentions of other packages are tried.
        head_dim: dimension of a head with which they are tried.
    """
    attentions = {BASELINE: Softmax(), MATERIALISED: Softmax(materialised=True), **known}
    imported = [name for name in dict.fromkeys(names) if is_import_name(name)]
    opened, left_out = open_outside(imported, calling, heads=heads, head_dim=head_dim) if imported else ({}, {})
    variants: dict[str, AttentionOptions] = {BASELINE: attentions[BASELINE]}
    for name in names or (MATERIALISED, *COMMON):
        if name in opened:
            variants[name] = opened[name]
        elif is_by_layer(name):
            variants |= _by_layer(name, attentions)
        elif name not in left_out:
            chosen = choose("attention", name, [*attentions, ALL])
            variants |= attentions if chosen == ALL else {chosen: attentions[chosen]}
    return Attentions(variants, left_out)


def _by_layer(text: str, attentions: Mapping[str, AttentionOptions]) -> dict[str, AttentionOptions]:
    """Returns the mechanisms by layer under their name; the mechanism of all layers under its own."""
    if ":" in text:
        raise SubquadError(
            f"{excerpt(text)} names an attention of another package for some layers: name it alone, as it is measured alone"
        )
    names = parse_attention(text, attentions, "--mechanisms")
    name = run_lengths(names) if len(set(names)) > 1 else names[0]
    return {name: joined([attentions[each] for each in names])}


def without_form(attentions: Attentions, forms: Sequence[Form]) -> Attentions:
    """Leaves out attentions that have none of the forms."""
    if "bidirectional" in forms:
        return attentions
    missing = {name: options for name, options in attentions.variants.items() if not options.traits.causal}
    reasons = {name: no_causal_form(options) for name, options in missing.items()}
    kept = {name: options for name, options in attentions.variants.items() if name not in missing}
    return Attentions(kept, {**attentions.left_out, **reasons})


def no_causal_form(options: AttentionOptions) -> str:
    """Says which of the mechanisms has no causal form."""
    without = [part.name for part in options.parts if not part.traits.causal]
    if options.depth == 1:
        return "it has no causal form"
    return f"{' and '.join(without)} among its layers {'has' if len(without) == 1 else 'have'} no causal form"
