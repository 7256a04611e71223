"""Whole models: tiny ones of transformers, and a plain PyTorch model with a planted leak."""

from pathlib import Path

import pytest
import torch

from subquad.check.models import ModelRequest, ModelSubject
from subquad.check.suite import CHECKS, ModelCase, answer
from subquad.errors import SubquadError
from subquad.testing import ask_model
from tests.hub.families import CONFIGS, hf

HERE = "tests.check.faults"


@pytest.fixture(autouse=True)
def _shapes_are_free(unchecked_shapes: None) -> None:
    """Models of others are called as they are."""


@pytest.mark.parametrize(
    ("family", "kind", "unasked"),
    [
        ("llama", "AutoModelForCausalLM", set()),
        ("gpt2", "AutoModelForCausalLM", set()),
        ("bert", "AutoModel", {"future", "chunks", "steps", "generate"}),
    ],
)
def test_models_of_transformers_are_clean(family: str, kind: str, unasked: set[str], tmp_path: Path) -> None:
    torch.manual_seed(0)
    getattr(hf, kind).from_config(CONFIGS[family]()).save_pretrained(tmp_path)
    findings = {check: ask_model(str(tmp_path), check) for check in CHECKS}
    assert {check for check, finding in findings.items() if finding.verdict == "not asked"} == unasked
    assert [finding for finding in findings.values() if finding.verdict == "fails"] == []


def test_a_gradient_of_few_among_many_weights_is_compared_by_short_steps(tmp_path: Path) -> None:
    """Most embeddings of positions are not used, so that a step along the gradient moves the others far."""
    torch.manual_seed(0)
    config = hf.GPT2Config(vocab_size=97, n_positions=1024, n_embd=32, n_layer=2, n_head=2)
    hf.GPT2LMHeadModel(config).save_pretrained(tmp_path)
    assert ask_model(str(tmp_path), "gradients").verdict == "holds"


def test_wrong_gradients_of_a_model_are_found() -> None:
    assert ask_model(f"{HERE}:Writer", "gradients", causal=True).verdict == "holds"
    assert ask_model(f"{HERE}:WrongWriter", "gradients", causal=True).verdict == "fails"


@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_a_classifier_gives_one_result_for_a_sequence(family: str, tmp_path: Path) -> None:
    """GPT-2's looks for the last token that is not the padding token, whatever the mask says."""
    torch.manual_seed(0)
    hf.AutoModelForSequenceClassification.from_config(CONFIGS[family]()).save_pretrained(tmp_path)
    findings = {check: ask_model(str(tmp_path), check) for check in ("padding", "batch", "determinism", "future", "steps")}
    assert {check: finding.verdict for check, finding in findings.items()} == {
        "padding": "holds",
        "batch": "holds",
        "determinism": "holds",
        "future": "not asked",
        "steps": "not asked",
    }
    assert findings["future"].sentence == "it gives one result for a whole sequence"


def test_a_classifier_that_counts_padding_is_found() -> None:
    assert ask_model(f"{HERE}:Mean", "padding", arguments={"counts": False}).verdict == "holds"
    assert ask_model(f"{HERE}:Mean", "padding").verdict == "fails"


def test_answers_to_questions_are_numbers_of_each_token(tmp_path: Path) -> None:
    torch.manual_seed(0)
    hf.AutoModelForQuestionAnswering.from_config(CONFIGS["bert"]()).save_pretrained(tmp_path)
    assert [ask_model(str(tmp_path), check).verdict for check in ("padding", "batch")] == ["holds", "holds"]


def test_results_of_another_kind_are_refused() -> None:
    with pytest.raises(SubquadError, match=r"it returns \(2, 31, 3, 4\) for 31 token ids in each sequence, neither"):
        ask_model(f"{HERE}:Mean", "batch", arguments={"shape": [3, 4]})


def test_a_plain_model_that_leaks_is_found() -> None:
    clean, leaking = (
        ask_model(f"{HERE}:Writer", "future", causal=True, arguments={"leaks": leaks}) for leaks in (False, True)
    )
    assert clean.verdict == "holds"
    assert leaking.verdict == "fails"
    assert leaking.value is not None
    assert leaking.value > 0.01
    assert "ask_model('tests.check.faults:Writer', 'future', causal=True, arguments={'leaks': True})" in leaking.reproducer


def test_a_function_that_makes_a_model_is_called() -> None:
    assert ask_model(f"{HERE}:make_writer", "batch").verdict == "holds"
    with pytest.raises(SubquadError, match="is no PyTorch module and makes none, but a int"):
        ask_model(f"{HERE}:number", "batch")


def test_what_is_no_model_of_tokens_is_refused() -> None:
    with pytest.raises(SubquadError, match=r"has no nn\.Embedding, but models are asked on token ids"):
        ask_model(f"{HERE}:Cached", "batch")


def test_the_length_of_a_model_is_kept_to_and_its_lines_run() -> None:
    request = ModelRequest(f"{HERE}:Writer", causal=True, arguments={"leaks": True}, heads=2, length=64)
    assert ModelSubject(request).whole == 64
    finding = answer(ModelCase(request), "future", "")
    assert finding.verdict == "fails"
    exec(finding.reproducer, {})
