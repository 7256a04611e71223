"""Sounds: WAV, NIST SPHERE and raw files, Sphinx's files of cepstra, and what a recogniser reads of them.

Sounds are mono and float32, from -1 to 1. Features have a row for each hundredth of a second.
"""

import io
import re
import struct
import warnings
from pathlib import Path

import numpy as np
import scipy
from jaxtyping import Float
from numpy import ndarray

from subquad.errors import SubquadError
from subquad.files import read_bytes

RATE = 16_000
"""Samples a second that sounds are brought to."""
FRAME_SECONDS = 0.01
"""Time from one row of features to the next."""
WINDOW = 410
"""Samples that a row of features is computed from: 25.6 ms, as Sphinx has it."""
SPECTRUM = 512
"""Number of samples of a Fourier transform."""
EMPHASIS = 0.97
"""Share of the sample before that is subtracted from each sample, which raises high frequencies."""
LOWEST, HIGHEST = 133.33334, 6855.4976
"""Frequencies between which the bands lie, in Hz, as Sphinx has them."""
BANDS = 40
"""Number of bands of a filterbank."""
CEPSTRA = 13
"""Number of cepstral coefficients in a row of Sphinx's files."""
FLOOR = 1e-10
"""Smallest energy of a band, since silence has no logarithm."""
LONGEST_SECONDS = 3600
"""Longest sound that is read."""
SUFFIXES = (".wav", ".sph", ".raw", ".flac", ".mfc")
"""Endings of the names of files of sounds, or of their features."""

Samples = Float[ndarray, "samples"]
Frames = Float[ndarray, "frames features"]


