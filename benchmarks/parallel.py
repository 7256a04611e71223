"""A sequence over several processes on this machine: ring against scan, overlap, time and memory by the number of processes.

    python benchmarks/parallel.py exchange    # seconds for one exchange of states, by ring and by scan
    python benchmarks/parallel.py memory      # seconds and memory of a training step of a small model

All processes run on the loopback address, each on one thread, so that times say something about more processes than cores
only in comparison with each other.
"""

import argparse
import json
import multiprocessing
import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch._C._distributed_c10d import FileStore

import subquad as sq
from subquad.models import Decoder, ModelOptions
from subquad.ops.linear import LinearState
from subquad.parallel import Group, shared
from subquad.parallel.group import Way
from subquad.parallel.states import states_before
from subquad.parallel.stretches import Stretch
from subquad.types import AttentionOptions

REPEATS = 60
WAYS: tuple[Way, ...] = ("ring", "scan")
MECHANISMS: dict[str, AttentionOptions] = {
    "linear": sq.Linear(),
    "favor": sq.Favor(features=64),
    "hybrid": sq.Hybrid(block=64),
    "window": sq.Window(reach=128),
    "infinity": sq.Infinity(segment=512, basis=64, points=64),
    "softmax": sq.Softmax(),
}


def in_processes(number: int, work: Callable[..., Any], *arguments: Any) -> list[Any]:
    """The result of `work(rank, number, *arguments)` in each of so many forked processes."""
    with tempfile.TemporaryDirectory() as folder:
        context = multiprocessing.get_context("fork")
        given = [(rank, number, folder, work, arguments) for rank in range(number)]
        processes = [context.Process(target=_run, args=each) for each in given]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        return [json.loads((Path(folder) / f"{rank}.json").read_text()) for rank in range(number)]


def _run(rank: int, number: int, folder: str, work: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    store = FileStore(str(Path(folder) / "store"), number)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=number, timeout=timedelta(minutes=20))
    result = work(rank, number, *arguments)
    dist.barrier()
    (Path(folder) / f"{rank}.json").write_text(json.dumps(result))


def time_exchanges(rank: int, number: int, features: int) -> dict[str, float]:
    """Median seconds of one exchange of the states of 8 heads of 64 dimensions, by each way, in turns."""
    state = LinearState(torch.randn(1, 8, features, 64), torch.rand(1, 8, features), torch.zeros(1, 8))
    stretches = {way: Stretch(Group(way=way), tuple(range(number + 1))) for way in WAYS}
    seconds: dict[str, list[float]] = {way: [] for way in WAYS}
    for _ in range(REPEATS):
        for way, stretch in stretches.items():
            dist.barrier()
            start = time.perf_counter()
            states_before(state, stretch, has_exponent=False).finish()
            dist.barrier()
            seconds[way].append(time.perf_counter() - start)
    return {way: statistics.median(values) for way, values in seconds.items()}


def step(rank: int, number: int, name: str, length: int, overlaps: bool) -> dict[str, float]:
    """Seconds and memory of a training step of a decoder with 2 layers of 4 heads of 32 dimensions."""
    options = MECHANISMS[name]
    about = ModelOptions(layers=2, heads=4, head_dim=32, positions="rotary")
    model = Decoder(256, options, about, generator=torch.Generator().manual_seed(0))
    tokens = torch.randint(256, (1, length + 1), generator=torch.Generator().manual_seed(1))
    group = Group(overlaps=overlaps)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    seconds, sent = [], 0
    for _ in range(2):
        sent, start = group.sent_bytes, time.perf_counter()
        with shared(model, options.parts, group, length) as stretch:
            logits = model(tokens[:, stretch.start : stretch.stop])
            right = tokens[:, stretch.start + 1 : stretch.stop + 1]
            F.cross_entropy(logits.flatten(0, 1), right.flatten(), reduction="sum").backward()
        dist.barrier()
        seconds.append(time.perf_counter() - start)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"seconds": min(seconds), "grown_mb": (peak - before) / 1e6, "sent_bytes": (group.sent_bytes - sent) / 2}


def main() -> None:
    """Prints the measurements that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["exchange", "memory"])
    parser.add_argument("--length", type=int, default=32_768)
    parser.add_argument("--mechanisms", nargs="+", default=["linear", "favor", "hybrid", "window", "infinity"])
    parser.add_argument("--processes", nargs="+", type=int, default=[1, 2, 4])
    chosen = parser.parse_args()
    if chosen.what == "exchange":
        for number in (2, 4):
            for features in (64, 256):
                found = in_processes(number, time_exchanges, features)[0]
                size = 8 * (features * 65 + 1) * 4 / 1e6
                words = ", ".join(f"{way} {seconds * 1e3:.2f} ms" for way, seconds in found.items())
                print(f"{number} processes, state of {size:.2f} MB: {words}", flush=True)
        return
    for name in chosen.mechanisms:
        for number in chosen.processes:
            for overlaps in (True, False) if number > 1 else (True,):
                found = in_processes(number, step, name, chosen.length, overlaps)
                grown, sent = (max(each[key] for each in found) for key in ("grown_mb", "sent_bytes"))
                how = "overlapping" if overlaps else "waiting"
                print(
                    f"{name}, {chosen.length} positions, {number} processes, {how}: {found[0]['seconds']:.2f} s, "
                    f"{grown:.0f} MB more in each, {sent / 1e3:.1f} kB sent for each layer",
                    flush=True,
                )


if __name__ == "__main__":
    main()
