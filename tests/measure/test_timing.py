"""Measuring, without asking how fast this machine is."""

from functools import partial

from subquad.measure.timing import interleave


def test_candidates_take_turns() -> None:
    order: list[str] = []
    taken = interleave({name: partial(order.append, name) for name in "abc"}, seconds=0, at_least=4)
    assert order == list("abc" * 5)  # one round to warm up
    assert {len(seconds) for seconds in taken.values()} == {4}
