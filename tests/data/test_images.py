"""Images in the formats that they come in: values, splits and labels; damaged files, each with one sentence."""

import gzip
import io
import struct
import sys
import zlib
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from numpy import ndarray

from subquad import SubquadError
from subquad.data.image_files import read_picture
from subquad.data.images import grey, load_images, resized
from subquad.data.png import SIGNATURE, decode_png, encode_png, png_address

RNG = np.random.default_rng(0)


def pixels(number: int, rows: int = 4, columns: int = 5, channels: int = 1) -> ndarray:
    return RNG.integers(0, 256, (number, rows, columns, channels), dtype=np.uint8)


def idx(array: ndarray) -> bytes:
    return struct.pack(">I", 0x800 + array.ndim) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def cifar(images: ndarray, *labels: ndarray) -> bytes:
    rows = [*(label[:, None].astype(np.uint8) for label in labels), images.transpose(0, 3, 1, 2).reshape(len(images), -1)]
    return np.concatenate(rows, axis=1).tobytes()


@pytest.mark.parametrize("channels", [1, 3])
def test_a_png_comes_back(channels: int) -> None:
    (picture,) = pixels(1, 7, 3, channels)
    assert np.array_equal(decode_png(encode_png(picture), "x"), picture)
    large = decode_png(encode_png(picture, magnified=3), "x")
    assert large.shape == (21, 9, channels)
    assert np.array_equal(large[::3, ::3], picture)
    assert png_address(picture).startswith("data:image/png;base64,iVBORw0KGgo")


def png_with(
    filters: list[int], lines: ndarray, *, depth: int = 8, colour: int = 0, columns: int, palette: bytes = b""
) -> bytes:
    """A PNG file whose rows, as they are stored, follow these filters."""
    header = struct.pack(">IIBBBBB", columns, len(lines), depth, colour, 0, 0, 0)
    data = b"".join(bytes([kind]) + line.astype(np.uint8).tobytes() for kind, line in zip(filters, lines, strict=True))
    parts = [(b"IHDR", header), *([(b"PLTE", palette)] if palette else []), (b"IDAT", zlib.compress(data)), (b"IEND", b"")]
    return SIGNATURE + b"".join(
        struct.pack(">I", len(part)) + name + part + struct.pack(">I", zlib.crc32(name + part)) for name, part in parts
    )


def test_all_filters_of_a_png_are_undone() -> None:
    """By hand: none, left, up, average of left and up, and the neighbour that Paeth's rule picks."""
    lines = np.array([[10, 20, 30], [5, 5, 5], [1, 1, 1], [250, 2, 2], [1, 2, 3]])
    decoded = decode_png(png_with([0, 1, 2, 3, 4], lines, columns=3), "x")[..., 0]
    assert decoded.tolist() == [[10, 20, 30], [5, 10, 15], [6, 11, 16], [253, 134, 77], [254, 136, 80]]


def test_other_kinds_of_png_are_read() -> None:
    bits = decode_png(png_with([0], np.array([[0b10110000]]), depth=1, columns=4), "x")
    assert bits[0, :, 0].tolist() == [255, 0, 255, 255]
    deep = decode_png(png_with([0], np.array([[200, 1, 7, 255]]), depth=16, columns=2), "x")
    assert deep[0, :, 0].tolist() == [200, 7]
    named = png_with([0], np.array([[1, 0]]), colour=3, columns=2, palette=bytes([1, 2, 3, 4, 5, 6]))
    assert decode_png(named, "x").tolist() == [[[4, 5, 6], [1, 2, 3]]]
    alpha = decode_png(png_with([0], np.array([[9, 255, 8, 0]]), colour=4, columns=2), "x")
    assert alpha[0, :, 0].tolist() == [9, 8]


def test_npz_has_splits_and_labels(tmp_path: Path) -> None:
    train, test = pixels(6)[..., 0], pixels(3)[..., 0]
    np.savez(tmp_path / "a.npz", train_images=train, test_images=test, train_labels=np.arange(6), test_labels=np.arange(3))
    splits = load_images(tmp_path / "a.npz").splits
    assert np.array_equal(splits["train"].pixels[..., 0], train)
    assert splits["test"].labels.tolist() == [0, 1, 2]
    assert np.array_equal(load_images(tmp_path).splits["test"].pixels[..., 0], test)


@pytest.mark.parametrize("is_packed", [False, True])
def test_idx_files_have_splits_and_labels(is_packed: bool, tmp_path: Path) -> None:
    train, test = pixels(6)[..., 0], pixels(3)[..., 0]
    files = {"train-images-idx3-ubyte": train, "t10k-images-idx3-ubyte": test, "train-labels-idx1-ubyte": np.arange(6)}
    for name, array in files.items():
        content = idx(array.astype(np.uint8))
        (tmp_path / (name + ".gz" * is_packed)).write_bytes(gzip.compress(content) if is_packed else content)
    splits = load_images(tmp_path).splits
    assert np.array_equal(splits["train"].pixels[..., 0], train)
    assert np.array_equal(splits["test"].pixels[..., 0], test)
    assert splits["train"].labels.tolist() == [0, 1, 2, 3, 4, 5]
    assert splits["test"].labels.tolist() == [-1, -1, -1]  # the file of labels is not there
    alone = load_images(tmp_path / ("t10k-images-idx3-ubyte" + ".gz" * is_packed)).splits
    assert np.array_equal(alone["train"].pixels[..., 0], test)


