"""Sounds in the formats that they come in, their features, and what is said of files that are none."""

import io
import struct
import sys
from pathlib import Path

import numpy as np
import pytest
import scipy
from numpy import ndarray

from subquad import SubquadError
from subquad.data.sounds import (
    BANDS,
    RATE,
    cepstra,
    filterbanks,
    normalised,
    read_cepstra,
    read_sound,
    with_deltas,
)


def tone(hertz: float = 440.0, seconds: float = 0.5, rate: int = RATE) -> ndarray:
    return 0.5 * np.sin(2 * np.pi * hertz * np.arange(int(seconds * rate)) / rate)


def wav(samples: ndarray, rate: int = RATE) -> bytes:
    file = io.BytesIO()
    scipy.io.wavfile.write(file, rate, samples)
    return file.getvalue()


def wav_of_24_bits(samples: ndarray, rate: int = RATE) -> bytes:
    """As scipy does not write it: three bytes of each sample, the low one first."""
    data = b"".join(struct.pack("<i", int(value * (2**23 - 1)))[:3] for value in samples)
    header = struct.pack("<4sIHHIIHH", b"fmt ", 16, 1, 1, rate, 3 * rate, 3, 24)
    return struct.pack("<4sI4s", b"RIFF", 36 + len(data), b"WAVE") + header + struct.pack("<4sI", b"data", len(data)) + data


@pytest.mark.parametrize(
    ("content", "precision"),
    [
        (wav(np.rint(128 + 128 * tone()).astype(np.uint8)), 0.005),
        (wav((32767 * tone()).astype(np.int16)), 1e-3),
        (wav_of_24_bits(tone()), 1e-3),
        (wav((2147483647 * tone()).astype(np.int32)), 1e-3),
        (wav(tone().astype(np.float32)), 1e-6),
        (wav(tone()), 1e-6),
        (wav(np.stack([32767 * tone(), np.zeros(8000)], axis=1).astype(np.int16)), None),  # stereo
        ((32767 * tone()).astype(">i2").tobytes(), 1e-3),
    ],
    ids=["8", "16", "24", "32", "float32", "float64", "stereo", "raw"],
)
def test_sounds_of_any_width_are_the_same(content: bytes, precision: float | None, tmp_path: Path) -> None:
    path = tmp_path / ("a.wav" if content[:4] == b"RIFF" else "a.raw")
    path.write_bytes(content)
    sound = read_sound(path)
    assert sound.dtype == np.float32
    expected, precision = (tone(), precision) if precision is not None else (tone() / 2, 1e-3)
    assert np.abs(sound - expected).max() < precision


def test_sounds_are_brought_to_one_rate(tmp_path: Path) -> None:
    """A tone keeps its frequency and its length."""
    for rate in (8000, 44_100, 48_000):
        path = tmp_path / f"{rate}.wav"
        path.write_bytes(wav((32767 * tone(1000, 1.0, rate)).astype(np.int16), rate))
        sound = read_sound(path)
        assert len(sound) == pytest.approx(RATE, abs=2)
        assert np.argmax(np.abs(np.fft.rfft(sound))) == pytest.approx(1000, abs=2)


def test_a_sphere_file_is_read(tmp_path: Path) -> None:
    fields = f"NIST_1A\n   1024\nsample_rate -i {RATE}\nsample_n_bytes -i 2\nsample_byte_format -s2 10\nend_head\n"
    data = (32767 * tone()).astype(">i2").tobytes()
    (tmp_path / "a.sph").write_bytes(fields.encode().ljust(1024) + data)
    assert np.abs(read_sound(tmp_path / "a.sph") - tone()).max() < 1e-3
    packed = fields.replace("end_head", "sample_coding -s26 pcm,embedded-shorten-v2.00\nend_head")
    (tmp_path / "b.sph").write_bytes(packed.encode().ljust(1024) + data)
    with pytest.raises(SubquadError, match="is a compressed SPHERE file: convert it to WAV"):
        read_sound(tmp_path / "b.sph")
    (tmp_path / "c.sph").write_bytes(b"NIST_1A\n   1024\n")
    with pytest.raises(SubquadError, match="is a damaged SPHERE file"):
        read_sound(tmp_path / "c.sph")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (wav(np.zeros(8000, np.int16)), "is silent: all its samples are the same; check the recording"),
        (wav(np.full(8000, 128, np.uint8)), "is silent"),
        (wav(np.full(8000, np.nan, np.float32)), "has samples that are not finite"),
        (wav((32767 * tone(seconds=0.02)).astype(np.int16)), "lasts 20 ms, too short for speech"),
        (wav(np.zeros(0, np.int16)), "lasts 0 ms|damaged or unusual"),
        (wav((32767 * tone(rate=500)).astype(np.int16), 500), "has 500 samples a second, too few for speech"),
        (wav((32767 * tone()).astype(np.int16))[:30], "is a damaged or unusual WAV file"),
        (b"ID3\x04 an MP3 file", "is no WAV file: convert the sound to WAV"),
        (b"", "is no WAV file"),
    ],
    ids=["silent", "silent, 8 bits", "NaN", "short", "empty", "slow", "cut", "MP3", "nothing"],
)
def test_what_is_no_speech_is_refused_in_one_sentence(content: bytes, said: str, tmp_path: Path) -> None:
    (tmp_path / "a.wav").write_bytes(content)
    with pytest.raises(SubquadError, match=said) as refusal:
        read_sound(tmp_path / "a.wav")
    assert "\n" not in str(refusal.value)
    assert str(tmp_path / "a.wav") in str(refusal.value)


