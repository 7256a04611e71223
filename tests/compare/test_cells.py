"""The work that is measured is the work that is meant."""

import pytest
import torch

from subquad.attention import MECHANISMS, Cosformer, Layers, Linear, Linformer, Outside, Softmax
from subquad.compare.cells import Cell, Fused, FusedState, Setting, block_size, build, prepare
from subquad.compare.views import CAUSAL_WORK, FORMS, WHATS, Form, What
from subquad.types import AttentionOptions

SETTING = Setting(batch=2, heads=2, head_dim=8)
BY_LAYER = Layers((Linear(), Linear(), Linear(), Softmax()))
OTHERS: dict[str, AttentionOptions] = {"materialised": Softmax(materialised=True), "linear*3,softmax": BY_LAYER}


def cell(name: str, options: AttentionOptions, form: Form = "causal", what: What = "forward", length: int = 33) -> Cell:
    return Cell(name, options, form, what, length, SETTING)


@pytest.mark.parametrize("what", WHATS)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", [*OTHERS, *MECHANISMS])
def test_every_cell_runs(name: str, form: Form, what: What) -> None:
    options = OTHERS[name] if name in OTHERS else MECHANISMS[name]()
    if not options.traits.causal and (form == "causal" or what in CAUSAL_WORK):
        pytest.skip(f"{name} has no causal form")
    work = prepare(cell(name, options, form, what))
    work.run()
    work.run()
    assert (work.held_bytes > 0) == (what == "step")


def test_the_baseline_is_softmax() -> None:
    q, k, v = torch.randn(3, 2, 2, 9, 8)
    fused, softmax = Fused(), Softmax().build(heads=2, head_dim=8)
    torch.testing.assert_close(fused(q, k, v), softmax(q, k, v))
    torch.testing.assert_close(fused.causal(q, k, v)[0], softmax.causal(q, k, v)[0])
    cache = FusedState(torch.cat([k[:, :, :8], k[:, :, :1]], 2), torch.cat([v[:, :, :8], v[:, :, :1]], 2))
    stepped, _ = fused.step(q[:, :, 8:], k[:, :, 8:], v[:, :, 8:], cache)
    torch.testing.assert_close(stepped, softmax.causal(q, k, v)[0][:, :, 8:])


def test_the_context_of_a_step_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Softmax' state grows, so it is given up after each run; the length of a measured step is the one in its row."""
    seen: list[int] = []
    from subquad.attention.softmax import SoftmaxAttention

    original = SoftmaxAttention.step

    def step(self: SoftmaxAttention, *arguments: object, **named: object) -> object:
        seen.append(arguments[3].keys.shape[2])  # type: ignore[attr-defined]
        return original(self, *arguments, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(SoftmaxAttention, "step", step)
    work = prepare(cell("materialised", Softmax(materialised=True), what="step"))
    for _ in range(3):
        work.run()
    assert set(seen) == {33}
    assert work.held_bytes == 2 * 2 * 2 * 33 * 8 * 4 + 2 * 33  # keys and values of 2 sequences and 2 heads, and the mask


def test_a_step_goes_on_from_the_state_before() -> None:
    """Linear's state is its sums, norms and peak, whatever the context."""
    sizes = [prepare(cell("linear", Linear(), what="step", length=length)).held_bytes for length in (5, 500)]
    assert sizes == [2 * 2 * (8 * 8 + 8 + 1) * 4] * 2


def test_linformer_is_built_long_enough() -> None:
    short = cell("linformer", Linformer(k=4, max_length=16), form="bidirectional", length=100)
    (built,) = build(short, torch.Generator())
    assert built.projection.options.max_length == 100  # type: ignore[union-attr]


def test_steps_have_room_behind_the_longest_context() -> None:
    """Steps after as many positions as cosFormer takes by default failed, as each one is a further position."""
    work = prepare(cell("cosformer", Cosformer(max_length=33), what="step"))
    for _ in range(5):
        work.run()


def test_sizes_depend_on_the_length_for_linformer_only() -> None:
    def numbers(options: AttentionOptions, length: int) -> int:
        return block_size(cell("any", options, length=length))[0]

    layer = 4 * (16 * 16 + 16) + 2 * 2 * 16 + (16 * 64 + 64) + (64 * 16 + 16)
    assert numbers(Softmax(), 128) == numbers(Softmax(), 512) == layer
    assert numbers(Linformer(k=4), 512) - numbers(Linformer(k=4), 128) == 4 * (512 - 128)
    assert block_size(cell("any", Softmax()))[1] == 4 * layer


def test_layers_run_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them run in each form and each kind of work, and the row is told how many they were."""
    from subquad.attention.linear import LinearAttention
    from subquad.attention.softmax import SoftmaxAttention

    ran: list[str] = []

    def watch(kind: type, name: str) -> None:
        original = getattr(kind, name)

        def watched(self: object, *inputs: object, **named: object) -> object:
            ran.append(f"{kind.__name__}.{name}")
            return original(self, *inputs, **named)

        monkeypatch.setattr(kind, name, watched)

    for kind in (LinearAttention, SoftmaxAttention):
        for name in ("forward", "causal", "step"):
            watch(kind, name)
    for form, what, name in (
        ("bidirectional", "forward", "forward"),
        ("bidirectional", "training", "forward"),
        ("bidirectional", "layer", "forward"),
        ("causal", "forward", "causal"),
        ("causal", "step", "step"),
    ):
        measured = cell("linear*3,softmax", BY_LAYER, form, what)  # type: ignore[arg-type]
        work = prepare(measured)
        ran.clear()
        work.run()
        of_that_form = [each for each in ran if each.endswith(name)]
        assert of_that_form == [*[f"LinearAttention.{name}"] * 3, f"SoftmaxAttention.{name}"]
        assert measured.layers == 4
    assert cell("linear*3,softmax", BY_LAYER, what="update").layers == 1  # a whole model, as of the others


def test_layers_hold_their_mean() -> None:
    def held(options: AttentionOptions) -> int:
        return prepare(cell("any", options, what="step")).held_bytes

    assert held(BY_LAYER) == (3 * held(Linear()) + held(Softmax())) // 4
    slots = Linformer(k=4)
    alone, both = (
        block_size(cell("any", options))[0] for options in (slots, Layers((slots, Softmax(), Softmax(), Softmax())))
    )
    assert both == (alone + 3 * block_size(cell("any", Softmax()))[0]) // 4


def test_attentions_of_blocks_and_states_with_numbers_are_measured(unchecked_shapes: None) -> None:
    blocks = Outside("tests.check.faults:takes_blocks")
    candidate = Cell("blocks", blocks, "bidirectional", "forward", 256, SETTING).candidate()
    candidate.warm_up().run()
    candidate.prepare().run()
    counts = Outside("tests.check.faults:Counts", causal_by="method", steps=True)
    prepare(Cell("counts", counts, "causal", "step", 33, SETTING)).run()
