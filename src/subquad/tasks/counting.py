"""Models of classes without attention: the most frequent class, and a linear model of how often each token occurs."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Int
from numpy import ndarray

from subquad.tasks.comparing import Rival, judged_means

MOST_COUNTED = 4000
"""Largest number of training sequences that a linear model of counts is fitted to, from the beginning."""
ROUNDS = 200
"""Largest number of iterations of the fit."""


def class_rivals(
    known: Sequence[Int[ndarray, "n"]],
    labels: Int[ndarray, "train"],
    asked: Sequence[Int[ndarray, "n"]],
    truth: Int[ndarray, "test"],
) -> dict[str, Rival]:
    """Which test sequences the most frequent training class gets right, and a linear model of counts of tokens.

    The linear model needs scikit-learn, which is an extra, and is left out without it.
    """

    def rival(answers: ndarray, *, is_trivial: bool = False) -> Rival:
        right = (answers == truth).astype(float)
        return Rival(judged_means("accuracy", "high", "share", right, np.ones(len(right))), is_trivial)

    rivals = {"most frequent class": rival(np.full(len(truth), np.bincount(labels).argmax()), is_trivial=True)}
    answers = linear_answers(known[:MOST_COUNTED], labels[:MOST_COUNTED], asked)
    return rivals if answers is None else {**rivals, "linear model of counts": rival(answers)}


def linear_answers(
    known: Sequence[Int[ndarray, "n"]], labels: Int[ndarray, "train"], asked: Sequence[Int[ndarray, "n"]]
) -> Int[ndarray, "test"] | None:
    """The class of each sequence by logistic regression on logarithms of counts of tokens; None without scikit-learn."""
    try:
        from sklearn.linear_model import LogisticRegression
    except ImportError:
        return None
    width = 1 + max(int(tokens.max()) for tokens in (*known, *asked) if len(tokens))
    train, test = (_log_counts(some, width) for some in (known, asked))
    if len(np.unique(labels)) < 2:
        return np.full(len(asked), labels[0])
    fitted = LogisticRegression(max_iter=ROUNDS, tol=1e-3).fit(train, labels)
    answers: ndarray = fitted.predict(test)
    return answers


def _log_counts(sequences: Sequence[Int[ndarray, "n"]], width: int) -> Any:
    """log(1 + count) of each token in each sequence, as a sparse matrix."""
    import scipy.sparse

    rows = np.repeat(np.arange(len(sequences)), [len(tokens) for tokens in sequences])
    columns = np.concatenate([*sequences, np.zeros(0, np.int64)]).astype(np.int64)
    counts = scipy.sparse.csr_matrix((np.ones(len(rows)), (rows, columns)), shape=(len(sequences), width))
    counts.sum_duplicates()
    counts.data = np.log1p(counts.data)
    return counts
