"""A sequence over several real processes: the values, gradients and bytes that `cases` computes in them."""

import json
import os
import subprocess
import sys
from typing import Any

import pytest

import subquad as sq
from subquad.errors import SubquadError
from subquad.parallel import check_cut, cut_points, points_for
from tests.parallel.cases import ALL, LENGTH, LENGTHS, WORLD, all_cases

ROUNDING = 1e-10  # float64

Results = dict[str, list[Any]]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """Each case's value of each process that takes part in it. All cases run in one group of processes."""
    folder = tmp_path_factory.mktemp("group")
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.parallel.cases", str(folder)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )
    values: Results = {}
    for rank in range(WORLD):
        file = folder / f"{rank}.json"
        assert file.exists(), done.stderr
        for case, value in json.loads(file.read_text()).items():
            assert case != "failure", value
            values.setdefault(case, []).append(value)
    return values


def test_every_mechanism_equals_one_process(results: Results) -> None:
    """Values and gradients of inputs and weights, with 1 to 4 processes, at a length that these do not divide."""
    wrong = {}
    for name, causal, size in all_cases():
        differences = results[f"{name}, {causal}, {size}"]
        assert len(differences) == size
        if max(differences) > ROUNDING:
            wrong[name, causal, size] = differences
    assert wrong == {}


@pytest.mark.parametrize("case", ["favor by ring", "infinity by ring", "favor by scan", "infinity by scan"])
def test_ring_and_scan_give_the_same(results: Results, case: str) -> None:
    assert len(results[case]) == WORLD
    assert max(results[case]) < ROUNDING


@pytest.mark.parametrize("causal", [True, False])
def test_exponents_that_differ_by_hundreds_are_joined(results: Results, causal: bool) -> None:
    assert max(results[f"loud keys, {causal}"]) < 1e-7


MODELS = [
    *(f"model {positions}, {causal}" for positions in ("rotary", "sinusoidal", "learned") for causal in (True, False)),
    *("model of two kinds", "reversible model", "model with shared weights"),
]


@pytest.mark.parametrize("case", MODELS)
def test_models_equal_one_process(results: Results, case: str) -> None:
    """Positions count from the start of the whole sequence; activations are recomputed in the backward."""
    assert len(results[case]) == 3
    assert max(results[case]) < ROUNDING


@pytest.mark.parametrize("name", [name for name in ALL if name != "softmax"])
def test_bytes_do_not_depend_on_the_length(results: Results, name: str) -> None:
    shorter, longer = (results[f"bytes of {name} at {length}"] for length in LENGTHS)
    assert shorter == longer
    assert any(shorter)


def test_linear_sends_its_state(results: Results) -> None:
    """The sums, norms and peaks of 2 sequences and 2 heads with 4 features, in float64, once in each direction by a ring."""
    state = 2 * 2 * (4 * 4 + 4 + 1) * 8
    assert results[f"bytes of linear at {LENGTH}"] == [state, 2 * state, 2 * state, state]


def test_points_cut_where_blocks_begin() -> None:
    assert cut_points(10, 3) == (0, 3, 6, 10)
    assert cut_points(61, 4, 5) == (0, 15, 30, 45, 61)
    assert points_for([sq.Hybrid(block=4), sq.Infinity(segment=6)], 61, 2) == (0, 36, 61)


def test_what_cannot_be_cut_is_refused() -> None:
    with pytest.raises(SubquadError, match="a sequence of 3 positions cannot be cut over 4 processes"):
        cut_points(3, 4)
    with pytest.raises(SubquadError, match=r"hybrid is cut at multiples of 64\): give --sequence-parallel 2 at most"):
        points_for([sq.Hybrid(block=64)], 100, 4)
    with pytest.raises(SubquadError, match="stretches of 25, but window reaches 30 back"):
        points_for([sq.Window(reach=30)], 100, 4)
    for options, words in {
        sq.Lsh(): "lsh cannot be cut over processes",
        sq.Nystrom(): "nystrom cannot be cut",
        sq.Infinity(sticky=True): "with a sticky memory",
        sq.Infinity(divergence=1e-6): "with a divergence in the loss",
        sq.Window(global_tokens=1): "with global tokens",
        sq.Linformer(method="mean"): "by the method mean",
    }.items():
        with pytest.raises(SubquadError, match=words):
            check_cut([options], causal=False)
