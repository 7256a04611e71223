"""Training: the loop, its options, its checkpoints. It knows no task and no mechanism by name."""

from subquad.training.options import TrainOptions

__all__ = ["TrainOptions"]
