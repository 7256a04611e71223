"""`python -m tests.families`: builds every family and writes down what works with another attention."""

import os
import sys

os.environ |= {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}

import tyro

from subquad import SubquadError
from tests.families.run import Options, main

try:
    sys.exit(main(tyro.cli(Options)))
except SubquadError as error:
    sys.exit(str(error))
