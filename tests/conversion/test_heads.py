"""Students with fewer attention heads than the original."""

from pathlib import Path
from typing import Any

import pytest
import torch

from subquad import Learned, Linear, Linformer, SubquadError, hub
from subquad.cli import main
from subquad.conversion.layers import choose_heads
from subquad.conversion.matching import listen
from subquad.conversion.trained import open_trained
from subquad.models import MultiheadAttention
from subquad.results import Run
from subquad.runs import load
from tests.cli import test_mlm
from tests.conversion.models import CONFIGS, SIZES, hf, original
from tests.conversion.test_engine import converted

FEW = ["--steps", "2", "--tune-steps", "2", "--texts", "20", "--batch-tokens", "64", "--cost-lengths"]


@pytest.fixture(autouse=True)
def _few_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("subquad.conversion.vectors.DRAWS", 10)


@pytest.fixture(params=[4, 2], ids=["own keys", "shared keys"])
def teacher(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A Llama of four query heads of dimension 6, with four or two heads of keys and values."""
    sizes = {**SIZES, "num_attention_heads": 4, "head_dim": 6, "num_key_value_heads": request.param}
    monkeypatch.setitem(CONFIGS, "Llama", lambda: hf.LlamaConfig(**sizes))
    return original(tmp_path / "llama", "LlamaForCausalLM")


def test_a_student_does_what_the_original_does_without_the_other_heads(teacher: Any, tmp_path: Path) -> None:
    choose_heads(teacher, 2)
    kept = teacher.kept_heads
    assert kept == ([0, 3] if teacher.head_groups() == 4 else [1, 3])  # of each group the last one
    student = teacher.student([None] * 3, 0)
    silent = hub.load(tmp_path / "llama")
    columns = [head * 6 + place for head in range(4) if head not in kept for place in range(6)]
    with torch.no_grad():
        for layer in silent.model.layers:
            layer.self_attn.o_proj.weight[:, columns] = 0.0
        batch = teacher.batch(32, 16, 0)
        exact, states = (teacher.outputs(model, batch).hidden for model in (silent, student))
    for wanted, state in zip(exact, states, strict=True):
        torch.testing.assert_close(state, wanted)


def test_what_is_saved_has_the_kept_heads(teacher: Any, tmp_path: Path) -> None:
    choose_heads(teacher, 2)
    student = teacher.student([Linear(), None, Linear()], 0).eval()
    teacher.save(student, [Linear(), None, Linear()], tmp_path / "saved")
    again = hub.load(tmp_path / "saved")
    assert (again.config.num_attention_heads, again.config.head_dim) == (2, 6)
    assert again.model.layers[0].self_attn.q_proj.weight.shape == (12, 16)
    batch = teacher.batch(32, 16, 0)
    with torch.no_grad():
        pairs = zip(teacher.outputs(again, batch).hidden, teacher.outputs(student, batch).hidden, strict=True)
        for saved, state in pairs:
            torch.testing.assert_close(saved, state)


def test_heads_learn_from_the_same_heads_of_the_original(teacher: Any) -> None:
    batch = teacher.batch(32, 16, 0)
    whole = listen(teacher, batch, [0, 1, 2])
    choose_heads(teacher, 2)
    for layer, call in listen(teacher, batch, [0, 1, 2]).items():
        torch.testing.assert_close(call.q, whole[layer].q[:, teacher.kept_heads])
        torch.testing.assert_close(call.k, whole[layer].k[:, teacher.kept_heads])


def test_a_conversion_to_fewer_heads(teacher: Any, tmp_path: Path) -> None:
    made = converted(teacher, Linear(Learned()), tmp_path / "run", heads=2)
    assert {row["head"] for row in made.rows() if row["metric"] == "attention divergence" and row["stage"] == "tuned"} == {
        0,
        1,
    }
    assert hub.load(tmp_path / "run" / "model").config.num_attention_heads == 2


def test_a_run_with_fewer_heads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = test_mlm.write(tmp_path / "texts")
    trained, out = tmp_path / "trained", tmp_path / "converted"
    options = ["--text", str(texts), "--vocabulary", "characters", "--attention", "softmax", "--no-page"]
    assert main(["train", "mlm", *test_mlm.SMALL, *options, "--heads", "4", "--head-dim", "4", "--out", str(trained)]) == 0
    run = load(trained)
    original_run = open_trained(run.run, run.task, run.model)
    choose_heads(original_run, 2)
    student = original_run.student([None] * len(original_run.origins), 0)
    columns = [head * 4 + place for head in (1, 2) for place in range(4)]
    silent = load(trained).model.eval()
    for module in silent.modules():
        if isinstance(module, MultiheadAttention):
            module.to_out.weight.data[:, columns] = 0.0
    batch = original_run.batch(32, 8, 0)
    with torch.no_grad():
        exact, states = (original_run.outputs(model, batch).hidden for model in (silent, student))
    torch.testing.assert_close(states, exact)
    assert main(["convert", str(trained), "--heads", "2", *FEW, "--no-controls", "--out", str(out)]) == 0
    saved = load(out / "model")
    assert {module.heads for module in saved.model.modules() if isinstance(module, MultiheadAttention)} == {2}
    assert Run.open(out).about["options"]["original"]["kept_heads"] == [0, 3]
    capsys.readouterr()
    assert main(["convert", str(trained), "--heads", "5"]) == 2
    assert "--heads is 5, but the model has 4 attention heads: give fewer" in capsys.readouterr().err


def test_layers_that_share_weights_are_not_converted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts, trained = test_mlm.write(tmp_path / "texts"), tmp_path / "trained"
    options = ["--text", str(texts), "--vocabulary", "characters", "--attention", "softmax", "--no-page"]
    assert main(["train", "mlm", *test_mlm.SMALL, *options, "--share-attention", "2", "--out", str(trained)]) == 0
    capsys.readouterr()
    assert main(["predict", str(trained), "the cat [MASK]at on"]) == 0
    assert main(["convert", str(trained)]) == 2
    assert "share attention weights, which a conversion cannot keep" in capsys.readouterr().err


def test_what_cannot_have_fewer_heads_is_said(teacher: Any, tmp_path: Path) -> None:
    if teacher.head_groups() == 2:
        with pytest.raises(SubquadError, match="--heads is 3, but must be a multiple of 2, the model's heads of keys"):
            choose_heads(teacher, 3)
    bert = original(tmp_path / "bert")
    with pytest.raises(SubquadError, match="the config of BertModel has no head_dim, so that fewer heads would be wider"):
        choose_heads(bert, 1)


@pytest.mark.parametrize("more", [[], ["--reversible"]])
def test_runs_that_share_layers_or_keep_no_hidden_states(more: list[str], tmp_path: Path) -> None:
    texts, options = test_mlm.write(tmp_path / "texts"), [*test_mlm.SMALL]
    options[options.index("--layers") + 1] = "2"
    options += ["--text", str(texts), "--vocabulary", "characters", "--attention", "softmax", "--no-page", *more]
    assert main(["train", "mlm", *options, "--out", str(tmp_path / "run")]) == 0
    run = load(tmp_path / "run")
    teacher = open_trained(run.run, run.task, run.model)
    with pytest.raises(SubquadError, match="each layer has a projection of its own"):
        teacher.student([Linformer(k=4, max_length=24, sharing="layerwise")] * 2, 0)
    student, batch = teacher.student([Linear()] * 2, 0), teacher.batch(32, 8, 0)
    if not more:
        assert len(teacher.outputs(student, batch).hidden) == 2
        return
    with pytest.raises(SubquadError, match="keeps no hidden states"):
        teacher.outputs(student, batch)
