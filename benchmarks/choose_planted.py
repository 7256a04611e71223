"""Races whose answer is planted: does `subquad choose` find it?

    python benchmarks/choose_planted.py --seeds 10 --budget 5m --folder FOLDER

Races that ended in the folder are not run again, so that the command can be given again after an interrupt. With --twice
each race is run a second time, to see whether the same command gives the same answer.

| case | data | right if |
|---|---|---|
| far | sorting at 2048, where the whole sequence counts | a window is worse than the best attention |
| recall | associative recall, 12 of 24 keys | linear attention is worse than softmax and the hybrid, and not recommended |
| short | associative recall in 32 tokens, 8 of 16 keys, all usual attentions | softmax is recommended |
| aggregates | clients whose counts tell the label | a model without attention is recommended |
| noise | clients with random labels | nothing can be told |
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from subquad.choose.decision import Decision
from subquad.choose.standings import Standings
from subquad.choose.timing import time_sentence
from subquad.machine import cores
from subquad.report.choose import load_decision
from subquad.results import Run

CLIENTS, LONGEST = 1200, 60
"""Number of clients of a table, and the largest number of their transactions."""

PAGE = "report.html"
"""Name of the page that a race leaves at its end."""

OPEN = ("another run may recommend", "is not clearly level")
"""Parts of sentences of a race that say that chance decided between attentions."""

Check = Callable[[Standings, Decision], bool]


class Answer(NamedTuple):
    """What a race found, and what it recommends."""

    standings: Standings
    decision: Decision


class Case(NamedTuple):
    """The words of a race, and whether its decision is right."""

    words: Callable[[Path, int], list[str]]
    is_right: Check


def write_clients(path: Path, seed: int, *, is_noise: bool) -> Path:
    """Writes a table of transactions whose label depends on two counts of codes, or on nothing."""
    rng = np.random.default_rng(seed)
    lines = ["client,time,code,amount,label"]
    for client in range(CLIENTS):
        shares = rng.dirichlet(np.ones(6))
        codes = rng.choice(6, size=rng.integers(10, LONGEST), p=shares)
        first, second = (codes == 0).mean() > 0.13, (codes == 1).mean() > 0.13
        label = int(rng.integers(2)) if is_noise else int(first != second)
        times = np.sort(rng.uniform(0, 1e6, len(codes)))
        lines += [
            f"c{client},{time:.0f},k{code},{amount:.2f},{label}"
            for time, code, amount in zip(times, codes, rng.lognormal(3, 1, len(codes)), strict=True)
        ]
    path.write_text("\n".join(lines) + "\n")
    return path


def clients_words(folder: Path, seed: int, *, is_noise: bool) -> list[str]:
    """The words of a race on a table of clients."""
    table = write_clients(folder / f"clients-{seed}-{is_noise}.csv", seed, is_noise=is_noise)
    return ["transactions", "--data", str(table), "--label", "label", "--mechanisms", "softmax", "linear", "hybrid"]


def is_behind(name: str, standings: Standings, decision: Decision) -> bool:
    """Whether the best attention is better than this one, by the paired interval."""
    gain = standings.advantage(standings.of("attention")[0].name, name)
    return gain is not None and gain.low > 0 and decision.chosen != name


def is_ahead(name: str, other: str, standings: Standings) -> bool:
    """Whether an attention is better than another one, by the paired interval."""
    gain = standings.advantage(name, other)
    return gain is not None and gain.low > 0


CASES: dict[str, Case] = {
    "far": Case(
        lambda folder, seed: ["sorting", "--length", "2048", "--mechanisms", "softmax", "linear", "window"],
        lambda standings, decision: is_behind("window", standings, decision),
    ),
    "recall": Case(
        lambda folder, seed: [
            *("recall", "--length", "48", "--pairs", "12", "--keys", "24", "--values", "12"),
            *("--mechanisms", "softmax", "linear", "hybrid"),
        ],
        lambda standings, decision: (
            is_behind("linear", standings, decision)
            and all(is_ahead(name, "linear", standings) for name in ("softmax", "hybrid"))
        ),
    ),
    "short": Case(
        lambda folder, seed: ["recall", "--length", "32", "--pairs", "8", "--keys", "16", "--values", "8"],
        lambda standings, decision: decision.kind == "softmax",
    ),
    "aggregates": Case(
        lambda folder, seed: clients_words(folder, seed, is_noise=False),
        lambda standings, decision: decision.kind == "rival",
    ),
    "noise": Case(
        lambda folder, seed: clients_words(folder, seed, is_noise=True),
        lambda standings, decision: decision.kind == "nothing",
    ),
}


def race(name: str, seed: int, options: argparse.Namespace, out: Path) -> Answer:
    """Runs a race into a folder if it did not end there before, and prints its answer."""
    folder = out.parent
    words = [*CASES[name].words(folder, seed), "--seed", str(seed), "--budget", options.budget, "--out", str(out)]
    jobs = ["--jobs", str(options.jobs)] if options.jobs else []
    if not (out / PAGE).exists():
        shutil.rmtree(out, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "subquad", "choose", *words, *jobs], check=True, stdout=subprocess.DEVNULL)
    answer = Answer(*load_decision(Run.open(out, "choose")))
    verdict = "right" if CASES[name].is_right(*answer) else "WRONG"
    rows = Run.open(out).rows()
    took = sum(row["value"] for row in rows if row["metric"] == "phase")
    print(f"{name}, seed {seed}, {took:.0f} s: {verdict}: {' '.join(answer.decision.sentences)}", flush=True)
    print(time_sentence(rows, options.jobs or cores()), flush=True)
    return answer


def are_alike(first: Answer, second: Answer) -> bool:
    """Whether two races of a command recommend the same, or attentions of which one race says that chance decides."""
    one, two = first.decision, second.decision
    if (one.kind, one.chosen) == (two.kind, two.chosen):
        return True
    is_said = _leaves_open(one, two.chosen) or _leaves_open(two, one.chosen)
    if not is_said:
        return False
    mine, other = first.standings.contestants[one.chosen].quality, second.standings.contestants[two.chosen].quality
    return mine.low <= other.high and other.low <= mine.high


def _leaves_open(decision: Decision, name: str) -> bool:
    """Whether a decision says that another run may recommend this attention."""
    return bool(name) and any(name in sentence and any(part in sentence for part in OPEN) for sentence in decision.sentences)


def said(numbers: Mapping[str, int], count: int) -> str:
    """How often something came out in each case."""
    return "; ".join(f"{name} {number} of {count}" for name, number in numbers.items())


def main() -> None:
    """Runs all cases with all seeds, seed by seed, and prints how often the planted answer came out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--seeds", type=int, default=10, help="number of seeds")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--budget", default="5m")
    parser.add_argument("--jobs", type=int, default=0, help="runs side by side; default: the number of cores")
    parser.add_argument("--folder", type=Path, default=None, help="where races are kept; default: a temporary folder")
    parser.add_argument("--twice", action="store_true", help="run each race a second time and compare the answers")
    options = parser.parse_args()
    folder = options.folder or Path(tempfile.mkdtemp(prefix="planted-"))
    folder.mkdir(parents=True, exist_ok=True)
    right, alike = dict.fromkeys(options.cases, 0), dict.fromkeys(options.cases, 0)
    for count, seed in enumerate(range(options.first_seed, options.first_seed + options.seeds), start=1):
        for name in options.cases:
            answer = race(name, seed, options, folder / f"{name}-{seed}")
            right[name] += CASES[name].is_right(*answer)
            if options.twice:
                alike[name] += are_alike(answer, race(name, seed, options, folder / f"{name}-{seed}-again"))
        print(f"right: {said(right, count)}", flush=True)
        if options.twice:
            print(f"twice the same: {said(alike, count)}", flush=True)


if __name__ == "__main__":
    main()
