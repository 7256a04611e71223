"""The share of a GPU's roofline that measured attentions reached."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from subquad.compare.views import AXES, Comparison, View, name_view
from subquad.measure.roofline import DEVICES, Device, Work, device_named, share_reached
from subquad.types import AttentionOptions

BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "float64": 8}
STATE_BYTES = 4  # numbers of a state are float32
PASSES = {"forward": (4, 1), "training": (12, 3)}
"""Tensors of q's size that are read or written, and operations relative to the forward, by kind of work.

The forward reads q, k and v and writes the result. The backward reads these and the gradient and writes three gradients,
and has twice the operations of the forward.
"""


class Reached(NamedTuple):
    """The share of the roofline that a mechanism reached at its longest length."""

    view: View
    mechanism: str
    length: int
    share: float


def work_of(options: AttentionOptions, view: View, length: int) -> Work | None:
    """Returns the bytes and operations that attention needs in a view; None where these are not known."""
    setting = dict(zip(AXES, view.setting, strict=True))
    head_dim, heads = int(str(setting["head_dim"])), int(str(setting["batch"])) * int(str(setting["heads"]))
    operations = options.operations(1 if view.what == "step" else length, head_dim)
    if operations is None:
        return None
    number = BYTES[str(setting["dtype"])]
    if view.what == "step":  # the state is read and written
        state = 2 * options.size(heads=1, head_dim=head_dim).state
        return Work(heads * (STATE_BYTES * state + 4 * number * head_dim), heads * operations)
    if view.what not in PASSES:
        return None
    tensors, times = PASSES[view.what]
    return Work(heads * tensors * number * length * head_dim, heads * times * operations)


def shares(
    comparison: Comparison,
    variants: Mapping[str, AttentionOptions],
    names: Mapping[str, str],
    devices: Mapping[str, Device] = DEVICES,
) -> list[Reached]:
    """Returns what was reached in each view on a GPU with published figures; `names` has the GPUs' names by device."""
    reached = []
    for view in comparison.views:
        setting: dict[str, Any] = dict(zip(AXES, view.setting, strict=True))
        device = device_named(names.get(setting["device"], ""), devices)
        for mechanism in comparison.measured(view) if device is not None else ():
            length = max(comparison.lengths(view, mechanism))
            work = work_of(variants[mechanism], view, length) if mechanism in variants else None
            if work is not None and device is not None:
                share = share_reached(work, device, setting["dtype"], comparison.middle(view, mechanism, length))
                reached.append(Reached(view, mechanism, length, share))
    return reached


def sentences(reached: list[Reached], comparison: Comparison) -> list[str]:
    """Says for each view which share of the roofline each mechanism reached."""
    by_view: dict[View, list[str]] = {}
    for view, mechanism, length, share in reached:
        by_view.setdefault(view, []).append(f"{mechanism} {100 * share:.3g}% at {length} tokens")
    return [
        f"Share of the roofline ({name_view(view, comparison.views)}): {', '.join(words)}."
        for view, words in by_view.items()
    ]
