"""Native kernels and loops for a CPU and the all-parallel form for a GPU are the same function, and continue each other."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.testing import assert_close

from subquad import native
from subquad.feature_maps import FEATURE_MAPS, FeatureMap, Kernel, Random
from subquad.ops import linear, scratch
from subquad.ops.autocast import prefers_parallel
from subquad.ops.linear import chunks, empty_state, parallel
from subquad.ops.linear import native as native_form
from subquad.ops.linear.blocks import runs_of
from subquad.ops.linear.sums import block_length

KERNELS: list[Kernel] = ["positive", "hyperbolic", "trigonometric", "relu"]
MAPS: dict[str, Any] = {name: options() for name, options in FEATURE_MAPS.items()} | {
    kernel: Random(features=16, kernel=kernel) for kernel in KERNELS
}
MAPS["wide"] = Random(features=64)
every_map = pytest.mark.parametrize("name", MAPS)
needs_native = pytest.mark.skipif(not native.is_there(), reason="the native kernels are not compiled")
in_blocks = pytest.mark.parametrize(
    "form",
    [
        pytest.param(linear.attend_in_blocks, id="torch"),
        pytest.param(native_form.attend, id="native", marks=needs_native),
    ],
)
in_chunks = pytest.mark.parametrize(
    "form",
    [
        pytest.param(linear.attend_in_chunks, id="torch"),
        pytest.param(native_form.attend_causal, id="native", marks=needs_native),
    ],
)


def setup(name: str, length: int, scale: float = 1.0) -> tuple[FeatureMap, list[Tensor]]:
    generator = torch.Generator().manual_seed(0)
    phi = MAPS[name].build(heads=3, head_dim=5, generator=generator).double()
    made = [torch.randn(2, 3, length, 5, generator=generator, dtype=torch.float64) * scale for _ in range(3)]
    return phi, [x.requires_grad_() for x in made]


@in_blocks
@every_map
def test_blocks_equal_parallel(name: str, form: Any) -> None:
    phi, (q, k, v) = setup(name, 700)
    keep = torch.rand(2, 700) > 0.2
    one = form(q, k, v, phi.sides(), keep)
    other = parallel.attend(q, k, v, phi.sides(), keep)
    assert_close(one, other, rtol=1e-9, atol=1e-9)
    of = (q, k, v, *phi.parameters())
    assert_close(torch.autograd.grad(one.sum(), of), torch.autograd.grad(other.sum(), of), rtol=1e-8, atol=1e-8)


@in_chunks
@every_map
@pytest.mark.parametrize("scale", [1.0, 8.0])
def test_chunks_equal_parallel_and_continue_each_other(name: str, scale: float, form: Any) -> None:
    phi, (q, k, v) = setup(name, 700, scale)
    sides, start = phi.sides(), empty_state(k, v, phi.sides()[1])
    parts = [[x[:, :, :333] for x in (q, k, v)], [x[:, :, 333:] for x in (q, k, v)]]
    results = []
    forms: list[Any] = [form, parallel.attend_causal]
    for first in forms:
        for second in forms:
            begun, state = first(*parts[0], sides, start)
            ended, last = second(*parts[1], sides, state)
            results.append((torch.cat([begun, ended], dim=2), *last[:2]))
    tight = 1e-6 if name == "trigonometric" else 1e-9  # its denominators come close to zero
    for result in results[1:]:
        assert_close(result, results[0], rtol=tight, atol=tight)
    of = (q, k, v, *phi.parameters())
    wanted = torch.autograd.grad(results[0][0].sum(), of, retain_graph=True)
    for mixed, *_ in results[1:]:
        assert_close(torch.autograd.grad(mixed.sum(), of, retain_graph=True), wanted, rtol=1e-5, atol=1e3 * tight)


@in_chunks
@pytest.mark.parametrize("name", ["taylor", "wide"])
@pytest.mark.parametrize("given", [False, True])
def test_states_between_saved_ones_are_found_again(name: str, given: bool, form: Any) -> None:
    """Long enough for several runs of several blocks, with padding, from a state or from none."""
    phi, (q, k, v) = setup(name, 1700)
    runs = runs_of(q, v, phi.feature_count(5))
    assert len(runs) > 1
    assert min(map(len, runs)) > 1
    keep = torch.rand(2, 1700, generator=torch.Generator().manual_seed(1)) > 0.2
    start = empty_state(k, v, phi)
    if given:
        start = parallel.attend_causal(2 * v, k.flip(2), q, phi.sides(), start)[1]
    one, _ = form(q, k, v, phi.sides(), start if given else None, keep)
    other, _ = parallel.attend_causal(q, k, v, phi.sides(), start, keep)
    assert_close(one, other, rtol=1e-9, atol=1e-9)
    wanted = torch.autograd.grad(other.sin().sum(), (q, k, v), retain_graph=True)
    assert_close(torch.autograd.grad(one.sin().sum(), (q, k, v)), wanted, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("length", [100, 700, 3000])
@pytest.mark.parametrize("name", MAPS)
def test_less_is_saved_than_fused_softmax_saves(name: str, length: int) -> None:
    """Half as much at most, beside queries, keys, values, weights and the result."""
    phi, (q, k, v) = setup(name, length)
    own = [q, k, v, *phi.parameters()]
    ours = saved_beside(own, lambda: chunks.attend_in_chunks(q, k, v, phi.sides())[0])
    assert ours <= saved_beside(own, lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True)) / 2


@needs_native
@pytest.mark.parametrize("length", [100, 700, 3000])
@pytest.mark.parametrize("name", MAPS)
def test_native_kernels_save_no_more_than_fused_softmax(name: str, length: int) -> None:
    """One number for each position, beside queries, keys, values, weights and the result."""
    phi, (q, k, v) = setup(name, length)
    own = [q, k, v, *phi.parameters()]
    softmax = saved_beside(own, lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True))
    assert saved_beside(own, lambda: native_form.attend_causal(q, k, v, phi.sides())[0]) <= softmax


def saved_beside(own: list[Tensor], run: Callable[[], Tensor]) -> int:
    """How many numbers autograd saves, without those of these tensors and of the result."""
    saved: dict[int, int] = {}

    def note(x: Tensor) -> Tensor:
        saved[x.data_ptr()] = x.numel()
        return x

    with torch.autograd.graph.saved_tensors_hooks(note, lambda x: x):
        result = run()
    known = {x.data_ptr() for x in (*own, result)}
    return sum(size for where, size in saved.items() if where not in known)


def test_the_op_picks_by_device_and_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = torch.zeros(1)
    assert not prefers_parallel(cpu)
    assert prefers_parallel(cpu.to("meta"))
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert prefers_parallel(cpu)


def test_results_do_not_live_in_the_scratch_memory() -> None:
    """A second call writes over the scratch, not over what the first one gave."""
    phi, (q, k, v) = setup("elu", 700)
    sides, start = phi.sides(), empty_state(k, v, phi)
    whole: Any = lambda *x: (linear.attend_in_blocks(*x),)  # noqa: E731
    chunked: Any = lambda *x: chunks.attend_in_chunks(*x, start)  # type: ignore[call-arg]  # noqa: E731
    forms = [whole, chunked]
    if native.is_there():
        native_chunked: Any = native_form.attend_causal
        forms += [lambda *x: (native_form.attend(*x),), lambda *x: native_chunked(*x, start)]
    for form in forms:
        mixed = form(q.detach(), k.detach(), v.detach(), sides)
        flat = [mixed[0], *(mixed[1] if len(mixed) > 1 else ())]
        kept = [part.clone() for part in flat]
        form(2 * v.detach(), 3 * q.detach(), k.detach(), sides)
        assert_close(flat, kept, rtol=0, atol=0)


def test_scratch_made_in_inference_mode_serves_training() -> None:
    """PyTorch forbids writing to tensors of inference mode outside of it. A new thread starts without scratch memory."""
    phi, (q, k, v) = setup("elu", 700)

    def infer_then_train() -> None:
        with torch.inference_mode():
            linear.attend_in_blocks(q, k, v, phi.sides())
        linear.attend_in_blocks(q, k, v, phi.sides()).sum().backward()

    with ThreadPoolExecutor(1) as thread:
        thread.submit(infer_then_train).result()
    assert q.grad is not None


def test_scratch_keeps_small_pieces_only() -> None:
    room = scratch.Scratch(torch.float16)
    first = room.take(3, 5)
    room.start()
    assert room.take(15).data_ptr() == first.data_ptr()
    large = room.take(scratch.WORKING_SET + 1)
    room.start()
    room.take(1)
    assert room.take(scratch.WORKING_SET + 1).data_ptr() != large.data_ptr()


def test_blocks_are_never_longer_than_memory_allows() -> None:
    x = torch.empty(1, 8, 1, 64)
    assert block_length(x, 64, most=512) == 512
    assert block_length(x, 256, most=512) == 256
    assert block_length(x.expand(64, 8, 1, 64), 256, most=512) == 64
