"""Causal language models of texts."""

import json
import math
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from subquad import Favor, Hybrid, Infinity, Linear, Linformer, ModelOptions, Softmax, SubquadError
from subquad.models.sizes import decoder_size
from subquad.tasks import TASKS, Lm
from subquad.tasks.base import Completion
from subquad.tasks.lm import LmTask, NextBatch
from subquad.tasks.lm.reading import read_through
from subquad.tasks.lm.vocabulary import BEGIN, SingleBytes
from subquad.types import AttentionOptions

SMALL = ModelOptions(layers=2, heads=2, head_dim=8, positions="rotary")
CAUSAL: list[AttentionOptions] = [Softmax(), Linear(), Favor(features=8), Hybrid(block=4), Infinity(segment=4, basis=4)]


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.fixture
def options(tmp_path: Path) -> Lm:
    rng = np.random.default_rng(0)
    for split, number in (("train", 400), ("valid", 40), ("test", 40)):
        text = " ".join(rng.choice(["the cat sat.", "a dog ran!", "so it was,"], size=number))
        (tmp_path / f"{split}.txt").write_text(text)
    return Lm(text=str(tmp_path), vocabulary="bytes", length=16)


@pytest.fixture
def task(options: Lm) -> LmTask:
    return options.prepare()


def test_options_come_back_from_json() -> None:
    some = Lm(text="x", context=3, vocabulary="bytes")
    kept = json.loads(json.dumps(asdict(some)))
    assert TASKS[kept.pop("kind")](**kept) == some


def test_a_batch_holds_each_token_and_the_next(task: LmTask) -> None:
    batch = task.batch(5, seeded())
    assert batch.tokens.shape == batch.right.shape == (5, 16)
    assert torch.equal(batch.tokens[:, 1:], batch.right[:, :-1])
    beginning = NextBatch(torch.tensor([[BEGIN, 5, BEGIN]]), torch.tensor([[5, BEGIN, 6]]))
    assert task.count(beginning) == 2  # where another text begins nothing is to be predicted
    model = task.build(Linear(), SMALL, seeded())
    logits = model(beginning.tokens)[0]
    expected = F.cross_entropy(logits[[0, 2]], torch.tensor([5, 6]), reduction="sum")
    torch.testing.assert_close(task.loss(model, beginning).total, expected)


@pytest.mark.parametrize("attention", CAUSAL, ids=lambda options: options.kind)
@pytest.mark.parametrize("context", [pytest.param(0, marks=pytest.mark.slow), 3, pytest.param(15, marks=pytest.mark.slow)])
def test_reading_through_predicts_each_token_once(attention: AttentionOptions, context: int, task: LmTask) -> None:
    """Beside one window for each token, read by itself."""
    model = task.build(attention, SMALL, seeded()).eval()
    tokens = task.development.tokens[:60]
    found = read_through(model, tokens, length=16, context=context, tokens_at_a_time=64)
    begins = [0 if place <= 16 else None for place in range(1, 60)]
    stride, last_begin = 16 - context, 60 - 1 - 16
    for place in range(17, 60):
        begins[place - 1] = min(last_begin, stride * math.ceil((place - 16) / stride))
    with torch.no_grad():
        expected = [
            -model(torch.from_numpy(tokens[begin:place].astype(np.int64))[None])[0, -1].log_softmax(-1)[tokens[place]].item()
            for place, begin in enumerate(begins, start=1)
        ]
    assert found.tokens.tolist() == tokens[1:].tolist()
    assert found.nats == pytest.approx(np.array(expected), rel=1e-3, abs=1e-4)


def test_bits_per_byte_do_not_depend_on_the_tokens(options: Lm) -> None:
    pytest.importorskip("tokenizers")
    bpe = replace(options, vocabulary="bpe", vocabulary_size=280).prepare()
    answers = bpe.read(bpe.build(Linear(), SMALL, seeded()), "test", 10**6)
    (text,) = bpe.texts.splits.test
    assert answers.text(bpe.vocabulary) == text.encode()
    bits = answers.bits_per_byte(bpe.vocabulary)
    assert bits.value == pytest.approx(answers.nats.sum() / math.log(2) / len(text.encode()))
    assert bits.low < bits.value < bits.high
    assert answers.nats_per_token().value == pytest.approx(answers.nats.mean())


