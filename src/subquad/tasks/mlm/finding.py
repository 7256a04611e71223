"""A model's predictions for tokens that were taken out of texts."""

import math
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from numpy import ndarray
from torch import nn

from subquad.data.buckets import bounded
from subquad.data.ragged import needed_mask
from subquad.tasks.mlm.corpus import FEW
from subquad.tasks.mlm.masking import MaskedBatch
from subquad.tasks.mlm.vocabulary import FIRST


class Answers(NamedTuple):
    """Predictions for the tokens that were taken out of held-out texts, window by window."""

    nats: Float[ndarray, "tokens"]  # negative log-probability of the right token
    likeliest: Int[ndarray, "tokens"]
    right: Int[ndarray, "tokens"]


@torch.no_grad()
def find(model: nn.Module, batch: MaskedBatch, tokens_at_a_time: int) -> Answers:
    """Returns the model's prediction for each token that was taken out."""
    model.eval()
    device = next(model.parameters()).device
    lengths, number = batch.keep.sum(1).numpy(), batch.chosen.sum(1).numpy()
    ends = np.cumsum(number)
    nats, likeliest = np.zeros(ends[-1]), np.zeros(ends[-1], np.int64)
    for rows in bounded(lengths, tokens_at_a_time):
        part = MaskedBatch(*(tensor[rows, : lengths[rows].max()].to(device) for tensor in batch))
        logits = model(part.tokens, keep=needed_mask(part.keep), chosen=part.chosen).float()
        places = np.concatenate([np.arange(ends[row] - number[row], ends[row]) for row in rows])
        nats[places] = F.cross_entropy(logits, part.right[part.chosen], reduction="none").double().cpu().numpy()
        likeliest[places] = logits[:, FIRST:].argmax(1).cpu().numpy() + FIRST
    return Answers(nats, likeliest, batch.right[batch.chosen].numpy())


def interval_groups(counts: Int[ndarray, "stretches"], documents: Int[ndarray, "stretches"]) -> Int[ndarray, "groups"]:
    """Numbers of tokens in the groups that a bootstrap draws: documents if there are at least `FEW`, otherwise windows."""
    _, number = np.unique(documents, return_inverse=True)
    sums = np.bincount(number, weights=counts).astype(np.int64)
    return sums if len(sums) >= FEW else counts


def perplexity(nats: float) -> float:
    """The exponential of a mean negative log-probability, bounded to stay finite."""
    return math.exp(min(float(nats), 700.0))