def test_cifar_files_are_red_green_and_blue_planes(tmp_path: Path) -> None:
    first, second, test = (pixels(2, 32, 32, 3) for _ in range(3))
    for name, images in (("data_batch_1", first), ("data_batch_2", second), ("test_batch", test)):
        (tmp_path / f"{name}.bin").write_bytes(cifar(images, np.array([3, 9])))
    splits = load_images(tmp_path).splits
    assert np.array_equal(splits["train"].pixels, np.concatenate([first, second]))
    assert np.array_equal(splits["test"].pixels, test)
    assert splits["train"].labels.tolist() == [3, 9, 3, 9]
    hundred = tmp_path / "hundred"
    hundred.mkdir()
    (hundred / "train.bin").write_bytes(cifar(first, np.array([1, 2]), np.array([99, 40])))
    assert load_images(hundred).splits["train"].labels.tolist() == [99, 40]  # the fine ones


def test_folders_of_pictures_tell_splits_and_classes(tmp_path: Path) -> None:
    images = pixels(5)
    for at, name in enumerate(("train/cat/1", "train/dog/1", "test/cat/1", "train/dog/2", "train/cat/2")):
        file = tmp_path / f"{name}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(encode_png(images[at]))
    (tmp_path / "train" / "dog" / "3.png").write_bytes(encode_png(images[0])[:45])
    loaded = load_images(tmp_path)
    train = loaded.splits["train"]
    found = {(label, picture.tobytes()) for label, picture in zip(train.labels.tolist(), train.pixels, strict=True)}
    assert found == {(label, images[at].tobytes()) for label, at in ((0, 0), (0, 4), (1, 1), (1, 3))}
    assert np.array_equal(loaded.splits["test"].pixels, images[[2]])
    assert loaded.complaints == (f"{tmp_path.name}: 1 picture is left out, as it is damaged: train/dog/3.png",)


def test_grey_pictures_beside_colours_become_colours(tmp_path: Path) -> None:
    (shade,), (colour,) = pixels(1), pixels(1, channels=3)
    (tmp_path / "a.png").write_bytes(encode_png(shade))
    (tmp_path / "b.png").write_bytes(encode_png(colour))
    loaded = load_images(tmp_path).splits["train"].pixels
    assert np.array_equal(loaded, np.stack([np.repeat(shade, 3, 2), colour]))


def test_sizes_and_colours_are_changed() -> None:
    image = np.arange(4 * 6, dtype=np.uint8).reshape(1, 4, 6, 1)
    square = image[0, :, 1:5, 0].astype(float)
    halved = resized(image, 2)[0, ..., 0]
    means = [[square[down : down + 2, right : right + 2].mean() for right in (0, 2)] for down in (0, 2)]
    assert halved.tolist() == np.rint(means).tolist()
    assert np.array_equal(resized(image, 8)[0, ::2, ::2, 0], square)  # each pixel becomes four
    assert resized(np.full((1, 5, 5, 1), 77, np.uint8), 3).tolist() == np.full((1, 3, 3, 1), 77).tolist()
    assert grey(np.array([[[[255, 255, 255], [255, 0, 0]]]], np.uint8)).tolist() == [[[[255], [76]]]]


def spoilt(tmp_path: Path) -> dict[str, tuple[Path, str]]:
    """Files that are no images, and what is said of them."""
    good, images = idx(pixels(2)[..., 0]), pixels(1, 32, 32, 3)
    archive = io.BytesIO()
    np.savez(archive, train_images=pixels(2)[..., 0])
    floats, other, labels = io.BytesIO(), io.BytesIO(), io.BytesIO()
    np.savez(floats, train_images=RNG.normal(size=(2, 4, 4)))
    np.savez(other, x=np.arange(3))
    np.savez(labels, train_images=pixels(2)[..., 0], train_labels=np.array([0, -4]))
    pickled = io.BytesIO()
    np.savez(pickled, train_images=np.array([{}, {}], dtype=object))
    contents = {
        "cut.npz": (archive.getvalue()[:-30], "is not a whole npz file"),
        "pickle.npz": (pickled.getvalue(), "is not a whole npz file of numbers"),
        "floats.npz": (floats.getvalue(), "must hold whole numbers from 0 to 255"),
        "other.npz": (other.getvalue(), "has the arrays x: there should be train_images and test_images"),
        "labels.npz": (labels.getvalue(), "has the label -4: labels are whole numbers from 0"),
        "cut-idx3-ubyte": (good[:-3], "says that it has 2x4x5 bytes, but has 37: get it again"),
        "magic-idx3-ubyte": (b"\0\0\x09" + good[3:], "is no IDX file of images"),
        "cut.bin": (cifar(images, np.array([1]))[:-1], "is no multiple of 3073 or 3074"),
        "label.bin": (cifar(images, np.array([11])), "has the label 11: labels are whole numbers from 0 to 9"),
        "words.txt": (b"no image at all", "holds no images in a format that is read"),
        "empty": (b"", "holds no images in a format that is read"),
        "cut.png": (encode_png(pixels(1)[0])[:40], "damaged"),
        "renamed.png": (b"GIF89a or something", "is no PNG file, whatever its name says|is a damaged picture"),
        "cut-idx3-ubyte.gz": (gzip.compress(good)[:-9], "is not a whole gzip file"),
    }
    for name, (content, _) in contents.items():
        (tmp_path / name).write_bytes(content)
    return {name: (tmp_path / name, said) for name, (_, said) in contents.items()}


