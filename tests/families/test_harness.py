"""The matrix of families sees what it is there to see."""

from pathlib import Path
from typing import Any

import pytest
import torch

from subquad import SubquadError
from subquad.results import read_rows
from tests.families import generation, training
from tests.families.catalog import entries, entry_of
from tests.families.cells import (
    LINEAR,
    SOFTMAX,
    Prepare,
    batch,
    causality,
    equals_original,
    judge,
    padding_right,
    takes_effect,
    unchanged,
)
from tests.families.models import Subject, build
from tests.families.page import write_page


@pytest.fixture(scope="module")
def bert() -> Subject:
    return build(entry_of("BertModel"))


@pytest.fixture(scope="module")
def llama() -> Subject:
    return build(entry_of("LlamaForCausalLM"))


def broken(change: Any) -> Prepare:
    """A linear model whose forward is changed: a fault to be found."""

    def prepare(model: Any) -> Any:
        model = LINEAR(model)
        model.forward = change(model.forward)
        return model

    return prepare


def without_mask(forward: Any) -> Any:
    return lambda **given: forward(**{name: each for name, each in given.items() if name != "attention_mask"})


def noisy(forward: Any) -> Any:
    def wrong(**given: Any) -> Any:
        found = forward(**given)
        found[0].mul_(1 + 1e-3 * len(found[0]))
        return found

    return wrong


def reversed_in_time(forward: Any) -> Any:
    return lambda **given: forward(**{**given, "input_ids": given["input_ids"].flip(1)})


def test_what_works(bert: Subject, llama: Subject) -> None:
    assert judge(equals_original, bert, SOFTMAX).status == "works"
    assert judge(padding_right, bert, LINEAR).status == "works"
    assert judge(causality, llama, LINEAR).status == "works"
    assert judge(generation.state_greedy, llama, LINEAR).status == "works"


def test_a_model_that_is_not_the_original(bert: Subject) -> None:
    found = judge(equals_original, bert, LINEAR)
    assert found.status == "silent error"
    assert found.value is not None
    assert found.value > 0.01


def test_a_swap_without_effect(bert: Subject) -> None:
    found = judge(takes_effect, bert, SOFTMAX)
    assert (found.status, found.value) == ("silent error", 0.0)


def test_padding_that_is_seen(bert: Subject) -> None:
    assert judge(padding_right, bert, broken(without_mask)).status == "silent error"


def test_rows_that_see_each_other(bert: Subject) -> None:
    assert judge(batch, bert, broken(noisy)).status == "silent error"


def test_a_future_that_is_seen(llama: Subject) -> None:
    assert judge(causality, llama, broken(reversed_in_time)).status == "silent error"


def test_other_tokens_from_a_cache(llama: Subject) -> None:
    def forgetful(model: Any) -> Any:
        model = LINEAR(model)
        forward = model.forward

        def wrong(*args: Any, **given: Any) -> Any:
            found = forward(*args, **given)
            if given.get("past_key_values") is not None and found.logits.shape[1] == 1:
                found.logits = found.logits.flip(-1)
            return found

        model.forward = wrong
        return model

    assert judge(generation.cached, llama, forgetful).status == "silent error"


def test_gradients_that_differ(llama: Subject) -> None:
    calls: list[int] = []

    def scaled(model: Any) -> Any:
        calls.append(1)
        with torch.no_grad():
            model.model.norm.weight.mul_(1 + 0.1 * len(calls))
        return model

    assert judge(training.checkpointing, llama, scaled).status == "silent error"


def test_what_the_original_does_not_do_either_does_not_apply(bert: Subject) -> None:
    assert judge(causality, bert, LINEAR).status == "does not apply"
    assert judge(generation.cached, bert, LINEAR).says == "it does not generate"
    assert judge(padding_right, build(entry_of("ViTModel")), LINEAR).status == "does not apply"


def test_refusals_and_crashes(bert: Subject) -> None:
    def refuse(model: Any) -> Any:
        raise SubquadError("no")

    def crash(model: Any) -> Any:
        raise IndexError("list index out of range")

    assert judge(batch, bert, refuse).status == "refused"
    found = judge(batch, bert, crash)
    assert (found.status, found.says) == ("crash", "IndexError: list index out of range")
    assert judge(batch, bert, unchanged).status == "works"


def test_the_catalog_names_each_class_once() -> None:
    names = [entry.class_name for entry in entries()]
    assert len(names) == len(set(names))
    assert {"BertModel", "BertForMaskedLM", "LlamaForCausalLM", "ViTForImageClassification", "WhisperModel"} <= set(names)
    assert len({entry.family for entry in entries()}) > 400


def test_a_run_goes_on_where_it_stopped_and_writes_its_page(tmp_path: Path) -> None:
    from tests.families.run import Options, main

    out, page = tmp_path / "rows.jsonl", tmp_path / "families.md"
    assert main(Options(out=out, only=("BloomModel",), page=page)) == 0
    assert [row["status"] for row in read_rows(out)] == ["works", "refused"]
    with pytest.raises(SubquadError, match="holds a run already: go on with --resume"):
        main(Options(out=out, only=("ViTModel",), page=page))
    assert main(Options(out=out, only=("BloomModel", "ViTModel"), resume=True, page=page)) == 0
    rows = read_rows(out)
    assert len(rows) > 10
    assert sum(row["class_name"] == "BloomModel" for row in rows) == 2
    text = page.read_text()
    assert "2 families with 2 classes, of which 2 were built." in text
    assert "| 1 | everything that applies works |" in text
    assert "| vit | 1 | ✓ |" in text
    out.write_text("".join(out.read_text().splitlines(keepends=True)[:6]))
    assert main(Options(out=out, only=("BloomModel", "ViTModel"), resume=True, page=page)) == 0
    assert {row["cell"] for row in read_rows(out)} == {row["cell"] for row in rows}


def test_what_is_wrong_is_on_the_page(tmp_path: Path) -> None:
    known = {"metric": "family", "family": "bert", "model_type": "bert", "kind": "base", "class_name": "BertModel"}
    rows: list[Any] = [{**known, "cell": "built", "status": "works", "message": ""}]
    rows += [{**known, "cell": "softmax", "status": "silent error", "message": "off by 2", "value": 2.0}]
    write_page(tmp_path / "page.md", rows)
    text = (tmp_path / "page.md").read_text()
    assert "- BertModel, softmax: silent error, off by 2" in text
    assert "| 1 | something is silently wrong or crashes |" in text
    assert "| bert | 1 | ✗ |" in text
