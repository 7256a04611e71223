"""The task of masked language modelling."""

import json
import math
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import torch

from subquad import Linear, Linformer, ModelOptions, Softmax, SubquadError
from subquad.attention import MECHANISMS
from subquad.tasks import TASKS, Mlm
from subquad.tasks.mlm import MaskedBatch, MaskedModel, MlmTask
from subquad.tasks.mlm.finding import find
from subquad.tasks.mlm.vocabulary import FIRST, MASK, UNKNOWN

SMALL = ModelOptions(layers=1, heads=2, head_dim=8)


def write(folder: Path, documents: int = 30) -> Path:
    """Sentences of three letters, each of which tells the other two."""
    rng = np.random.default_rng(0)
    for number in range(documents):
        text = ". ".join(f"{'abcd'[one]} {'klmn'[one]} {'wxyz'[one]}" for one in rng.integers(0, 4, size=60))
        (folder / f"{number:02d}.txt").write_text(text)
    return folder


@pytest.fixture
def options(tmp_path: Path) -> Mlm:
    return Mlm(text=str(write(tmp_path)), vocabulary="characters", length=32, held_out=20, tested=20)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_options_come_back_from_json() -> None:
    some = Mlm(vocabulary="bytes", whole_words=True)
    kept = json.loads(json.dumps(asdict(some)))
    assert TASKS[kept.pop("kind")](**kept) == some


def test_the_default_corpus_needs_nothing() -> None:
    task = Mlm(vocabulary="bytes", length=64).prepare()
    batch = task.batch(4, seeded())
    assert batch.tokens.shape == (4, 64)
    assert task.complaints == ()


def test_the_loss_is_that_of_what_was_taken_out(options: Mlm) -> None:
    """A model that knows nothing pays ln(vocabulary) for each; parts of a batch add up to the whole."""
    task = options.prepare()
    model = task.build(Linear(), SMALL)
    batch = task.batch(8, seeded())
    with torch.no_grad():
        whole = task.loss(model, batch)
        halves = [task.loss(model, MaskedBatch(*(part[at::2] for part in batch))) for at in (0, 1)]
        for parameter in model.parameters():
            parameter.zero_()
        nothing = task.loss(model, batch)
    assert float(nothing.total) / nothing.number == pytest.approx(math.log(task.vocabulary.size), rel=1e-5)
    assert sum(half.number for half in halves) == whole.number == task.count(batch) == int(batch.chosen.sum())
    assert sum(float(half.total) for half in halves) == pytest.approx(float(whole.total), rel=1e-4)


def test_the_vocabulary_is_that_of_training_texts(tmp_path: Path) -> None:
    write(tmp_path, 20)
    task = Mlm(text=str(tmp_path), vocabulary="characters").prepare()
    name = next(
        name for name, text in zip(task.documents.names, task.documents.texts, strict=True) if text in task.splits.test
    )
    (tmp_path / name).write_text((tmp_path / name).read_text() + " Q")
    again = Mlm(text=str(tmp_path), vocabulary="characters").prepare()
    assert any("Q" in text for text in again.splits.test)
    assert again.vocabulary.encode(["Q"])[0].tolist() == [UNKNOWN]


def test_held_out_questions_are_the_same_for_every_model_and_share_no_text(options: Mlm) -> None:
    one, other = options.prepare(), replace(options, evaluation_tokens=64).prepare()
    assert all(torch.equal(a, b) for a, b in zip(one.test.batch, other.test.batch, strict=True))
    model = one.build(Linear(), SMALL, seeded())
    at_once, in_parts = (find(model, task.test.batch, task.options.evaluation_tokens).nats for task in (one, other))
    assert at_once == pytest.approx(in_parts, abs=1e-4)
    assert one.evaluate(model, seeded(0)) == one.evaluate(model, seeded(1))
    texts = [text for part in one.splits for text in part]
    assert len(texts) == len(set(texts)) == 30


class Unigram(torch.nn.Module):
    """Says of every token how frequent it is."""

    def __init__(self, task: MlmTask) -> None:
        super().__init__()
        nats = task.unigram(np.arange(FIRST - 1, task.vocabulary.size))
        self.logits = torch.nn.Parameter(torch.cat([torch.full((FIRST - 1,), -torch.inf), -torch.from_numpy(nats)]))

    def forward(self, tokens: torch.Tensor, *, keep: torch.Tensor | None, chosen: torch.Tensor) -> torch.Tensor:
        assert (tokens[chosen] == MASK).float().mean() > 0.5
        return self.logits.expand(int(chosen.sum()), -1)


def test_the_row_of_the_unigram_is_what_such_a_model_would_have(options: Mlm) -> None:
    task = options.prepare()
    rows = {row["metric"]: row for row in task.final(Unigram(task))}
    for end in ("value", "low", "high"):
        assert rows["perplexity"][end] == pytest.approx(rows["perplexity_of_unigram"][end], rel=1e-5)
    assert rows["perplexity"]["low"] < rows["perplexity"]["value"] < rows["perplexity"]["high"]
    counts = np.bincount(task.train.all, minlength=task.vocabulary.size)
    right = task.test.batch.right[task.test.batch.chosen].numpy()
    assert rows["accuracy"]["value"] == pytest.approx(float((right == counts.argmax()).mean()))
    assert rows["masked_tokens"]["value"] == len(right)
    assert all(row["split"] == "test" for row in rows.values())


