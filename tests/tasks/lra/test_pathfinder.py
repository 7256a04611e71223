"""Pathfinder: an independent solver recovers every label, no shortcut does, and released pictures are read."""

import random
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from subquad import SubquadError
from subquad.tasks import Pathfinder
from subquad.tasks.lra.drawing import DASHES, STYLES, draw_picture
from subquad.tasks.lra.image import read_grey
from tests.tasks.lra.solver import are_joined

SETTINGS: list[tuple[int, Literal["easy", "intermediate", "hard"], int]] = [
    (32, "easy", 60),
    (32, "intermediate", 40),
    (32, "hard", 30),
    (64, "hard", 6),
    (128, "hard", 8),
]


@pytest.mark.parametrize(("size", "difficulty", "pictures"), SETTINGS)
def test_every_label_is_recovered_from_the_pixels(
    size: int, difficulty: Literal["easy", "intermediate", "hard"], pictures: int
) -> None:
    options, style = Pathfinder(side=size, difficulty=difficulty), STYLES[size]
    labels = []
    for number in range(pictures):
        example = options.draw("train", number)
        picture = example.tokens.reshape(size, size)
        assert are_joined(picture, style.gap + 1 - 2 * style.pen, style.disc) == bool(example.label)
        labels.append(example.label)
    assert {0, 1} == set(labels)


