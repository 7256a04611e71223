"""Pictures: CIFAR-10's files of both kinds, NumPy archives, and what is wrong with damaged ones."""

import pickle
from pathlib import Path

import numpy as np
import pytest

from subquad import SubquadError
from subquad.data.png import encode_png
from subquad.tasks import Image
from subquad.tasks.lra.image import load_labelled

RNG = np.random.default_rng(0)


def planes(pictures: int) -> np.ndarray:
    return RNG.integers(0, 256, (pictures, 3072), np.uint8)


def grey(colours: np.ndarray) -> np.ndarray:
    """Grey pictures, pixel by pixel."""
    red, green, blue = (colours[:, 1024 * at : 1024 * (at + 1)].astype(float) for at in range(3))
    return 0.299 * red + 0.587 * green + 0.114 * blue


def binary(folder: Path, first_label: int = 0) -> dict[str, np.ndarray]:
    written = {}
    for name in ("data_batch_1", "data_batch_2", "test_batch"):
        written[name] = planes(12)
        labels = (np.arange(12, dtype=np.uint8) + first_label)[:, None] % (10 + first_label)
        (folder / f"{name}.bin").write_bytes(np.concatenate([labels, written[name]], axis=1).astype(np.uint8).tobytes())
    return written


def test_binary_batches_are_read(tmp_path: Path) -> None:
    written = binary(tmp_path)
    (tmp_path / "batches.meta.txt").write_text("\n".join(["airplane", *"bcdefghij"]) + "\n\n")
    loaded = Image(data=str(tmp_path)).load()
    assert loaded.longest == 1024
    assert loaded.labels == ["airplane", *"bcdefghij"]
    test = loaded.splits["test"].first(12)
    assert np.abs(np.stack([example.tokens for example in test]) - grey(written["test_batch"])).max() <= 0.51
    assert [example.label for example in test] == [*range(10), 0, 1]
    learned = [example for split in ("train", "development") for example in loaded.splits[split].first(24)]
    expected = grey(np.concatenate([written["data_batch_1"], written["data_batch_2"]]))
    gaps = [np.abs(expected - example.tokens).max(axis=1).min() for example in learned]
    assert len(gaps) == 24
    assert max(gaps) <= 0.51


@pytest.mark.parametrize("as_bytes", [True, False])
def test_pickled_batches_are_read(as_bytes: bool, tmp_path: Path) -> None:
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    written = {}
    for name in ("data_batch_1", "test_batch"):
        written[name] = planes(10)
        fields = {"data": written[name], "labels": list(range(10)), "batch_label": "x", "filenames": ["a"] * 10}
        content = {key.encode(): value for key, value in fields.items()} if as_bytes else fields
        (folder / name).write_bytes(pickle.dumps(content, protocol=2))
    (folder / "batches.meta").write_bytes(b"")
    loaded = load_labelled(tmp_path)
    train = loaded.splits["train"].pixels.transpose(0, 3, 1, 2).reshape(10, -1)
    assert np.array_equal(train, written["data_batch_1"])
    assert loaded.splits["test"].labels.tolist() == list(range(10))
    assert loaded.names == tuple("0123456789")


def archive(path: Path, **changed: np.ndarray) -> Path:
    images = RNG.integers(0, 256, (30, 4, 4), np.uint8)
    arrays = {
        "train_images": images,
        "train_labels": np.arange(30) % 3,
        "test_images": images[:6],
        "test_labels": np.arange(6) % 3,
    }
    np.savez(path, **{**arrays, **changed})  # type: ignore[arg-type]
    return path


def test_an_archive_is_read_and_split(tmp_path: Path) -> None:
    options = Image(data=str(archive(tmp_path / "a.npz")))
    loaded = options.load()
    assert {split: source.count for split, source in loaded.splits.items()} == {"train": 27, "development": 3, "test": 6}
    assert (loaded.labels, loaded.longest) == (["0", "1", "2"], 16)
    everything = np.load(tmp_path / "a.npz")
    held = {example.tokens.tobytes() for split in ("train", "development") for example in loaded.splits[split].first(99)}
    assert held == {image.tobytes() for image in everything["train_images"]}
    assert Image(data=str(tmp_path)).load().longest == 16  # the only archive of a folder
    coloured = archive(
        tmp_path / "b.npz", train_images=np.full((30, 4, 4, 3), 7, np.uint8), test_images=np.zeros((6, 4, 4, 3), np.uint8)
    )
    assert set(Image(data=str(coloured)).load().splits["train"].make(0).tokens) == {7}


def test_pictures_are_brought_to_a_side(tmp_path: Path) -> None:
    columns = np.tile(
        np.array([[0, 0, 2, 4, 200, 100, 9, 9]], np.uint8), (4, 1)
    )  # 4 rows, whose middle square is 2 4 200 100
    wide = archive(tmp_path / "wide.npz", train_images=np.stack([columns] * 30), test_images=np.stack([columns] * 6))
    options = Image(data=str(wide), side=2)
    loaded = options.load()
    assert options.longest == loaded.longest == 4
    assert loaded.splits["test"].make(0).tokens.tolist() == [3, 150, 3, 150]
    (tmp_path / "wide.png").write_bytes(encode_png(columns[..., None]))
    assert options.read_unlabelled(tmp_path / "wide.png", 4).examples[0].tokens.tolist() == [3, 150, 3, 150]
    with pytest.raises(SubquadError, match="side must be at most 1024, but is 1025"):
        Image(side=1025)


