"""Sequences of symbols: splits, vocabularies, n-grams, models and what they answer."""

import json
import math
from collections import Counter
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import torch

from subquad import Linear, Linformer, ModelOptions, Softmax, SubquadError
from subquad.tasks import TASKS, Tokens
from subquad.tasks.base import Completion
from subquad.tasks.tokens import LabelTokens, NextTokens
from subquad.tasks.tokens.reading import ngram_nats, read_sequences
from subquad.tasks.tokens.simulator import CLASSES
from subquad.tasks.tokens.vocabulary import UNKNOWN

SMALL = ModelOptions(layers=1, heads=2, head_dim=8, positions="rotary")


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def labelled(path: Path, count: int = 60) -> Path:
    """Sequences of two classes: one has the symbol p in it, the other has q."""
    rng = np.random.default_rng(0)
    rows = []
    for number in range(count):
        symbols = [*rng.choice(list("abc"), size=3 + number % 5), "pq"[number % 2]]
        rows.append(f"{' '.join(rng.permutation(symbols))},{'yes' if number % 2 else 'no'}")
    path.write_text("sequence,label\n" + "\n".join(rows) + "\n")
    return path


@pytest.fixture
def clicks(tmp_path: Path) -> Path:
    path = tmp_path / "clicks.txt"
    path.write_text("\n".join("a b c d a b c d a b"[2 * (n % 4) :] for n in range(40)) + "\nz\n")
    return path


def following(path: Path, **more: object) -> NextTokens:
    task = Tokens(data=str(path), length=8, **more).prepare()  # type: ignore[arg-type]
    assert isinstance(task, NextTokens)
    return task


def test_options_come_back_from_json() -> None:
    some = Tokens(data="x", characters=True, rare=3, context=4)
    kept = json.loads(json.dumps(asdict(some)))
    assert TASKS[kept.pop("kind")](**kept) == some


def test_rare_symbols_are_unknown(clicks: Path) -> None:
    task = following(clicks)
    assert sorted(task.source.vocabulary.symbols) == ["a", "b", "c", "d"]
    assert task.source.vocabulary.encode_symbols(["a", "new", "z"]).tolist()[1:] == [UNKNOWN, UNKNOWN]
    few = following(clicks, vocabulary_size=2).source.vocabulary
    assert few.symbols == ("b", "a")  # the most frequent first
    with pytest.raises(SubquadError, match="give a smaller --rare"):
        _ = following(clicks, rare=1000).source.vocabulary


def test_batches_predict_what_comes_next(clicks: Path) -> None:
    task = following(clicks)
    batch = task.batch(16, seeded())
    assert batch.tokens.shape[1] <= 8
    assert torch.equal(batch.tokens[:, 1:], batch.right[:, :-1])
    assert task.count(batch) == int((batch.right > 0).sum())
    again = task.batch(16, seeded())
    assert torch.equal(batch.tokens, again.tokens)


