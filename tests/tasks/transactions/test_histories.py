"""The data model."""

import numpy as np

from subquad.data.tables import Names
from subquad.tasks.transactions.simulator import Simulator


def test_clients_are_selected_with_all_their_events() -> None:
    drawn = Simulator(clients=9, shortest=1, longest=6).draw()
    some = drawn.select(np.array([7, 2]))
    assert some.clients == ["client-7", "client-2"]
    assert some.labels.tolist() == drawn.labels[[7, 2]].tolist()
    for at, client in enumerate((7, 2)):
        ours, theirs = (slice(of.offsets[n], of.offsets[n + 1]) for of, n in ((some, at), (drawn, client)))
        for name in ("codes", "types", "amounts", "times"):
            assert getattr(some, name)[ours].tolist() == getattr(drawn, name)[theirs].tolist()


def test_the_latest_events_are_kept() -> None:
    drawn = Simulator(clients=9, shortest=1, longest=60).draw()
    cut = drawn.latest(5)
    assert cut.lengths.tolist() == np.minimum(drawn.lengths, 5).tolist()
    assert [cut.times[end - 1] for end in cut.offsets[1:]] == [drawn.times[end - 1] for end in drawn.offsets[1:]]
    assert drawn.latest(60) is drawn


def test_names_are_numbered_as_they_come() -> None:
    names = Names()
    assert names.number(["b", "a", "b"]).tolist() == [0, 1, 0]
    assert names.number(["c", " a "]).tolist() == [2, 1]
    assert names.ordered() == ["b", "a", "c"]
