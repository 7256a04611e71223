"""Triton kernels compile to machine code of an A100 and an H100, within their shared memory. That needs no GPU."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.interpreting import NOT_THERE


@pytest.mark.slow
@pytest.mark.parametrize(
    "what", ["80 elu float32 64", "80 hyperbolic float32 64", "80 hyperbolic bfloat16 128", "90 learned float32 64"]
)
def test_kernels_compile_for_gpus_that_are_not_here(what: str) -> None:
    pytest.importorskip("triton", reason=NOT_THERE)
    root = Path(__file__).parents[2]
    places = os.pathsep.join([str(root / "src"), os.environ.get("PYTHONPATH", "")])
    ran = subprocess.run(
        [sys.executable, "-m", "tests.ops.gpu_compiling", *what.split()],
        env=os.environ | {"TRITON_INTERPRET": "0", "PYTHONPATH": places},
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    capability = int(what.split()[0]) / 10
    assert ran.stdout.rstrip().endswith(f"kernels compiled for compute capability {capability}")
