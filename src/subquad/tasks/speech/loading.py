"""The recordings of the task: features of each sound, the units of each text, and splits."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from jaxtyping import Float
from numpy import ndarray
from typing_extensions import TypedDict

from subquad.checking import STRICT, Count, read_as
from subquad.data.recordings import Recording, Recordings, load_recordings
from subquad.data.sounds import cepstra, filterbanks, normalised, read_cepstra, read_sound
from subquad.data.splits import SplitName, shuffled
from subquad.data.texts import LeftOut
from subquad.errors import SubquadError
from subquad.results import place_of
from subquad.tasks.speech.tones import spelled

Units = Literal["characters", "phones"]
FeatureKind = Literal["filterbanks", "cepstra"]
"""Logarithms of energies in bands, computed from sounds; or cepstral coefficients, as Sphinx's files have them."""
HELD_OUT_PART = 10
"""One recording in so many is held out for a split that the data do not have."""


class Utterance(NamedTuple):
    """Features of a recording, normalised, and the units of what was said."""

    name: str
    frames: Float[ndarray, "frames features"]
    units: tuple[str, ...]


class Splits(NamedTuple):
    """Recordings for training, for evaluations during training and for the end."""

    train: list[Utterance]
    development: list[Utterance]
    test: list[Utterance]
    features: FeatureKind
    complaints: tuple[str, ...] = ()


class KeptSpeech(TypedDict):
    """What a run stores about its recordings, to recognise others: units, features and numbers."""

    __pydantic_config__ = STRICT  # type: ignore[misc]

    units: list[str]
    features: FeatureKind
    width: Count
    recordings: Count


def read_kept(learned: Mapping[str, Any] | None) -> KeptSpeech | None:
    """Reads the fields that a run stored. Returns None for a new run, which has none."""
    return None if learned is None else read_as(KeptSpeech, learned, f"{place_of(learned)}: learned")


def features_of(path: Path, kind: FeatureKind, bands: int) -> Float[ndarray, "frames features"]:
    """The features of a file. Sphinx's files have theirs; from a sound, either kind is computed."""
    if path.suffix.lower() == ".mfc":
        if kind != "cepstra":
            raise SubquadError(f"{path} holds cepstra, but the model reads filterbanks of sounds: give the sound, as WAV")
        return normalised(read_cepstra(path))
    sound = read_sound(path)
    return normalised(cepstra(sound) if kind == "cepstra" else filterbanks(sound, bands))


def units_of(text: str, units: Units, pronunciations: Mapping[str, str]) -> tuple[str, ...] | None:
    """The characters or phones of a text; None if a word of it has no pronunciation."""
    if units == "characters":
        return tuple(text)
    phones = [pronunciations.get(word) for word in text.split()]
    return None if None in phones else tuple(" ".join(filter(None, phones)).split())


@dataclass
class Loader:
    """Reads recordings and leaves out those that cannot be used."""

    units: Units
    bands: int
    positions: int
    """Frames that become one position of the model."""
    seed: int

    def __post_init__(self) -> None:
        self.left_out = LeftOut()

    def load(self, source: str) -> Splits:
        """Reads the recordings at a path, or synthesises tones if it is empty."""
        if not source:
            return self._divided(self._tones(), "filterbanks", "the built-in tones", ())
        path = Path(source)
        found = load_recordings(path)
        if self.units == "phones" and not found.pronunciations:
            raise SubquadError(f"{path} has no dictionary of phones (etc/*.dic): give --units characters")
        kinds = {recording.file.suffix.lower() == ".mfc" for split in found.splits.values() for recording in split}
        if len(kinds) > 1:
            raise SubquadError(f"{path} has both sounds and files of cepstra (.mfc): keep one of them")
        kind: FeatureKind = "cepstra" if kinds == {True} else "filterbanks"
        splits = {split: list(self._read(recordings, kind, found)) for split, recordings in found.splits.items()}
        complaints = (*found.complaints, *self.left_out.sentences(path))
        if not splits["train"]:
            raise SubquadError(f"{path} has no recordings that can be used: {complaints[0]}")
        return self._divided(splits, kind, source, complaints)

    def _read(self, recordings: Sequence[Recording], kind: FeatureKind, found: Recordings) -> Iterator[Utterance]:
        for recording in recordings:
            name = recording.file.name
            units = units_of(recording.text, self.units, found.pronunciations)
            if units is None:
                self.left_out.add("recording", "as a word of its text is not in the dictionary", name)
                continue
            try:
                frames = features_of(recording.file, kind, self.bands)
            except SubquadError as error:
                self.left_out.add("recording", _reason(str(error), recording.file), name)
                continue
            yield from self._fitting(Utterance(name, frames.astype(np.float16), units))

    def _fitting(self, utterance: Utterance) -> Iterator[Utterance]:
        """The utterance, unless it has too few positions: one for each unit, and one between equal ones."""
        units = utterance.units
        needed = len(units) + sum(first == second for first, second in pairwise(units))
        if needed > -(-len(utterance.frames) // self.positions):
            self.left_out.add("recording", "as it is too short for its text", utterance.name)
        else:
            yield utterance

    def _tones(self) -> dict[SplitName, list[Utterance]]:
        return {
            split: [
                Utterance(f"{split} {number}", normalised(filterbanks(sound, self.bands)).astype(np.float16), tuple(text))
                for number, (text, sound) in enumerate(recordings)
            ]
            for split, recordings in spelled(self.seed).items()
        }

    def _divided(
        self, splits: dict[SplitName, list[Utterance]], kind: FeatureKind, source: str, complaints: tuple[str, ...]
    ) -> Splits:
        """Holds out a tenth of the training recordings for each split that the data do not have."""
        train = splits["train"]
        missing: list[SplitName] = [split for split in ("development", "test") if not splits.get(split)]
        if len(train) <= len(missing):
            raise SubquadError(f"{source} has {len(train)} recordings, too few to learn from and to be tested on: give more")
        order = shuffled([utterance.name for utterance in train], self.seed)
        part = max(1, len(train) // HELD_OUT_PART)
        held_out: set[int] = set()
        for at, split in enumerate(missing):
            chosen = order[at * part : (at + 1) * part].tolist()
            splits[split] = [train[number] for number in chosen]
            held_out |= set(chosen)
        kept = [utterance for number, utterance in enumerate(train) if number not in held_out]
        return Splits(kept, splits["development"], splits["test"], kind, complaints)


def _reason(message: str, file: Path) -> str:
    """The reason in an error message about a file, without the file's name and figures, so that equal ones are counted."""
    return "as it " + message.removeprefix(f"{file} ").partition(":")[0].partition(" (")[0]


def unit_list(utterances: Sequence[Utterance]) -> list[str]:
    """All units of some utterances, in order."""
    return sorted({unit for utterance in utterances for unit in utterance.units})
