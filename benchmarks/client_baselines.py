"""A model of clients beside a linear model of counts and boosting on aggregates, over all folds, with intervals.

    python benchmarks/client_baselines.py                                  # simulated clients
    python benchmarks/client_baselines.py --data BERKA --label age --training "--evaluate-every 100"

Each client is in the test part of one fold. Differences of AUROCs are paired: the model and the baselines of a fold score
the same test clients, which are drawn again for the interval. Runs that are already in --out are not made again.
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

MODEL = "attention"


def main() -> None:
    """Trains a model on each fold and prints the AUROC of all models, and by how much the attention is ahead of each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="", help="data with labels; default: simulated clients")
    parser.add_argument("--label", default="", help="column of the label")
    parser.add_argument("--attention", default="linear")
    parser.add_argument("--folds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("runs/client-baselines"))
    parser.add_argument("--training", default="", help="further options of the trainings, in one text")
    options = parser.parse_args()
    words = ["--attention", options.attention, *(["--data", options.data] if options.data else [])]
    words += [*(["--label", options.label] if options.label else []), *shlex.split(options.training)]
    scores: dict[str, dict[int, Scores]] = {}
    for fold in range(options.folds):
        for name, scored in score(train(options.out / f"fold-{fold}", [*words, "--fold", str(fold)])).items():
            scores.setdefault(name, {})[fold] = scored
        said = (f"{name} {quality({fold: folds[fold]}).value:.3f}" for name, folds in scores.items())
        print(f"fold {fold}: {', '.join(said)}", flush=True)
    for name, folds in scores.items():
        print(f"{name}: {between(quality(folds), '.3f')}")
        if name != MODEL:
            print(f"  {MODEL} minus {name}: {between(difference(scores[MODEL], folds), '+.4f')}")


def train(folder: Path, words: list[str]) -> Path:
    """Trains a model into a folder, or takes the one that is there."""
    if not is_finished(folder):
        command = [sys.executable, "-m", "subquad", "train", "transactions", *words, "--no-page", "--no-importance"]
        subprocess.run([*command, "--out", str(folder)], check=True, stdout=subprocess.DEVNULL)
    return folder


def score(folder: Path) -> dict[str, Scores]:
    """The labels of the test clients, and their scores by the trained model and by each baseline."""
    trained = sq.load(str(folder))
    task: Any = trained.task
    truth = task.truth("test")[:, 0].astype(int)
    predicted = {MODEL: task.scores(trained.model, "test"), **task.baselines()}
    return {name: Scores(truth, values[:, 0]) for name, values in predicted.items()}


if __name__ == "__main__":
    main()
