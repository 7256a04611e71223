"""Checkpoints of which several processes wrote a part each, read by one."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from subquad.errors import SubquadError
from subquad.training import checkpoints


def write_parts(folder: Path, model: nn.Linear) -> None:
    """The files of three processes: three rows of weights and two of moments each, and whole counts by the first."""
    folder.mkdir(parents=True)
    for rank, start in enumerate((0, 3, 6)):
        parts = {f"model/weight@{start}": model.weight.data[start : start + 3].clone()}
        parts[f"optimizer/weight|exp_avg@{start}"] = torch.full((3, 2), float(rank))
        if rank == 0:
            parts |= {"model/bias@0": model.bias.data.clone(), "optimizer/weight|step@0": torch.tensor(4.0)}
        save_file(parts, folder / f"shard-{rank}-of-3.safetensors")
    (folder / "about.json").write_text(json.dumps({"step": 4, "moments": 2}))


def test_parts_are_joined(tmp_path: Path) -> None:
    model = nn.Linear(2, 9)
    write_parts(tmp_path / "step-000000004", model)
    checkpoint, complaints = checkpoints.load(tmp_path)
    assert checkpoint is not None
    assert complaints == []
    assert torch.equal(checkpoint.model["weight"], model.weight)
    assert torch.equal(checkpoint.model["bias"], model.bias)
    assert checkpoint.optimizer["weight|exp_avg"][:, 0].tolist() == [0.0] * 3 + [1.0] * 3 + [2.0] * 3
    assert checkpoint.optimizer["weight|step"].shape == ()


def test_a_missing_part_is_told(tmp_path: Path) -> None:
    folder = tmp_path / "step-000000004"
    write_parts(folder, nn.Linear(2, 9))
    (folder / "shard-1-of-3.safetensors").rename(tmp_path / "away")
    with pytest.raises(SubquadError, match=r"cannot be read \(there are 2 files of 3 processes\)"):
        checkpoints.read(folder)
    save_file({"model/bias@0": torch.zeros(9)}, folder / "shard-1-of-3.safetensors")
    with pytest.raises(SubquadError, match="model/weight lacks its part from 3 to 6"):
        checkpoints.read(folder)
