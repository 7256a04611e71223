"""A mechanism is one file and one line: one that is defined here and added to MECHANISMS works everywhere."""

import inspect
import itertools
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import subquad.cli
from subquad import MECHANISMS
from subquad.attention import Mechanism
from subquad.attention.checks import Part, as_state, check_inputs, check_result, check_state, sums_like
from subquad.cli import COMMANDS, main
from subquad.ops.autocast import precise, without_autocast
from subquad.results import Run
from subquad.types import AttentionOptions, MechanismSize, RankBound, Traits
from tests.attention import cases, equations, test_contract, test_contract_graphs, test_contract_precision
from tests.cli import test_mlm
from tests.cli.test_convert import FEW

NAME = "cosine"


@dataclass(frozen=True)
class Cosine(AttentionOptions):
    """Weights `base` + cos(q, k): linear attention whose features are a constant and the direction of x."""

    base: float = 2.0  # added to the cosine, so that weights are positive
    kind: str = field(default=NAME, init=False)

    @property
    def traits(self) -> Traits:
        return Traits(exact=False, time="L d^2", space="L d^2", gives_up="all keys weigh nearly the same")

    def size(self, *, heads: int, head_dim: int) -> MechanismSize:
        return MechanismSize(0, heads * (head_dim + 1) * head_dim)

    def build(self, *, heads: int, head_dim: int, generator: torch.Generator | None = None) -> "CosineAttention":
        return CosineAttention(self, heads, head_dim)

    def rank_bound(self, head_dim: int) -> RankBound:
        return RankBound(head_dim + 1, "a constant and a direction")


class CosineState(NamedTuple):
    """The sums over all keys so far."""

    sums: Tensor  # b h m e
    norms: Tensor  # b h m


class CosineAttention(Mechanism):
    """Every query's sums are made, position by position, without a product of matrices."""

    options: Cosine

    def forward(self, q: Tensor, k: Tensor, v: Tensor, *, keep: Tensor | None = None) -> Tensor:
        check_inputs(q, k, v, keep, heads=self.heads, head_dim=self.head_dim)
        with without_autocast(q):
            keys, added = self._added(k, v, keep)
            mixed = self._mix(q, added.sum(2, keepdim=True), keys.sum(2, keepdim=True))
        return check_result(mixed.to(v.dtype), q, k, v)

    def causal(
        self, q: Tensor, k: Tensor, v: Tensor, state: Any = None, *, keep: Tensor | None = None
    ) -> tuple[Tensor, CosineState]:
        check_inputs(q, k, v, keep, heads=self.heads, head_dim=self.head_dim, causal=True)
        before = self._start(v) if state is None else self._checked(state, v)
        with without_autocast(q):
            keys, added = self._added(k, v, keep)
            sums, norms = added.cumsum(2) + before.sums[:, :, None], keys.cumsum(2) + before.norms[:, :, None]
            after = CosineState(before.sums + added.sum(2), before.norms + keys.sum(2))
            mixed = self._mix(q, sums, norms)
        return check_result(mixed.to(v.dtype), q, k, v, state=before), after

    def step(self, q: Tensor, k: Tensor, v: Tensor, state: Any = None, *, reuse: bool = False) -> tuple[Tensor, CosineState]:
        return self.causal(q, k, v, state)

    def _features(self, x: Tensor) -> Tensor:
        x = F.normalize(x.to(precise(x.dtype)), dim=-1)
        return F.pad(x, (0, 1), value=self.options.base**0.5)

    def _added(self, k: Tensor, v: Tensor, keep: Tensor | None) -> tuple[Tensor, Tensor]:
        """What each position adds to the norms and to the sums."""
        v = v.to(precise(v.dtype))
        if keep is not None:
            k, v = (x.masked_fill(~keep[:, None, :, None], 0.0) for x in (k, v))
        keys = self._features(k)
        keys = keys if keep is None else keys * keep[:, None, :, None]
        return keys, keys[..., :, None] * v[..., None, :]

    def _mix(self, q: Tensor, sums: Tensor, norms: Tensor) -> Tensor:
        queries = self._features(q)
        total = (queries * norms).sum(-1, keepdim=True)
        return (queries[..., :, None] * sums).sum(-2) / torch.where(total == 0, 1.0, total)

    def _start(self, v: Tensor) -> CosineState:
        sums = torch.zeros(*v.shape[:2], self.head_dim + 1, v.shape[3], dtype=precise(v.dtype), device=v.device)
        return CosineState(sums, sums.new_zeros(sums.shape[:3]))

    def _checked(self, state: Any, v: Tensor) -> CosineState:
        state, shape, types = as_state(CosineState, state), (len(v), self.heads, self.head_dim + 1), sums_like(v)
        check_state(state, v, {"sums": Part((*shape, v.shape[3]), types), "norms": Part(shape, types)})
        return state


def _equation(attend: Any, q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None, causal: bool) -> Tensor:
    weights = attend.options.base + q @ k.mT / (q.norm(dim=-1)[..., :, None] * k.norm(dim=-1)[..., None, :])
    if keep is not None:
        weights = weights * keep[:, None, None, :]
    weights = weights.tril() if causal else weights
    total = weights.sum(-1, keepdim=True)
    return weights / torch.where(total == 0, 1.0, total) @ v


