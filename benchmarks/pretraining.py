"""What learning from all histories is worth to clients of whom a tenth has labels.

    python benchmarks/pretraining.py                                       # simulated clients
    python benchmarks/pretraining.py --data BERKA --label age

A model learns from the histories of all clients without labels. On each fold, two models then learn from the labels of a
tenth of the training clients, with the same options: one starts with that model, the other from random weights. The
difference of their AUROCs is paired: both score the same test clients. Runs that are already in --out are not made again.
"""

import argparse
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import subquad as sq
from subquad.experiments.base import is_finished
from subquad.experiments.transactions.verdicts import Scores, difference, quality
from subquad.words import between

PRETRAINING = "--objective contrastive --parts samples --batch 64 --learning-rate 3e-3 --steps 400 --evaluate-every 400"
TUNING = "--wide off --evaluate-every 100"


def main() -> None:
    """Trains all models and prints the AUROC of both kinds, and their difference."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="", help="data with labels; default: simulated clients")
    parser.add_argument("--label", default="", help="column of the label")
    parser.add_argument("--attention", default="linear")
    parser.add_argument("--share", default="0.1", help="share of the training clients whose labels are used")
    parser.add_argument("--folds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("runs/pretraining"))
    parser.add_argument("--pretraining", default=PRETRAINING, help="options of learning without labels")
    parser.add_argument("--tuning", default=TUNING, help="options of learning labels, in one text")
    options = parser.parse_args()
    words = ["--attention", options.attention, *(["--data", options.data] if options.data else [])]
    words += ["--label", options.label] if options.label else []
    start = train(options.out / "pretrained", [*words, *shlex.split(options.pretraining)])
    scores: dict[str, dict[int, Scores]] = {"random": {}, "pretrained": {}}
    for fold in range(options.folds):
        tuning = [*words, *shlex.split(options.tuning), "--labelled-share", options.share, "--fold", str(fold)]
        tuning += ["--no-baselines", "--no-importance"]
        for name, begin in (("random", []), ("pretrained", ["--start", str(start)])):
            scores[name][fold] = score(train(options.out / f"{name}-{fold}", [*tuning, *begin]))
        said = (f"{name} {between(quality({fold: folds[fold]}), '.3f')}" for name, folds in scores.items())
        print(f"fold {fold}: {', '.join(said)}", flush=True)
    for name, folds in scores.items():
        print(f"{name}: {between(quality(folds), '.3f')}")
    print(f"difference: {between(difference(scores['pretrained'], scores['random']), '+.3f')}")


def train(folder: Path, words: list[str]) -> Path:
    """Trains a model into a folder, goes on with one that was interrupted, or takes the one that is there."""
    if not is_finished(folder):
        where = (
            ["--resume", str(folder)] if (folder / "run.json").exists() else ["transactions", *words, "--out", str(folder)]
        )
        subprocess.run([sys.executable, "-m", "subquad", "train", *where], check=True, stdout=subprocess.DEVNULL)
    return folder


def score(folder: Path) -> Scores:
    """The labels of the test clients, and their scores by a trained model."""
    trained = sq.load(str(folder))
    task: Any = trained.task
    return Scores(task.truth("test")[:, 0].astype(int), task.scores(trained.model, "test")[:, 0])


if __name__ == "__main__":
    main()
