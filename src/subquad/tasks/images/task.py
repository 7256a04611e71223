"""Images, pixel by pixel (Katharopoulos et al. 2020, section 4.2): predict each value from those before it."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int, UInt8
from numpy import ndarray
from torch import Tensor, nn

from subquad.attention import require_causal, require_length
from subquad.checking import Count, FileName, Seed, Whole
from subquad.data.images import ImageSet
from subquad.data.png import encode_png, png_address
from subquad.errors import OptionError, SubquadError
from subquad.models import ModelOptions, Size
from subquad.results import Row
from subquad.statistics import grouped_mean
from subquad.tasks.base import Best, Counted, DataSize, Defaults, Drawing, Task, TaskOptions
from subquad.tasks.comparing import Judged, Rival, judged_means
from subquad.tasks.images.heads import LEVELS, HeadKind, make_head
from subquad.tasks.images.loading import Pixels, Splits, divide, load_pixels, read_kept
from subquad.tasks.images.model import PixelDecoder, Shape, log_probabilities, pixel_size, unfold, write
from subquad.tasks.images.shapes import NUMBERS, SIDE, drawn_images, sheet
from subquad.types import AttentionOptions

VALUES_A_STEP = 8192
"""Default number of values in a batch."""
SHOWN, SHOWN_NEW = 6, 12
"""Largest numbers of completed and of new pictures on the page of a run."""
LARGEST_SIDE = 4096
"""Largest number of rows or columns that images are brought to."""
DRAWN_VALUES = 2**20
"""Largest number of values of the pictures that are drawn at a time."""


@dataclass(frozen=True)
class Images(TaskOptions):
    """Predict images pixel by pixel, finish and draw them: MNIST, CIFAR, your own pictures, or drawn shapes."""

    data: FileName = ""  # npz file, IDX files, CIFAR's binary files, or pictures; default: shapes that are drawn
    side: Whole = 0  # rows and columns that the middle square of each image is brought to; 0: as the images are
    grey: bool = False  # whether colours are turned into shades of grey
    head: HeadKind = "categorical"  # distribution of a value: a probability for each, or a mixture of logistics
    components: Count = 10  # number of logistics in the mixture
    examples: Whole = 0  # largest number of training images; 0 for all
    held_out: Count = 128  # largest number of development images in an evaluation during training
    tested: Count = 1000  # largest number of test images in the final evaluation
    evaluation_values: Count = 32_768  # number of values per batch in evaluations
    split_seed: Seed = 0  # seed of drawn shapes, and for dividing images where their names do not tell
    kind: str = field(default="images", init=False)

    default_notes: ClassVar[str] = (
        "The default of --batch is for 16 x 16 values, and smaller for larger images: 10 for MNIST's, 2 for CIFAR-10's. "
        "Images of more than 400 values get 4 layers."
    )

    def check(self) -> None:
        if self.side > LARGEST_SIDE:
            raise OptionError("side", f"must be at most {LARGEST_SIDE}, but is {self.side}")

    @property
    def smallest(self) -> Shape:
        """The smallest shape that the images can have, as far as it is known before they are read."""
        side = self.side or (1 if self.data else SIDE)
        return Shape(side, side, 1)

    def defaults(self, attention: str, data: DataSize | None = None) -> Defaults:
        """Returns options of a small model, with smaller batches and more layers for larger images."""
        values = self.smallest.values if data is None else data.positions // max(1, data.sequences)
        training = {
            "batch": max(2, min(32, VALUES_A_STEP // values)),
            "steps": 1000,
            "learning_rate": 2e-3,
            "warm_up": 100,
            "schedule": "cosine",
            "evaluate_every": 200,
        }
        return Defaults({"layers": 2 if values <= 400 else 4, "heads": 4, "head_dim": 32}, training)

    def size(self, attention: AttentionOptions, model: ModelOptions) -> Size:
        """Lower bound on the size of the model and of drawn shapes: that for the smallest images."""
        drawn = 0 if self.data else self.smallest.values * sum(NUMBERS.values())
        return self.size_for(self.smallest, attention, model)._replace(data_bytes=drawn)

    def size_for(self, shape: Shape, attention: AttentionOptions, model: ModelOptions) -> Size:
        """The size of the model for images of a shape."""
        return pixel_size(shape, make_head(self.head, self.components).outputs, attention, model)

    def check_model(self, attention: AttentionOptions, model: ModelOptions) -> None:
        require_causal(attention)
        self.check_length(self.smallest, attention, model)

    def check_length(self, shape: Shape, attention: AttentionOptions, model: ModelOptions) -> None:
        """Raises `SubquadError` if images have more values than the attention or learned positions allow."""
        if model.positions == "learned" and model.longest < shape.values:
            raise SubquadError(f"an image has {shape.values} values, but --longest is {model.longest}: give a larger one")
        try:
            require_length(attention, shape.values)
        except SubquadError as error:
            raise SubquadError(f"an image has {shape.values} values, too many for {attention.name}: {error}") from None

    def prepare(self, learned: Mapping[str, Any] | None = None) -> "ImagesTask":
        """Returns the task. If `learned` is given, the images are read only on first use."""
        return ImagesTask(self, learned)


class PixelBatch(NamedTuple):
    """Values of images in reading order: row by row, and the channels of a pixel one after the other."""

    values: Int[Tensor, "b n"]


class ImagesTask(Task[PixelBatch]):
    """Batches, model, loss and metrics for images."""

    kind = "images"
    best: ClassVar[Best | None] = Best("bits_per_dimension", "low")
    units: ClassVar[Mapping[str, str]] = {"bits_per_dimension": "bits"}
    draws: ClassVar[bool] = True
    takes: ClassVar[str] = "finishes and draws pictures: give --complete 0.5 or --samples 16"

    def __init__(self, options: Images, learned: Mapping[str, Any] | None = None) -> None:
        self.options = options
        self.kept = read_kept(learned)
        self.head = make_head(options.head, options.components)

    @cached_property
    def splits(self) -> Splits:
        """The images. Raises `SubquadError` if they are not those that the run was made with."""
        options = self.options
        if options.data:
            loaded = load_pixels(Path(options.data), options.side, is_grey=options.grey)
        else:
            loaded = ImageSet(drawn_images(options.side or SIDE, options.split_seed))
        splits = divide(loaded, options.split_seed, options.data)
        splits = splits._replace(train=splits.train[: options.examples or None])
        if self.kept is not None and (tuple(self.kept["shape"]), self.kept["images"]) != (splits.shape, len(splits.train)):
            raise SubquadError(
                f"the images in {options.data} are not those that the run was made with, {self.kept['images']:,} of "
                f"{self.shape.rows} x {self.shape.columns} pixels: start a new run"
            )
        return splits

    @cached_property
    def shape(self) -> Shape:
        """Rows, columns and channels of an image."""
        return self.splits.shape if self.kept is None else Shape(*self.kept["shape"])

    @property
    def learned(self) -> dict[str, Any]:
        """The shape of an image and the number of training images, which a run stores."""
        return {"shape": list(self.shape), "images": len(self.splits.train)}

    @property
    def data_size(self) -> DataSize:
        """Number of training images and of their values."""
        return DataSize(len(self.splits.train), self.splits.train.size)

    @property
    def complaints(self) -> tuple[str, ...]:
        """Sentences about pictures that were left out."""
        return self.splits.complaints

    def build(
        self, attention: AttentionOptions, model: ModelOptions, generator: torch.Generator | None = None
    ) -> PixelDecoder:
        require_causal(attention)
        self.options.check_length(self.shape, attention, model)
        return PixelDecoder(self.shape, self.head.outputs, attention, model, generator)

    def batch(self, size: int, generator: torch.Generator) -> PixelBatch:
        """Training images, drawn at random."""
        train = self.splits.train
        return PixelBatch(flat(train[torch.randint(len(train), (size,), generator=generator).numpy()]))

    def loss(self, model: nn.Module, batch: PixelBatch) -> Counted:
        """Negative log-likelihood of the values, in nats."""
        return Counted(-log_probabilities(model, self.head, batch.values).sum(), self.count(batch))

    def count(self, batch: PixelBatch) -> int:
        return batch.values.numel()

    def evaluate(self, model: nn.Module, generator: torch.Generator) -> dict[str, float]:
        """Bits per dimension of the first development images."""
        return {"bits_per_dimension": float(self.bits(model, self.splits.development[: self.options.held_out]).mean())}

    @torch.no_grad()
    def bits(self, model: nn.Module, pixels: Pixels) -> Float[ndarray, "images"]:
        """Bits per dimension of each image: negative log-likelihood in bits, divided by the number of values."""
        model.eval()
        device = next(model.parameters()).device
        at_a_time = max(1, self.options.evaluation_values // self.shape.values)
        parts = [
            -log_probabilities(model, self.head, flat(pixels[start : start + at_a_time]).to(device)).double().mean(1).cpu()
            for start in range(0, len(pixels), at_a_time)
        ]
        return torch.cat(parts).numpy() / math.log(2)

    def final(self, model: nn.Module) -> list[Row]:
        """Bits per dimension on the test split with its interval, and those of the frequencies of values."""
        tested = self.splits.test[: self.options.tested]
        counts = np.bincount(self.splits.train.reshape(-1), minlength=LEVELS) + 1
        plain = float(-np.log2(counts / counts.sum())[tested].mean())
        about = {"unit": "bits", "split": "test"}
        bits = grouped_mean(self.bits(model, tested), np.ones(len(tested), np.int64))
        return [
            {"metric": "bits_per_dimension", **about, **bits._asdict()},
            {"metric": "bits_per_dimension_of_frequencies", **about, "value": plain},
            {"metric": "evaluated_images", "unit": "images", "split": "test", "value": len(tested)},
        ]

    @property
    def is_causal(self) -> bool:
        return True

    def judge(self, model: nn.Module) -> Judged:
        """Bits per dimension of each test image."""
        tested = self.splits.test[: self.options.tested]
        return judged_means("bits_per_dimension", "low", "bits", self.bits(model, tested), np.ones(len(tested)))

    def rivals(self) -> dict[str, Rival]:
        """The frequencies of values, whatever the image."""
        tested = self.splits.test[: self.options.tested]
        counts = np.bincount(self.splits.train.reshape(-1), minlength=LEVELS) + 1
        bits = -np.log2(counts / counts.sum())[tested].reshape(len(tested), -1).mean(1)
        judged = judged_means("bits_per_dimension", "low", "bits", bits, np.ones(len(tested)))
        return {"frequencies of values": Rival(judged, is_trivial=True)}

    def samples(self, model: nn.Module, generator: torch.Generator, count: int) -> list[dict[str, str]]:
        """Upper halves of development images, the model's completions and the originals as PNG, then new pictures."""
        pixels = self.splits.development
        chosen = pixels[torch.randperm(len(pixels), generator=generator)[: min(count, SHOWN)].numpy()]
        columns = self.completed(model, chosen, Drawing())
        shown = [
            dict(zip(("given", "answered", "right"), (png_address(picture) for picture in row), strict=True))
            for row in columns
        ]
        new = self._drawn(model, np.zeros((SHOWN_NEW, 0), np.int64), Drawing(known=0.0))
        return [*shown, {"given": "nothing: drawn anew", "answered": png_address(sheet(new[None])), "right": ""}]

    def completed(
        self, model: nn.Module, pixels: Pixels, how: Drawing
    ) -> UInt8[ndarray, "images three rows columns channels"]:
        """For each picture the part that is given, on grey, the completed picture and the original: images x 3 pictures."""
        known = int(how.known * self.shape.values)
        flattened = pixels.reshape(len(pixels), -1)
        given = flattened.copy()
        given[:, known:] = 128
        finished = self._drawn(model, flattened[:, :known].astype(np.int64), how)
        return np.stack([given.reshape(pixels.shape), finished, pixels], axis=1)

    def draw(self, model: nn.Module, how: Drawing, path: Path | None = None) -> bytes:
        """A PNG file: new pictures, or for each picture the part that was given, the completed one and the original."""
        if how.number * self.shape.values > DRAWN_VALUES:
            raise SubquadError(
                f"{how.number:,} pictures of {self.shape.values} values are too many at once: give at most "
                f"{DRAWN_VALUES // self.shape.values:,}"
            )
        magnified = max(1, 128 // self.shape.rows)
        if not how.known:
            new = self._drawn(model, np.zeros((how.number, 0), np.int64), how)
            across = math.isqrt(how.number - 1) + 1
            blank = np.full((-how.number % across, *self.shape), 128, np.uint8)
            new = np.concatenate([new, blank]).reshape(-1, across, *self.shape)
            return encode_png(sheet(new), magnified=magnified)
        pixels = self.splits.test if path is None else self._read(path)
        return encode_png(sheet(self.completed(model, pixels[: how.number], how)), magnified=magnified)

    def _read(self, path: Path) -> Pixels:
        """Pictures to finish: the test split of a file, or all of its images if it has none."""
        splits = load_pixels(path, self.options.side, is_grey=self.options.grey).splits
        pixels = (splits.get("test") or splits["train"]).pixels
        if pixels.shape[1:] != self.shape:
            raise SubquadError(
                f"{path} has images of {' x '.join(map(str, pixels.shape[1:]))}, but the model learned images of "
                f"{' x '.join(map(str, self.shape))} (rows, columns, channels): give such images"
            )
        return pixels

    def _drawn(self, model: nn.Module, known: Int[ndarray, "b n"], how: Drawing) -> Pixels:
        """Whole pictures that begin with the known values."""
        assert isinstance(model, PixelDecoder)
        drawing = torch.Generator().manual_seed(how.seed)
        values = write(model, self.head, torch.from_numpy(known), temperature=how.temperature, generator=drawing)
        return unfold(values, self.shape).numpy().astype(np.uint8)


def flat(pixels: Pixels) -> Int[Tensor, "b n"]:
    """The values of images in reading order."""
    return torch.from_numpy(pixels.reshape(len(pixels), -1).astype(np.int64))