def test_files_that_are_no_images_are_refused_in_words(tmp_path: Path) -> None:
    for path, said in spoilt(tmp_path).values():
        with pytest.raises(SubquadError, match=said):
            load_images(path)


def test_folders_that_hold_no_set_of_images_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SubquadError, match="there is no file or folder"):
        load_images(tmp_path / "nowhere")
    with pytest.raises(SubquadError, match="has no images in it"):
        load_images(tmp_path)
    (tmp_path / "a.png").write_bytes(encode_png(pixels(1)[0]))
    (tmp_path / "b.png").write_bytes(encode_png(pixels(1, 6, 6)[0]))
    with pytest.raises(SubquadError, match="has pictures of 4 x 5 and of 6 x 6 pixels: give pictures of one size"):
        load_images(tmp_path)


def test_other_pictures_need_pillow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    (tmp_path / "a.jpg").write_bytes(b"\xff\xd8\xff")
    with pytest.raises(SubquadError, match="others need Pillow: pip install 'subquad\\[images\\]', or save it as PNG"):
        load_images(tmp_path)


def test_pillow_reads_the_same_values(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    (picture,) = pixels(1, 9, 9, 3)
    image.fromarray(picture).save(tmp_path / "a.png")
    assert np.array_equal(decode_png((tmp_path / "a.png").read_bytes(), "a.png"), picture)
    image.fromarray(picture).save(tmp_path / "a.bmp")
    assert np.array_equal(read_picture(tmp_path / "a.bmp"), picture)
    image.fromarray(picture[..., 0]).save(tmp_path / "b.jpg", quality=95)
    assert read_picture(tmp_path / "b.jpg").shape == (9, 9, 1)
    (tmp_path / "b.jpg").write_bytes((tmp_path / "b.jpg").read_bytes()[:60])
    with pytest.raises(SubquadError, match=r"b\.jpg is a damaged picture"):
        read_picture(tmp_path / "b.jpg")


def test_pillow_keeps_the_upper_bits_of_16(tmp_path: Path) -> None:
    pytest.importorskip("PIL.Image")
    (tmp_path / "a.png").write_bytes(png_with([0], np.array([[200, 1, 7, 255]]), depth=16, columns=2))
    assert read_picture(tmp_path / "a.png")[0, :, 0].tolist() == [200, 7]


def test_a_palette_with_alpha_is_read(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    picture = image.new("P", (2, 1))
    picture.putpalette([1, 2, 3, 4, 5, 6])
    picture.putdata([1, 0])
    picture.save(tmp_path / "a.png", transparency=bytes([0, 128]))
    assert read_picture(tmp_path / "a.png").tolist() == [[[4, 5, 6], [1, 2, 3]]]


@pytest.mark.parametrize(
    ("names", "splits"),
    [(("T-shirt/1", "Trouser/1"), {"train"}), (("data/train/a/1", "data/test/a/2"), {"train", "test"})],
)
def test_names_of_classes_tell_no_split(names: tuple[str, str], splits: set[str], tmp_path: Path) -> None:
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / f"{name}.png").write_bytes(encode_png(pixels(1)[0]))
    assert set(load_images(tmp_path).splits) == splits


def test_images_that_are_sorted_by_class_are_mixed(tmp_path: Path) -> None:
    for split, label in product(("train", "test"), "abc"):
        (tmp_path / split / label).mkdir(parents=True)
        for number in range(20):
            picture = encode_png(np.full((2, 2, 1), ord(label), np.uint8))
            (tmp_path / split / label / f"{number}.png").write_bytes(picture)
    test = load_images(tmp_path).splits["test"]
    assert set(test.labels[:10].tolist()) == {0, 1, 2}
    assert (test.pixels[:, 0, 0, 0] == test.labels + ord("a")).all()
