"""Half precision: models in bfloat16, autocast, the Trainer, conversion."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from subquad import Infinity, Learned, Linear
from subquad.conversion import ConversionOptions, convert
from subquad.results import Run
from tests.conversion.models import original
from tests.hub.families import CONFIGS, OPTIONS, hf, hidden, hub, model, padding, tokens


def test_half_precision() -> None:
    network = hub.swap(model(CONFIGS["bert"]()), Infinity(segment=5, basis=6, points=8, widths=(0.1,)))
    exact = hidden(network, tokens())
    rough = hidden(network.to(torch.bfloat16), tokens())
    assert rough.dtype == torch.bfloat16
    assert (rough.float() - exact).norm() / exact.norm() < 0.1


@pytest.mark.parametrize("family", ["llama", "qwen3", "modernbert", "bert"])
@pytest.mark.parametrize("name", ["softmax", "linear", "favor", "hybrid"])
def test_autocast(family: str, name: str) -> None:
    """Rotary positions leave queries and keys in float32 while values are in bfloat16."""
    config = CONFIGS[family]()
    config.local_attention = 64
    network = hub.swap(model(config), OPTIONS[name])
    given = {"use_cache": False} if network.config.model_type in ("llama", "qwen3") else {}
    exact = hidden(network, tokens(length=3), **given)
    with torch.autocast("cpu", torch.bfloat16):
        rough = network(tokens(length=3), **given).last_hidden_state
        rough.float().square().sum().backward()
    assert (rough.float() - exact).norm() / exact.norm() < 0.1
    gradients = [parameter.grad for parameter in network.parameters() if parameter.grad is not None]
    assert gradients
    assert all(gradient.isfinite().all() for gradient in gradients)


@pytest.fixture
def _accelerate_forgets() -> Iterator[None]:
    """Trainer sets the precision of accelerate for the whole process, and other tests train in another one."""
    from accelerate.state import AcceleratorState

    yield
    AcceleratorState._reset_state(reset_partial_state=True)


@pytest.mark.usefixtures("_accelerate_forgets")
@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_a_step_of_the_trainer_in_bfloat16(family: str, tmp_path: Path) -> None:
    network = hub.swap(model(CONFIGS[family](), hf.AutoModelForCausalLM), "linear")
    before = network.model.layers[0].self_attn.k_proj.weight.detach().clone()
    rows = [
        {"input_ids": row, "labels": row, "attention_mask": mask}
        for row, mask in zip(tokens(), padding("left"), strict=True)
    ]
    how = hf.TrainingArguments(tmp_path, max_steps=2, bf16=True, use_cpu=True, report_to="none", save_strategy="no")
    loss = hf.Trainer(network, how, train_dataset=rows).train().training_loss
    assert 0 < loss < 20
    after = network.model.layers[0].self_attn.k_proj.weight
    assert after.isfinite().all()
    assert not torch.equal(after, before)


def test_conversion_in_bfloat16(tmp_path: Path) -> None:
    """Both stages, of a model with rotary positions."""
    options = ConversionOptions(
        steps=3, tune_steps=3, batch_tokens=64, texts=8, controls=False, cost_lengths=(), precision="bfloat16"
    )
    run = Run.create(tmp_path / "run", "convert", {})
    convert(original(tmp_path / "llama", "LlamaForCausalLM"), Linear(Learned()), options, run, seed=0)
    losses = [row["value"] for row in run.rows() if row["metric"] == "loss"]
    assert len(losses) == 6
    assert all(0 < loss < 50 for loss in losses)
