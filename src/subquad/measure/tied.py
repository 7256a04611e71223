"""Importing this module makes a process end with the one whose id the environment names.

The server that measuring processes are forked from can be told to import modules, but not to call a function. This is for
Linux only: elsewhere a thread would have to wait for the parent's end, and a server that forks must not have threads.
"""

import os
import sys

from subquad.measure.lifeline import PARENT, end_with

parent = os.environ.pop(PARENT, None)
if parent is not None and sys.platform == "linux":
    end_with(int(parent))
