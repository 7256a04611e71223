"""The class of a text."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import torch

from subquad import Linear, Linformer, ModelOptions, SubquadError
from subquad.tasks import TASKS, Classify, Mlm
from subquad.tasks.classify import TextBatch, TextClassifier
from subquad.tasks.classify.batches import SEPARATOR, join_pair

SMALL = ModelOptions(layers=1, heads=2, head_dim=8)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def write(path: Path, number: int = 200, seed: int = 0) -> Path:
    """Words of one kind or the other, most of them the label's own."""
    rng = np.random.default_rng(seed)
    with path.open("w") as file:
        for _ in range(number):
            label = int(rng.integers(2))
            words = rng.choice(["ok", "so", ("good", "bad")[label]], size=int(rng.integers(5, 30)))
            file.write(json.dumps({"text": " ".join(words), "label": ("pos", "neg")[label]}) + "\n")
    return path


@pytest.fixture
def options(tmp_path: Path) -> Classify:
    return Classify(text=str(write(tmp_path / "a.jsonl")), vocabulary="characters", length=64)


def test_options_come_back_from_json() -> None:
    some = Classify(text="x", frozen=True, start="y")
    kept = json.loads(json.dumps(asdict(some)))
    assert TASKS[kept.pop("kind")](**kept) == some


def test_the_default_texts_need_nothing() -> None:
    task = Classify(vocabulary="bytes", length=32).prepare()
    assert task.batch(4, seeded()).tokens.shape[0] == 4
    assert "asyncio" in task.labels
    assert task.complaints == ()


def test_splits_share_nothing(options: Classify) -> None:
    task = options.prepare()
    parts = [task.train.texts, task.development.texts, task.test.texts]
    number = len(task.labelled.documents.texts)
    assert [len(part) for part in parts] == [number - 2 * (number // 10), number // 10, number // 10]
    assert len({text for part in parts for text in part}) == number
    assert len(replace(options, examples=16).prepare().train.texts) == 16
    assert replace(options, examples=16).prepare().test.texts == task.test.texts


def test_a_test_of_its_own_has_nothing_of_the_others(options: Classify, tmp_path: Path) -> None:
    lines = (tmp_path / "a.jsonl").read_text().splitlines()
    write(tmp_path / "b.jsonl", 50, seed=1)
    with (tmp_path / "b.jsonl").open("a") as file:
        file.write(lines[0] + "\n" + lines[1] + "\n")
    task = replace(options, test_text=str(tmp_path / "b.jsonl")).prepare()
    assert not set(task.test.texts) & set(task.labelled.documents.texts)
    assert len(task.train.texts) > len(options.prepare().train.texts)
    assert "texts for the test are left out, which are in" in task.complaints[-1]
    with pytest.raises(SubquadError, match="give others"):
        _ = replace(options, test_text=options.text).prepare().test


def test_a_text_is_the_same_whatever_stands_beside_it(options: Classify) -> None:
    task = options.prepare()
    model = task.build(Linear(), SMALL, seeded())
    batch = task.batch(8, seeded())
    whole = task.loss(model, batch)
    parts = [task.loss(model, TextBatch(*(part[at : at + 1] for part in batch))) for at in range(8)]
    assert sum(float(part.total.detach()) for part in parts) == pytest.approx(float(whole.total.detach()), rel=1e-4)
    assert whole.number == task.count(batch) == 8
    narrow = replace(options, evaluation_tokens=70).prepare()
    assert narrow.scores(model, task.test) == pytest.approx(task.scores(model, task.test), abs=1e-5)


def test_it_can_be_learned_and_says_so(options: Classify) -> None:
    task = options.prepare()
    model = task.build(Linear(), SMALL, seeded())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for step in range(40):
        losses = task.loss(model, task.batch(32, seeded(step)))
        optimizer.zero_grad()
        (losses.total / losses.number).backward()
        optimizer.step()
    rows = {row["metric"]: row for row in task.final(model)}
    assert rows["accuracy"]["value"] > 0.9 > rows["accuracy_of_most_frequent"]["value"]
    assert rows["accuracy"]["low"] <= rows["accuracy"]["value"]
    assert task.evaluate(model, seeded())["accuracy"] > 0.9
    assert task.reply(model, ["good ok good so", "good"]).startswith("pos  (pos ")
    assert task.reply(model, ["bad bad so bad"]).startswith("neg  (neg ")
    assert {sample["right"] for sample in task.samples(model, seeded(), 8)} == {"pos", "neg"}
    learned = json.loads(json.dumps(task.learned))
    Path(options.text).unlink()
    later = options.prepare(learned)
    assert later.reply(model, ["bad bad so bad"]) == task.reply(model, ["bad bad so bad"])


def test_an_encoder_is_taken_over_and_can_stay_as_it_is(options: Classify) -> None:
    pretrained = Mlm(vocabulary="bytes").prepare().build(Linear(), SMALL, seeded(5))
    task = replace(options, vocabulary="bytes", frozen=True, start="some run").prepare(
        {"vocabulary": {"kind": "bytes"}, "labels": ["neg", "pos"], "texts": 200}
    )
    model = task.build(Linear(), SMALL, seeded())
    task.begin(model, pretrained)
    tokens = torch.randint(3, 250, (1, 12))
    assert torch.equal(model.encoder(tokens), pretrained.encoder(tokens))
    assert {name for name, parameter in model.named_parameters() if parameter.requires_grad} == {"head.weight", "head.bias"}
    assert isinstance(model, TextClassifier)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"frozen": True}, "--frozen is for an encoder that has learned something: give --start RUN too"),
        ({"examples": -1}, "examples must be 0 or more, but is -1"),
        ({"length": 0}, "length must be positive, but is 0"),
        ({"start": "nowhere"}, "nowhere is not a run"),
    ],
)
def test_mistakes(change: dict[str, object], said: str, options: Classify) -> None:
    with pytest.raises(SubquadError, match=said):
        replace(options, **change).prepare().batch(1, seeded())  # type: ignore[arg-type]