def test_it_can_be_learned(options: Mlm) -> None:
    """Letters that follow from their neighbours, by a small model, in few steps."""
    task = replace(options, blank_share=1.0, random_share=0.0).prepare()
    model = task.build(Softmax(), ModelOptions(layers=2, heads=2, head_dim=16, positions="rotary"), seeded())
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for step in range(80):
        losses = task.loss(model, task.batch(32, seeded(step)))
        optimizer.zero_grad()
        (losses.total / losses.number).backward()
        optimizer.step()
    rows = {row["metric"]: row["value"] for row in task.final(model)}
    assert rows["perplexity"] < 0.4 * rows["perplexity_of_unigram"]
    said = task.reply(model, ["a[MASK]k", "w. b [MASK] x. d"])
    assert said.startswith("a k w. b l x. d  (␣ ")
    assert said.count("%") == 6


@pytest.mark.parametrize("name", MECHANISMS)
def test_every_mechanism_takes_it(name: str, options: Mlm) -> None:
    task = options.prepare()
    batch = task.batch(3, seeded())
    model = task.build(MECHANISMS[name](), ModelOptions(layers=1, heads=1, head_dim=4, tied=False), seeded())
    assert math.isfinite(float(task.loss(model, batch).total.detach()))


def test_tied_embeddings_are_the_last_layer() -> None:
    def count(tied: bool) -> int:
        return sum(p.numel() for p in MaskedModel(50, Linear(), replace(SMALL, tied=tied)).parameters())

    assert count(False) - count(True) == 50 * 16


def test_what_was_learned_works_without_the_texts(options: Mlm, tmp_path: Path) -> None:
    task = options.prepare()
    model = task.build(Linear(), SMALL, seeded())
    said = task.reply(model, ["a [MASK] w"])
    learned = json.loads(json.dumps(task.learned))
    (tmp_path / "00.txt").write_text("something else")
    later = options.prepare(learned)
    copy = later.build(Linear(), SMALL)
    copy.load_state_dict(model.state_dict())
    assert later.reply(copy, ["a [MASK] w"]) == said
    with pytest.raises(SubquadError, match=r"it had 30 documents with .* start a new run"):
        later.batch(2, seeded())


def test_samples_show_what_was_taken_out(options: Mlm) -> None:
    task = options.prepare()
    model = task.build(Linear(), SMALL, seeded())
    samples = task.samples(model, seeded(), 5)
    assert len(samples) == 5
    assert any("[MASK]" in sample["given"] for sample in samples)
    for sample in samples:
        assert len(sample["answered"].split()) == len(sample["right"].split()) >= 1


def test_few_documents_are_said_to_be_cut(tmp_path: Path) -> None:
    (tmp_path / "one.txt").write_text("some words and others " * 50)
    task = Mlm(text=str(tmp_path / "one.txt"), vocabulary="bytes", length=16).prepare()
    assert task.complaints == (
        "there is 1 document, which is cut: 80% to learn from, then 10% for development and 10% for the test",
    )
    rows = task.final(task.build(Linear(), SMALL))
    assert rows[0]["low"] < rows[0]["high"]  # stretches are drawn again, where there is one document


def test_whole_stretches_of_new_texts(options: Mlm) -> None:
    task = options.prepare()
    found = task.stretches(["abcd" * 10, "wx"], 5, 16, seeded())
    assert found.shape == (2, 16)
    assert task.stretches(["ab"], 5, 16, seeded()).shape[0] == 0


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"length": 1}, "length must be at least 2, but is 1"),
        ({"held_out": 0}, "held_out must be positive, but is 0"),
        ({"mask_share": 1.5}, "mask_share must be below 1, but is 1.5"),
        ({"text": "nowhere"}, "there is no file or folder nowhere"),
    ],
)
def test_mistakes(change: dict[str, object], said: str) -> None:
    with pytest.raises(SubquadError, match=said):
        replace(Mlm(vocabulary="bytes"), **change).prepare().batch(1, seeded())  # type: ignore[arg-type]


def test_lengths_that_cannot_be_taken_are_refused_before_training(options: Mlm) -> None:
    task = options.prepare()
    said = "--length is 32, which linformer does not take: k has 32 positions, but linformer was built for max_length=16"
    with pytest.raises(SubquadError, match=said):
        task.build(Linformer(k=4, max_length=16), SMALL)
    assert task.build(Linformer(k=4, max_length=16, method="mean"), SMALL) is not None
    with pytest.raises(SubquadError, match="--length is 32, but the model learns 16 positions"):
        task.build(Linear(), replace(SMALL, positions="learned", longest=16))


def test_texts_that_cannot_be_answered(options: Mlm) -> None:
    task = options.prepare()
    model = task.build(Linear(), SMALL)
    with pytest.raises(SubquadError, match=r"write \[MASK\] where the model is to find a word"):
        task.reply(model, ["a", "k"])
    with pytest.raises(SubquadError, match="the text has 41 tokens, but the model was trained on 32"):
        task.reply(model, ["a" * 40 + "[MASK]"])