@pytest.fixture(autouse=True)
def _added(monkeypatch: pytest.MonkeyPatch) -> None:
    """The line. Commands read MECHANISMS when they are imported, so they are imported again."""
    monkeypatch.setitem(MECHANISMS, NAME, Cosine)
    monkeypatch.setitem(cases.CASES, NAME, Cosine())
    monkeypatch.setitem(equations.EQUATIONS, NAME, _equation)
    for command in COMMANDS:
        monkeypatch.delitem(sys.modules, f"subquad.cli.{command}", raising=False)
        monkeypatch.delattr(subquad.cli, command, raising=False)


def _parameters(mark: Any) -> list[dict[str, Any]]:
    """The values of one parametrization; those that name a mechanism are replaced by the added one."""
    names = [mark.args[0]] if isinstance(mark.args[0], str) else list(mark.args[0])
    rows = [getattr(values, "values", values) if len(names) > 1 else (values,) for values in mark.args[1]]
    if "name" not in names:
        return [dict(zip(names, row, strict=True)) for row in rows]
    forms = dict.fromkeys(tuple(zip(names, row, strict=True))[1:] for row in rows)
    return [{"name": NAME, **dict(form)} for form in forms]


def _checks() -> Iterator[Any]:
    """Every test of the contract suite that takes a mechanism, with all combinations of its other parameters."""
    suite = (test_contract, test_contract_precision, test_contract_graphs)
    for name, test in itertools.chain.from_iterable(inspect.getmembers(module, inspect.isfunction) for module in suite):
        marks = [mark for mark in getattr(test, "pytestmark", []) if mark.name == "parametrize"]
        is_slow = any(mark.name == "slow" for mark in getattr(test, "pytestmark", []))
        if not name.startswith("test_") or not any("name" in mark.args[0] for mark in marks) or is_slow:
            continue
        for combination in itertools.product(*map(_parameters, marks)):
            arguments = {key: value for part in combination for key, value in part.items()}
            yield pytest.param(test, arguments, id="-".join([name, *map(str, arguments.values())]))


CHECKS = list(_checks())


@pytest.mark.parametrize(("check", "arguments"), CHECKS)
def test_the_contract_suite_takes_it(check: Callable[..., None], arguments: dict[str, Any], tmp_path: Path) -> None:
    if any(mark.name == "usefixtures" for mark in getattr(check, "pytestmark", [])):
        pytest.importorskip("jaxtyping").config.update("jaxtyping_disable", True)
    try:
        check(**arguments, **({"tmp_path": tmp_path} if "tmp_path" in inspect.signature(check).parameters else {}))
    finally:
        pytest.importorskip("jaxtyping").config.update("jaxtyping_disable", False)


def test_the_contract_suite_was_found() -> None:
    assert len({check.values[0] for check in CHECKS}) > 20


def test_compare_measures_it_and_advise_names_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("subquad.compare.plan.VISITS", 1)
    run = tmp_path / "run"
    sizes = ["--lengths", "16", "32", "--heads", "2", "--head-dim", "8", "--threads", "1", "--budget", "8"]
    assert main(["compare", "--mechanisms", NAME, "--what", "forward", "step", *sizes, "--out", str(run)]) == 0
    assert {row["mechanism"] for row in Run.open(run, "compare").rows() if row["metric"] == "seconds"} == {"softmax", NAME}
    capsys.readouterr()
    asked = ["--length", "32", "--what", "forward", "--approximate", "--run", str(run)]
    assert main(["advise", *asked]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert NAME in said
    assert "all keys weigh nearly the same" in said


@pytest.mark.parametrize("command", [["compare"], ["train", "copy", "--attention", NAME], ["convert"]])
def test_help_lists_it(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command, "--help"]) == 0
    assert NAME in capsys.readouterr().out


def test_a_model_is_trained_with_it_and_another_converted_to_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("subquad.conversion.vectors.DRAWS", 10)
    texts = test_mlm.write(tmp_path / "texts")
    options = [*test_mlm.SMALL, "--text", str(texts), "--vocabulary-size", "120"]
    assert main(["train", "mlm", "--attention", NAME, "--base", "1.5", *options, "--out", str(tmp_path / "own")]) == 0
    assert main(["predict", str(tmp_path / "own"), "the cat [MASK] on"]) == 0
    assert main(["train", "mlm", "--attention", "softmax", *options, "--out", str(tmp_path / "exact")]) == 0
    converted = tmp_path / "converted"
    assert main(["convert", str(tmp_path / "exact"), "--attention", NAME, *FEW, "--out", str(converted)]) == 0
    assert Run.open(converted, "convert").about["options"]["mechanism"] == {"base": 2.0, "kind": NAME}
    assert main(["predict", str(converted / "model"), "the cat [MASK] on"]) == 0
    assert "Traceback" not in capsys.readouterr().err


def test_it_takes_the_place_of_a_pretrained_models_attention(tmp_path: Path) -> None:
    from tests.hub.families import CONFIGS, hf, hub

    torch.manual_seed(0)
    model = hf.AutoModelForCausalLM.from_config(CONFIGS["llama"]()).eval()
    tokens = torch.randint(1, 61, (2, 9))
    before = model(tokens).logits
    hub.swap(model, Cosine(base=3.0))
    after = model(tokens).logits
    assert not torch.allclose(after, before)
    generate = partial(model.generate, tokens, max_new_tokens=5, do_sample=False)
    assert torch.equal(generate(past_key_values=hub.state_cache(model)), generate(use_cache=False))
    model.save_pretrained(tmp_path / "model")
    torch.testing.assert_close(hub.load(tmp_path / "model")(tokens).logits, after)
