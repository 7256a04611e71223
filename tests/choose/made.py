"""Made-up rows of races whose answer is planted."""

from collections.abc import Mapping

from subquad.choose.decision import Decision, Training, Wishes, decide
from subquad.choose.standings import read_standings
from subquad.results import Row

GOOD = {"nats_per_token": "low", "accuracy": "high", "nll": "low", "auroc": "high"}


def quality(name: str, value: float, half: float = 0.005, *, role: str = "attention", metric: str = "accuracy") -> Row:
    about = {"of": metric, "good": GOOD[metric], "unit": "share", "seeds": 3 if role == "attention" else 1}
    known = {"value": value, "low": value - half, "high": value + half}
    return {"metric": "quality", "mechanism": name, "role": role, **known, **about}


def advantages(values: Mapping[str, float], half: float, *, good: str = "high") -> list[Row]:
    """Paired advantages between all contestants, with intervals of the same width."""
    sign, names = 1.0 if good == "high" else -1.0, list(values)
    rows: list[Row] = []
    for at, ours in enumerate(names):
        for theirs in names[at + 1 :]:
            gain = sign * (values[ours] - values[theirs])
            ends = {"value": gain, "low": gain - half, "high": gain + half}
            rows.append({"metric": "advantage", "mechanism": ours, "against": theirs, "unit": "share", **ends})
    return rows


def costs(seconds: Mapping[str, float], memory: Mapping[str, float] | None = None, length: int = 512) -> list[Row]:
    rows: list[Row] = [
        {"metric": "cost", "what": "layer", "mechanism": name, "value": value, "unit": "s", "length": length}
        for name, value in seconds.items()
    ]
    rows += [
        {"metric": "cost", "what": "memory", "mechanism": name, "value": value, "unit": "bytes", "length": length}
        for name, value in (memory or {}).items()
    ]
    return rows


def seen(length: int = 512) -> list[Row]:
    return [{"metric": "seen", "value": length, "unit": "positions", "quantile": at} for at in (0.0, 0.5, 0.9, 1.0)]


def race(
    scores: Mapping[str, float],
    *,
    seconds: Mapping[str, float],
    half: float = 0.005,
    rivals: Mapping[str, float] | None = None,
    trivial: float | None = 0.1,
    metric: str = "accuracy",
    length: int = 512,
) -> list[Row]:
    """The rows of a whole race: scores of attentions, of rivals and of the trivial answer, with costs and lengths."""
    rows = [quality(name, value, half, metric=metric) for name, value in scores.items()]
    rows += [quality(name, value, half, role="rival", metric=metric) for name, value in (rivals or {}).items()]
    everything = {**scores, **(rivals or {})}
    if trivial is not None:
        rows.append(quality("guessing", trivial, 0.0, role="trivial", metric=metric))
        everything["guessing"] = trivial
    return [*rows, *advantages(everything, half, good=GOOD[metric]), *costs(seconds, length=length), *seen(length)]


FAST = {"softmax": 1.0, "linear": 0.2, "hybrid": 0.4, "window": 0.3}
GIVES_UP = {"linear": "it weighs keys in a way of its own", "softmax": "nothing but time"}
LEVEL = race({"softmax": 0.7, "linear": 0.7}, trivial=0.5, seconds=FAST)


def decided(rows: list[Row], wishes: Wishes = Wishes(), training: Training = Training()) -> Decision:  # noqa: B008
    return decide(read_standings(rows), wishes, GIVES_UP, training)
