"""`python -m tests.robustness`: runs all cases, or a sample of them, and says how many there were and which failed."""

import argparse
import os
import resource
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.robustness.runner import Outcome

os.environ |= {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def main() -> int:
    options = _parser().parse_args()
    begun = time.monotonic()
    _import_everything()
    from tests.robustness.cases import refuse_doubles, sample
    from tests.robustness.damage import damages
    from tests.robustness.hostile import hostile_models
    from tests.robustness.invocations import invocations
    from tests.robustness.runner import listing, run_all
    from tests.robustness.templates import make

    with tempfile.TemporaryDirectory(prefix="subquad-robustness-") as scratch:
        templates = Path(scratch) / "templates"
        make(templates)
        cases = [*invocations(), *damages(templates), *hostile_models(templates)]
        refuse_doubles(cases)
        if options.match:
            cases = [case for case in cases if options.match in case.label]
        if options.sample:
            cases = sample(cases, options.sample)
        before = listing(templates)
        ready = time.monotonic()
        print(f"{len(cases)} cases, ready after {ready - begun:.0f} s", flush=True)
        outcomes = []
        for outcome in run_all(cases, templates, Path(scratch), options.jobs):
            outcomes.append(outcome)
            if outcome.problems:
                _show(outcome)
            elif options.verbose:
                print(f"{outcome.code} {outcome.seconds:5.2f} s  {outcome.case.label}: {outcome.stderr.strip()}", flush=True)
        assert listing(templates) == before, "a case changed the templates"
    _summarise(outcomes, time.monotonic() - ready)
    return 1 if any(outcome.problems for outcome in outcomes) else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.robustness")
    parser.add_argument("--sample", type=int, default=0, help="so many cases only, the same every time")
    parser.add_argument("--match", default="", help="only cases whose name contains this")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--verbose", action="store_true", help="show what every case said")
    return parser


def _import_everything() -> None:
    """What children would otherwise import one by one."""
    import torch

    torch.set_num_threads(1)
    from importlib import import_module

    modules = ("accelerate", "altair", "vl_convert", "transformers", "tokenizers", "scipy.stats", "sklearn", "pyarrow")
    commands = ("compare", "advise", "train", "convert", "predict", "spectrum", "reproduce", "report")
    for name in (
        *modules,
        *(f"subquad.cli.{command}" for command in commands),
        "subquad.hub",
        "subquad.conversion.pretrained",
    ):
        import_module(name)


def _show(outcome: "Outcome") -> None:
    case = outcome.case
    print(f"FAILED {case.label}: {'; '.join(outcome.problems)}", flush=True)
    print(f"    subquad {' '.join(map(ascii, case.argv))[:400]}")
    for line in outcome.stderr.strip().splitlines()[-12:]:
        print(f"    | {line[:300]}")


def _summarise(outcomes: "list[Outcome]", seconds: float) -> None:
    kinds = Counter(outcome.case.kind for outcome in outcomes)
    failed = Counter(outcome.case.kind for outcome in outcomes if outcome.problems)
    codes = Counter(outcome.code for outcome in outcomes)
    for kind, count in kinds.items():
        print(f"  {count:5d} {kind}" + (f", {failed[kind]} failed" if failed[kind] else ""))
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(
        f"{len(outcomes)} cases in {seconds:.0f} s ({used.ru_utime + used.ru_stime:.0f} s of a core), "
        f"{sum(failed.values())} failed; exit codes: {dict(codes)}"
    )
    slowest = sorted(outcomes, key=lambda outcome: -outcome.seconds)[:5]
    print("slowest: " + ", ".join(f"{each.case.label} {each.seconds:.1f} s" for each in slowest))


if __name__ == "__main__":
    sys.exit(main())
