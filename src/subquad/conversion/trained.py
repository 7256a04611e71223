"""Conversion of runs of `subquad train mlm` and `subquad train lm`."""

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from subquad.attention import Softmax, joined, require_causal
from subquad.conversion.convertible import Kind, Outputs, Pairs, Split
from subquad.data.ragged import needed_mask
from subquad.errors import SubquadError
from subquad.files import write_whole
from subquad.models import Decoder, MultiheadAttention, attentions_of
from subquad.models.stacks import Stack
from subquad.results import Row, Run
from subquad.tasks.lm import LmTask
from subquad.tasks.mlm.masking import MaskedBatch
from subquad.tasks.mlm.model import MaskedModel
from subquad.tasks.mlm.task import MlmTask
from subquad.training import checkpoints
from subquad.types import AttentionOptions


def open_trained(run: Run, task: Any, model: nn.Module) -> "Trained":
    """Returns the language model of a run, to be converted."""
    if isinstance(task, MlmTask) and isinstance(model, MaskedModel):
        return TrainedMasked(run, task, model)
    if isinstance(task, LmTask) and isinstance(model, Decoder):
        return TrainedCausal(run, task, model)
    raise SubquadError(f"{run.folder} is a run on {task.kind}: of subquad's own, only runs of mlm and lm can be converted")


class Trained(ABC):
    """A language model trained by subquad, with the texts and splits of its training."""

    kind: ClassVar[Kind]
    has_costs = False

    def __init__(self, run: Run, task: Any, model: nn.Module) -> None:
        if not all(module.attend.traits.exact for module in attentions_of(model)):
            mechanism = run.about["options"]["mechanism"]["kind"]
            raise SubquadError(f"{run.folder} was trained with {mechanism}: a conversion starts from softmax")
        if self._stack(model).options.share_attention > 1:
            raise SubquadError(
                f"the layers of {run.folder} share attention weights, which a conversion cannot keep: train it without "
                "--share-attention"
            )
        self.run, self.task = run, task
        self.teacher: nn.Module = model.eval()
        self.longest: int = task.options.length
        self.origins = list(range(len(self.mechanisms(self.teacher))))
        self.kept_heads = list(range(self.head_groups()))
        for parameter in self.teacher.parameters():
            parameter.requires_grad_(False)

    @property
    def notes(self) -> dict[str, object]:
        layers = len(self.mechanisms(self.teacher))
        described = {"class": type(self.teacher).__name__, "kind": self.kind, "longest": self.longest}
        return {**described, "layers": layers, "origins": self.origins, "kept_heads": self.kept_heads}

    def student(self, attention: Sequence[AttentionOptions | None], seed: int) -> nn.Module:
        model = deepcopy(self.teacher)
        stack = self._stack(model)
        stack.blocks = nn.ModuleList(stack.blocks[layer] for layer in self.origins)
        stack.options = replace(stack.options, layers=len(self.origins), **self._fewer_heads)
        for place, (module, options) in enumerate(zip(attentions_of(model), attention, strict=True)):
            if options is not None and options.traits.shares_layers:
                raise SubquadError("in a conversion each layer has a projection of its own: give --sharing keys-values")
            drawing = torch.Generator().manual_seed(seed + place)
            _keep_heads(module, self.kept_heads)
            layer_options = Softmax() if options is None else options
            module.attend = layer_options.build(heads=module.heads, head_dim=module.head_dim, generator=drawing)
        for parameter in model.parameters():
            parameter.requires_grad_(True)
        return model.eval()

    @property
    def _fewer_heads(self) -> dict[str, Any]:
        """The model option of a student that has fewer heads than the teacher."""
        return {"fewer_heads": len(self.kept_heads)} if len(self.kept_heads) < self.head_groups() else {}

    def head_groups(self) -> int:
        return attentions_of(self.teacher)[0].heads

    def mechanisms(self, model: nn.Module) -> list[nn.Module]:
        return [module.attend for module in attentions_of(model)]

    def embeddings(self, model: nn.Module) -> list[nn.Parameter]:
        stack: Any = self._stack(model)
        parts = [stack.embed, stack.add_positions]
        return [parameter for part in parts if isinstance(part, nn.Module) for parameter in part.parameters()]

    @abstractmethod
    def _stack(self, model: Any) -> Stack:
        """Returns the stack of layers of the teacher or a student."""

    @abstractmethod
    def batch(self, tokens: int, length: int, seed: int) -> MaskedBatch:
        """Returns windows of the training text."""

    @abstractmethod
    def held_out(self, split: Split, count: int, length: int, seed: int) -> MaskedBatch:
        """Returns windows of a held-out split."""

    @abstractmethod
    def outputs(self, model: Any, batch: MaskedBatch, *, logits: bool = False) -> Outputs:
        """Returns the outputs of the teacher or a student for a batch."""

    def pool(self, hidden: Float[Tensor, "b n w"], keep: Bool[Tensor, "b n"]) -> Float[Tensor, "b w"]:
        real = keep[..., None].to(hidden.dtype)
        return (hidden * real).sum(1) / real.sum(1)

    def pairs(self, most: int | None = None) -> Pairs | None:
        return None

    def save(self, model: nn.Module, attention: Sequence[AttentionOptions | None], folder: Path) -> None:
        """Saves the model as a run folder that `subquad predict` and `subquad spectrum` can read."""
        about: Mapping[str, Any] = self.run.about
        described: Any = joined([Softmax() if options is None else options for options in attention])
        shape = {**about["options"]["model"], "layers": len(self.origins), **self._fewer_heads}
        options = {**about["options"], "mechanism": asdict(described), "model": shape}
        description = {**about, "options": options, "converted_from": str(self.run.folder)}
        write_whole(folder / "run.json", json.dumps(description, indent=2) + "\n")
        write_whole(folder / "rows.jsonl", "")
        checkpoints.save(folder / "checkpoint", 0, model, None, {"seed": about["seed"]})

    def costs(self, folder: Path, length: int, seconds: float) -> Iterator[Row]:
        """Yields no rows: `subquad compare` measures the costs of subquad's models."""
        return iter(())


