"""Imports what commands need, in a process that they are forked from: a fork starts at once, a new process in seconds."""

from importlib import import_module

LIBRARIES = (
    *("accelerate", "altair", "vl_convert", "transformers", "tokenizers", "sklearn", "pyarrow.csv"),
    *("scipy.optimize", "scipy.stats", "torch._dynamo"),  # the last is imported by every optimizer
    *("subquad.hub", "subquad.conversion.pretrained"),
)
COMMANDS = (
    "compare",
    "advise",
    "choose",
    "train",
    "convert",
    "predict",
    "embed",
    "spectrum",
    "check",
    "reproduce",
    "report",
)


def import_everything() -> None:
    """Imports in the parent what every child would import otherwise. Nothing is computed, which would start threads."""
    import torch

    torch.set_num_threads(1)
    for name in (*LIBRARIES, *(f"subquad.cli.{command}" for command in COMMANDS)):
        import_module(name)
