"""Two lines of plain PyTorch that show a failure, for pasting into Python. They are run before they are shown."""

import io
import math
import re
from contextlib import redirect_stdout
from typing import Any

from torch import nn

from subquad.attention.outside.building import Sizes, is_built_first
from subquad.attention.outside.mechanism import callable_of
from subquad.check.findings import Finding
from subquad.check.models import ModelRequest
from subquad.check.request import Request
from subquad.check.subjects import AttentionSubject
from subquad.types import AttentionOptions

AXES = {"bhnd": (0, 2), "bnhd": (0, 1), "bnm": (0, 1), "nbm": (1, 0)}
"""Axes of the batch and of positions, by layout."""


def reproducer(subject: AttentionSubject, finding: Finding, thing: Any) -> str:
    """Two lines that print a number above what is allowed; empty if plain lines do not show the failure."""
    writer = _Writer(subject, thing)
    line = writer.second(finding)
    if not line:
        return ""
    lengths = re.findall(r"of (\d+) positions", finding.aspect)
    text = f"{writer.first(*map(int, lengths[:1]))}\n{line}"
    is_timed = finding.check in ("time", "memory")
    return text if is_timed or shows(text, finding.allowed or 0.0) else ""


def shows(text: str, allowed: float) -> bool:
    """Whether the last number that the lines print is above what is allowed, or not finite."""
    printed = io.StringIO()
    try:
        with redirect_stdout(printed):
            exec(compile(text, "reproducer", "exec"), {"__name__": "reproducer"})
        number = float(printed.getvalue().split()[-1])
    except Exception:  # lines that do not run are not shown
        return False
    return not math.isfinite(number) or number > allowed


