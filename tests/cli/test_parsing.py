"""Command lines, read into options and refused in one sentence."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import pytest
import tyro

from subquad.checking import Checked, Count, FilePath, Positive, Several
from subquad.cli.parsing import parse
from subquad.errors import OptionError, SubquadError


@dataclass(frozen=True)
class Options(Checked):
    """Some options."""

    run: Annotated[FilePath, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    count: Count = 1
    rate: Positive | None = None
    shape: Literal["round", "square"] = "round"
    sizes: Several[Count] = (1,)
    out: FilePath | None = None
    page: bool = True


def parsed(*words: str) -> Options:
    return parse(Options, words, prog="subquad try")


def test_values_are_read_by_their_types() -> None:
    given = parsed(
        "a/b", "--count", "3", "--rate", "1e-3", "--shape", "square", "--sizes", "1", "2", "--out", "c", "--no-page"
    )
    assert given == Options(Path("a/b"), 3, 1e-3, "square", (1, 2), Path("c"), page=False)
    assert parsed("a", "--rate", "None", "--out", "None") == Options(Path("a"))
    assert parsed("a", "--rate=2") == Options(Path("a"), rate=2.0)


def test_help_names_the_type_of_what_may_be_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parsed("--help")
    said = capsys.readouterr().out
    assert "--rate FLOAT " in said
    assert "--out PATH " in said


@pytest.mark.parametrize(
    ("words", "name", "problem"),
    [
        ("--count many", "count", "must be a whole number, but is 'many'"),
        ("--count 1.5", "count", "must be a whole number, but is '1.5'"),
        ("--count -3", "count", "must be positive, but is -3"),
        ("--rate -inf", "rate", "must be a finite number, but is -inf"),
        ("--rate fast", "rate", "must be a number, but is 'fast'"),
        ("--shape oval", "shape", "must be round or square, but is 'oval'"),
        ("--sizes 1 0", "sizes", "[1] must be positive, but is 0"),
        ("--sizes", "sizes", "must be one value or several, but is ()"),
        ("--out=", "out", "must be the name of a file or folder, but is ''"),
    ],
)
def test_values_are_refused_as_python_refuses_them(words: str, name: str, problem: str) -> None:
    with pytest.raises(OptionError) as raised:
        parsed("a", *words.split())
    assert (raised.value.name, raised.value.problem) == (name, problem)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("", "RUN is missing: `subquad try --help` lists the options"),
        ("a --count", "--count needs a value: `subquad try --help` lists the options"),
        ("a --cuont 3", "there is no option --cuont: did you mean --count?"),
        ("a --zzzzzzzzzzzzz", "there is no option --zzzzzzzzzzzzz: `subquad try --help` lists the options"),
        ("a b c", "'b' is one word too many: `subquad try --help` lists the options"),
        ("a --page maybe", "'maybe' is one word too many: `subquad try --help` lists the options"),
    ],
)
def test_what_is_no_option_is_refused_in_one_sentence(words: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SubquadError) as raised:
        parsed(*words.split())
    assert str(raised.value) == said
    assert capsys.readouterr().err == ""


def test_positional_words_are_named_as_help_names_them() -> None:
    with pytest.raises(SubquadError, match=r"^RUN must be the name of a file or folder, but is ''$"):
        parsed("")


def test_help_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parsed("--help")
    assert not ended.value.code
    printed = capsys.readouterr().out
    assert "--shape {round,square}" in printed
    assert "RUN" in printed
