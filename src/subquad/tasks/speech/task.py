"""Speech recognition: an encoder of sounds, trained with connectionist temporal classification (Graves et al. 2006)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from numpy import ndarray
from torch import Tensor, nn

from subquad.attention import require_length
from subquad.checking import BelowOne, Count, FileName, Seed, Whole
from subquad.data.buckets import Buckets, bounded
from subquad.data.ragged import keep_of, pad
from subquad.data.recordings import files_to_recognise
from subquad.data.sounds import BANDS, CEPSTRA, with_deltas
from subquad.errors import OptionError, SubquadError
from subquad.models import ModelOptions, Size
from subquad.results import Row
from subquad.statistics import Interval, summed_interval
from subquad.tasks.base import Best, Counted, DataSize, Defaults, LineForm, Predictions, Task, TaskOptions
from subquad.tasks.comparing import Judged, Rival, judged_means
from subquad.tasks.speech.augmenting import masked, stretched
from subquad.tasks.speech.decoding import BLANK, beam_search, edits, greedy
from subquad.tasks.speech.loading import Loader, Splits, Units, Utterance, features_of, read_kept, unit_list
from subquad.tasks.speech.model import EncoderKind, SpeechModel, speech_size
from subquad.types import AttentionOptions

MOST_HALVINGS = 4
DELTAS = 3
"""How many times as many features there are with their changes."""
MANY = 500
"""Number of training recordings above which the defaults are for real speech."""


@dataclass(frozen=True)
class Speech(TaskOptions):
    """Write down what was said: AN4's or LibriSpeech's folder, a table of files and texts, or tones that spell words."""

    data: FileName = ""  # AN4's or LibriSpeech's folder, or a CSV file with file and text; default: synthesised tones
    units: Units = "characters"  # what is recognised; phones need a dictionary in the data
    encoder: EncoderKind = "attention"  # attention, or PyTorch's bidirectional LSTM, for which --attention does nothing
    halvings: Count = 2  # number of convolutions before the encoder, each of which halves the number of positions
    convolutions: Whole = 2  # number of convolutions over neighbouring positions before the encoder
    bands: Count = BANDS  # number of bands of the filterbank that sounds are turned into
    tempo: BelowOne = 0.12  # largest relative change of the tempo of training recordings
    hide: bool = True  # whether stretches of time and features of training recordings are hidden
    beam: Count = 8  # number of beginnings that the beam search of the final evaluation keeps
    examples: Whole = 0  # largest number of training recordings; 0 for all
    held_out: Count = 100  # largest number of development recordings in an evaluation during training
    tested: Count = 2000  # largest number of test recordings in the final evaluation
    evaluation_frames: Count = 20_000  # number of frames per batch in evaluations
    split_seed: Seed = 0  # seed of the tones, and for dividing recordings where their names do not tell
    kind: str = field(default="speech", init=False)

    default_notes: ClassVar[str] = (
        "The defaults are for the tones; more than 500 training recordings get 4 layers, dropout and 2000 steps."
    )

    @classmethod
    def updated(cls, values: Mapping[str, Any]) -> Mapping[str, Any]:
        """Returns the options of a file. Runs of earlier versions have no convolutions over neighbours."""
        return {"convolutions": 0, **values}

    def check(self) -> None:
        if self.halvings > MOST_HALVINGS:
            raise OptionError("halvings", f"must be at most {MOST_HALVINGS}, but is {self.halvings}")
        if self.bands > 128:
            raise OptionError("bands", f"must be at most 128, but is {self.bands}")

    def defaults(self, attention: str, data: DataSize | None = None) -> Defaults:
        """Returns options of a small model, larger and trained for longer on many recordings."""
        is_real = data is not None and data.sequences > MANY
        training = {
            "batch": 16,
            "steps": 2000 if is_real else 400,
            "optimizer": "adamw",
            "learning_rate": 2e-3,
            "weight_decay": 0.01,
            "warm_up": 150 if is_real else 50,
            "schedule": "cosine",
            "evaluate_every": 200 if is_real else 100,
        }
        model = {"layers": 4 if is_real else 2, "heads": 4, "head_dim": 32, "positions": "rotary"}
        return Defaults({**model, "dropout": 0.1 if is_real else 0.0}, training)

    def size(self, attention: AttentionOptions, model: ModelOptions) -> Size:
        """Lower bound on the size of the model: that for cepstra and a single unit, or for the tones."""
        features = DELTAS * (min(CEPSTRA, self.bands) if self.data else self.bands)
        return self.size_for(features, 1, attention, model)

    def size_for(self, features: int, units: int, attention: AttentionOptions, model: ModelOptions) -> Size:
        """The size of the model for so many features of a frame and so many units."""
        return speech_size(
            features, units, attention, model, halvings=self.halvings, convolutions=self.convolutions, encoder=self.encoder
        )

    def check_model(self, attention: AttentionOptions, model: ModelOptions) -> None:
        if self.encoder == "lstm" and model.model_dim % 2:
            raise SubquadError(f"an LSTM has half of the model for each direction: {model.model_dim} must be even")

    def prepare(self, learned: Mapping[str, Any] | None = None) -> "SpeechTask":
        """Returns the task. If `learned` is given, the recordings are read only on first use."""
        return SpeechTask(self, learned)


class SpeechBatch(NamedTuple):
    """Frames padded with zeros, their mask, and the numbers of the units padded with blanks."""

    frames: Float[Tensor, "b n f"]
    keep: Bool[Tensor, "b n"]
    units: Int[Tensor, "b u"]


class SpeechTask(Task[SpeechBatch]):
    """Batches, model, loss and metrics for recordings."""

    kind = "speech"
    best: ClassVar[Best | None] = Best("error_rate", "low")
    line_form: ClassVar[LineForm] = "text"

    def __init__(self, options: Speech, learned: Mapping[str, Any] | None = None) -> None:
        self.options = options
        self.kept = read_kept(learned)

    @cached_property
    def splits(self) -> Splits:
        """The recordings. Raises `SubquadError` if they are not those that the run was made with."""
        options = self.options
        splits = Loader(options.units, options.bands, 2**options.halvings, options.split_seed).load(options.data)
        splits = splits._replace(train=splits.train[: options.examples or None])
        if self.kept is not None and self.kept["recordings"] != len(splits.train):
            raise SubquadError(
                f"the recordings in {options.data} are not those that the run was made with, {self.kept['recordings']:,} to "
                "learn from: start a new run"
            )
        return splits

    @cached_property
    def alphabet(self) -> list[str]:
        """The characters or phones that the model writes, numbered from 1 in this order."""
        return unit_list(self.splits.train) if self.kept is None else list(self.kept["units"])

    @cached_property
    def width(self) -> int:
        """Number of features of a frame, without their changes."""
        return self.splits.train[0].frames.shape[1] if self.kept is None else self.kept["width"]

    @cached_property
    def buckets(self) -> Buckets:
        """Indices of the training recordings, grouped by length."""
        lengths = np.array([len(utterance.frames) for utterance in self.splits.train])
        return Buckets(np.arange(len(lengths)), lengths)

    @property
    def learned(self) -> dict[str, Any]:
        """Units, kind and number of features, and the number of recordings, which a run stores."""
        splits = self.splits
        about = {"units": self.alphabet, "features": splits.features, "width": self.width}
        return {**about, "recordings": len(splits.train)}

    @property
    def data_size(self) -> DataSize:
        """Numbers of training recordings and of their frames."""
        return DataSize(len(self.splits.train), sum(len(utterance.frames) for utterance in self.splits.train))

    @property
    def complaints(self) -> tuple[str, ...]:
        """Sentences about recordings that were left out."""
        return self.splits.complaints

    def build(
        self, attention: AttentionOptions, model: ModelOptions, generator: torch.Generator | None = None
    ) -> SpeechModel:
        options = self.options
        options.check_model(attention, model)
        if self.kept is None and options.encoder == "attention":
            splits = self.splits
            longest = max(len(utterance.frames) for split in splits[:3] for utterance in split)
            self._check_length(longest, attention, model)
        return SpeechModel(
            DELTAS * self.width,
            len(self.alphabet),
            attention,
            model,
            halvings=options.halvings,
            convolutions=options.convolutions,
            encoder=options.encoder,
            generator=generator,
        )

    def _check_length(self, frames: int, attention: AttentionOptions, model: ModelOptions) -> None:
        """Raises `SubquadError` if recordings are longer than the attention or learned positions allow."""
        longest = int(np.ceil(frames * (1 + self.options.tempo) / 2**self.options.halvings)) + 1
        if model.positions == "learned" and model.longest < longest:
            raise SubquadError(
                f"recordings have up to {longest} positions, but --longest is {model.longest}: give a larger one"
            )
        try:
            require_length(attention, longest)
        except SubquadError as error:
            raise SubquadError(
                f"recordings have up to {longest} positions, too many for {attention.name}: {error}"
            ) from None

    def batch(self, size: int, generator: torch.Generator) -> SpeechBatch:
        """Training recordings of similar length, in another tempo and with parts hidden."""
        options, chosen = self.options, self.buckets.draw(size, generator)
        rng = np.random.default_rng(int(torch.randint(2**31, (1,), generator=generator)))
        utterances = [self.splits.train[at] for at in chosen]
        frames = []
        for utterance in utterances:
            changed = stretched(utterance.frames.astype(np.float32), rng.uniform(1 - options.tempo, 1 + options.tempo))
            changed = with_deltas(changed)
            frames.append(masked(changed, rng) if options.hide else changed)
        numbers = {unit: number for number, unit in enumerate(self.alphabet, start=1)}
        units = [torch.tensor([numbers[unit] for unit in utterance.units]) for utterance in utterances]
        return SpeechBatch(*padded(frames), pad(units, BLANK))

    def loss(self, model: nn.Module, batch: SpeechBatch) -> Counted:
        """Negative log-probability of the units, over all ways to align them with positions."""
        log_probabilities, keep = model(batch.frames, batch.keep)
        losses = F.ctc_loss(
            log_probabilities.transpose(0, 1),
            batch.units,
            keep.sum(1),
            (batch.units != BLANK).sum(1),
            blank=BLANK,
            reduction="sum",
            zero_infinity=True,  # a recording that a faster tempo made too short for its text
        )
        return Counted(losses, self.count(batch))

    def count(self, batch: SpeechBatch) -> int:
        return int((batch.units != BLANK).sum())

    @torch.no_grad()
    def probabilities(self, model: nn.Module, frames: Sequence[Float[ndarray, "_ f"]]) -> list[Float[ndarray, "_ units"]]:
        """Log-probabilities of blank and units at each position of each recording."""
        model.eval()
        device = next(model.parameters()).device
        results: list[ndarray] = [np.zeros((0, 0))] * len(frames)
        for group in bounded(np.array([len(each) for each in frames]), self.options.evaluation_frames):
            batch, mask = padded([with_deltas(frames[at].astype(np.float32)) for at in group])
            log_probabilities, keep = model(batch.to(device), mask.to(device))
            for at, row, length in zip(group, log_probabilities.double().cpu().numpy(), keep.sum(1).tolist(), strict=True):
                results[at] = row[:length]
        return results

    def spell(self, numbers: Sequence[int]) -> tuple[str, ...]:
        """The units with these numbers."""
        return tuple(self.alphabet[number - 1] for number in numbers)

    def evaluate(self, model: nn.Module, generator: torch.Generator) -> dict[str, float]:
        """Share of wrong units in the first development recordings: edits divided by the number of units."""
        utterances = self.splits.development[: self.options.held_out]
        return {"error_rate": error_rate(utterances, self._heard(model, utterances)).value}

    def _heard(self, model: nn.Module, utterances: Sequence[Utterance], beam: int = 1) -> list[tuple[str, ...]]:
        """What the model writes for each recording: greedily, or by a beam search if `beam` is above 1."""
        rows = self.probabilities(model, [utterance.frames for utterance in utterances])
        return [self.spell(greedy(row) if beam == 1 else beam_search(row, beam)) for row in rows]

    def final(self, model: nn.Module) -> list[Row]:
        """Error rates on the test split with intervals: of units, greedy and by a beam search, and of words."""
        utterances = self.splits.test[: self.options.tested]
        heard = self._heard(model, utterances)
        searched = self._heard(model, utterances, self.options.beam)
        rates = {"error_rate": error_rate(utterances, heard), "beam_error_rate": error_rate(utterances, searched)}
        if self.options.units == "characters":
            rates["word_error_rate"] = error_rate(utterances, heard, words=True)
        rows: list[Row] = [{"metric": name, "split": "test", **rate._asdict()} for name, rate in rates.items()]
        rows.append({"metric": "evaluated_recordings", "unit": "recordings", "split": "test", "value": len(utterances)})
        about: Row = {"metric": "recording_edits", "unit": "edits", "split": "test"}
        by_recording = edits_and_units(utterances, heard)
        return rows + [
            {**about, "recording": number, "value": wrong, "units": units}
            for number, (wrong, units) in enumerate(by_recording.tolist())
        ]

    def lengths(self) -> dict[str, Int[ndarray, "sequences"]]:
        """Number of positions that the encoder attends to, of each recording."""
        splits, joined = self.splits, 2**self.options.halvings
        parts = {"train": splits.train, "development": splits.development, "test": splits.test}
        return {name: np.array([-(-len(said.frames) // joined) for said in part]) for name, part in parts.items()}

    def judge(self, model: nn.Module) -> Judged:
        """Edits of each test recording."""
        utterances = self.splits.test[: self.options.tested]
        wrong, units = edits_and_units(utterances, self._heard(model, utterances)).T
        return judged_means("error_rate", "low", "share", wrong, np.maximum(1, units))

    def rivals(self) -> dict[str, Rival]:
        """Writing nothing, which gets every unit wrong."""
        counts = np.array([max(1.0, len(utterance.units)) for utterance in self.splits.test[: self.options.tested]])
        return {"writing nothing": Rival(judged_means("error_rate", "low", "share", counts, counts), is_trivial=True)}

    def samples(self, model: nn.Module, generator: torch.Generator, count: int) -> list[dict[str, str]]:
        """Recordings of the development split: their names, what the model writes and what was said."""
        split = self.splits.development
        chosen = [split[at] for at in torch.randperm(len(split), generator=generator)[:count].tolist()]
        return [
            {"given": utterance.name, "answered": self.join(units), "right": self.join(utterance.units)}
            for utterance, units in zip(chosen, self._heard(model, chosen), strict=True)
        ]

    def join(self, units: Sequence[str]) -> str:
        """Units as a text: characters one after the other, phones with spaces between them."""
        return ("" if self.options.units == "characters" else " ").join(units)

    def words(self, line: str) -> list[str]:
        """A line is the name of a file, which may have spaces in it."""
        return [line.strip()]

    def reply(self, model: nn.Module, words: Sequence[str]) -> str:
        """What was said in each of the files, a line for each."""
        return "\n".join(self._recognise(model, Path(word)) for word in words)

    def _recognise(self, model: nn.Module, path: Path) -> str:
        kind = self.splits.features if self.kept is None else self.kept["features"]
        frames = features_of(path, kind, self.options.bands)
        (row,) = self.probabilities(model, [frames])
        return self.join(self.spell(beam_search(row, self.options.beam)))

    def predict(self, model: nn.Module, path: Path) -> Predictions:
        """What was said in each sound of a folder, or in one file."""
        lines, complaints = [], []
        for file in files_to_recognise(path):
            try:
                lines.append([str(file), self._recognise(model, file)])
            except SubquadError as error:
                complaints.append(f"left out: {error}")
        if not lines:
            raise SubquadError(complaints[0].removeprefix("left out: "))
        return Predictions(["file", "text"], lines, tuple(complaints))


def padded(frames: Sequence[Float[ndarray, "_ f"]]) -> tuple[Float[Tensor, "b n f"], Bool[Tensor, "b n"]]:
    """Frames of several recordings, padded with zeros, and the mask of the real ones."""
    tensors = [torch.from_numpy(np.ascontiguousarray(each, np.float32)) for each in frames]
    return pad(tensors), keep_of([len(each) for each in frames])


def edits_and_units(
    utterances: Sequence[Utterance], heard: Sequence[tuple[str, ...]], *, words: bool = False
) -> Float[ndarray, "recordings 2"]:
    """Number of edits, and of units that were said, in each recording. With `words`, words take the place of characters."""
    pairs = [(utterance.units, units) for utterance, units in zip(utterances, heard, strict=True)]
    if words:
        pairs = [(tuple("".join(said).split()), tuple("".join(written).split())) for said, written in pairs]
    return np.array([[edits(said, written), len(said)] for said, written in pairs], dtype=float).reshape(-1, 2)


def error_rate(utterances: Sequence[Utterance], heard: Sequence[tuple[str, ...]], *, words: bool = False) -> Interval:
    """Edits divided by the number of units that were said, with an interval from drawing recordings again.

    With `words`, words are compared instead of characters.
    """
    parts = edits_and_units(utterances, heard, words=words)
    return summed_interval(parts, lambda added: added[:, 0] / np.maximum(added[:, 1], 1))