class _Writer:
    """Writes the lines for one form of an attention, with inputs in its own layout as one tensor x."""

    def __init__(self, subject: AttentionSubject, thing: Any) -> None:
        self.subject, self.thing, self.options = subject, thing, subject.options
        self.heads, self.head_dim = subject.request.heads, subject.request.head_dim
        self.held = callable_of(subject.module.held[subject.form])
        self.batch_axis, self.axis = AXES[self.options.layout]
        self.result_axis, self.result_batch = self._result_axes()

    def _result_axes(self) -> tuple[int, int]:
        """Axes of positions and of the batch in the result, which may have another layout than the inputs."""
        if not self.options.layer and self.options.layout in ("bhnd", "bnhd"):
            x = self.subject.draw(2, self.subject.whole)
            has_heads = self.subject.mix(x).shape[1] != 1 or self.heads == 1
            return (self.axis, 0) if has_heads else (1, 0)
        return self.axis, self.batch_axis

    def first(self, length: int | None = None) -> str:
        """Imports, builds and draws, by default the usual number of positions."""
        module, _, path = self.options.target.partition(":")
        double = ".double()" if self.options.is_double else ""
        ready = f"{double}.eval()" if isinstance(self.held, nn.Module) else ""
        source = f"import torch; from {module} import {path.split('.')[0]}; torch.manual_seed(0)"
        return f"{source}; attend = {self._built(path)}{ready}; x = {self.drawn(length or self.subject.whole)}"

    def _built(self, path: str) -> str:
        if not is_built_first(self.thing):
            return path
        options = self.options
        numbers = Sizes(self.heads, self.head_dim, self.subject.whole)
        if isinstance(self.thing, AttentionOptions) or is_options_class(self.thing):
            made = path if isinstance(self.thing, AttentionOptions) else f"{path}({_arguments(options.arguments)})"
            return f"{made}.for_length({self.subject.whole}).build(heads={self.heads}, head_dim={self.head_dim})"
        values = {name: numbers.value(size) for name, size in options.sizes.items()} | options.arguments
        if options.causal_by == "constructor":
            values[options.causal_argument] = self.subject.form == "causal"
        return f"{path}({_arguments(values)})"

    def drawn(self, length: int | str, batch: int = 2) -> str:
        """The text that draws inputs of a length."""
        count, width = (1 if self.options.layer else 3), self.heads * self.head_dim
        shape = {
            "bhnd": (count, batch, self.heads, length, self.head_dim),
            "bnhd": (count, batch, length, self.heads, self.head_dim),
            "bnm": (count, batch, length, width),
            "nbm": (count, length, batch, width),
        }[self.options.layout]
        dtype = ", dtype=torch.float64" if self.options.is_double else ""
        return f"torch.randn({', '.join(map(str, shape))}{dtype})"

    def at(self, places: str) -> str:
        """The index of some positions of x."""
        return _index(self.axis + 1, places)

    def call(self, x: str, mask: str = "", length: int | str | None = None) -> str:
        """The text of a call that gives the result."""
        options = self.options
        arguments = [f"*{x}", *([_arguments(options.call)] if options.call else [])]
        if mask:
            arguments.append(f"{options.mask_argument}={mask}")
        method = ""
        if self.subject.form == "causal":
            method = ".causal" if options.causal_by == "method" else ""
            arguments += [f"{options.causal_argument}=True"] if options.causal_by == "call" else []
            if options.causal_by == "mask":
                arguments.append(f"{options.causal_argument}={self._score_mask(length or self.subject.whole)}")
        return f"attend{method}({', '.join(arguments)}){self._part()}"

    def _part(self) -> str:
        """The index of the result in what a call returns."""
        x = self.subject.draw(2, self.subject.whole)
        module = self.subject.module
        if self.subject.form == "causal" and (self.options.causal_by == "method" or self.options.state_argument):
            return "[0]"
        arguments = module.causal_arguments(x[0]) if self.subject.form == "causal" else {}
        return "[0]" if isinstance(module.call(self.subject.form, x, arguments), tuple | list) else ""

    def _score_mask(self, length: int | str) -> str:
        seen = f"torch.ones({length}, {length}).tril().bool()"
        return {"keep": seen, "pad": f"~{seen}", "additive": f"(1 - torch.ones({length}, {length}).tril()) * -1e30"}[
            self.options.causal_mask
        ]

    def mask(self, is_real: str) -> str:
        """The text of a padding mask, from a condition on the position p."""
        whole = self.subject.whole
        if self.options.mask == "lengths":
            return f"torch.full((2,), {self.subject.part or whole * 2 // 3})"
        real = f"({is_real.replace('p', f'torch.arange({whole})')})"
        shape = f"(2, {whole})" if self.options.mask_shape == "keys" else f"(2, 1, 1, {whole})"
        kept = f"{real}.expand{shape}"
        if self.options.mask == "additive":
            dtype = ", dtype=torch.float64" if self.options.is_double else ""
            return f"torch.zeros({shape}{dtype}).masked_fill(~{kept}, -torch.inf)"
        return kept if self.options.mask == "keep" else f"~{kept}"

    def gap(self, first: str, second: str) -> str:
        """The text that prints the difference of two results over the size of the first."""
        return f"print((({first} - {second}).abs().max() / {first}.std()).item())"

    def result(self, name: str, places: str) -> str:
        """Some positions of a result."""
        return name + _index(self.result_axis, places)

    def second(self, finding: Finding) -> str:
        """The line that shows the failure; empty if there is none for this kind."""
        writers = {
            "padding": self._padding,
            "future": self._future,
            "batch": self._batch,
            "chunks": self._chunks,
            "steps": self._steps,
            "half": self._half,
            "gradients": self._gradients,
            "determinism": self._determinism,
            "threads": self._threads,
            "time": self._time,
            "memory": self._memory,
        }
        return writers[finding.check](finding.aspect) if finding.check in writers else ""

    def _padding(self, aspect: str) -> str:
        whole, real = self.subject.whole, self.subject.part or self.subject.whole * 2 // 3
        side = aspect.rpartition(", ")[2]
        if side not in self.subject.sides:  # rows with different padding take more than two lines
            return ""
        is_real = {"right": f"p < {real}", "left": f"p >= {whole - real}"}.get(side, "p % 3 > 0")
        places = {"right": f":{real}", "left": f"{whole - real}:"}.get(side, "1::3")
        masked = self.call("x", self.mask(is_real))
        if aspect.startswith("padding against none"):
            alone = self.call(f"x{self.at(places)}", length=real)
            return f"y = {alone}; z = {masked}; {self.gap('y', self.result('z', places))}"
        padding = {"right": f"{real}:", "left": f":{whole - real}"}.get(side, "::3")
        return (
            f"y = {masked}; x{self.at(padding)} *= 10; z = {masked}; "
            f"{self.gap(self.result('y', places), self.result('z', places))}"
        )

    def _future(self, aspect: str) -> str:
        cut, *lengths = re.findall(r"\d+", aspect) or ["1"]
        length = lengths[0] if lengths else None
        first = f"y = {self.call('x', length=length)}"
        if aspect.startswith("no positions"):
            alone = self.call(f"x{self.at(f':{cut}')}", length=cut)
            return f"{first}; z = {alone}; {self.gap('z', self.result('y', f':{cut}'))}"
        changed = f"x{self.at(f'{cut}:')} *= 10; z = {self.call('x', length=length)}"
        return f"{first}; {changed}; {self.gap(self.result('y', f':{cut}'), self.result('z', f':{cut}'))}"

    def _batch(self, aspect: str) -> str:
        row, others = _index(self.batch_axis + 1, ":1"), _index(self.batch_axis + 1, "1:")
        kept = _index(self.result_batch, ":1")
        if aspect.startswith("alone"):
            return f"y = {self.call('x')}; z = {self.call(f'x{row}')}; {self.gap(f'y{kept}', 'z')}"
        return f"y = {self.call('x')}; x{others} *= 10; z = {self.call('x')}; {self.gap(f'y{kept}', f'z{kept}')}"

    def _determinism(self, aspect: str) -> str:
        if aspect == "inputs":
            return f"y = x.clone(); {self.call('x')}; {self.gap('y', 'x')}"
        return f"y = {self.call('x')}; z = {self.call('x')}; {self.gap('y', 'z')}"

    def _continued(self, x: str, state: str, method: str = "causal") -> str:
        """A call that returns the result and the state."""
        options = self.options
        if options.causal_by == "method":
            return f"attend.{method}(*{x}, {state})"
        flag = f", {options.causal_argument}=True" if options.causal_by == "call" else ""
        return f"attend(*{x}{flag}, {options.state_argument}={state})"

    def _chunks(self, aspect: str) -> str:
        cut = next(iter(re.findall(r"\d+", aspect)), "1")
        before, after = (self._continued(f"x{self.at(f)}", s) for f, s in ((f":{cut}", "None"), (f"{cut}:", "s")))
        whole = self._continued("x", "None")
        return f"y = {whole}[0]; a, s = {before}; b, s = {after}; {self.gap('y', f'torch.cat([a, b], {self.result_axis})')}"

    def _steps(self, aspect: str) -> str:
        numbers = re.findall(r"\d+", aspect)
        start = int(numbers[-1]) if "after" in aspect else 0
        method = "step" if self.options.steps else "causal"
        earlier = self._continued("x" + self.at(f":{start}"), "None")
        begin = f"s = {earlier}[1]" if start else "s = None"
        one = self._continued(f"x{self.at('t:t+1')}", "r[-1][1]", method)
        stop = start + int(numbers[0])
        return (
            f"y = {self._continued('x', 'None')}[0]; {begin}; r = [(None, s)]; "
            f"[r.append({one}) for t in range({start}, {stop})]; z = torch.cat([a for a, _ in r[1:]], {self.result_axis}); "
            f"{self.gap(self.result('y', f'{start}:{stop}'), 'z')}"
        )

    def _half(self, aspect: str) -> str:
        dtype = f"torch.{aspect.partition(',')[0]}"
        exact = "torch.float64" if self.options.is_double else "torch.float32"
        louder = "8 * " if "times" in aspect else ""
        into, back = (f"attend.to({kind}); " if isinstance(self.held, nn.Module) else "" for kind in (dtype, exact))
        return (
            f"x = {louder}x.to({dtype}); {into}z = {self.call('x')}; {back}x = x.to({exact}); y = {self.call('x')}; "
            "print(((z.double() - y).square().mean().sqrt() / y.square().mean().sqrt()).item())"
        )

    def _gradients(self, aspect: str) -> str:
        if aspect not in ("q", "k", "v", "x"):
            return ""
        at, size = "xqkv".index(aspect) - (aspect != "x"), "1e-4" if self.options.is_double else "1e-1"
        return (
            f"f = lambda x: ({self.call('x')} ** 2).sum(); g = torch.autograd.grad(f(x.requires_grad_()), x)[0]; "
            f"u = torch.zeros_like(x); u[{at}] = g[{at}] / g[{at}].norm(); "
            f"d = (f(x + {size} * u) - f(x - {size} * u)) / 2 / {size}; print((d / g[{at}].norm() - 1).abs().item())"
        )

    def _threads(self, aspect: str) -> str:
        first = f"torch.set_num_threads(1); y = {self.call('x')}"
        if aspect.startswith("two threads"):
            return f"{first}; torch.set_num_threads(2); z = {self.call('x')}; {self.gap('y', 'z')}"
        pool = "from concurrent.futures import ThreadPoolExecutor"
        return (
            f"{pool}; {first}; w = torch.randn_like(x); r = list(ThreadPoolExecutor(2).map(lambda x: {self.call('x')}, "
            "[x, w] * 20)); print(max((a - y).abs().max().item() for a in r[::2]))"
        )

    def _time(self, aspect: str) -> str:
        call = self.call(self.drawn("n", batch=1), length="n")
        return f"from timeit import timeit; print([timeit(lambda: {call}, number=3) / 3 for n in (1024, 2048, 4096)])"

    def _memory(self, aspect: str) -> str:
        call = self.call(self.drawn("n", batch=1), length="n")
        peak = "getrusage(RUSAGE_SELF).ru_maxrss"
        return f"from resource import *; print([({call}, {peak})[1] for n in (1024, 2048, 4096)])"


def _arguments(values: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in values.items())


def _index(axis: int, places: str) -> str:
    return f"[{', '.join([*[':'] * axis, places])}]"


def is_options_class(thing: Any) -> bool:
    """Whether a thing is a class of options of this package."""
    return isinstance(thing, type) and issubclass(thing, AttentionOptions)


def asking(request: Request | ModelRequest, check: str, form: str) -> str:
    """Two lines that ask the same question again through this package, for failures that plain lines do not show."""
    name = request.target if isinstance(request, Request) else request.model
    usual = type(request)(name)
    given = {key: value for key, value in vars(request).items() if value != getattr(usual, key)}
    if form:
        given["form"] = form
    ask = "ask" if isinstance(request, Request) else "ask_model"
    return f"from subquad.testing import {ask}\nprint({ask}({name!r}, {check!r}{_also(given)}))"


def _also(values: dict[str, Any]) -> str:
    return "".join(f", {name}={value!r}" for name, value in values.items())
