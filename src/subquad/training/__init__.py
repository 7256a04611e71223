"""Training: the loop, its options and its checkpoints, independent of concrete tasks and mechanisms."""

from subquad.training.options import TrainOptions

__all__ = ["TrainOptions"]
