"""A baseline: gradient boosting on aggregates of each client's events, which ignores their order."""

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray

from subquad.data.times import DAY
from subquad.errors import SubquadError
from subquad.tasks.transactions.features import FIELDS, log_gaps, signed_log
from subquad.tasks.transactions.histories import Histories
from subquad.tasks.transactions.task import TransactionsTask

MOST = 50  # largest number of codes and of types, the most frequent of the training clients
QUANTILES = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)


def boosted_scores(task: TransactionsTask, seed: int = 0) -> Float[ndarray, "clients"]:
    """Scores of the test clients by gradient boosting, trained on the training clients of the same split."""
    try:
        from sklearn.ensemble import HistGradientBoostingClassifier
    except ImportError:
        raise SubquadError("gradient boosting needs scikit-learn: pip install 'subquad[data]'") from None
    histories, splits = task.data
    table = aggregates(histories, task.encoded, splits.train)
    fitted = HistGradientBoostingClassifier(random_state=seed).fit(table[splits.train], histories.labels[splits.train])
    scores: ndarray = fitted.predict_proba(table[splits.test])[:, 1]
    return scores


def aggregates(
    histories: Histories, encoded: Float[ndarray, "events f"], train: Int[ndarray, "train"]
) -> Float[ndarray, "clients aggregates"]:
    """Counts, shares, amounts and gaps of each client. `train` are the clients whose most frequent codes and types count."""
    lengths = histories.lengths
    client = np.repeat(np.arange(len(lengths)), lengths)
    trained = np.isin(client, train)
    shares = []
    for field in ("code", "type"):
        numbers = encoded[:, FIELDS.index(field)].astype(np.int64)
        frequent = np.argsort(-np.bincount(numbers[trained]), kind="stable")[:MOST]
        shares.append(_shares(numbers, client, lengths)[:, frequent])
    weekday = encoded[:, FIELDS.index("weekday")].astype(np.int64)
    hour = (histories.times % DAY // 3600.0).astype(np.int64)
    shares += [_shares(weekday, client, lengths), _shares(hour, client, lengths)]
    starts = histories.offsets[:-1]
    sums = [np.add.reduceat(values, starts) for values in (histories.amounts, np.abs(histories.amounts))]
    gap = np.add.reduceat(log_gaps(histories), starts) / lengths
    numbers = np.stack([lengths, *sums, gap], axis=1)
    return np.concatenate([numbers, _spread(signed_log(histories.amounts), client, histories), *shares], axis=1)


def _shares(
    numbers: Int[ndarray, "events"], client: Int[ndarray, "events"], lengths: Int[ndarray, "clients"]
) -> Float[ndarray, "clients symbols"]:
    """Share of each symbol among the events of each client."""
    symbols = int(numbers.max()) + 1
    counts = np.bincount(client * symbols + numbers, minlength=len(lengths) * symbols).reshape(len(lengths), symbols)
    return counts / lengths[:, None]


def _spread(
    values: Float[ndarray, "events"], client: Int[ndarray, "events"], histories: Histories
) -> Float[ndarray, "clients statistics"]:
    """Mean, standard deviation and quantiles of the values of each client."""
    starts, lengths = histories.offsets[:-1], histories.lengths
    mean = np.add.reduceat(values, starts) / lengths
    deviation = np.sqrt(np.add.reduceat((values - mean[client]) ** 2, starts) / lengths)
    ordered = values[np.lexsort((values, client))]
    at = starts[:, None] + np.round(np.array(QUANTILES) * (lengths[:, None] - 1)).astype(np.int64)
    return np.concatenate([np.stack([mean, deviation], axis=1), ordered[at]], axis=1)