def test_texts_that_do_not_do(options: Classify, tmp_path: Path) -> None:
    path = tmp_path / "few.jsonl"
    path.write_text("".join(json.dumps({"text": f"text {at}", "label": 1}) + "\n" for at in range(9)))
    with pytest.raises(SubquadError, match="has 9 labelled texts, too few to be split"):
        replace(options, text=str(path)).prepare().build(Linear(), SMALL)
    path.write_text("".join(json.dumps({"text": f"text {at}", "label": 1}) + "\n" for at in range(20)))
    with pytest.raises(SubquadError, match="have the label '1': there is nothing to learn"):
        replace(options, text=str(path)).prepare().build(Linear(), SMALL)
    with pytest.raises(SubquadError, match="--length is 64, which linformer does not take"):
        options.prepare().build(Linformer(k=4, max_length=32), SMALL)


def write_pairs(path: Path, number: int, seed: int = 0) -> Path:
    """Two words with words between them that mean nothing; the label says whether the words are the same."""
    rng = np.random.default_rng(seed)
    lines = ["question1\tquestion2\tis_duplicate"]
    for _ in range(number):
        same = bool(rng.integers(2))
        word, filler = rng.choice(list("abcdef")), rng.choice(list("uvwxyz"), size=3)
        other = word if same else rng.choice([letter for letter in "abcdef" if letter != word])
        lines.append(f"{word}{filler[0]}\t{filler[1]}{other}{filler[2]}\t{int(same)}")
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture
def paired(tmp_path: Path) -> Classify:
    write_pairs(tmp_path / "train.tsv", 1500)
    write_pairs(tmp_path / "dev.tsv", 100, seed=1)
    (tmp_path / "test.tsv").write_text("id\tquestion1\tquestion2\n0\tau\tva\n0\tau\tva\n1\tau\tvb\n")
    return Classify(text=str(tmp_path), vocabulary="bytes", length=12)


