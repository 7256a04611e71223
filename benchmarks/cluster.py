"""How much faster two Ray nodes with one CPU each do equal trainings than one of them.

Starts nodes on the loopback address, which share the cores of this machine, so that it needs two idle ones. Times count from
connecting to the last file, with starting processes on the nodes.
"""

import argparse
import os
import statistics
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # without it, Ray replaces 127.0.0.1 by the address of the network
os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112, as local processes

import torch

from subquad.attention import Linear
from subquad.models import ModelOptions
from subquad.places.base import Job, do_all
from subquad.places.cluster import open_cluster
from subquad.places.options import Placing
from subquad.results import Row, Run, describe_run
from subquad.runs import RunOptions, build_model
from subquad.tasks import Copy
from subquad.training import TrainOptions
from subquad.training.loop import train

TARGET = 0.6
"""Largest share of one node's time that two nodes may take."""
TASK = Copy(length=64)


def run_training(held: object, folder: Path, *, steps: int, seed: int) -> list[Row]:
    """Trains a small model, and returns a row with the seconds that it took."""
    before = time.perf_counter()
    torch.set_num_threads(1)
    options = RunOptions(
        TASK,
        Linear(),
        ModelOptions(layers=2, heads=4, head_dim=16),
        TrainOptions(batch=16, steps=steps, evaluate_every=steps, checkpoint_every=max(1, steps // 2)),
    )
    run = Run.create(folder, "train", describe_run(options.as_json(), ["train", "copy"], seed=seed))
    task = TASK.prepare()
    with run.writing():
        train(task, build_model(options, task, seed=seed).model, options.training, run, seed=seed)
    return [{"metric": "duration", "value": time.perf_counter() - before, "unit": "s"}]


def measure(trials: int, steps: int) -> tuple[float, float, list[list[Row]]]:
    """Returns the seconds of all trainings, the median seconds of one, and the rows of each."""
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        cluster = open_cluster(Placing("ray"), folder)
        jobs = [
            Job(f"trial-{at}", partial(run_training, steps=steps, seed=at), folder / f"trial-{at}") for at in range(trials)
        ]
        try:
            ends = list(do_all(cluster, jobs, 0.1))
            seconds = time.perf_counter() - start
        finally:
            cluster.close()
        assert not any(ended.failure for ended in ends), ends
        rows = [[row for row in Run.open(job.folder).rows() if row["metric"] == "loss"] for job in jobs]
    return seconds, statistics.median(ended.rows[0]["value"] for ended in ends), rows


def main() -> None:
    """Measures on one node, then on two."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=24)
    parser.add_argument("--steps", type=int, default=120, help="training steps of each trial")
    options = parser.parse_args()
    from ray.cluster_utils import Cluster

    place: dict[str, Any] = {"node_ip_address": "127.0.0.1", "object_store_memory": 80 * 2**20}
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False, **place})
    os.environ["RAY_ADDRESS"] = cluster.address
    taken = {}
    rows = {}
    try:
        for nodes in (1, 2):
            cluster.add_node(num_cpus=1, **place)
            taken[nodes], one, rows[nodes] = measure(options.trials, options.steps)
            print(
                f"{nodes} x 1 CPU: {options.trials} trainings in {taken[nodes]:.1f} s; the median one took {one:.2f} s",
                flush=True,
            )
    finally:
        cluster.shutdown()
    share = taken[2] / taken[1]
    print(f"Two nodes take {share:.2f} of the time of one (target: at most {TARGET}).")
    print("The losses are the same." if rows[1] == rows[2] else "The losses differ, which must not be.")


if __name__ == "__main__":
    main()
