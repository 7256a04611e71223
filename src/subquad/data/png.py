"""PNG files: a writer, and a reader of those that are not interlaced, without any package for pictures."""

import base64
import struct
import zlib

import numpy as np
from jaxtyping import UInt8
from numpy import ndarray

from subquad.errors import SubquadError

SIGNATURE = b"\x89PNG\r\n\x1a\n"
CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
"""Number of values of a pixel by colour type: grey, RGB, palette, grey with alpha, RGB with alpha."""
LARGEST_PIXELS = 2**26
"""Largest number of pixels of a picture that is read."""
Picture = UInt8[ndarray, "rows columns channels"]


def encode_png(picture: Picture, *, magnified: int = 1) -> bytes:
    """Returns a grey or RGB picture as the content of a PNG file, each pixel repeated `magnified` times both ways."""
    large = picture.repeat(magnified, axis=0).repeat(magnified, axis=1)
    rows, columns, channels = large.shape
    assert channels in (1, 3), f"a picture has 1 or 3 channels, but this one has {channels}"
    header = struct.pack(">IIBBBBB", columns, rows, 8, 0 if channels == 1 else 2, 0, 0, 0)
    lines = np.concatenate([np.zeros((rows, 1), np.uint8), large.reshape(rows, -1)], axis=1)  # 0: rows are not filtered
    parts = [(b"IHDR", header), (b"IDAT", zlib.compress(lines.tobytes(), 9)), (b"IEND", b"")]
    return SIGNATURE + b"".join(_chunk(name, content) for name, content in parts)


def png_address(picture: Picture, *, magnified: int = 1) -> str:
    """Returns a picture as a data URI, which a page can show without another file."""
    return "data:image/png;base64," + base64.b64encode(encode_png(picture, magnified=magnified)).decode()


def _chunk(name: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))


def decode_png(content: bytes, name: str) -> Picture:
    """Returns the grey or RGB picture in a PNG file; alpha is dropped. `name` is that of the file, for error messages."""
    chunks = read_chunks(content, name)
    header = next((part for kind, part in chunks if kind == b"IHDR"), b"")
    if len(header) != 13:
        raise SubquadError(f"{name} is a damaged PNG file, without a header: save the picture again")
    columns, rows, depth, colour, _, _, interlaced = struct.unpack(">IIBBBBB", header)
    if depth not in (1, 2, 4, 8, 16) or colour not in CHANNELS or interlaced:
        raise SubquadError(f"{name} is an interlaced or unusual PNG file: save it as a plain one, or pip install pillow")
    if not 0 < columns * rows <= LARGEST_PIXELS:
        raise SubquadError(f"{name} says that it has {columns} x {rows} pixels: give a picture of at most {LARGEST_PIXELS}")
    channels = CHANNELS[colour]
    width = -(-columns * channels * depth // 8)
    packed = b"".join(part for kind, part in chunks if kind == b"IDAT")
    try:
        data = zlib.decompressobj().decompress(packed, rows * (width + 1))
    except zlib.error:
        data = b""
    if len(data) < rows * (width + 1):
        raise SubquadError(f"{name} is a damaged PNG file, whose pixels end early: save the picture again")
    lines = _unfiltered(np.frombuffer(data, np.uint8).reshape(rows, width + 1), max(1, channels * depth // 8), name)
    values = _values(lines, depth, columns * channels, scaled=colour != 3).reshape(rows, columns, channels)
    if colour == 3:
        return _from_palette(values, next((part for kind, part in chunks if kind == b"PLTE"), b""), name)
    return values[..., : 3 if channels > 2 else 1]


def read_chunks(content: bytes, name: str) -> list[tuple[bytes, bytes]]:
    """The parts of a PNG file with their names, each checked against its sum. Raises `SubquadError` for a damaged file."""
    chunks, at = [], len(SIGNATURE)
    if not content.startswith(SIGNATURE):
        raise SubquadError(f"{name} is no PNG file, whatever its name says: save the picture again")
    while at + 12 <= len(content):
        (size,) = struct.unpack(">I", content[at : at + 4])
        kind, part = content[at + 4 : at + 8], content[at + 8 : at + 8 + size]
        if len(part) < size or content[at + 8 + size : at + 12 + size] != struct.pack(">I", zlib.crc32(kind + part)):
            raise SubquadError(f"{name} is a damaged PNG file: save the picture again")
        chunks.append((kind, part))
        at += 12 + size
        if kind == b"IEND":
            return chunks
    raise SubquadError(f"{name} is a damaged PNG file, which ends early: save the picture again")


def _unfiltered(lines: UInt8[ndarray, "rows width1"], back: int, name: str) -> UInt8[ndarray, "rows width"]:
    """Undoes the prediction of each byte from those to the left, `back` bytes away, and above (PNG, section 9)."""
    before = np.zeros(lines.shape[1] - 1, np.int64)
    plain = np.empty((len(lines), lines.shape[1] - 1), np.uint8)
    for at, (kind, *_) in enumerate(lines):
        line = lines[at, 1:].astype(np.int64)
        if kind == 1:
            for first in range(back):
                line[first::back] = np.cumsum(line[first::back])
        elif kind == 2:
            line += before
        elif kind in (3, 4):
            for place in range(len(line)):
                left, corner = (line[place - back], before[place - back]) if place >= back else (0, 0)
                up = before[place]
                line[place] = (line[place] + ((left + up) // 2 if kind == 3 else _paeth(left, up, corner))) % 256
        elif kind != 0:
            raise SubquadError(f"{name} is a damaged PNG file, with the unknown filter {kind}: save the picture again")
        before = line % 256
        plain[at] = before
    return plain


def _paeth(left: int, up: int, corner: int) -> int:
    """Whichever of three neighbours is nearest to left + up - corner."""
    guess = left + up - corner
    return min((left, up, corner), key=lambda neighbour: abs(guess - neighbour))


def _values(lines: UInt8[ndarray, "rows width"], depth: int, count: int, *, scaled: bool) -> UInt8[ndarray, "rows values"]:
    """Values of 8 bits: the upper half of 16 bits, or fewer bits, scaled to 255 unless they are indices."""
    if depth == 16:
        return lines[:, ::2]
    if depth == 8:
        return lines
    bits = np.unpackbits(lines, axis=1).reshape(len(lines), -1, depth)
    values = (bits * (1 << np.arange(depth)[::-1])).sum(2)[:, :count]
    return (values * (255 // (2**depth - 1)) if scaled else values).astype(np.uint8)


def _from_palette(indices: UInt8[ndarray, "rows columns 1"], palette: bytes, name: str) -> UInt8[ndarray, "rows columns 3"]:
    colours = np.frombuffer(palette[: len(palette) // 3 * 3], np.uint8).reshape(-1, 3)
    if not len(colours) or int(indices.max()) >= len(colours):
        raise SubquadError(f"{name} is a damaged PNG file, with colours outside its palette: save the picture again")
    return colours[indices[..., 0]]
