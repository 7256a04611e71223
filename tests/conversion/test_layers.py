"""Students with fewer layers than the original."""

from pathlib import Path
from typing import Any

import pytest
import torch

from subquad import Learned, Linear, SubquadError, hub
from subquad.conversion import ConversionOptions, convert
from subquad.conversion.goals import hidden_loss, relative_error
from subquad.conversion.layers import choose_layers, evenly_spaced
from subquad.conversion.matching import listen
from subquad.hub.layers import keep_layers
from subquad.results import Run
from tests.conversion.models import SIZES, hf, original
from tests.conversion.test_engine import converted, timeless, values, weights


@pytest.fixture(autouse=True)
def _few_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("subquad.conversion.vectors.DRAWS", 10)


@pytest.mark.parametrize(
    ("layers", "count", "kept"),
    [(6, 12, [0, 2, 4, 7, 9, 11]), (3, 3, [0, 1, 2]), (2, 6, [0, 5]), (3, 6, [0, 2, 5]), (1, 6, [5]), (1, 1, [0])],
)
def test_layers_are_evenly_spaced(layers: int, count: int, kept: list[int]) -> None:
    assert evenly_spaced(layers, count) == kept


KINDS = [
    "BertModel",
    "DistilBertForMaskedLM",
    "RobertaForMaskedLM",
    "GPT2LMHeadModel",
    "ModernBertModel",
    "LlamaForCausalLM",
]


@pytest.mark.parametrize("kind", KINDS)
def test_a_student_has_the_layers_that_it_keeps(kind: str, tmp_path: Path) -> None:
    """With exact attention it does what the original does without the other layers, and so does what is saved of it."""
    teacher = original(tmp_path / "model", kind)
    choose_layers(teacher, 2)
    student = teacher.student([None, None], 0)
    assert len(teacher.mechanisms(student)) == 2
    assert len(teacher.mechanisms(teacher.teacher)) == 3
    batch = teacher.batch(32, 16, 0)
    with torch.no_grad():
        states = teacher.outputs(student, batch).hidden
        exact = teacher.outputs(teacher.teacher, batch).hidden
    assert len(states) == 2
    torch.testing.assert_close(states[0], exact[0])
    assert not torch.allclose(states[1], exact[1])
    converted = teacher.student([Linear(), None], 0).eval()
    teacher.save(converted, [Linear(), None], tmp_path / "saved")
    again = hub.load(tmp_path / "saved")
    assert again.config.num_hidden_layers == 2
    with torch.no_grad():
        for one, other in zip(teacher.outputs(again, batch).hidden, teacher.outputs(converted, batch).hidden, strict=True):
            torch.testing.assert_close(one, other)


def test_every_layer_learns_from_its_origin(tmp_path: Path) -> None:
    teacher = original(tmp_path / "model")
    choose_layers(teacher, 2)
    batch = teacher.batch(32, 16, 0)
    recorded = listen(teacher, batch, [0, 1])
    teacher.origins = [0, 1, 2]
    whole = listen(teacher, batch, [0, 1, 2])
    assert sorted(recorded) == [0, 1]
    for layer, origin in ((0, 0), (1, 2)):
        torch.testing.assert_close(recorded[layer].q, whole[origin].q)
    choose_layers(teacher, 2)
    student = teacher.student([Linear(), Linear()], 0)
    with torch.no_grad():
        states, exact = (teacher.outputs(model, batch).hidden for model in (student, teacher.teacher))
        error = (relative_error(states[0], exact[0], batch.keep) + relative_error(states[1], exact[2], batch.keep)) / 2
        vectors, wanted = (teacher.pool(hidden[-1], batch.keep) for hidden in (states, exact))
        distance = 5 * (1 - torch.nn.functional.cosine_similarity(vectors, wanted).mean())
        torch.testing.assert_close(hidden_loss(teacher, student, batch), error + distance)


def test_a_smaller_student_comes_nearer_to_the_original(tmp_path: Path) -> None:
    teacher = original(tmp_path / "bert")
    made = converted(teacher, Linear(Learned()), tmp_path / "run", layers=2, steps=30, tune_steps=60)
    cosine = {row["stage"]: row["value"] for row in made.rows() if row["metric"] == "cosine" and row["split"] == "test"}
    assert cosine["swapped"] < cosine["tuned"] < cosine["original"] == pytest.approx(1)
    assert {row["layer"] for row in made.rows() if row["metric"] == "attention divergence" and row["stage"] == "tuned"} == {
        0,
        1,
    }
    assert all(value == pytest.approx(0, abs=1e-5) for value in values(made, "attention divergence", stage="original"))
    saved: Any = hub.load(tmp_path / "run" / "model")
    assert len(saved.encoder.layer) == 2


def test_resuming_makes_the_same_student(tmp_path: Path) -> None:
    teacher = original(tmp_path / "bert")
    options = ConversionOptions(layers=1, steps=2, tune_steps=2, texts=20, batch_tokens=64, cost_lengths=())
    runs = [Run.create(tmp_path / name, "convert", {}) for name in ("whole", "broken")]
    convert(teacher, Linear(), options, runs[0], seed=0)

    def watch(progress: Any) -> None:
        if (progress.does, progress.step) == ("tune", 1):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert(teacher, Linear(), options, runs[1], seed=0, watch=watch)
    convert(original(tmp_path / "bert"), Linear(), options, runs[1], seed=0)
    assert timeless(runs[1]) == timeless(runs[0])
    assert weights(runs[1].folder) == weights(runs[0].folder)


def test_what_cannot_be_made_smaller_is_said(tmp_path: Path) -> None:
    teacher = original(tmp_path / "model")
    with pytest.raises(SubquadError, match="--layers is 4, but the model has 3 attention layers: give fewer"):
        choose_layers(teacher, 4)
    sizes = {"hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 32, "vocab_size": 9}
    shared = hf.AlbertModel(hf.AlbertConfig(**sizes, embedding_size=8))  # one layer, three times
    with pytest.raises(SubquadError, match="the layers of AlbertModel are not in one list"):
        keep_layers(shared, [0])


def test_lists_by_layer_follow_the_layers(tmp_path: Path) -> None:
    sizes = {**SIZES, "num_hidden_layers": 4, "num_key_value_heads": 1}
    torch.manual_seed(0)
    network = hf.SmolLM3ForCausalLM(hf.SmolLM3Config(**sizes, no_rope_layer_interval=2)).eval()
    keep_layers(network, [0, 2, 3])
    ids = torch.randint(5, 40, (1, 12))
    network.save_pretrained(tmp_path)
    with torch.no_grad():
        torch.testing.assert_close(hub.load(tmp_path)(ids).logits, network(ids).logits)