def test_flac_needs_soundfile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "soundfile", None)
    (tmp_path / "a.flac").write_bytes(b"fLaC")
    with pytest.raises(SubquadError, match="needs soundfile: pip install 'subquad\\[speech\\]', or convert it to WAV"):
        read_sound(tmp_path / "a.flac")


def test_soundfile_reads_flac(tmp_path: Path) -> None:
    soundfile = pytest.importorskip("soundfile")
    soundfile.write(str(tmp_path / "a.flac"), tone(), RATE)
    assert np.abs(read_sound(tmp_path / "a.flac") - tone()).max() < 1e-3
    (tmp_path / "b.flac").write_bytes(b"fLaC nothing more")
    with pytest.raises(SubquadError, match="is a damaged FLAC file"):
        read_sound(tmp_path / "b.flac")


def test_filterbanks_rise_where_the_tone_is() -> None:
    """A hundred frames a second; a higher tone is loudest in a higher band, four times the power in log 4 more."""
    bands = [filterbanks(tone(hertz, 1.0).astype(np.float32)) for hertz in (300, 1000, 3000)]
    assert [len(each) for each in bands] == [98] * 3
    assert bands[0].shape[1] == BANDS
    loudest = [int(each.mean(0).argmax()) for each in bands]
    assert loudest == sorted(set(loudest))
    louder = filterbanks(2 * tone(1000, 1.0).astype(np.float32))
    assert (louder - bands[1])[:, loudest[1]] == pytest.approx(np.log(4), abs=1e-3)


def test_cepstra_are_a_cosine_transform() -> None:
    sound = np.random.default_rng(0).normal(size=8000).astype(np.float32)
    energies = filterbanks(sound)
    by_hand = [np.sqrt(2 / 40) * (energies[3] * np.cos(np.pi * k * (np.arange(40) + 0.5) / 40)).sum() for k in (1, 5, 12)]
    assert cepstra(sound)[3, [1, 5, 12]] == pytest.approx(by_hand, abs=1e-3)


@pytest.mark.parametrize("order", ["<", ">"])
def test_cepstra_of_sphinx_are_read_in_either_order(order: str, tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(size=(7, 13)).astype(f"{order}f4")
    content = struct.pack(f"{order}i", values.size) + values.tobytes()
    (tmp_path / "a.mfc").write_bytes(content)
    assert np.array_equal(read_cepstra(tmp_path / "a.mfc"), values)
    for spoilt, said in (
        (content[:-4], "is no whole .mfc file"),
        (b"", "is no whole .mfc file"),
        (struct.pack(f"{order}i", 14) + values.tobytes()[:56], "which is no multiple of 13"),
        (struct.pack(f"{order}i", 13) + np.full(13, np.inf, f"{order}f4").tobytes(), "not finite"),
    ):
        (tmp_path / "a.mfc").write_bytes(spoilt)
        with pytest.raises(SubquadError, match=said):
            read_cepstra(tmp_path / "a.mfc")


def test_changes_and_scale_of_features() -> None:
    rising = np.arange(20, dtype=np.float32)[:, None] * np.array([1.0, -2.0], np.float32)
    deltas = with_deltas(rising)
    assert deltas.shape == (20, 6)
    assert deltas[5:15, 2:4] == pytest.approx(np.tile([3.0, -6.0], (10, 1)))  # three times the slope
    assert deltas[5:15, 4:] == pytest.approx(0)
    normal = normalised(rising)
    assert normal.mean(0) == pytest.approx(0, abs=1e-6)
    assert normal.std(0) == pytest.approx(1, abs=1e-2)
