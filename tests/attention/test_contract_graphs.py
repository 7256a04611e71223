"""Every form of every mechanism compiles as one graph, and is exported for any length."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from subquad.attention import MECHANISMS
from tests.attention.cases import CASES, CAUSAL, build, gradients, inputs

pytestmark = pytest.mark.usefixtures("kernels")


class Form(nn.Module):
    """One form of a mechanism as a module, which is what compilers and exporters take."""

    def __init__(self, attend: Any, form: str) -> None:
        super().__init__()
        self.attend, self.form = attend, form

    def forward(self, q: Tensor, k: Tensor, v: Tensor, state: Any = None) -> Any:
        if self.form == "whole":
            return self.attend(q, k, v)
        return getattr(self.attend, self.form)(q, k, v, state)


FORMS = [(name, "whole") for name in CASES] + [(name, form) for name in CAUSAL for form in ("causal", "step")]
GRAPHS = [pytest.param(*form, marks=[] if form[0] in MECHANISMS else pytest.mark.slow) for form in FORMS]
"""Making a graph takes seconds: for variants of a mechanism it is made by `make test-slow`."""


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize(("name", "form"), GRAPHS)
def test_compiles_whole(name: str, form: str) -> None:
    torch.compiler.reset()
    module = Form(build(name), form)
    q, k, v = inputs(1 if form == "step" else 157)
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    wanted, got = module(q, k, v), compiled(q, k, v)
    assert_close(got, wanted, rtol=1e-7, atol=1e-7)
    first = [x[0] if isinstance(x, tuple) else x for x in (got, wanted)]
    assert_close(gradients(first[0], q, k, v), gradients(first[1], q, k, v), rtol=1e-6, atol=1e-6)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of PyTorch's own code
@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize(("name", "form"), FORMS)
def test_compiles_to_machine_code(name: str, form: str) -> None:
    torch.compiler.reset()
    module = Form(build(name), form)
    q, k, v = (x.detach() for x in inputs(1 if form == "step" else 157))
    assert_close(torch.compile(module, fullgraph=True)(q, k, v), module(q, k, v), rtol=1e-7, atol=1e-7)


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize(("name", "form"), GRAPHS)
def test_exports_for_any_length(name: str, form: str) -> None:
    module = Form(build(name), form)
    # chunks of 128 in the causal form, runs of 29 in this convolution, blocks: lengths are multiples, padded where need be
    unit = {"causal": 128, "step": 1, "whole": 29 if "convolution" in name else 1}[form]
    if name.startswith("hybrid") and form != "step":
        unit = CASES[name].block
    if name.startswith("sparse") and form != "step":
        unit = CASES[name].block
    if name.startswith("window") and form != "step":
        unit = max(64, CASES[name].reach) * CASES[name].dilation
    if name.startswith("softmax"):
        unit = 1
    most = ((CASES[name].traits.max_length or 4096) - 1) // unit
    arguments = tuple(x.detach() for x in inputs(1 if form == "step" else min(6, most - 1) * unit))
    units = torch.export.Dim("units", min=2, max=most)
    one_length = form == "step" or name.startswith("infinity")  # which goes through as many segments as were exported
    length: Any = {} if one_length else {2: unit * units if unit > 1 else units}
    state = of_state = None
    if form == "step":
        with torch.no_grad():
            state = module.attend.causal(*inputs(5))[1]
        past = torch.export.Dim("past", min=2, max=4096)
        grows: Any = {}
        if not CASES[name].traits.constant_state and not name.startswith("lsh"):  # which sorts as many keys as were exported
            grows = {"keys": {2: past}, "values": {2: past}, "keep": {1: past}}
        of_state = type(state)(*(grows.get(field, {}) for field in state._fields))
    exported = torch.export.export(
        module, (*arguments, state), dynamic_shapes={"q": length, "k": length, "v": length, "state": of_state}
    )
    more = tuple(x.detach() for x in inputs(arguments[0].shape[2] if one_length else 4 * unit, seed=4))
    assert_close(exported.module()(*more, state), module(*more, state), rtol=1e-7, atol=1e-7)
