"""A sample of the cases that `make test-robustness` runs."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
CASES = 200


def test_a_sample_ends_in_a_result_or_one_sentence() -> None:
    command = [sys.executable, "-m", "tests.robustness", "--sample", str(CASES), "--jobs", "1"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert f"{CASES} cases in" in done.stdout
