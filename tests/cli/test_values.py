"""What people type."""

import pytest

from subquad.cli.values import choose, parse_attention, parse_bytes, parse_lengths
from subquad.errors import SubquadError


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (["128..1024"], [128, 256, 512, 1024]),
        (["100..1000"], [100, 200, 400, 800, 1000]),
        (["512", "64", "64..128"], [64, 128, 512]),
        (["7..7"], [7]),
    ],
)
def test_lengths(given: list[str], wanted: list[int]) -> None:
    assert parse_lengths(given) == wanted


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["0"], "must be positive, but '0' is not"),
        (["-4..8"], "must be positive"),
        (["8192..128"], "8192..128 ends before it starts: write 128..8192"),
        (["many"], "takes numbers and ranges such as 128..16384, but was given 'many'"),
        (["1..2..3"], "takes numbers and ranges"),
        ([], "needs at least one length"),
    ],
)
def test_lengths_that_are_none(given: list[str], words: str) -> None:
    with pytest.raises(SubquadError, match=words):
        parse_lengths(given)


def test_attentions_of_other_packages_are_named_where_they_are_taken() -> None:
    assert parse_attention("linear*2,softmax", ["linear", "softmax"]) == ["linear", "linear", "softmax"]
    with pytest.raises(SubquadError, match=r"--mechanisms takes mechanisms of this package, but was given 'pkg.mod:Mine'"):
        parse_attention("pkg.mod:Mine", ["linear"], "--mechanisms")
    names = parse_attention("linear,pkg.mod:Mine*2", ["linear"], takes_imported=True)
    assert names == ["linear", "pkg.mod:Mine", "pkg.mod:Mine"]


@pytest.mark.parametrize("text", ["pkg.mod", "pkg:", "3:4", "linear,pkg.mod"])
def test_names_to_import_have_a_module_and_a_name(text: str) -> None:
    with pytest.raises(SubquadError, match="is no attention: write MODULE:NAME"):
        parse_attention(text, ["linear"], takes_imported=True)


@pytest.mark.parametrize(
    ("given", "wanted"), [("2GiB", 2**31), ("500 MB", 500_000_000), ("1.5gb", 1_500_000_000), ("64", 64)]
)
def test_amounts(given: str, wanted: int) -> None:
    assert parse_bytes("--memory", given) == wanted


@pytest.mark.parametrize("given", ["", "GB", "-1GB", "0", "2 bananas"])
def test_amounts_that_are_none(given: str) -> None:
    with pytest.raises(SubquadError, match="--memory takes an amount such as 2GiB or 500MB"):
        parse_bytes("--memory", given)


def test_the_nearest_name_is_suggested() -> None:
    with pytest.raises(SubquadError, match=r"there is no attention 'lineer': did you mean 'linear'\?"):
        choose("attention", "lineer", ["softmax", "linear"])
    with pytest.raises(SubquadError, match="there is no attention 'xyz': choose from softmax, linear"):
        choose("attention", "xyz", ["softmax", "linear"])
