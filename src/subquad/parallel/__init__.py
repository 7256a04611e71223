"""A sequence over several processes: each holds a stretch, and small states travel between them.

`shared` lets a model work on its stretch; `Group` holds the processes. See docs/parallel.md.
"""

from subquad.parallel.group import Group, LostProcessError
from subquad.parallel.sharing import check_cut, points_for, shared
from subquad.parallel.stretches import Stretch, cut_points

__all__ = ["Group", "LostProcessError", "Stretch", "check_cut", "cut_points", "points_for", "shared"]
