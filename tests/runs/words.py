"""The words of commands that make runs as small as can be."""

from dataclasses import replace

from subquad.experiments.copy import grid as copying

SIZE = ("--layers", "1", "--heads", "1", "--head-dim", "4", "--batch", "4", "--steps", "6")
EVERY = ("--evaluate-every", "2", "--checkpoint-every", "2", "--no-page")
COPY = ("copy", *SIZE, *EVERY, "--length", "6", "--held-out", "2", "--dropout", "0.1")
SETTING = ("--heads", "1", "--head-dim", "2", "--threads", "1")
REPRODUCE = ("reproduce", "copy", "--scale", "tiny")
COMPARE = (*SETTING, "--mechanisms", "linear", "favor", "--lengths", "8", "16", "--what", "forward", "--causal")
GRID = (*SETTING, "--grid", "linformer", "--lengths", "512", "1024")
TINY = replace(
    copying.SCALES["quick"],
    attentions=("softmax", "linear"),
    lengths=(6,),
    seeds=(0,),
    arguments=("--layers", "1", "--heads", "1", "--head-dim", "4", "--batch", "4", "--steps", "4", "--held-out", "2"),
    timing=("--what", "update", *SETTING, "--mechanisms", "linear", "--lengths", "8", "16"),
    timing_budget=300,
    own={},
)
"""A scale of the experiment on the copy task."""
CONVERSION_CHECKPOINT_SECONDS = "subquad.conversion.journal.CHECKPOINT_SECONDS"
"""The name of the constant that says how often a conversion writes a checkpoint in the middle of a phase."""