def test_pairs_can_be_learned(paired: Classify, tmp_path: Path) -> None:
    """Whether two letters are the same takes both texts: one alone says nothing."""
    task = paired.prepare()
    model = task.build(Linear(), replace(SMALL, layers=2), seeded())
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for step in range(200):
        losses = task.loss(model, task.batch(64, seeded(step)))
        optimizer.zero_grad()
        (losses.total / losses.number).backward()
        optimizer.step()
    (accuracy, usual) = (row["value"] for row in task.final(model))
    assert usual < 0.65 < 0.85 < accuracy
    assert task.reply(model, task.words("au\tvav")).startswith("1  (1 ")
    assert task.reply(model, ["au", "vbv"]).startswith("0  (0 ")
    with pytest.raises(SubquadError, match="classifies pairs of texts, but there are 3: give two"):
        task.reply(model, ["au", "vbv", "more"])
    columns, lines, _ = task.predict(model, tmp_path / "test.tsv")
    assert columns == ["text", "label", "0", "1"]
    assert [line[:2] for line in lines] == [["test.tsv:2", "1"], ["test.tsv:3", "1"], ["test.tsv:4", "0"]]
    assert all(float(line[2]) + float(line[3]) == pytest.approx(1, abs=1e-3) for line in lines)
    (tmp_path / "single.csv").write_text("text,other\nau,1\n")
    with pytest.raises(SubquadError, match=r"single.csv has single texts, but the model classifies pairs of texts"):
        task.predict(model, tmp_path / "single.csv")


def test_a_test_without_labels_makes_room_for_the_development_texts(paired: Classify) -> None:
    task = paired.prepare()
    assert len(task.test.texts) == 100
    assert len(task.development.texts) + len(task.train.texts) == 1500
    assert len(task.development.texts) == 150
    assert task.complaints[-1].endswith("has no labelled texts for the test: those for development are used for it")
    assert task.learned["pairs"]


def test_splits_of_a_data_set_stay_as_they_are(tmp_path: Path) -> None:
    for split in ("train", "test"):
        for label in ("pos", "neg"):
            (tmp_path / split / label).mkdir(parents=True)
            for number in range(20):
                (tmp_path / split / label / f"{number}.txt").write_text(f"{label} {number}")
    task = Classify(text=str(tmp_path), vocabulary="bytes", length=8).prepare()
    assert task.labels == ["neg", "pos"]
    assert len(task.test.texts) == 40  # with those that are in both, as others measured it
    assert len(task.train.texts) == 36
    assert len(task.development.texts) == 4
    model = task.build(Linear(), SMALL, seeded())
    assert len(task.predict(model, tmp_path / "test").lines) == 40


@pytest.mark.parametrize(
    ("first", "second", "length", "joined"),
    [
        ("aaa", "bb", 6, "aaa|bb"),
        ("aaaaaa", "bb", 6, "aaa|bb"),
        ("aa", "bbbbbb", 6, "aa|bbb"),
        ("aaaa", "bbbb", 6, "aaa|bb"),
        ("", "bb", 6, "|bb"),
        ("aa", "", 6, "aa|"),
        ("aa", "bb", 1, "|"),
        ("aa", "bb", 2, "a|"),
    ],
)
def test_the_longer_text_of_a_pair_is_cut_first(first: str, second: str, length: int, joined: str) -> None:
    tokens = {letter: number for number, letter in enumerate("|ab", start=SEPARATOR)}
    a, b = (np.array([tokens[letter] for letter in text], dtype=np.int64) for text in (first, second))
    assert join_pair(a, b, length).tolist() == [tokens[letter] for letter in joined]


def test_a_label_of_the_test_only_is_refused_before_training(tmp_path: Path) -> None:
    for split, labels in (("train", "ab" * 10), ("dev", "ab"), ("test", "abc")):
        lines = [json.dumps({"text": f"{split} {at}", "label": label}) for at, label in enumerate(labels)]
        (tmp_path / f"{split}.jsonl").write_text("\n".join(lines) + "\n")
    task = Classify(text=str(tmp_path), vocabulary="bytes").prepare()
    with pytest.raises(SubquadError, match="has the label 'c'"):
        task.build(Linear(), SMALL)
