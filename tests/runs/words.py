"""The words of commands that make runs as small as can be."""

from dataclasses import replace

from subquad.attention import Linear, Softmax
from subquad.compare.cells import Setting
from subquad.compare.plan import Plan
from subquad.experiments.base import Timing
from subquad.experiments.copy.grid import QUICK
from subquad.measure.workers import Limits
from subquad.models import ModelOptions
from subquad.tasks import Copy
from subquad.training import TrainOptions

SIZE = ("--layers", "1", "--heads", "1", "--head-dim", "4", "--batch", "4", "--steps", "6")
EVERY = ("--evaluate-every", "2", "--checkpoint-every", "2", "--no-page")
COPY = ("copy", *SIZE, *EVERY, "--length", "2", "--held-out", "2", "--dropout", "0.1")
SETTING = ("--heads", "1", "--head-dim", "2", "--threads", "1")
REPRODUCE = ("reproduce", "copy", "--scale", "tiny")
COMPARE = (*SETTING, "--mechanisms", "linear", "favor", "--lengths", "8", "16", "--what", "forward", "--causal")
ERROR = (
    *("error", "--features", "4", "16", "--kernels", "positive", "relu", "--projections", "independent", "--sizes", "1"),
    *("--draws", "2", "--length", "4", "--head-dim", "2"),
)
GRID = (*SETTING, "--grid", "linformer", "--lengths", "512", "1024")
TINY = replace(
    QUICK,
    attentions={"softmax": Softmax(), "linear": Linear()},
    lengths=(2,),
    seeds=(0,),
    task=Copy(held_out=2),
    model=ModelOptions(layers=1, heads=1, head_dim=4),
    training=TrainOptions(batch=4, steps=4),
    timing=Timing(
        Plan(
            variants={"softmax": Softmax(), "linear": Linear()},
            lengths=(8, 16),
            whats=("update",),
            settings=(Setting(heads=1, head_dim=2),),
        ),
        Limits(),
        budget_seconds=300,
    ),
)
"""A scale of the experiment on the copy task."""
CONVERSION_CHECKPOINT_SECONDS = "subquad.conversion.journal.CHECKPOINT_SECONDS"
"""The name of the constant that says how often a conversion writes a checkpoint in the middle of a phase."""