@pytest.mark.parametrize("length", [3, 5, 64])
def test_every_token_is_read_once_whatever_the_batches(length: int) -> None:
    model = NextTokens(Tokens(sequences=12, symbols=5).prepare().source).build(Softmax(), SMALL, seeded()).eval()
    rng = np.random.default_rng(0)
    sequences = [rng.integers(2, 7, size) for size in (1, 13, 0, 6)]
    alone = [read_sequences(model, [each], length=length, context=length // 2, tokens_at_a_time=1)[0] for each in sequences]
    together = read_sequences(model, sequences, length=length, context=length // 2, tokens_at_a_time=1000)
    for one, other in zip(alone, together, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
    assert [len(nats) for nats in together] == [1, 13, 0, 6]
    whole = torch.tensor([[0, *sequences[1]]])
    logits = model(whole[:, :-1]).log_softmax(-1)[0]
    expected = -logits[torch.arange(13), whole[0, 1:]].detach().numpy()
    if length == 64:
        np.testing.assert_allclose(together[1], expected, rtol=1e-4, atol=1e-5)


def slow_nats(train: list[list[int]], test: list[list[int]], size: int, order: int) -> list[float]:
    """Witten-Bell smoothing as written, with sequences that begin with as many marks as are needed."""

    def chance(history: tuple[int, ...], token: int) -> float:
        after = Counter(
            each[at]
            for sequence in train
            for each in [[0] * (order - 1) + sequence]
            for at in range(order - 1, len(each))
            if tuple(each[at - len(history) : at]) == history
        )
        shorter = chance(history[1:], token) if history else 1 / (size - 1)
        total, kinds = sum(after.values()), len(after)
        return (after[token] + kinds * shorter) / (total + kinds) if total else shorter

    begun = [[0] * (order - 1) + sequence for sequence in test]
    return [
        -math.log(chance(tuple(each[at - order + 1 : at]), each[at])) for each in begun for at in range(order - 1, len(each))
    ]


@pytest.mark.parametrize("order", [1, 2, 4])
def test_ngrams_never_reach_over_a_beginning(order: int) -> None:
    rng = np.random.default_rng(1)
    train, test = ([rng.integers(1, 6, size) for size in sizes] for sizes in ((9, 1, 14), (5, 3)))
    expected = slow_nats([each.tolist() for each in train], [each.tolist() for each in test], 6, order)
    np.testing.assert_allclose(ngram_nats(train, test, 6, order), expected)


def test_ngrams_of_huge_vocabularies_have_codes_that_fit() -> None:
    rng = np.random.default_rng(1)
    few = [rng.integers(1, 5, 30) for _ in range(3)]
    for order in (3, 5):
        spread = [each * 2**40 for each in few]  # the same sequences, with symbols that are far apart
        many, plain = (ngram_nats(of[:2], of[2:], size, order) for of, size in ((spread, 2**43), (few, 2**43)))
        np.testing.assert_allclose(many, plain)


def test_a_long_sequence_is_cut_by_place(tmp_path: Path) -> None:
    path = tmp_path / "one.fa"
    path.write_text(">chr\n" + "ACGT" * 25 + "\n")
    task = following(path)
    assert [len(task.source.splits[split].sequences[0]) for split in ("train", "development", "test")] == [80, 10, 10]
    path.write_text(">chr\nACGT\n")
    short = tmp_path / "short.txt"
    short.write_text("1 2 3 4\n" * 8)
    with pytest.raises(SubquadError, match="too short to be cut into parts for training, development and test"):
        _ = following(short).source.splits
    with pytest.raises(SubquadError, match="has 4 tokens, too few to be divided"):
        _ = following(path).source.splits


def learn(task: NextTokens | LabelTokens, steps: int, rate: float = 1e-2) -> torch.nn.Module:
    model = task.build(Softmax(), SMALL, seeded())
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    for step in range(steps):
        losses = task.loss(model, task.batch(16, seeded(step)))  # type: ignore[arg-type]
        optimizer.zero_grad()
        (losses.total / losses.number).backward()
        optimizer.step()
    return model


def test_the_next_token_can_be_learned_and_told(clicks: Path, tmp_path: Path) -> None:
    task = following(clicks)
    model = learn(task, 60)
    rows = task.final(model)
    tested = {row["metric"]: row for row in rows if row.get("split") == "test"}
    assert tested["nats_per_token"]["value"] < 0.5
    assert tested["bits_per_token"]["value"] == pytest.approx(tested["nats_per_token"]["value"] / math.log(2))
    assert tested["perplexity"]["value"] == pytest.approx(math.exp(tested["nats_per_token"]["value"]))
    assert {row["baseline"] for row in rows if row.get("split") == "baseline"} == {"2-grams", "3-grams", "5-grams"}
    trivial = {row["metric"]: row["value"] for row in rows if row.get("split") == "trivial"}
    assert trivial["nats_per_token"] > 1
    again = Tokens(data="not there any more", length=8).prepare(json.loads(json.dumps(task.learned)))
    assert again.complete(model, "a b c", Completion(tokens=4, temperature=0)) == " d a b c"
    (tmp_path / "new.txt").write_text("a b c\nnever seen\n")
    answers = again.predict(model, tmp_path / "new.txt")
    assert answers.columns == ["sequence", "tokens", "unknown", "nats_per_token", "next", "probability"]
    assert answers.lines[0][4] == "d"
    assert answers.lines[1][:3] == ["line 2", "2", "2"]
    assert math.isfinite(float(answers.lines[1][3]))


def test_labels_can_be_learned_and_told(tmp_path: Path) -> None:
    path = labelled(tmp_path / "a.csv")
    task = Tokens(data=str(path)).prepare()
    assert isinstance(task, LabelTokens)
    assert [len(task.truth(split)) for split in ("train", "development", "test")] == [42, 6, 12]
    model = learn(task, 40)
    rows = task.final(model)
    tested = {row["metric"]: row for row in rows if row.get("split") == "test"}
    assert tested["auroc"]["value"] > 0.9
    assert any(row["metric"] == "auroc_gained" for row in rows)
    assert {row["metric"]: row["value"] for row in rows if row.get("split") == "trivial"}["accuracy"] == 0.5
    again = Tokens(data="not there any more").prepare(json.loads(json.dumps(task.learned)))
    assert again.reply(model, ["a", "p", "nothing"]).startswith("class no, P(no) 0.")
    answers = again.predict(model, path)
    assert answers.columns == ["sequence", "class", "P(no)", "P(yes)"]
    assert len(answers.lines) == 60
    (tmp_path / "empty.csv").write_text('sequence\n""\nq new\n')
    lines = again.predict(model, tmp_path / "empty.csv").lines
    assert len(lines) == 2
    assert lines[1][1] == "yes"
    with pytest.raises(SubquadError, match="no symbol in the sequence"):
        again.reply(model, [])


def test_made_up_sequences_have_a_known_best(tmp_path: Path) -> None:
    task = Tokens(sequences=40, mean_length=40).prepare()
    best = np.concatenate(task.options.simulator.best_nats(task.source.raw))
    assert 0.5 < best.mean() < 2.0
    classes = Tokens(sequences=40, mean_length=40, goal="label").prepare()
    assert isinstance(classes, LabelTokens)
    assert classes.target.names == CLASSES  # type: ignore[attr-defined]
    assert classes.options.simulator.best_accuracy(classes.source.raw) > 0.9
    (predicted,) = classes.baselines().values()
    assert predicted.shape == (8, 1)


def test_what_does_not_fit_is_refused(tmp_path: Path, clicks: Path) -> None:
    path = labelled(tmp_path / "a.csv")
    with pytest.raises(SubquadError, match="linformer"):
        following(clicks).build(Linformer(), SMALL)
    with pytest.raises(SubquadError, match=r"too many for linformer.*--latest"):
        Tokens(data=str(path)).prepare().build(Linformer(k=2, max_length=4), SMALL)
    with pytest.raises(SubquadError, match="context must be below --length"):
        Tokens(length=4, context=4)
    with pytest.raises(SubquadError, match="has no labels: name their column by --label-column"):
        Tokens(data=str(clicks), goal="label").prepare()
    with pytest.raises(SubquadError, match="has 4 sequences to learn from: give at least 10"):
        _ = Tokens(data=str(labelled(tmp_path / "b.csv", 4))).prepare().data_size
    task = following(clicks)
    kept = {**task.learned, "tokens": 3}
    with pytest.raises(SubquadError, match="are not those that the run was made with: it had 41 with 3 tokens"):
        _ = Tokens(data=str(clicks), length=8).prepare(kept).source.raw
    damaged = {**task.learned, "vocabulary": {"symbols": ["a", "a"], "form": {}}}
    with pytest.raises(SubquadError, match="one of them twice: the file is damaged"):
        Tokens(data=str(clicks), length=8).prepare(damaged).build(Linear(), SMALL)
