"""What is left of a model."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from numpy import ndarray
from scipy import stats

from subquad import Learned, Linear, SubquadError
from subquad.conversion import ConversionOptions
from subquad.conversion.engine import check
from subquad.conversion.quality import Figure, Judged, Quality, common_neighbours, compare_vectors, lengths, rank_correlation
from tests.conversion.models import original


def vectors(seed: int, count: int = 30) -> Any:
    found = np.random.default_rng(seed).normal(size=(count, 5))
    return found / np.linalg.norm(found, axis=1, keepdims=True)


def by_name(judged: list[Judged]) -> dict[str, float]:
    return {each.metric: each.value for each in judged}


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
        _, middle, low, high = Figure("mean", len(values), lambda some: float(values[some].mean())).judged()
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


def test_lengths_are_halves() -> None:
    assert lengths(256) == [256, 128, 64, 32, 16]
    assert lengths(20) == [20, 10]
    assert lengths(4) == [4]


def test_an_encoder(tmp_path: Path) -> None:
    teacher = original(tmp_path)
    teacher.compare(["w1 w2", "w3 w4 w5", "w6"], ["w1 w2", "w3 w4", "w9 w30 w2"], [5.0, 3.0, 0.0])
    quality = Quality(teacher, 60, 0)
    own = by_name(quality.judge(teacher.teacher, whole=True))
    assert own.pop("spearman") == pytest.approx(1)  # the first pair is the same, so its vectors are
    assert list(own) == ["cosine", "cosine, 5th percentile", "rank correlation", "neighbours", "cosine at 32"]
    assert list(own.values()) == pytest.approx([1] * 5)
    student = teacher.student([Linear(Learned())] * 3, 0)
    found = by_name(quality.judge(student, whole=True))
    assert found["cosine, 5th percentile"] < found["cosine"] < 0.999
    assert list(by_name(quality.judge(student, whole=False))) == list(own)


def test_few_texts_are_some_of_all(tmp_path: Path) -> None:
    """The original's vectors are computed once, and those of few texts are picked out of them."""
    teacher = original(tmp_path)
    quality = Quality(teacher, 60, 0)
    twin = teacher.student([None] * 3, 0)
    assert list(by_name(quality.judge(twin, whole=False)).values()) == pytest.approx([1] * 5)


@pytest.mark.parametrize("kind", ["BertForMaskedLM", "GPT2LMHeadModel"])
def test_perplexity_is_that_of_the_tokens_to_be_found(tmp_path: Path, kind: str) -> None:
    teacher = original(tmp_path, kind)
    found = Quality(teacher, 40, 0).judge(teacher.teacher, whole=True)[0]
    batch = Quality(teacher, 40, 0)._long
    with torch.no_grad():
        logits = teacher.teacher(input_ids=batch.tokens, attention_mask=batch.keep.long()).logits
    wanted = F.cross_entropy(logits[batch.chosen].double(), batch.right[batch.chosen])
    assert found.metric == "perplexity"
    assert found.value == pytest.approx(math.exp(wanted), rel=1e-4)
    assert found.low is not None
    assert found.high is not None
    assert found.low < found.value < found.high


def test_heads(tmp_path: Path) -> None:
    teacher = original(tmp_path)
    quality = Quality(teacher, 40, 0)
    rows = quality.heads(teacher.student([Linear(Learned()), None, None], 0))
    assert {(row["metric"], row["layer"], row["head"]) for row in rows} == {
        (metric, layer, head)
        for metric in ("attention divergence", "effective rank")
        for layer in range(3)
        for head in range(2)
    }
    divergence = {(row["layer"], row["head"]): row["value"] for row in rows if row["metric"] == "attention divergence"}
    assert min(divergence.values()) > 1e-3  # later layers read what the first one changed
    own = quality.heads(teacher.teacher)
    assert max(row["value"] for row in own if row["metric"] == "attention divergence") < 1e-5
    assert all(1 < row["value"] < 32 for row in own if row["metric"] == "effective rank")


def test_layers_with_a_window_of_the_models_own_have_no_heads(tmp_path: Path) -> None:
    teacher = original(tmp_path, "ModernBertModel")  # whose second layer sees four tokens
    with pytest.raises(SubquadError, match="hides other keys from one query than from another"):
        check(teacher, Linear(Learned()), ConversionOptions())
    check(teacher, Linear(Learned()), ConversionOptions(keep_layers=(1,)))
    rows = Quality(teacher, 40, 0).heads(teacher.student([Linear(Learned()), None, Linear(Learned())], 0))
    assert {row["layer"] for row in rows} == {0, 2}