def test_damaged_pictures_of_a_folder_are_named(tmp_path: Path) -> None:
    for number in range(24):
        folder = tmp_path / ("train", "test")[number % 2] / "ab"[number // 2 % 2]
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{number}.png").write_bytes(encode_png(np.full((4, 4, 1), number, np.uint8)))
    (tmp_path / "train" / "a" / "cut.png").write_bytes((tmp_path / "train" / "a" / "0.png").read_bytes()[:40])
    loaded = Image(data=str(tmp_path)).load()
    assert sum(source.count for source in loaded.splits.values()) == 24
    assert [str(Path("train") / "a" / "cut.png") in complaint for complaint in loaded.complaints] == [True]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"test_labels": np.full(6, 3)}, "the test has the label 3, but those of training go from 0 to 2"),
        ({"train_labels": np.arange(30) - 1}, "has the label -1: labels are whole numbers from 0"),
        ({"train_labels": np.arange(29)}, r"has 30 images and labels of shape \(29,\)"),
        ({"train_labels": np.arange(30) / 2}, "labels must be whole numbers, but are float64"),
        ({"train_images": np.zeros((30, 4, 4))}, "must hold whole numbers from 0 to 255"),
        (
            {"test_images": np.zeros((6, 5, 5), np.uint8)},
            "has images of 4 x 4 and of 5 x 5 pixels",
        ),
        ({"train_images": np.zeros((0, 4, 4), np.uint8), "train_labels": np.arange(0)}, "has the shape 0x4x4"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(changed: dict[str, np.ndarray], said: str, tmp_path: Path) -> None:
    with pytest.raises(SubquadError, match=said):
        load_labelled(archive(tmp_path / "a.npz", **changed))


def test_damaged_files_get_one_sentence(tmp_path: Path) -> None:
    whole = archive(tmp_path / "a.npz").read_bytes()
    (tmp_path / "cut.npz").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "text.npz").write_text("hello")
    np.savez(tmp_path / "other.npz", x=np.zeros(3))
    np.savez(tmp_path / "objects.npz", train_images=np.array([{}], object))
    for name, said in (
        ("cut.npz", "is not a whole npz file"),
        ("text.npz", "holds no images in a format that is read"),
        ("other.npz", "has the arrays x: there should be train_images"),
        ("objects.npz", "is not a whole npz file of numbers"),
        ("none.npz", "there is no file or folder"),
    ):
        with pytest.raises(SubquadError, match=said):
            load_labelled(tmp_path / name)
    for name in ("c", "d", "e", "f"):
        (tmp_path / name).mkdir()
    binary(tmp_path / "c")
    (tmp_path / "c" / "data_batch_2.bin").write_bytes(b"x" * 100)
    binary(tmp_path / "d", first_label=1)
    binary(tmp_path / "e")
    (tmp_path / "e" / "test_batch.bin").unlink()
    (tmp_path / "f" / "data_batch_1").write_bytes(pickle.dumps({"data": [1, 2], "labels": [1]}))
    (tmp_path / "f" / "test_batch").write_bytes(pickle.dumps([1]))
    for name, said in (
        ("c", "is no multiple of 3073 or 3074"),
        ("d", "has the label 10: labels are whole numbers from 0 to 9"),
        ("e", "has no test images"),
        ("f", "is no batch of CIFAR-10: it should hold data"),
    ):
        with pytest.raises(SubquadError, match=said):
            load_labelled(tmp_path / name)
    with pytest.raises(SubquadError, match=r"has 5 npz files: give one, such as .*a\.npz"):
        load_labelled(tmp_path)
    np.savez(tmp_path / "bare.npz", train_images=np.zeros((2, 4, 4), np.uint8), test_images=np.zeros((2, 4, 4), np.uint8))
    with pytest.raises(SubquadError, match="has images without labels"):
        load_labelled(tmp_path / "bare.npz")


def test_pixels_are_read_from_words() -> None:
    options = Image()
    assert options.parse(["0", "255", "7"], 3).tokens.tolist() == [0, 255, 7]
    for words, said in (
        (["0", "256", "1"], "'256' is no intensity: write whole numbers from 0 to 255"),
        (["0", "x", "1"], "'x' is no intensity"),
        (["0", "1"], "the model reads pictures of 3 pixels, but was given 2 numbers"),
    ):
        with pytest.raises(SubquadError, match=said):
            options.parse(words, 3)
    assert options.split_words("1, 2,3") == ["1", "2", "3"]


def test_digits_come_with_scikit_learn() -> None:
    loaded = Image().load()
    assert loaded.longest == Image().longest == 64
    assert sum(source.count for source in loaded.splits.values()) == 1797
    assert max(int(example.tokens.max()) for example in loaded.splits["test"].first(50)) == 255
