"""What is left of a model."""

import math
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from numpy import ndarray
from scipy import stats

from subquad import Hybrid, Learned, Linear, SubquadError
from subquad.conversion import ConversionOptions
from subquad.conversion.convertible import Outputs
from subquad.conversion.engine import check
from subquad.conversion.sight import EVERYTHING, NOTHING, Sight, sight_of
from subquad.conversion.vectors import Figure, Judged, common_neighbours, compare_vectors, rank_correlation
from tests.conversion.models import original, quality


def vectors(seed: int, count: int = 30) -> Any:
    found = np.random.default_rng(seed).normal(size=(count, 5))
    return found / np.linalg.norm(found, axis=1, keepdims=True)


def by_name(judged: list[Judged]) -> dict[str, float]:
    """Figures of all texts, whatever their length."""
    return {each.metric: each.value for each in judged if each.length is None}


def test_the_same_vectors_agree_wholly() -> None:
    found = [figure.judged() for figure in compare_vectors(vectors(0), vectors(0), 0)]
    assert [each.metric for each in found] == ["cosine", "cosine, 5th percentile", "rank correlation", "neighbours"]
    assert [each.value for each in found] == pytest.approx([1, 1, 1, 1])


def test_turned_vectors_keep_likenesses_but_not_directions() -> None:
    turn = np.linalg.qr(np.random.default_rng(1).normal(size=(5, 5)))[0]
    found = by_name([figure.judged(interval=False) for figure in compare_vectors(vectors(0), vectors(0) @ turn, 0)])
    assert abs(found["cosine"]) < 0.9
    assert found["rank correlation"] == pytest.approx(1)
    assert found["neighbours"] == 1


def test_unrelated_vectors_share_neighbours_by_chance() -> None:
    shared = common_neighbours(vectors(0, 300), vectors(1, 300))
    assert shared.mean() == pytest.approx(10 / 299, abs=0.02)


def test_intervals_hold_their_value_and_narrow() -> None:
    def width(values: ndarray) -> float:
        _, middle, low, high, *_ = Figure("mean", len(values), lambda some: float(values[some].mean())).judged()
        assert low is not None
        assert high is not None
        assert low < middle < high
        return high - low

    drawing = np.random.default_rng(0)
    assert width(drawing.normal(size=1000)) < 0.5 * width(drawing.normal(size=60))


def test_rank_correlation_is_scipys() -> None:
    a, b = np.random.default_rng(0).integers(0, 6, (2, 50)).astype(float)
    everyone = np.arange(50)
    assert rank_correlation(a, b)(everyone) == pytest.approx(stats.spearmanr(a, b).statistic)
    assert rank_correlation(a, np.zeros(50))(everyone) == 0


def test_an_encoder(tmp_path: Path) -> None:
    teacher = original(tmp_path)
    teacher.compare(["w1 w2", "w3 w4 w5", "w6"], ["w1 w2", "w3 w4", "w9 w30 w2"], [5.0, 3.0, 0.0])
    looks = quality(teacher, 60, Sight(4, 1, 1))
    own = by_name(looks.test(teacher.teacher, EVERYTHING))
    assert own.pop("spearman") == pytest.approx(1)  # the first pair is the same, so its vectors are
    vectors_of = ["cosine", "cosine, 5th percentile", "rank correlation", "neighbours"]
    assert list(own) == [*vectors_of, "cosine at 32", "far change", "far change, size"]
    assert list(own.values()) == pytest.approx([1] * 7)
    student = teacher.student([Linear(Learned())] * 3, 0)
    found = by_name(looks.test(student, NOTHING))
    assert found["cosine, 5th percentile"] < found["cosine"] < 0.999
    assert found["far change"] < 0.999
    assert list(by_name(looks.develop(student))) == vectors_of


def test_what_is_watched_is_not_what_is_tested(tmp_path: Path) -> None:
    looks = quality(original(tmp_path), 60)
    rows = [
        {tuple(row) for length in looks.plan.lengths for row in looks._texts(split, length).tokens.tolist()}
        for split in ("development", "test")
    ]
    assert rows[0].isdisjoint(rows[1])


def test_the_same_model_agrees_on_development_texts(tmp_path: Path) -> None:
    teacher = original(tmp_path)
    twin = teacher.student([None] * 3, 0)
    assert [each.value for each in quality(teacher, 60).develop(twin)] == pytest.approx([1] * 4)