def read_sound(path: Path, rate: int = RATE) -> Samples:
    """The sound of a file, several channels averaged, at `rate` samples a second.

    Raises `SubquadError` for a file that is no sound, or that is silent, too short or too long.
    """
    suffix, content = path.suffix.lower(), read_bytes(path)
    if content[:4] == b"fLaC" or suffix == ".flac":
        own_rate, samples = _read_flac(path)
    elif content[:7] == b"NIST_1A":
        own_rate, samples = _read_sphere(path, content)
    elif suffix == ".raw":  # AN4's have no header: 16 bits, the high byte first
        own_rate, samples = RATE, np.frombuffer(content[: len(content) // 2 * 2], ">i2") / 2**15
    else:
        own_rate, samples = _read_wav(path, content)
    mono = (samples.mean(1) if samples.ndim > 1 else samples).astype(np.float32)
    return _resampled(_checked(path, mono, own_rate), own_rate, rate)


def _read_wav(path: Path, content: bytes) -> tuple[int, ndarray]:
    """Rate and samples of a WAV file of 8, 16, 24 or 32 bits, or of floats; zero is silence."""
    if content[:4] not in (b"RIFF", b"RIFX", b"RF64"):
        raise SubquadError(f"{path} is no WAV file: convert the sound to WAV")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", scipy.io.wavfile.WavFileWarning)  # about parts that are no sound
            rate, samples = scipy.io.wavfile.read(io.BytesIO(content))
    except (ValueError, struct.error, EOFError, UnboundLocalError, ZeroDivisionError, TypeError, MemoryError) as error:
        why = str(error).partition("\n")[0][:80] or type(error).__name__
        raise SubquadError(f"{path} is a damaged or unusual WAV file ({why}): save it as 16-bit PCM") from None
    if samples.dtype.kind == "f":
        return rate, samples
    if samples.dtype == np.uint8:  # only sounds of 8 bits are stored without a sign
        return rate, (samples.astype(np.float32) - 128) / 128
    return rate, samples / float(2 ** (8 * samples.dtype.itemsize - 1))


def _read_sphere(path: Path, content: bytes) -> tuple[int, ndarray]:
    """Rate and samples of a SPHERE file of 16 bits that is not compressed."""
    fields = dict(re.findall(rb"(\w+) -\w+ (\S+)", content[:1024]))
    try:
        start, rate = int(content[8:16]), int(fields[b"sample_rate"])
        order = ">i2" if fields.get(b"sample_byte_format", b"01") == b"10" else "<i2"
        channels = int(fields.get(b"channel_count", b"1"))
    except (ValueError, KeyError):
        raise SubquadError(f"{path} is a damaged SPHERE file, without a rate: convert the sound to WAV") from None
    if fields.get(b"sample_coding", b"pcm") != b"pcm" or fields.get(b"sample_n_bytes", b"2") != b"2" or channels < 1:
        raise SubquadError(f"{path} is a compressed SPHERE file: convert it to WAV, with sph2pipe or sox")
    samples = np.frombuffer(content[start : start + (len(content) - start) // (2 * channels) * 2 * channels], order)
    return rate, samples.reshape(-1, channels) / 2**15


def _read_flac(path: Path) -> tuple[int, ndarray]:
    try:
        import soundfile
    except ImportError:
        raise SubquadError(
            f"{path} is a FLAC file, which needs soundfile: pip install 'subquad[speech]', or convert it to WAV"
        ) from None
    try:
        samples, rate = soundfile.read(str(path), dtype="float32")
    except (RuntimeError, ValueError, OSError) as error:
        raise SubquadError(f"{path} is a damaged FLAC file ({str(error)[:60]}): get it again") from None
    return int(rate), samples


def _checked(path: Path, samples: Samples, rate: int) -> Samples:
    """Raises `SubquadError` for a sound that nothing can be recognised in."""
    if rate < 1000:
        raise SubquadError(f"{path} has {rate} samples a second, too few for speech: save it with 8000 or more")
    seconds = len(samples) / rate
    if seconds > LONGEST_SECONDS:
        raise SubquadError(f"{path} lasts {seconds / 60:.0f} minutes: cut it into pieces of at most an hour")
    if not np.isfinite(samples).all():
        raise SubquadError(f"{path} has samples that are not finite: save the sound again, as 16-bit PCM")
    if seconds < 2 * WINDOW / RATE:
        raise SubquadError(f"{path} lasts {1000 * seconds:.0f} ms, too short for speech: record more")
    if float(np.ptp(samples)) == 0:
        raise SubquadError(f"{path} is silent: all its samples are the same; check the recording")
    return samples


def _resampled(samples: Samples, rate: int, wanted: int) -> Float[ndarray, "resampled"]:
    if rate == wanted:
        return samples
    common = int(np.gcd(rate, wanted))
    changed: ndarray = scipy.signal.resample_poly(samples, wanted // common, rate // common)
    return changed.astype(np.float32)


def filterbanks(samples: Samples, bands: int = BANDS) -> Frames:
    """Logarithms of the energy in bands that are equally wide on the mel scale, every hundredth of a second."""
    emphasised = np.append(samples[:1], samples[1:] - EMPHASIS * samples[:-1])
    step = int(RATE * FRAME_SECONDS)
    windows = np.lib.stride_tricks.sliding_window_view(emphasised, WINDOW)[::step] * np.hamming(WINDOW)
    power = np.abs(scipy.fft.rfft(windows, SPECTRUM, axis=1)) ** 2
    return np.log(np.maximum(power @ _mel_filters(bands).T, FLOOR)).astype(np.float32)


def cepstra(samples: Samples, number: int = CEPSTRA) -> Frames:
    """Mel-frequency cepstral coefficients: the cosine transform of a filterbank of 40 bands."""
    transformed: ndarray = scipy.fft.dct(filterbanks(samples), type=2, norm="ortho", axis=1)[:, :number]
    return transformed.astype(np.float32)


def _mel_filters(bands: int) -> Float[ndarray, "bands frequencies"]:
    """Triangles of area 1 between `bands` + 2 frequencies that are equally far apart on the mel scale."""
    low, high = (2595 * np.log10(1 + hertz / 700) for hertz in (LOWEST, HIGHEST))
    edges = 700 * (10 ** (np.linspace(low, high, bands + 2) / 2595) - 1)
    frequencies = np.arange(SPECTRUM // 2 + 1) * RATE / SPECTRUM
    rising = (frequencies - edges[:-2, None]) / (edges[1:-1] - edges[:-2])[:, None]
    falling = (edges[2:, None] - frequencies) / (edges[2:] - edges[1:-1])[:, None]
    triangles = np.maximum(0, np.minimum(rising, falling))
    return triangles * (2 / (edges[2:] - edges[:-2]))[:, None]


def read_cepstra(path: Path, number: int = CEPSTRA) -> Frames:
    """The rows of one of Sphinx's .mfc files: the count of numbers, then float32, either byte first."""
    content = read_bytes(path)
    count = (len(content) - 4) // 4
    for order in "<>":
        if len(content) >= 8 and len(content) % 4 == 0 and struct.unpack(f"{order}i", content[:4])[0] == count:
            values = np.frombuffer(content, f"{order}f4", offset=4).astype(np.float32)
            if count % number:
                raise SubquadError(f"{path} has {count} numbers, which is no multiple of {number}: it is no such file")
            if not np.isfinite(values).all():
                raise SubquadError(f"{path} has numbers that are not finite: make it again")
            return values.reshape(-1, number)
    raise SubquadError(f"{path} is no whole .mfc file: its first four bytes should count the numbers in it")


def with_deltas(frames: Frames) -> Float[ndarray, "frames thrice"]:
    """Rows with their rate of change and the rate of change of that, which makes three times as many features."""
    change = _change(frames)
    return np.concatenate([frames, 3 * change, 6 * _change(change)], axis=1)  # factors make them about as large


def _change(frames: Frames) -> Frames:
    """The slope of the line through five rows, at each row."""
    padded = np.pad(frames, ((2, 2), (0, 0)), mode="edge")
    return (2 * (padded[4:] - padded[:-4]) + padded[3:-1] - padded[1:-3]) / 10


def normalised(frames: Frames) -> Frames:
    """Rows whose features have mean 0 and deviation 1 over the sound, so that voice and microphone matter less."""
    return ((frames - frames.mean(0)) / (frames.std(0) + 1e-3)).astype(np.float32)
