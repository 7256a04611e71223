"""Calls of the kernels with all memory that they read and write, so that other builds can be given the same calls.

A call is a structure of 64-bit integers, some of which are addresses. While calls are recorded, the addresses that tensors
are asked for are noted, so that these integers are known from others.
"""

import ctypes
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import torch
from torch import Tensor

from subquad import native


@dataclass(frozen=True)
class Buffer:
    """Memory of a tensor's storage, before and after a call."""

    dtype: torch.dtype
    before: bytes
    after: bytes


@dataclass(frozen=True)
class Call:
    """A call of a kernel."""

    name: str
    """Name of the kernel, such as causal."""
    number: str
    """Its type of number, float or double."""
    arguments: tuple[int, ...]
    """The structure; addresses are replaced by 0."""
    addresses: dict[int, tuple[int, int]]
    """For each argument that is an address: index of the buffer, and bytes from its beginning."""
    buffers: tuple[Buffer, ...]
    """All memory that the call reads and writes."""


@contextmanager
def recorded() -> Iterator[list[Call]]:
    """Notes all calls of kernels inside a `with` block."""
    calls: list[Call] = []
    noted: dict[int, Tensor] = {}  # kept until the end: an address may be asked for once and used in several calls
    address_of, call_kernel = torch.Tensor.data_ptr, native.call

    def data_ptr(tensor: Tensor) -> int:
        address = address_of(tensor)
        noted[address] = tensor
        return address

    def call(name: str, number: str, arguments: tuple[int, ...]) -> int:
        tensors = {index: noted[value] for index, value in enumerate(arguments) if value in noted and value > 1 << 16}
        storages = {storage.data_ptr(): (storage, x.dtype) for x in tensors.values() for storage in [x.untyped_storage()]}
        before = [content(storage) for storage, _ in storages.values()]
        status = call_kernel(name, number, arguments)
        buffers = tuple(
            Buffer(dtype, old, content(storage)) for (storage, dtype), old in zip(storages.values(), before, strict=True)
        )
        starts = list(storages)
        addresses = {
            index: (starts.index(x.untyped_storage().data_ptr()), address_of(x) - x.untyped_storage().data_ptr())
            for index, x in tensors.items()
        }
        plain = tuple(0 if index in addresses else value for index, value in enumerate(arguments))
        assert max(plain) < 1 << 32, f"{name} got an address that no tensor was asked for"
        calls.append(Call(name, number, plain, addresses, buffers))
        return status

    with patch.object(torch.Tensor, "data_ptr", data_ptr), patch.object(native, "call", call):
        yield calls


def content(storage: torch.UntypedStorage) -> bytes:
    """A copy of the memory of a tensor."""
    return ctypes.string_at(storage.data_ptr(), storage.nbytes())


def write_calls(calls: list[Call], path: Path) -> None:
    """Writes calls for `replay.c`, all numbers as 64-bit integers, strings with their length, buffers behind them."""
    with path.open("wb") as file:
        file.write(struct.pack("<q", len(calls)))
        for call in calls:
            for text in (call.name, call.number):
                file.write(struct.pack("<q", len(text)) + text.encode())
            file.write(struct.pack("<qq", len(call.arguments), len(call.buffers)))
            for index, value in enumerate(call.arguments):
                buffer, offset = call.addresses.get(index, (-1, 0))
                file.write(struct.pack("<qqq", value, buffer, offset))
            for part in call.buffers:
                file.write(struct.pack("<q", len(part.before)) + part.before)


def read_results(calls: list[Call], path: Path) -> list[list[bytes]]:
    """Reads the buffers after each call, as `replay.c` writes them."""
    written, at = path.read_bytes(), 0
    results: list[list[bytes]] = []
    for call in calls:
        results.append([])
        for part in call.buffers:
            results[-1].append(written[at : at + len(part.after)])
            at += len(part.after)
    assert at == len(written)
    return results


def numbers(memory: bytes, dtype: torch.dtype) -> Tensor:
    """The content of a buffer as a tensor."""
    return torch.frombuffer(bytearray(memory), dtype=dtype) if memory else torch.empty(0, dtype=dtype)
