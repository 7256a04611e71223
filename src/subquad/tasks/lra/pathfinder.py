"""Pathfinder and Path-X: are two discs joined by a dashed path? Drawn here, or the released pictures."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np

from subquad.checking import Count, Seed, excerpt
from subquad.data.splits import SplitName, shuffled
from subquad.errors import OptionError, SubquadError
from subquad.files import kind_of, read_text
from subquad.tasks.lra.base import ArenaOptions, Unlabelled
from subquad.tasks.lra.drawing import DASHES, STYLES, draw_picture
from subquad.tasks.lra.image import LEAST, LEVELS, intensities, read_grey, read_picture_files
from subquad.tasks.lra.sources import Example, Loaded, Source

Difficulty = Literal["easy", "intermediate", "hard"]
RELEASED = {"easy": "curv_baseline", "intermediate": "curv_contour_length_9", "hard": "curv_contour_length_14"}
"""Folders of the released pictures, by their difficulty."""
NAMES = ["apart", "joined"]
SPLITS: tuple[SplitName, ...] = ("test", "development", "train")
METADATA_FIELDS = 4
"""Number of fields at the beginning of a line of released metadata: folder, file, number, and whether discs are joined."""


@dataclass(frozen=True)
class Pathfinder(ArenaOptions):
    """Long Range Arena: tell whether two discs are joined by a dashed path. With --side 128 it is Path-X. Drawn here."""

    side: Count = 32  # number of rows and of columns of a picture: 32 in Pathfinder, 128 in Path-X
    difficulty: Difficulty = "hard"  # the long paths have 6, 9 or 14 dashes; the published comparison has hard
    examples: Count = 160_000  # number of different training pictures that are drawn
    data_seed: Seed = 0  # seed of the pictures, or of the split of the released ones
    kind: str = field(default="lra-pathfinder", init=False)

    def check(self) -> None:
        if self.side not in STYLES:
            raise OptionError("side", f"must be 32, 64 or 128, but is {self.side}")

    @property
    def vocabulary(self) -> int:
        return LEVELS

    @property
    def longest(self) -> int:
        return self.side**2

    def load(self) -> Loaded:
        """Reads the released pictures, or prepares to draw some, each from its own seed."""
        if self.data:
            return Loaded(self._released(), NAMES, self.longest)
        counts = {"train": self.examples, "development": self.held_out, "test": self.tested or 20_000}
        splits = {split: self._drawn(split, counts[split]) for split in SPLITS}
        return Loaded(splits, NAMES, self.longest)

    def _drawn(self, split: SplitName, count: int) -> Source:
        return Source(count, lambda number: self.draw(split, number))

    def draw(self, split: SplitName, number: int) -> Example:
        """Returns the picture with this number, which depends on the number, the split and the options only."""
        drawing = random.Random(f"{self.data_seed} {split} {number}")
        joined = drawing.random() < 0.5
        picture = draw_picture(STYLES[self.side], DASHES[self.difficulty], joined=joined, drawing=drawing)
        return Example(picture.reshape(-1), int(joined))

    def _released(self) -> dict[SplitName, Source]:
        """Finds the released pictures. A tenth each is for development and for the test, as in the paper."""
        folder = released_folder(Path(self.data), self.side, self.difficulty)
        entries = read_metadata(folder)
        if len(entries) < LEAST:
            raise SubquadError(f"{folder} has {len(entries)} pictures, too few to be split: give at least {LEAST}")
        order, tenth = shuffled([name for name, _ in entries], self.data_seed).tolist(), len(entries) // 10
        places = {"test": order[:tenth], "development": order[tenth : 2 * tenth], "train": order[2 * tenth :]}
        return {split: self._read(folder, [entries[place] for place in places[split]]) for split in SPLITS}

    def _read(self, folder: Path, entries: Sequence[tuple[str, int]]) -> Source:
        def make(number: int) -> Example:
            name, label = entries[number]
            picture = read_grey(folder / name)
            if picture.shape != (self.side, self.side):
                rows, columns = picture.shape
                raise SubquadError(f"{folder / name} has {rows} x {columns} pixels: --side must be {rows}, or give others")
            return Example(picture.reshape(-1), label)

        make(0)  # refuses a wrong size before anything is trained
        return Source(len(entries), make)

    def parse(self, words: Sequence[str], longest: int) -> Example:
        return Example(intensities(words, longest), 0)

    def split_words(self, line: str) -> list[str]:
        return line.replace(",", " ").split()

    def spell(self, example: Example) -> str:
        """Counts the pixels of ink, as a picture takes more words than a sample has."""
        return f"{self.side} x {self.side} pixels, {int(np.count_nonzero(example.tokens > LEVELS // 2))} of them bright"

    def read_unlabelled(self, path: Path, longest: int) -> Unlabelled:
        return read_picture_files(path, longest)


def released_folder(path: Path, side: int, difficulty: Difficulty) -> Path:
    """The folder with imgs and metadata: `path` itself, or one below it by the names of the release."""
    if kind_of(path) != "folder":
        raise SubquadError(f"there is no folder {path}: give that of the released pictures")
    name = RELEASED[difficulty]
    candidates = (path, path / name, path / f"pathfinder{side}" / name, path / "lra_release" / f"pathfinder{side}" / name)
    for folder in candidates:
        if (folder / "metadata").is_dir():
            return folder
    raise SubquadError(
        f"{path} holds no released pictures: there should be the folders metadata and imgs, or {name} with them"
    )


def read_metadata(folder: Path) -> list[tuple[str, int]]:
    """Reads the path of each picture and whether its discs are joined (1) or not (0)."""
    entries = []
    for file in sorted((folder / "metadata").glob("*.npy")):
        for number, line in enumerate(read_text(file).splitlines(), start=1):
            fields = line.split()
            if not fields:
                continue
            where = f"{file}:{number}"
            if len(fields) < METADATA_FIELDS or ".." in fields[0] + fields[1] or fields[0].startswith("/"):
                raise SubquadError(
                    f"{where} is no line of metadata: it should begin with a folder, a file, a number and 0 or 1"
                )
            if fields[3] not in ("0", "1"):
                raise SubquadError(f"{where}: the label must be 0 or 1, but is {excerpt(fields[3])}")
            entries.append((f"{fields[0]}/{fields[1]}", int(fields[3])))
    if not entries:
        raise SubquadError(
            f"{folder / 'metadata'} has no lines of metadata: there should be files *.npy with one for each picture"
        )
    return entries
