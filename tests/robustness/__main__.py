"""`python -m tests.robustness`: runs all cases, or some of them, and says how many there were and which failed."""

import argparse
import os
import resource
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tests.importing import import_everything
from tests.robustness.cases import Case, refuse_doubles, sample
from tests.robustness.runner import Outcome, listing, run_all


def main() -> int:
    """The exit code is 1 if a case did what no command may do."""
    options = _parser().parse_args()
    os.environ |= {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    begun = time.monotonic()
    import_everything()
    with (
        tempfile.TemporaryDirectory(prefix="subquad-robustness-") as scratch,
        tempfile.TemporaryDirectory(prefix="subquad-cache-") as cache,
    ):
        os.environ["XDG_CACHE_HOME"] = cache
        templates = Path(scratch) / "templates"
        cases = _cases(templates, options)
        print(f"{len(cases)} cases, ready after {time.monotonic() - begun:.0f} s", flush=True)
        before, started = listing(templates), time.monotonic()
        outcomes = []
        for outcome in run_all(cases, templates, Path(scratch), options.jobs):
            outcomes.append(outcome)
            if outcome.problems or options.verbose:
                _show(outcome)
        assert listing(templates) == before, "a case changed the templates"
    _summarise(outcomes, time.monotonic() - started)
    return 1 if any(outcome.problems for outcome in outcomes) else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.robustness")
    parser.add_argument("--sample", type=int, default=0, help="so many cases only, the same every time")
    parser.add_argument("--match", default="", help="only cases whose name contains this")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="cases at a time")
    parser.add_argument("--verbose", action="store_true", help="show every case, not only those that fail")
    return parser


def _cases(templates: Path, options: argparse.Namespace) -> list[Case]:
    from tests.robustness.damage import damages
    from tests.robustness.hostile import hostile_models
    from tests.robustness.invocations import invocations
    from tests.robustness.templates import make

    make(templates)
    cases = [*invocations(), *damages(templates), *hostile_models(templates)]
    refuse_doubles(cases)
    cases = [case for case in cases if options.match in case.label]
    return sample(cases, options.sample) if options.sample else cases


def _show(outcome: Outcome) -> None:
    print(
        f"{'FAILED ' if outcome.problems else ''}{outcome.case.label}: code {outcome.code}, {outcome.seconds:.1f} s"
        f"{''.join(f'; {problem}' for problem in outcome.problems)}"
    )
    print(f"    {outcome.case.entry} {' '.join(map(ascii, outcome.case.argv))[:400]}")
    for line in outcome.stderr.strip().splitlines()[-12:]:
        print(f"    | {ascii(line)[1:-1][:300]}", flush=True)


def _summarise(outcomes: Sequence[Outcome], seconds: float) -> None:
    failed = Counter(outcome.case.kind for outcome in outcomes if outcome.problems)
    for kind, count in Counter(outcome.case.kind for outcome in outcomes).items():
        print(f"{count:7d}  {kind}" + (f": {failed[kind]} failed" if failed[kind] else ""))
    codes = Counter(str(outcome.code) for outcome in outcomes)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(
        f"{len(outcomes):7d}  cases in {seconds:.0f} s ({used.ru_utime + used.ru_stime:.0f} s of a core), "
        f"{failed.total()} failed; exit codes: {', '.join(f'{code} {count} times' for code, count in codes.items())}"
    )
    slowest = sorted(outcomes, key=lambda outcome: -outcome.seconds)[:3]
    print("slowest: " + "; ".join(f"{outcome.case.label}, {outcome.seconds:.1f} s" for outcome in slowest))


if __name__ == "__main__":
    sys.exit(main())
