"""Conversion of runs of `subquad train mlm`."""

import json
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from subquad.attention import Softmax
from subquad.conversion.convertible import Kind, Outputs, Pairs, Split
from subquad.data.ragged import needed_mask
from subquad.errors import SubquadError
from subquad.files import write_whole
from subquad.models import MultiheadAttention
from subquad.results import Row, Run
from subquad.tasks.mlm.masking import MaskedBatch
from subquad.tasks.mlm.model import MaskedModel
from subquad.tasks.mlm.task import MlmTask
from subquad.training import checkpoints
from subquad.types import AttentionOptions


class Trained:
    """A masked language model trained by subquad, with the texts and splits of its training."""

    kind: Kind = "masked"
    has_costs = False

    def __init__(self, run: Run, task: Any, model: nn.Module) -> None:
        if not isinstance(task, MlmTask) or not isinstance(model, MaskedModel):
            raise SubquadError(f"{run.folder} is a run on {task.kind}: of subquad's own, only runs of mlm can be converted")
        if not all(module.attend.traits.exact for module in _attentions(model)):
            mechanism = run.about["options"]["mechanism"]["kind"]
            raise SubquadError(f"{run.folder} was trained with {mechanism}: a conversion starts from softmax")
        self.run, self.task = run, task
        self.teacher: nn.Module = model.eval()
        self.longest = task.options.length
        for parameter in self.teacher.parameters():
            parameter.requires_grad_(False)

    @property
    def notes(self) -> dict[str, object]:
        layers = len(self.mechanisms(self.teacher))
        return {"class": "MaskedModel", "kind": self.kind, "longest": self.longest, "layers": layers}

    def student(self, attention: Sequence[AttentionOptions | None], seed: int) -> nn.Module:
        model = deepcopy(self.teacher)
        for place, (module, options) in enumerate(zip(_attentions(model), attention, strict=True)):
            drawing = torch.Generator().manual_seed(seed + place)
            layer_options = Softmax() if options is None else options
            module.attend = layer_options.build(heads=module.heads, head_dim=module.head_dim, generator=drawing)
        for parameter in model.parameters():
            parameter.requires_grad_(True)
        return model.eval()

    def mechanisms(self, model: nn.Module) -> list[nn.Module]:
        return [module.attend for module in _attentions(model)]

    def embeddings(self, model: nn.Module) -> list[nn.Parameter]:
        parts = [model.encoder.embed, model.encoder.add_positions]  # type: ignore[union-attr]
        return [parameter for part in parts if isinstance(part, nn.Module) for parameter in part.parameters()]

    def batch(self, tokens: int, length: int, seed: int) -> MaskedBatch:
        drawing, options = torch.Generator().manual_seed(seed), self.task.options
        windows = self.task.train.draw(max(1, tokens // length), length, drawing)
        return options.masking.mask(windows, self.task.vocabulary.size, drawing)

    def held_out(self, split: Split, count: int, length: int, seed: int) -> MaskedBatch:
        """Returns all excerpts of the run's split, with the same tokens masked as in its training."""
        stretches = self.task.development if split == "development" else self.task.test
        return MaskedBatch(*(part[:, :length] for part in stretches.batch))

    def outputs(self, model: Any, batch: MaskedBatch, *, logits: bool = False) -> Outputs:
        hidden: list[Tensor] = []
        hooks = [block.register_forward_hook(lambda *call: hidden.append(call[2])) for block in model.encoder.blocks]
        try:
            chosen = batch.chosen if logits else torch.zeros_like(batch.chosen)
            output = model(batch.tokens, keep=needed_mask(batch.keep), chosen=chosen)
        finally:
            for hook in hooks:
                hook.remove()
        return Outputs(tuple(hidden), output if logits else None)

    def pool(self, hidden: Float[Tensor, "b n w"], keep: Bool[Tensor, "b n"]) -> Float[Tensor, "b w"]:
        real = keep[..., None].to(hidden.dtype)
        return (hidden * real).sum(1) / real.sum(1)

    def pairs(self, most: int | None = None) -> Pairs | None:
        return None

    def save(self, model: nn.Module, attention: Sequence[AttentionOptions | None], folder: Path) -> None:
        """Saves the model as a run folder that `subquad predict` and `subquad spectrum` can read."""
        about: Mapping[str, Any] = self.run.about
        described: Any = attention[0]
        options = {**about["options"], "mechanism": asdict(described)}
        description = {**about, "options": options, "converted_from": str(self.run.folder)}
        write_whole(folder / "run.json", json.dumps(description, indent=2) + "\n")
        write_whole(folder / "rows.jsonl", "")
        checkpoints.save(folder / "checkpoint", 0, model, None, {"seed": about["seed"]})

    def costs(self, folder: Path, length: int, seconds: float) -> Iterator[Row]:
        """Yields no rows: `subquad compare` measures the costs of subquad's models."""
        return iter(())


def _attentions(model: nn.Module) -> list[MultiheadAttention]:
    return [module for module in model.modules() if isinstance(module, MultiheadAttention)]
