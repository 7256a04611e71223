"""How well a model predicts a text: nats for each token, and bits per byte, which do not depend on the tokens."""

import math
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from numpy import ndarray
from torch import nn

from subquad.statistics import Interval, grouped_sums, summed_interval
from subquad.tasks.lm.corpus import cover
from subquad.tasks.lm.vocabulary import BEGIN, Lossless

STRETCH = 256
"""Number of consecutive tokens that a bootstrap draws together, because the tokens of one passage are alike."""

FEW = 10
"""Smallest number of passages that a text is divided into, if it has so many tokens."""


class Read(NamedTuple):
    """The tokens of a text but for those that begin texts, each predicted once."""

    tokens: Int[ndarray, "tokens"]
    nats: Float[ndarray, "tokens"]  # negative log-probability of each token

    def text(self, vocabulary: Lossless) -> bytes:
        """The bytes that the tokens stand for."""
        strings = vocabulary.byte_strings
        return b"".join(strings[token] for token in self.tokens.tolist())

    def nats_per_token(self) -> Interval:
        """Mean nats per token, with an interval from drawing passages."""
        return self._ratio(np.ones(len(self.tokens)))

    def bits_per_byte(self, vocabulary: Lossless) -> Interval:
        """Bits per byte of the text, with an interval from drawing passages."""
        return Interval(*(end / math.log(2) for end in self._ratio(self.sizes(vocabulary))))

    def sizes(self, vocabulary: Lossless) -> Float[ndarray, "tokens"]:
        """Number of bytes that each token stands for."""
        return np.array([len(string) for string in vocabulary.byte_strings])[self.tokens].astype(float)

    def passages(self) -> Int[ndarray, "passages"]:
        """Numbers of consecutive tokens that a bootstrap draws together."""
        number = len(self.tokens)
        return np.diff(np.append(np.arange(0, number, min(STRETCH, -(-number // FEW))), number))

    def _ratio(self, sizes: Float[ndarray, "tokens"]) -> Interval:
        """Sum of the nats divided by the sum of `sizes`."""
        passages = self.passages()
        parts = np.stack([grouped_sums(self.nats, passages), grouped_sums(sizes, passages)], axis=1)
        return summed_interval(parts, lambda added: added[:, 0] / np.maximum(added[:, 1], 1))


@torch.no_grad()
def read_through(model: nn.Module, tokens: Int[ndarray, "n"], *, length: int, context: int, tokens_at_a_time: int) -> Read:
    """Predicts every token of a stream but the first once, each from at least `context` tokens and at most `length`."""
    model.eval()
    device = next(model.parameters()).device
    windows = cover(len(tokens), length, context)
    within = np.arange(windows.length)
    nats = []
    for group, counted in windows.groups(max(1, tokens_at_a_time // windows.length)):
        places = windows.begin[group, None] + within
        inputs, right = (torch.from_numpy(tokens[at].astype(np.int64)).to(device) for at in (places, places + 1))
        logits = model(inputs, last=counted).float()
        losses = F.cross_entropy(logits.flatten(0, 1), right[:, -counted:].flatten(), reduction="none")
        nats.append(losses.double().cpu().numpy())
    predicted = tokens[1:].astype(np.int64)
    is_text = predicted != BEGIN
    return Read(predicted[is_text], np.concatenate(nats)[is_text])
