"""Speech: batches, the encoder, error rates, files of a user, and what is left out or refused."""

import json
import struct
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import scipy
import torch
import torch.nn.functional as F

from subquad import Favor, Linear, Linformer, Lsh, ModelOptions, Softmax, SubquadError
from subquad.checking import read
from subquad.tasks import TASKS, Speech
from subquad.tasks.speech import SpeechTask
from subquad.tasks.speech.augmenting import masked, stretched
from subquad.tasks.speech.loading import Utterance
from subquad.tasks.speech.model import EncoderKind, SpeechModel
from subquad.tasks.speech.task import error_rate
from subquad.tasks.speech.tones import sound_of
from subquad.types import AttentionOptions

SMALL = ModelOptions(layers=1, heads=2, head_dim=16)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def write_wavs(folder: Path, texts: Sequence[str]) -> None:
    """Tones that spell texts, and a table of them."""
    rng = np.random.default_rng(0)
    lines = ["file,text"]
    for number, text in enumerate(texts):
        samples = (32767 * np.clip(sound_of(text, rng), -1, 1)).astype(np.int16)
        scipy.io.wavfile.write(folder / f"{number}.wav", 16_000, samples)
        lines.append(f"{number}.wav,{text}")
    (folder / "all.csv").write_text("\n".join(lines) + "\n")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("speech")
    write_wavs(place, ["AZ", "ZA", "AZZ", "ZAA", "AZA", "ZAZ"] * 4)
    return place


@pytest.fixture
def options(folder: Path) -> Speech:
    return Speech(data=str(folder), bands=12, halvings=1)


@pytest.fixture
def task(options: Speech) -> SpeechTask:
    return options.prepare()


def test_options_come_back_from_json() -> None:
    some = Speech(data="x", units="phones", encoder="lstm", beam=3)
    kept = json.loads(json.dumps(asdict(some)))
    assert TASKS[kept.pop("kind")](**kept) == some


def test_batches_hold_frames_and_units(task: SpeechTask) -> None:
    assert task.alphabet == ["A", "Z"]
    assert [len(split) for split in task.splits[:3]] == [20, 2, 2]
    batch = task.batch(4, seeded())
    assert batch.frames.shape[::2] == (4, 36)  # 12 bands and their changes
    assert not batch.frames[~batch.keep].any()
    assert set(batch.units.unique().tolist()) <= {0, 1, 2}
    again = task.batch(4, seeded())
    assert all(torch.equal(one, other) for one, other in zip(batch, again, strict=True))
    assert task.count(batch) == int((batch.units > 0).sum())


