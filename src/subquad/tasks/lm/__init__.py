"""Causal language modelling: predict each token of a text from those before it, and continue texts."""

from subquad.tasks.lm.task import Lm, LmTask, NextBatch

__all__ = ["Lm", "LmTask", "NextBatch"]