@pytest.mark.parametrize("kind", ["BertForMaskedLM", "GPT2LMHeadModel"])
def test_perplexity_is_that_of_the_tokens_to_be_found(tmp_path: Path, kind: str) -> None:
    teacher = original(tmp_path, kind)
    looks = quality(teacher, 40)
    found = looks.test(teacher.teacher, EVERYTHING)[0]
    batch = looks._texts("test", 32)
    with torch.no_grad():
        logits = teacher.teacher(input_ids=batch.tokens, attention_mask=batch.keep.long()).logits
    wanted = F.cross_entropy(logits[batch.chosen].double(), batch.right[batch.chosen])
    assert found.metric == "perplexity"
    assert found.value == pytest.approx(math.exp(wanted), rel=1e-4)
    assert found.low is not None
    assert found.high is not None
    assert found.low < found.value < found.high


@pytest.mark.parametrize("kind", ["BertModel", "BertForMaskedLM", "GPT2LMHeadModel"])
def test_quality_by_length_says_how_much_is_outside_of_the_window(tmp_path: Path, kind: str) -> None:
    teacher = original(tmp_path, kind)
    student = teacher.student([Hybrid(block=4)] * 3, 0)
    found = quality(teacher, 60, sight_of(Hybrid(block=4))).test(student, sight_of(Hybrid(block=4)))
    metric = "cosine by length" if kind == "BertModel" else "perplexity by length"
    outside = {each.length: each.outside for each in found if each.metric == metric}
    assert outside == {32: pytest.approx(21 / 32 if kind != "GPT2LMHeadModel" else 0.6363, abs=1e-3), 16: ANY, 8: 0.0}
    headline = by_name(found)
    if kind == "BertModel":
        at_longest = next(each for each in found if each.length == 32)
        assert at_longest.value == pytest.approx(headline["cosine at 32"])
    else:
        assert next(each for each in found if each.length == 32).value == pytest.approx(headline["perplexity"])


def test_far_tokens_are_found_by_what_sees_far(tmp_path: Path) -> None:
    """A model that repeats what came 12 tokens ago knows the far tokens and no others."""
    teacher = original(tmp_path, "GPT2LMHeadModel")
    looks = quality(teacher, 20, Sight(4, 1, 1))
    batch = teacher.encode(["w1 w2 w3 w4 w5 w6 w7 w8 w9 w10 w11 w12 " * 2] * 3)._replace()
    after = batch.keep.clone()
    after[:, -1] = False
    looks._kept["test", 32] = batch._replace(right=batch.tokens.roll(-1, 1), chosen=after)

    def repeat(model: Any, asked: Any, *, logits: bool) -> Outputs:
        guesses = torch.zeros(*asked.tokens.shape, 60)
        places = torch.arange(asked.tokens.shape[1])
        guesses.scatter_(2, asked.tokens[:, (places - 11).clamp(min=0)][..., None], 9.0)
        return Outputs((), guesses[asked.chosen])

    teacher.outputs = repeat
    found = by_name([each for each in looks._test_answers(teacher.teacher) if each.length is None])
    assert found["far recall"] == 1
    assert found["far perplexity"] < 1.1 < found["perplexity"]


def test_a_text_within_the_window_says_nothing_of_what_is_far(tmp_path: Path) -> None:
    for kind in ("BertModel", "BertForMaskedLM"):
        teacher = original(tmp_path / kind, kind)
        found = by_name(quality(teacher, 60, Sight(32, 1, 1)).test(teacher.teacher, EVERYTHING))
        assert not [metric for metric in found if metric.startswith("far")]


def test_heads(tmp_path: Path) -> None:
    teacher = original(tmp_path)
    looks = quality(teacher, 40)
    rows = looks.heads(teacher.student([Linear(Learned()), None, None], 0))
    assert {(row["metric"], row["layer"], row["head"]) for row in rows} == {
        (metric, layer, head)
        for metric in ("attention divergence", "effective rank")
        for layer in range(3)
        for head in range(2)
    }
    divergence = {(row["layer"], row["head"]): row["value"] for row in rows if row["metric"] == "attention divergence"}
    assert min(divergence.values()) > 1e-3  # later layers read what the first one changed
    own = looks.heads(teacher.teacher)
    assert max(row["value"] for row in own if row["metric"] == "attention divergence") < 1e-5
    assert all(1 < row["value"] < 32 for row in own if row["metric"] == "effective rank")


def test_layers_with_a_window_of_the_models_own_have_no_heads(tmp_path: Path) -> None:
    teacher = original(tmp_path, "ModernBertModel")  # whose second layer sees four tokens
    with pytest.raises(SubquadError, match="hides other keys from one query than from another"):
        check(teacher, Linear(Learned()), ConversionOptions())
    check(teacher, Linear(Learned()), ConversionOptions(keep_layers=(1,)))
    rows = quality(teacher, 40).heads(teacher.student([Linear(Learned()), None, Linear(Learned())], 0))
    assert {row["layer"] for row in rows} == {0, 2}
