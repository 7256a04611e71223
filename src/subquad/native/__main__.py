"""Compiles the native kernels: `python -m subquad.native`; with `--if-needed` only if they are not there or are old."""

import sys

from subquad import native
from subquad.native.build import main

if "--if-needed" not in sys.argv[1:] or native.missing() is not None:
    main()
