"""Models in folders, for the tests of saving and loading."""

import json
from pathlib import Path
from typing import Any

from tests.hub.families import CONFIGS, OPTIONS, hub, model

SAME: dict[str, Any] = {"rtol": 0, "atol": 0}


def saved(folder: Path, name: str = "learned", family: str = "bert", **given: Any) -> Any:
    """Saves a model with another attention, and returns it."""
    network = hub.swap(model(CONFIGS[family]()), OPTIONS[name], **given)
    for parameter in network.parameters():
        parameter.data += 0.01  # so that what is drawn anew would be noticed
    network.save_pretrained(folder)
    return network


def configured(folder: Path, **values: Any) -> None:
    """Changes values in the config.json of a folder."""
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **values}))