def test_the_distance_of_the_discs_tells_nothing() -> None:
    """The best threshold on the distance would be right about half of the time; so would one on the number of pixels."""
    distances: dict[bool, list[float]] = {True: [], False: []}
    inks: dict[bool, list[int]] = {True: [], False: []}
    for number in range(120):
        joined = bool(number % 2)
        picture = draw_picture(STYLES[32], DASHES["easy"], joined=joined, drawing=random.Random(number // 2))
        full = np.lib.stride_tricks.sliding_window_view(picture > 0, (3, 3)).all((2, 3))
        centres = np.argwhere(full)
        distances[joined].append(float(np.hypot(*(centres[0] - centres[-1]))))
        inks[joined].append(int((picture > 0).sum()))
    for together, apart in zip(distances[True], distances[False], strict=True):  # drawn from the same seed
        assert abs(together - apart) < 0.05 * 32 + 2  # a disc beside a dash may look like two
    assert np.mean(inks[True]) == pytest.approx(np.mean(inks[False]), rel=0.05)


def test_pictures_depend_on_seed_split_and_number_only() -> None:
    options = Pathfinder(difficulty="easy", held_out=5, tested=5)
    loaded = options.load()
    first, again = (loaded.splits["train"].first(3) for _ in range(2))
    assert all(np.array_equal(a.tokens, b.tokens) for a, b in zip(first, again, strict=True))
    pictures = {example.tokens.tobytes() for split in loaded.splits.values() for example in split.first(5)}
    assert len(pictures) == 15
    assert loaded.longest == 1024


def png(picture: np.ndarray, kind: int = 0) -> bytes:
    """A PNG file, written by hand, with the same filter in each line: none, left, above, mean or Paeth's."""
    rows, columns = picture.shape[:2]
    channels = 1 if picture.ndim == 2 else picture.shape[2]
    values = picture.reshape(rows, columns * channels).astype(np.int64)
    padded = np.pad(values, ((1, 0), (channels, 0)))
    left, above, corner = padded[1:, :-channels], padded[:-1, channels:], padded[:-1, :-channels]
    guess = left + above - corner
    nearest = np.argmin(np.abs(np.stack([guess - left, guess - above, guess - corner])), axis=0)
    paeth = np.choose(nearest, [left, above, corner])
    expected = [np.zeros_like(values), left, above, (left + above) // 2, paeth][kind]
    lines = np.concatenate([np.full((rows, 1), kind), (values - expected) % 256], axis=1).astype(np.uint8).tobytes()
    header = struct.pack(">IIBBBBB", columns, rows, 8, {1: 0, 2: 4, 3: 2, 4: 6}[channels], 0, 0, 0)
    packed = zlib.compress(lines)
    parts = [(b"IHDR", header), (b"IDAT", packed[:9]), (b"tEXt", b"hello"), (b"IDAT", packed[9:]), (b"IEND", b"")]
    chunks = [
        struct.pack(">I", len(part)) + name + part + struct.pack(">I", zlib.crc32(name + part)) for name, part in parts
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


@pytest.mark.parametrize("kind", range(5))
@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_png_files_are_read(kind: int, channels: int, tmp_path: Path) -> None:
    picture = np.random.default_rng(0).integers(0, 256, (5, 7, channels), np.uint8)
    (tmp_path / "a.png").write_bytes(png(picture, kind))
    weights = np.array([0.299, 0.587, 0.114])
    grey = picture[:, :, 0] if channels < 3 else np.round(picture[:, :, :3] @ weights)
    assert np.abs(read_grey(tmp_path / "a.png").astype(int) - grey).max() <= (channels >= 3)


@pytest.mark.parametrize(
    "change",
    [
        lambda content: b"GIF89a" + content,
        lambda content: content[:60],
        lambda content: content[:60] + b"\0" + content[61:],
        lambda content: content[:8],
    ],
)
def test_damaged_png_files_get_one_sentence(change: Callable[[bytes], bytes], tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(change(png(np.zeros((4, 4), np.uint8))))
    with pytest.raises(SubquadError, match=r"is no PNG file|damaged"):
        read_grey(tmp_path / "a.png")


def release(folder: Path, pictures: int = 20, size: int = 32) -> Path:
    """Pictures and metadata as they are released."""
    inner = folder / "pathfinder32" / "curv_contour_length_14"
    (inner / "metadata").mkdir(parents=True)
    (inner / "imgs" / "0").mkdir(parents=True)
    lines = []
    for number in range(pictures):
        picture = np.full((size, size), number, np.uint8)
        (inner / "imgs" / "0" / f"sample_{number}.png").write_bytes(png(picture))
        lines.append(f"imgs/0 sample_{number}.png {number} {number % 2} 0 1.0 14 3")
    (inner / "metadata" / "0.npy").write_text("\n".join(lines) + "\n")
    return folder


def test_released_pictures_are_read(tmp_path: Path) -> None:
    loaded = Pathfinder(data=str(release(tmp_path))).load()
    assert {split: source.count for split, source in loaded.splits.items()} == {"test": 2, "development": 2, "train": 16}
    examples = [example for source in loaded.splits.values() for example in source.first(20)]
    assert sorted(int(example.tokens[0]) for example in examples) == list(range(20))
    assert all(example.tokens[0] % 2 == example.label for example in examples)
    folder = tmp_path / "pathfinder32" / "curv_contour_length_14"
    assert Pathfinder(data=str(folder)).load().splits["train"].count == 16
    unlabelled = Pathfinder().read_unlabelled(folder / "imgs", 1024)
    assert unlabelled.names[0] == "0/sample_0.png"


def test_released_pictures_that_do_not_do(tmp_path: Path) -> None:
    folder = release(tmp_path / "a") / "pathfinder32" / "curv_contour_length_14"
    for line, said in (
        ("imgs/0 sample_0.png 0 7", "the label must be 0 or 1, but is '7'"),
        ("../.. secret.png 0 1", "is no line of metadata"),
        ("imgs/0", "is no line of metadata"),
        ("", "has no lines of metadata"),
        ("imgs/0 sample_0.png 0 1", "has 1 pictures, too few to be split"),
    ):
        (folder / "metadata" / "0.npy").write_text(line + "\n")
        with pytest.raises(SubquadError, match=said):
            Pathfinder(data=str(folder)).load()
    with pytest.raises(SubquadError, match="has 8 x 8 pixels: --side must be 8"):
        Pathfinder(data=str(release(tmp_path / "b", size=8))).load()
    with pytest.raises(SubquadError, match="holds no released pictures"):
        Pathfinder(data=str(tmp_path)).load()
    with pytest.raises(SubquadError, match="there is no folder"):
        Pathfinder(data=str(tmp_path / "none")).load()