def test_loss_is_ctcs_of_each_recording_by_itself(task: SpeechTask) -> None:
    model = task.build(Linear(), SMALL, seeded()).eval()
    batch = task.batch(4, seeded())
    alone = []
    for at in range(4):
        length, units = int(batch.keep[at].sum()), batch.units[at][batch.units[at] > 0]
        rows, keep = model(batch.frames[at : at + 1, :length], batch.keep[at : at + 1, :length])
        sizes = torch.tensor([keep.shape[1]]), torch.tensor([len(units)])
        alone.append(F.ctc_loss(rows.transpose(0, 1), units[None], *sizes, reduction="sum"))
    torch.testing.assert_close(task.loss(model, batch).total, torch.stack(alone).sum(), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(
    ("attention", "encoder"),
    [(Softmax(), "attention"), (Linear(), "attention"), (Favor(features=8), "attention"), (Softmax(), "lstm")],
    ids=["softmax", "linear", "favor", "lstm"],
)
def test_padding_changes_nothing(attention: AttentionOptions, encoder: EncoderKind) -> None:
    model = SpeechModel(6, 3, attention, SMALL, halvings=2, convolutions=1, encoder=encoder, generator=seeded()).eval()
    frames = torch.randn(1, 21, 6, generator=seeded())
    keep = torch.ones(1, 21, dtype=torch.bool)
    with torch.no_grad():
        plain, positions = model(frames, keep)
        padded, mask = model(F.pad(frames, (0, 0, 0, 12)), F.pad(keep, (0, 12)))
    assert positions.shape == (1, 6)  # 21 frames are halved to 11, then to 6
    assert mask.sum() == 6
    torch.testing.assert_close(padded[:, :6], plain, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(plain.exp().sum(-1), torch.ones(1, 6))


@pytest.mark.parametrize("encoder", ["attention", "lstm"])
@pytest.mark.parametrize(("halvings", "convolutions"), [(1, 0), (2, 0), (2, 3)])
def test_a_model_has_the_size_that_is_told(encoder: EncoderKind, halvings: int, convolutions: int) -> None:
    options = Speech(encoder=encoder, halvings=halvings, convolutions=convolutions)
    model = SpeechModel(120, 5, Softmax(), SMALL, halvings=halvings, convolutions=convolutions, encoder=encoder)
    size = options.size_for(120, 5, Softmax(), SMALL)
    assert sum(weights.numel() for weights in model.parameters()) == size.numbers == size.trained


def test_initial_weights_follow_the_seed() -> None:
    for encoder in ("attention", "lstm"):
        built = [
            SpeechModel(
                6, 3, Softmax(), SMALL, halvings=1, convolutions=1, encoder=encoder, generator=seeded(5)
            ).state_dict()
            for _ in "ab"
        ]
        assert all(torch.equal(built[0][name], built[1][name]) for name in built[0])


def test_runs_of_earlier_versions_have_no_convolutions_over_neighbours() -> None:
    assert read(Speech, {"halvings": 1}, "run.json") == Speech(halvings=1, convolutions=0)


def test_it_can_be_learned_and_used(options: Speech, folder: Path, tmp_path: Path) -> None:
    task = replace(options, hide=False).prepare()
    model = task.build(Softmax(), ModelOptions(layers=1, heads=2, head_dim=16, positions="rotary"), seeded())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    before = task.evaluate(model, seeded())["error_rate"]
    for step in range(60):
        losses = task.loss(model, task.batch(8, seeded(step)))
        optimizer.zero_grad()
        (losses.total / losses.number).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    rows = {row["metric"]: row for row in task.final(model)}
    assert rows["error_rate"]["value"] < 0.3 < before
    assert rows["error_rate"]["low"] <= rows["error_rate"]["value"] <= rows["error_rate"]["high"]
    rates = {"error_rate", "beam_error_rate", "word_error_rate"}
    assert rows.keys() == rates | {"evaluated_recordings", "recording_edits"}
    kept = json.loads(json.dumps(task.learned))
    again = options.prepare(kept)  # without its recordings
    heard = again.reply(model, [str(folder / "0.wav"), str(folder / "2.wav")])
    assert len(heard.splitlines()) == 2
    table = again.predict(model, folder)
    assert table.columns == ["file", "text"]
    assert table.lines[0] == [str(folder / "0.wav"), heard.splitlines()[0]]
    assert len(table.lines) == 24
    sample = task.samples(model, seeded(), 2)[0]
    assert sample["right"] in ("AZ", "ZA", "AZZ", "ZAA", "AZA", "ZAZ")
    scipy.io.wavfile.write(tmp_path / "silent.wav", 16_000, np.zeros(9000, np.int16))
    with pytest.raises(SubquadError, match=r"silent.wav is silent"):
        again.reply(model, [str(tmp_path / "silent.wav")])
    with pytest.raises(SubquadError, match=r"silent.wav is silent"):
        again.predict(model, tmp_path)


def test_error_rates_are_edits_by_units() -> None:
    said = [Utterance("", np.zeros((1, 1)), tuple(text)) for text in ("GO ON", "NO")]
    heard = [tuple("GO IN"), tuple("NO NO")]
    assert error_rate(said, heard).value == pytest.approx((1 + 3) / 7)
    assert error_rate(said, heard, words=True).value == pytest.approx((1 + 1) / 3)
    assert error_rate(said, [(), ()]).value == 1


def test_tempo_and_hiding_change_recordings() -> None:
    frames = np.arange(40, dtype=np.float32)[:, None] * np.ones((1, 12), np.float32)
    slow = stretched(frames, 2.0)
    assert len(slow) == 80
    assert slow[[0, -1], 0].tolist() == [0, 39]
    assert np.all(np.diff(slow[:, 0]) == pytest.approx(39 / 79, abs=1e-4))
    rng = np.random.default_rng(0)
    hidden = masked(1 + frames, rng)
    assert 0 < (hidden == 0).mean() < 0.6
    assert np.array_equal(hidden[hidden != 0], (1 + frames)[hidden != 0])


def write_an4(folder: Path) -> Path:
    """Nine recordings of cepstra with a dictionary; one of them is damaged, and one is too short for its text."""
    rng = np.random.default_rng(0)
    (folder / "etc").mkdir(parents=True)
    (folder / "feat").mkdir()
    texts = {f"u{number}": "GO ON" for number in range(7)} | {"short": "GO ON GO ON", "odd": "GO WHERE", "cut": "ON"}
    for name in texts:
        frames = 4 if name == "short" else 60
        values = rng.normal(size=(frames, 13)).astype(">f4")
        content = struct.pack(">i", values.size) + values.tobytes()
        (folder / "feat" / f"{name}.mfc").write_bytes(content[:-5] if name == "cut" else content)
    (folder / "etc" / "x_train.fileids").write_text("\n".join(texts))
    (folder / "etc" / "x_train.transcription").write_text("\n".join(f"{text} ({name})" for name, text in texts.items()))
    (folder / "etc" / "x.dic").write_text("GO G OW\nON AA N\n")
    return folder


def test_phones_come_from_the_dictionary(tmp_path: Path) -> None:
    task = Speech(data=str(write_an4(tmp_path / "an4")), units="phones").prepare()
    assert task.alphabet == ["AA", "G", "N", "OW"]
    assert task.splits.features == "cepstra"
    assert task.width == 13
    assert task.splits.train[0].units == ("G", "OW", "AA", "N")
    assert task.join(("G", "OW")) == "G OW"
    assert list(task.complaints) == [
        "an4: 1 recording is left out, as it is too short for its text: short.mfc",
        "an4: 1 recording is left out, as a word of its text is not in the dictionary: odd.mfc",
        "an4: 1 recording is left out, as it is no whole .mfc file: cut.mfc",
    ]
    model = task.build(Linear(), SMALL, seeded())
    scipy.io.wavfile.write(tmp_path / "a.wav", 8000, (9000 * np.random.default_rng(0).normal(size=8000)).astype(np.int16))
    assert isinstance(task.reply(model, [str(tmp_path / "a.wav")]), str)  # cepstra are computed from a sound


def test_what_does_not_fit_is_refused(options: Speech, folder: Path, tmp_path: Path) -> None:
    with pytest.raises(SubquadError, match="has no dictionary of phones"):
        _ = replace(options, units="phones").prepare().splits
    with pytest.raises(SubquadError, match="halvings must be at most 4"):
        Speech(halvings=5)
    with pytest.raises(SubquadError, match="positions, too many for linformer"):
        options.prepare().build(Linformer(k=4, max_length=8), SMALL)
    with pytest.raises(SubquadError, match="but --longest is 8"):
        options.prepare().build(Linear(), replace(SMALL, positions="learned", longest=8))
    with pytest.raises(SubquadError, match="must be even"):
        replace(options, encoder="lstm").prepare().build(Lsh(), ModelOptions(layers=1, heads=1, head_dim=5))
    with pytest.raises(SubquadError, match="are not those that the run was made with, 3 to learn from"):
        _ = options.prepare({"units": ["A"], "features": "filterbanks", "width": 12, "recordings": 3}).splits
    task = options.prepare()
    model = task.build(Linear(), SMALL)
    values = np.zeros(13, "<f4")
    (tmp_path / "a.mfc").write_bytes(struct.pack("<i", 13) + values.tobytes())
    with pytest.raises(SubquadError, match="holds cepstra, but the model reads filterbanks of sounds"):
        task.reply(model, [str(tmp_path / "a.mfc")])
    (tmp_path / "two.csv").write_text(f"file,text\n{folder / '0.wav'},AB\n{folder / '1.wav'},BA\n")
    with pytest.raises(SubquadError, match="has 2 recordings, too few to learn from"):
        _ = Speech(data=str(tmp_path / "two.csv")).prepare().splits


def test_tones_spell_words_where_no_data_are_given() -> None:
    task = Speech(bands=8).prepare()
    assert [len(split) for split in task.splits[:3]] == [270, 30, 60]
    assert {" ", "A", "E", "Z"} <= set(task.alphabet)
    assert task.splits.complaints == ()