class TrainedMasked(Trained):
    """A masked language model of `subquad train mlm`."""

    kind: ClassVar[Kind] = "masked"

    def _stack(self, model: Any) -> Stack:
        stack: Stack = model.encoder
        return stack

    def batch(self, tokens: int, length: int, seed: int) -> MaskedBatch:
        drawing, options = torch.Generator().manual_seed(seed), self.task.options
        windows = self.task.train.draw(max(1, tokens // length), length, drawing)
        masked: MaskedBatch = options.masking.mask(windows, self.task.vocabulary.size, drawing)
        return masked

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
        if not logits and not hidden:
            raise SubquadError("a reversible model keeps no hidden states of its layers: give --goal task or logits")
        return Outputs(tuple(hidden), output if logits else None)


class TrainedCausal(Trained):
    """A causal language model of `subquad train lm`."""

    kind: ClassVar[Kind] = "causal"

    def student(self, attention: Sequence[AttentionOptions | None], seed: int) -> nn.Module:
        for options in attention:
            if options is not None:
                require_causal(options)
        return super().student(attention, seed)

    def _stack(self, model: Any) -> Stack:
        stack: Stack = model
        return stack

    def batch(self, tokens: int, length: int, seed: int) -> MaskedBatch:
        return self._windows("train", max(1, tokens // length), length, seed)

    def held_out(self, split: Split, count: int, length: int, seed: int) -> MaskedBatch:
        return self._windows(split, count, length, seed)

    def _windows(self, split: str, count: int, length: int, seed: int) -> MaskedBatch:
        """Returns windows of a split, where every token of a text is to be predicted from those before it."""
        windows = getattr(self.task, split).draw(count, length, torch.Generator().manual_seed(seed))
        tokens, right = windows[:, :-1], windows[:, 1:]
        return MaskedBatch(tokens, right, self.task.is_text(right), torch.ones_like(tokens, dtype=torch.bool))

    def outputs(self, model: Any, batch: MaskedBatch, *, logits: bool = False) -> Outputs:
        hidden = model.hidden(batch.tokens)
        return Outputs(tuple(hidden), model.logits(hidden[-1][batch.chosen][None])[0] if logits else None)


def _keep_heads(module: MultiheadAttention, kept: Sequence[int]) -> None:
    """Removes all heads of an attention in place but these; its mechanism is to be built anew."""
    if len(kept) == module.heads:
        return
    numbers = (torch.tensor(kept)[:, None] * module.head_dim + torch.arange(module.head_dim)).flatten()
    for layer in (module.to_q, module.to_k, module.to_v):
        layer.weight, layer.out_features = nn.Parameter(layer.weight[numbers].clone()), len(numbers)
        if layer.bias is not None:
            layer.bias = nn.Parameter(layer.bias[numbers].clone())
    out = module.to_out
    out.weight, out.in_features = nn.Parameter(out.weight[:, numbers].clone()), len(numbers)
    module.heads = module.kv_heads = len(kept)
