"""Synthesised tones that spell words, for trying the task without files: each letter is a chord of two tones."""

import numpy as np
from jaxtyping import Float
from numpy import ndarray

from subquad.data.sounds import RATE
from subquad.data.splits import SplitName

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
VOCABULARY = (
    *("ABLE", "AGAIN", "BIRD", "BOX", "CALM", "CITY", "DAY", "DEEP", "EARTH", "EVERY", "FARM", "FIVE", "GREEN", "GIFT"),
    *(
        "HAND",
        "HOUSE",
        "JUMP",
        "KING",
        "LAKE",
        "LIGHT",
        "MOON",
        "NAME",
        "OPEN",
        "PAPER",
        "QUICK",
        "RIVER",
        "SEA",
        "STONE",
        "TREE",
    ),
    *("VOICE", "WATER", "YELLOW", "ZERO"),
)
NUMBERS: dict[SplitName, int] = {"train": 300, "test": 60}
"""Number of recordings in each split."""
LONGEST_WORDS = 3
"""Largest number of words of a recording."""
LOW, HIGH = 300 * 1.25 ** np.arange(6), 1300 * 1.22 ** np.arange(5)
"""Frequencies of the lower and of the higher tone, in Hz; each letter has a pair of its own."""


def spelled(seed: int) -> dict[SplitName, list[tuple[str, Float[ndarray, "samples"]]]]:
    """Texts of random words with their sounds, by split."""
    rng = np.random.default_rng(seed)

    def spell() -> tuple[str, Float[ndarray, "samples"]]:
        text = " ".join(rng.choice(VOCABULARY, rng.integers(1, LONGEST_WORDS + 1)))
        return text, sound_of(text, rng)

    return {split: [spell() for _ in range(number)] for split, number in NUMBERS.items()}


def sound_of(text: str, rng: np.random.Generator) -> Float[ndarray, "samples"]:
    """The sound of a text, in a random tempo, pitch and loudness, with noise; a space is a pause."""
    tempo, pitch, loudness = rng.uniform(0.8, 1.25), rng.uniform(0.97, 1.03), rng.uniform(0.1, 0.8)
    parts = [np.zeros(RATE // 20)]
    for letter in text:
        length = int(RATE * 0.09 * tempo * rng.uniform(0.8, 1.2))
        if letter in LETTERS:
            number, at = LETTERS.index(letter), np.arange(length) / RATE
            tones = [np.sin(2 * np.pi * pitch * hertz * at) for hertz in (LOW[number % 6], HIGH[number // 6])]
            parts.append(np.hanning(length) * sum(tones) / 2)
        else:
            parts.append(np.zeros(length))
        parts.append(np.zeros(RATE // 100))
    sound = loudness * np.concatenate([*parts, np.zeros(RATE // 20)])
    return (sound + 0.01 * rng.standard_normal(len(sound))).astype(np.float32)
