"""Draws pictures of Pathfinder (Linsley et al. 2018): dashed paths, two discs, and shorter dashed paths that distract.

Every path is drawn on a grid along a curve that is followed in steps of one pixel, so that neighbouring points of it are
neighbouring pixels. A path is a row of dashes; the points between two dashes are left out. Points of different paths are
at least `clearance` pixels apart, in the larger of the two directions, which is more than the ends of neighbouring dashes
are. Whether two discs are on the same path is therefore certain in every picture.
"""

import math
import random
from itertools import product
from typing import NamedTuple

import numpy as np
from jaxtyping import UInt8
from numpy import ndarray

ATTEMPTS = 40
"""Number of tries to place a path before it is given up."""
TURNS = 8
"""Number of directions tried for the next dash of a path before the path is begun again."""
EQUALLY_FAR = 0.05
"""Largest difference of two distances that count as equal, as a share of the picture's size."""
INK = 255


class Style(NamedTuple):
    """Sizes in pixels, and numbers of dashes and paths."""

    size: int
    """Number of rows and of columns."""
    dash: int
    """Number of points of a dash."""
    gap: int
    """Number of points between two dashes."""
    pen: int
    """Number of pixels that a line is wider on each side than one pixel."""
    disc: int
    """Radius of a disc."""
    turn: float
    """Largest angle between two neighbouring dashes, in radians."""
    distractors: int
    """Largest number of dashes of all distractors together."""

    @property
    def clearance(self) -> int:
        """Smallest distance of points of different paths: one more than between the ends of neighbouring dashes."""
        return self.gap + 2

    @property
    def border(self) -> int:
        """Smallest distance of a point from the edge of the picture."""
        return self.disc


STYLES = {
    32: Style(32, dash=2, gap=1, pen=0, disc=1, turn=0.8, distractors=20),
    64: Style(64, dash=3, gap=2, pen=0, disc=2, turn=0.9, distractors=22),
    128: Style(128, dash=5, gap=4, pen=1, disc=3, turn=0.9, distractors=35),
}
"""Styles by the size of a picture, in the proportions of the published settings."""
DASHES = {"easy": 6, "intermediate": 9, "hard": 14}
"""Number of dashes of the two long paths, by the published level of difficulty."""

Point = tuple[int, int]
Ends = tuple[Point, Point]
Place = tuple[float, float, float]
"""Row, column and direction."""
Path = list[list[Point]]
"""The points of each dash of a path."""


def draw_picture(style: Style, dashes: int, *, joined: bool, drawing: random.Random) -> UInt8[ndarray, "rows columns"]:
    """Draws two paths of so many dashes and distractors, with discs at both ends of a path, or at ends of two paths.

    Only pictures are drawn in which both choices are about equally far apart, so that the distance of the discs does not
    tell whether they are joined.
    """
    while True:
        near = _Near(style)
        paths = [_try_to_grow(style, dashes, near, drawing, reach=style.disc) for _ in range(2)]
        long_paths = [path for path in paths if path is not None]
        choices = _equally_far(style, long_paths) if len(long_paths) == len(paths) else []
        if choices:
            break
    discs = drawing.choice(choices)[int(joined)]
    short = max(1, dashes // 3)
    others = [_try_to_grow(style, short, near, drawing, reach=0) for _ in range(style.distractors // short)]
    picture = np.zeros((style.size, style.size), np.uint8)
    for path in (*long_paths, *(path for path in others if path is not None)):
        for row, column in (point for dash in path for point in dash):
            picture[row - style.pen : row + style.pen + 1, column - style.pen : column + style.pen + 1] = INK
    for row, column in discs:
        picture[row - style.disc : row + style.disc + 1, column - style.disc : column + style.disc + 1] = INK
    return picture


def _equally_far(style: Style, paths: list[Path]) -> list[tuple[Ends, Ends]]:
    """Ends of two paths, and both ends of one, which are about as far from each other: all such choices."""
    ends = [(path[0][0], path[-1][-1]) for path in paths]
    apart = [(first, second) for first in ends[0] for second in ends[1]]
    limit = style.size * EQUALLY_FAR
    return [(two, one) for two, one in product(apart, ends) if abs(math.dist(*two) - math.dist(*one)) <= limit]


def _try_to_grow(style: Style, dashes: int, near: "_Near", drawing: random.Random, *, reach: int) -> Path | None:
    """Draws a path where there is room for it and for discs of the radius `reach` at its ends; None if none was found."""
    for _ in range(ATTEMPTS):
        path = _grow(style, dashes, near, drawing, reach)
        if path is not None:
            near.add([point for dash in path for point in dash])
            near.add([path[0][0], path[-1][-1]], reach)
            return path
    return None


class _Near:
    """Marks the points that are too near to a path for another one."""

    def __init__(self, style: Style) -> None:
        self.style = style
        self.rows = [bytearray(style.size) for _ in range(style.size)]

    def add(self, points: list[Point], reach: int = 0) -> None:
        """Marks what is near to these points, or to discs of the radius `reach` around them."""
        distance, size = self.style.clearance - 1 + reach, self.style.size
        for row, column in points:
            first, last = max(0, column - distance), min(size, column + distance + 1)
            for marked in self.rows[max(0, row - distance) : row + distance + 1]:
                marked[first:last] = b"\1" * (last - first)

    def is_free(self, point: Point, reach: int = 0) -> bool:
        """Whether a path may have a point here, and a disc of the radius `reach` around it."""
        row, column = point
        if not reach:
            return not self.rows[row][column]
        return not any(
            any(marked[column - reach : column + reach + 1]) for marked in self.rows[row - reach : row + reach + 1]
        )


def _grow(style: Style, dashes: int, near: _Near, drawing: random.Random, reach: int) -> Path | None:
    """Draws a path from a random point in a random direction; None if it gets too near to another one or to itself.

    A path that turns goes on turning for a while, so that its ends may come near to each other again.
    """
    room = range(style.border, style.size - style.border)
    place = (drawing.uniform(room[0], room[-1]), drawing.uniform(room[0], room[-1]), drawing.uniform(0, 2 * math.pi))
    path: Path = []
    own, bend = _Near(style), drawing.uniform(-style.turn, style.turn)
    while len(path) < dashes:
        around = reach if len(path) in (0, dashes - 1) else 0
        for attempt in range(TURNS if path else 1):
            spread = style.turn * (0.5 if attempt < TURNS // 2 else 2)
            turn = max(-style.turn, min(style.turn, bend + drawing.uniform(-spread, spread)))
            points, end = _dash(style, place, turn, leads=bool(path))
            if all(row in room and column in room for row, column in points) and all(
                near.is_free(point, around) and own.is_free(point) for point in points
            ):
                break
        else:
            return None
        if path:
            own.add(path[-1])
        path.append(points)
        place, bend = end, turn
    return path


def _dash(style: Style, place: Place, turn: float, *, leads: bool) -> tuple[list[Point], Place]:
    """The points of the next dash, after a gap if the path `leads` to it, and the place and direction at its end."""
    row, column, angle = place
    steps = style.dash + (style.gap if leads else 0)
    points = []
    for step in range(steps):
        if leads or step:
            angle += turn / steps
            row, column = row + math.sin(angle), column + math.cos(angle)
        if step >= steps - style.dash:
            points.append((math.floor(row + 0.5), math.floor(column + 0.5)))
    return points, (row, column, angle)
