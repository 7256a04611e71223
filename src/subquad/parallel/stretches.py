"""Cuts a sequence into stretches, one for each process."""

from typing import NamedTuple

from subquad.errors import SubquadError
from subquad.parallel.group import Group


class Stretch(NamedTuple):
    """The stretch of a sequence that this process holds, and the points at which the sequence is cut."""

    group: Group
    points: tuple[int, ...]
    """Number of positions before each stretch, and the number of all."""

    @property
    def rank(self) -> int:
        """Number of stretches before this one."""
        return self.group.rank

    @property
    def start(self) -> int:
        """Number of positions before the stretch."""
        return self.points[self.rank]

    @property
    def stop(self) -> int:
        """Number of positions up to the end of the stretch."""
        return self.points[self.rank + 1]

    @property
    def is_first(self) -> bool:
        """Whether no stretch comes before this one."""
        return self.rank == 0

    @property
    def is_last(self) -> bool:
        """Whether no stretch comes after this one."""
        return self.rank == self.group.size - 1

    def length_of(self, rank: int) -> int:
        """Number of positions of the stretch of another process; 0 beyond the ends of the sequence."""
        return self.points[rank + 1] - self.points[rank] if 0 <= rank < self.group.size else 0


def cut_points(length: int, parts: int, multiple: int = 1, why: str = "") -> tuple[int, ...]:
    """Returns the points that cut `length` positions into `parts` stretches of about the same length.

    Stretches begin at multiples of `multiple`. Raises `SubquadError` if a stretch would be empty; `why` says in its sentence
    why only multiples will do.
    """
    units = -(-length // multiple)
    if units < parts:
        reason = f" ({why})" if multiple > 1 and why else ""
        raise SubquadError(
            f"a sequence of {length} positions cannot be cut over {parts} processes{reason}: give --sequence-parallel "
            f"{max(1, units)} at most, or longer sequences"
        )
    return (*(units * part // parts * multiple for part in range(parts)), length)
