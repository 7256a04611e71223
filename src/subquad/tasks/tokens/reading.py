"""How well a model predicts each token of sequences, beside n-grams, with intervals."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from numpy import ndarray
from torch import nn

from subquad.data.buckets import bounded
from subquad.data.ragged import pad
from subquad.results import Row
from subquad.statistics import Interval, grouped_sums, summed_interval
from subquad.tasks.lm.corpus import cover
from subquad.tasks.lm.ngrams import ngram_probabilities
from subquad.tasks.lm.reading import FEW, STRETCH
from subquad.tasks.lm.vocabulary import BEGIN
from subquad.tasks.mlm.finding import perplexity

ORDERS = (2, 3, 5)
"""Numbers of tokens of the n-grams that models are compared with."""
MOST_KNOWN = 5_000_000
"""Largest number of training tokens that n-grams count, from the beginning."""
NATS = "nats_per_token"
"""Name of the deciding metric."""

Tokens = Int[ndarray, "_"]


@torch.no_grad()
def read_sequences(
    model: nn.Module, sequences: Sequence[Tokens], *, length: int, context: int, tokens_at_a_time: int
) -> list[Float[ndarray, "_"]]:
    """Negative log-probability of each token of each sequence, after at least `context` tokens and at most `length`.

    Tokens at the beginning of a sequence have fewer tokens before them.
    """
    model.eval()
    device = next(model.parameters()).device
    begun = [np.append(BEGIN, tokens) for tokens in sequences]
    covers = [cover(len(tokens), length, context) if len(tokens) > 1 else None for tokens in begun]
    nats: list[ndarray] = [np.zeros(len(tokens)) for tokens in sequences]
    windows = [
        (at, int(begin), covered.length, int(counted))
        for at, covered in enumerate(covers)
        if covered is not None
        for begin, counted in zip(covered.begin, covered.counted, strict=True)
    ]
    for rows in bounded(np.array([size for _, _, size, _ in windows], np.int64), tokens_at_a_time) if windows else ():
        chosen = [windows[row] for row in rows]
        inputs, right = (
            pad([torch.from_numpy(begun[at][begin + shift : begin + shift + size]) for at, begin, size, _ in chosen], BEGIN)
            for shift in (0, 1)
        )
        logits = model(inputs.to(device)).float()
        losses = F.cross_entropy(logits.flatten(0, 1), right.to(device).flatten(), reduction="none").view(right.shape)
        for (at, begin, size, counted), row in zip(chosen, losses.double().cpu().numpy(), strict=True):
            nats[at][begin + size - counted : begin + size] = row[size - counted : size]
    return nats


@torch.no_grad()
def next_probabilities(
    model: nn.Module, sequences: Sequence[Tokens], *, length: int, tokens_at_a_time: int
) -> Float[ndarray, "sequences v"]:
    """Probability of each token after the last one of each sequence; the one before sequences has none."""
    model.eval()
    device = next(model.parameters()).device
    begun = [np.append(BEGIN, tokens)[-length:] for tokens in sequences]
    lengths = np.array([len(tokens) for tokens in begun], np.int64)
    parts: dict[int, ndarray] = {}
    for rows in bounded(lengths, tokens_at_a_time):
        inputs = pad([torch.from_numpy(begun[at]) for at in rows], BEGIN)
        logits = model(inputs.to(device)).double().cpu()
        last = logits[torch.arange(len(rows)), torch.from_numpy(lengths[rows] - 1)]
        last[:, BEGIN] = -torch.inf
        parts |= zip(rows.tolist(), last.softmax(-1).numpy(), strict=True)
    return np.stack([parts[at] for at in range(len(begun))])


def ngram_nats(train: Sequence[Tokens], test: Sequence[Tokens], size: int, order: int) -> Float[ndarray, "tokens"]:
    """Negative log-probability of each test token under n-grams of the training tokens; none reaches over a beginning."""
    known, new = (_begun(sequences, order - 1) for sequences in (train, test))
    chances = ngram_probabilities(known[:MOST_KNOWN], new, size, order, ignored=BEGIN)
    return -np.log(chances[new != BEGIN])


def _begun(sequences: Sequence[Tokens], begins: int) -> Tokens:
    """Sequences one after the other, each after so many tokens that begin sequences, and one at least."""
    begin = np.full(max(1, begins), BEGIN, np.int64)
    return np.concatenate([part for tokens in sequences for part in (begin, tokens)])


def groups_of(lengths: Int[ndarray, "sequences"]) -> Int[ndarray, "groups"]:
    """Numbers of consecutive tokens that a bootstrap draws together: sequences, or passages if there are few sequences."""
    if len(lengths) >= FEW:
        return lengths
    total = int(lengths.sum())
    return np.diff(np.append(np.arange(0, total, min(STRETCH, -(-total // FEW))), total))


def mean_interval(values: Float[ndarray, "tokens"], groups: Int[ndarray, "groups"]) -> Interval:
    """The mean of a value of each token, with an interval from drawing groups."""
    parts = np.stack([grouped_sums(values, groups), groups.astype(float)], axis=1)
    return summed_interval(parts, lambda added: added[:, 0] / np.maximum(added[:, 1], 1))


def compared_rows(
    ours: Float[ndarray, "tokens"],
    others: Mapping[str, Float[ndarray, "tokens"]],
    trivial: Float[ndarray, "tokens"],
    lengths: Int[ndarray, "sequences"],
) -> list[Row]:
    """Rows of nats, bits and perplexity of the model, of baselines, and how much better the model is than each."""
    groups = groups_of(lengths)
    rows: list[Row] = []
    for about, nats in (
        ({"split": "test"}, ours),
        *(({"split": "baseline", "baseline": name}, theirs) for name, theirs in others.items()),
    ):
        interval = mean_interval(nats, groups)
        rows.append({"metric": NATS, "unit": "nats", **about, **interval._asdict()})
        rows.append(
            {"metric": "bits_per_token", "unit": "bits", **about, **Interval(*np.divide(interval, np.log(2)))._asdict()}
        )
        rows.append({"metric": "perplexity", "unit": "tokens", **about, **Interval(*map(perplexity, interval))._asdict()})
    for name, theirs in others.items():
        gap = mean_interval(theirs - ours, groups)
        rows.append({"metric": f"{NATS}_gained", "unit": "nats", "split": "baseline", "baseline": name, **gap._asdict()})
    mean = float(trivial.mean())
    by_metric = {
        NATS: ("nats", mean),
        "bits_per_token": ("bits", mean / np.log(2)),
        "perplexity": ("tokens", perplexity(mean)),
    }
    return rows + [
        {"metric": metric, "unit": unit, "split": "trivial", "value": float(value)}
        for metric, (unit, value) in by_metric.items()
    ]
