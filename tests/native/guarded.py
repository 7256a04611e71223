"""Makes recorded calls with memory that ends right before a page that must not be touched: `python -m tests.native.guarded`.

Any read or write behind the end of a buffer (or, with `before`, in front of its beginning) ends the process.
"""

import sys
from array import array

import torch

from subquad import native
from tests.native.calls import every_kernel
from tests.native.guards import Guarded
from tests.native.recording import Call


def call_guarded(call: Call, *, before: bool) -> bool:
    """Makes a call with guarded memory; returns whether it wrote what it wrote when it was recorded."""
    memory = [Guarded(buffer.before, before=before) for buffer in call.buffers]
    structure = array("q", call.arguments)
    for index, (buffer, offset) in call.addresses.items():
        structure[index] = memory[buffer].address + offset
    native.kernel(call.name, call.number)(structure.buffer_info()[0])
    return all(copy.content() == buffer.after for copy, buffer in zip(memory, call.buffers, strict=True))


def main() -> None:
    """Makes all calls twice, and prints how many there were."""
    torch.set_num_threads(1)
    calls = every_kernel()
    for before in (False, True):
        for call in calls:
            if not call_guarded(call, before=before):
                sys.exit(f"{call.name} gave something else with guarded memory")
    print(f"{len(calls)} calls")


if __name__ == "__main__":
    main()
