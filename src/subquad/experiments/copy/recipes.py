"""Training recipes on the copy task: the replication's, the one found here, and single changes to either.

A change is a mapping from names of options to values, whichever part of the training they belong to.
"""

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from subquad.attention import Favor, Linear, Softmax
from subquad.experiments.base import Training
from subquad.feature_maps import Learned, Relu, Taylor
from subquad.models import ModelOptions
from subquad.tasks import Copy
from subquad.training import TrainOptions
from subquad.types import AttentionOptions

Change = Mapping[str, Any]

THEIRS = Training(
    Copy(form="encoder-decoder", shorter=0.0),
    Linear(),
    ModelOptions(layers=4, heads=8, head_dim=64, activation="nelu", norm="post", dropout=0.1, tied=False, starting_gain=1.0),
    TrainOptions(steps=3000, batch=8, optimizer="adamw", clip=0.0, evaluate_every=500, checkpoint_every=500),
)
"""The recipe of Do and Bergner 2022, a replication of *Transformers are RNNs*: linear attention, batch 8, 3000 steps.

Sections 3.3 to 3.5 give the sizes, the learning rate, elu(x) + 1 in the feed-forward part and the cross-entropy. All else is
that of Transformers.jl 0.1.15, which they changed: Adam without clipping or schedule (AdamW without decay here), layer
normalisation after each part, dropout 0.1, an output layer of its own, and projections with Xavier's initial weights. Unlike
there, encoder and decoder have an embedding each, softmax's weights have no dropout, and no end symbol is predicted.
"""
SMALL: Change = {"layers": 2, "heads": 4, "head_dim": 32}
"""A smaller model, with which a training takes minutes instead of hours."""
TINY: Change = {
    "layers": 2,
    "heads": 4,
    "head_dim": 16,
    "steps": 1500,
    "evaluate_every": 500,
    "checkpoint_every": 1500,
}
"""A still smaller model and half the steps, with which a training takes half a minute of one core."""
SOFTMAX: Change = {"attention": Softmax()}
FOUND: Change = {
    "norm": "pre",
    "activation": "gelu",
    "dropout": 0.0,
    "tied": True,
    "starting_gain": None,
    "optimizer": "radam",
    "learning_rate": 2e-3,
    "clip": 1.0,
    "warm_up": 300,
    "schedule": "cosine",
}
"""Changes to the replication's recipe at the same batch and steps: the defaults here, twice the rate, warm-up and cosine."""


def changes(steps: int) -> dict[str, Change]:
    """Returns single changes to the replication's recipe by name, for a training of so many steps of 8 sequences."""
    warm_up: Change = {"warm_up": steps // 10}
    return {
        "softmax": SOFTMAX,
        "pre-norm": {"norm": "pre"},
        "no dropout": {"dropout": 0.0},
        "gelu": {"activation": "gelu"},
        "relu": {"activation": "relu"},
        "tied output": {"tied": True},
        "queries and keys x 0.5": {"starting_gain": 0.5},
        "queries and keys x 2": {"starting_gain": 2.0},
        "queries and keys x 5": {"starting_gain": 5.0},
        "queries and keys x 10": {"starting_gain": 10.0},
        "RAdam": {"optimizer": "radam"},
        "clipping": {"clip": 1.0},
        "warm-up": warm_up,
        "cosine": {"schedule": "cosine"},
        "warm-up and cosine": {**warm_up, "schedule": "cosine"},
        "learning rate 2e-3": {"learning_rate": 2e-3},
        "learning rate 1e-4": {"learning_rate": 1e-4},
        "label smoothing": {"label_smoothing": 0.1},
        "batch 32, equal samples": {"batch": 32, "steps": steps // 4},
        "batch 128, equal samples": {"batch": 128, "steps": -(-steps // 16)},
        "batch 32, equal steps": {"batch": 32},
        "batch 128, equal steps": {"batch": 128},
        "10,000 steps": {"steps": 10_000},
    }


FEATURES: dict[str, Change] = {
    "ReLU features": {"attention": Linear(feature_map=Relu())},
    "learned features": {"attention": Linear(feature_map=Learned())},
    "Taylor features": {"attention": Linear(feature_map=Taylor())},
    "FAVOR+": {"attention": Favor(features=64)},
}
"""Other feature maps than elu(x) + 1, by name."""


def changed(training: Training, change: Change) -> Training:
    """Returns a training with some options changed. The key ``attention`` stands for the attention as a whole."""
    parts: dict[str, Any] = {"task": training.task, "model": training.model, "options": training.options}
    known = {"attention", *(field.name for part in parts.values() for field in fields(part))}
    assert change.keys() <= known, f"no part of a training has {change.keys() - known}"
    replaced: dict[str, Any] = {"attention": change.get("attention", training.attention)}
    for name, part in parts.items():
        values = {field.name: change[field.name] for field in fields(part) if field.name in change}
        replaced[name] = replace(part, **values)
    return Training(**replaced)


def put_back() -> dict[str, Change]:
    """Returns what takes single changes of the found recipe back to the replication's value, by name."""
    parts = (THEIRS.task, THEIRS.model, THEIRS.options)
    theirs = {field.name: getattr(part, field.name) for part in parts for field in fields(part)}
    return {NAMES[name]: {name: theirs[name]} for name in FOUND}


NAMES = {
    "norm": "post-norm",
    "activation": "elu + 1 in the feed-forward part",
    "dropout": "dropout",
    "tied": "own output layer",
    "starting_gain": "queries and keys x 1",
    "optimizer": "Adam",
    "learning_rate": "learning rate 1e-3",
    "clip": "no clipping",
    "warm_up": "no warm-up",
    "schedule": "constant learning rate",
}
"""What the replication's value of an option is called, for each option that the found recipe changes."""


def differences(training: Training, other: Training) -> str:
    """Lists the options in which a training differs from another one, with their values, apart from the length."""
    words = []
    if training.attention != other.attention:
        words.append(attention_words(training.attention))
    pairs = ((training.task, other.task), (training.model, other.model), (training.options, other.options))
    for part, beside in pairs:
        for field in fields(part):
            value = getattr(part, field.name)
            if value != getattr(beside, field.name) and field.name != "length":
                words.append(f"{field.name.replace('_', ' ')} {'as the attention has it' if value is None else value}")
    return ", ".join(words) or "nothing"


def attention_words(attention: AttentionOptions) -> str:
    """Names an attention, with its feature map if it is linear attention."""
    return f"linear, {attention.feature_map.kind} features" if isinstance(attention, Linear) else attention.kind
