"""Importing this module makes a process end together with the process whose id is in the environment.

The fork server of measuring processes can import modules on request, but not call a function. This works on Linux only:
elsewhere a thread would have to wait for the end of the parent, and a fork server must not have threads.
"""

import os
import sys

from subquad.measure.lifeline import PARENT, end_with

parent = os.environ.pop(PARENT, None)
if parent is not None and sys.platform == "linux":
    end_with(int(parent))