def test_it_can_be_learned_and_says_so(task: LmTask) -> None:
    model = task.build(Linear(), SMALL, seeded())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    before = task.evaluate(model, seeded())
    for step in range(80):
        losses = task.loss(model, task.batch(16, seeded(step)))
        optimizer.zero_grad()
        (losses.total / losses.number).backward()
        optimizer.step()
    after = task.evaluate(model, seeded())
    assert after["bits_per_byte"] < 1 < before["bits_per_byte"]
    rows = {row["metric"]: row for row in task.final(model)}
    assert rows["bits_per_byte"]["value"] < rows["bits_per_byte_of_byte_frequencies"]["value"]
    assert rows["bits_per_byte_of_5_grams"]["value"] < rows["bits_per_byte_of_byte_frequencies"]["value"]
    assert rows["perplexity"]["value"] == pytest.approx(math.exp(rows["nats_per_token"]["value"]))
    assert rows["bits_per_byte"]["value"] == pytest.approx(rows["nats_per_token"]["value"] / math.log(2))  # tokens are bytes
    (text,) = task.texts.splits.test
    assert rows["evaluated_tokens"]["value"] == len(text)
    assert rows["context"]["value"] == 8
    words = rows["nats_per_token"]["value"] * len(text) / len(text.split())
    assert rows["word_perplexity"]["value"] == pytest.approx(math.exp(words))
    assert rows["development_bits_per_byte"]["split"] == "development"
    assert rows["development_bits_per_byte"]["value"] == pytest.approx(after["bits_per_byte"])  # all of it in both
    written = task.complete(model, "the cat s", Completion(tokens=40, temperature=0.0))
    assert written.startswith("at.")
    assert len(written) == 40
    sample = task.samples(model, seeded(), 2)[0]
    assert len(sample["given"]) <= 8
    assert sample["answered"]
    assert sample["right"]


@pytest.mark.parametrize("attention", CAUSAL, ids=lambda options: options.kind)
def test_writing_with_a_state_is_reading_again(attention: AttentionOptions, task: LmTask) -> None:
    """Each token is the likeliest after those before it, as far back as the model reads."""
    model = task.build(attention, SMALL, seeded(3)).eval()
    prompt = SingleBytes().encode(["the cat"])[0].tolist()
    written = SingleBytes().encode([task.complete(model, "the cat", Completion(tokens=5, temperature=0.0))])[0].tolist()
    known = [BEGIN, *prompt]
    for _ in range(5):
        with torch.no_grad():
            known.append(int(model(torch.tensor([known]))[0, -1, 1:].argmax()) + 1)
    if not any(token > 128 for token in known):  # bytes that are no characters cannot be read back
        assert known[1 + len(prompt) :] == written


def test_writing_goes_on_beyond_the_length_and_depends_on_the_seed(task: LmTask) -> None:
    model = task.build(Linear(), replace(SMALL, positions="learned", longest=16), seeded())
    first, same, other = (task.complete(model, "the", Completion(tokens=100, seed=seed)) for seed in (0, 0, 1))
    assert first == same != other
    assert task.complete(model, "", Completion(tokens=1))
    likeliest = task.complete(model, "the", Completion(tokens=20, temperature=0.0))
    assert task.complete(model, "the", Completion(tokens=20, temperature=1e-300)) == likeliest
    assert task.complete(model, "the", Completion(tokens=20, temperature=1e38)) != likeliest
    assert task.complete(model, "long " * 50, Completion(tokens=3))


def test_models_know_their_size(options: Lm, task: LmTask) -> None:
    for attention in (Linear(), Favor(features=8)):
        for tied in (True, False):
            model = replace(SMALL, tied=tied)
            built = task.build(attention, model)
            held = sum(part.numel() for part in (*built.parameters(), *built.buffers()))
            assert options.size(attention, model).numbers == held == decoder_size(257, attention, model, positions=0).numbers


def test_a_run_reads_its_texts_only_when_they_are_needed(options: Lm, task: LmTask) -> None:
    learned = json.loads(json.dumps(task.learned))
    model = task.build(Linear(), SMALL, seeded())
    written = task.complete(model, "the", Completion(tokens=9))
    path = Path(options.text) / "train.txt"
    path.write_text(path.read_text() + " more")
    later = options.prepare(learned)
    assert later.complete(model, "the", Completion(tokens=9)) == written
    with pytest.raises(SubquadError, match="are not those that the run was made with"):
        later.batch(1, seeded())


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"length": 1}, "length must be at least 2"),
        ({"context": 16}, "context must be below --length, which is 16, but is 16"),
        ({"vocabulary": "bpe", "vocabulary_size": 100}, "vocabulary_size must be at least 257"),
        ({"text": "nowhere"}, "there is no file or folder nowhere"),
        ({"text_column": "other", "text": "a.csv"}, "there is no file or folder"),
    ],
)
def test_mistakes(change: dict[str, object], said: str, options: Lm) -> None:
    with pytest.raises(SubquadError, match=said):
        replace(options, **change).prepare().batch(1, seeded())  # type: ignore[arg-type]


def test_an_attention_without_a_causal_form_is_refused(options: Lm) -> None:
    with pytest.raises(SubquadError, match="linformer has no causal form"):
        options.check_model(Linformer(), SMALL)
    with pytest.raises(SubquadError, match="--length is 16, but the model learns 8 positions"):
        options.check_model(Linear(), replace(SMALL, positions="learned", longest=8))


def test_windows_for_looking_at_a_model(task: LmTask) -> None:
    (first, *_) = task.examples(3, seeded(), length=8)
    assert first.tokens.shape == (1, 8)
    assert len(task.examples(3, seeded(), texts=["a text of so many bytes"], length=20)) == 1
    with pytest.raises(SubquadError, match="the text has no stretch of 100 tokens"):
        task.examples(1, seeded(), texts=["short"], length=100)
