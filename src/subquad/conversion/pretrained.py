"""Conversion of Hugging Face models: encoders, masked and causal language models."""

import json
import math
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from transformers import PreTrainedModel

from subquad.attention import Softmax
from subquad.conversion.convertible import Kind, Outputs, Pairs, Split
from subquad.conversion.costs import costs
from subquad.conversion.stretches import draw_stretches
from subquad.data.texts import Documents
from subquad.errors import SubquadError
from subquad.files import read_text
from subquad.hub._compat import cached_file
from subquad.hub.attach import attached, attention_modules, getattr_int, hang, shape_of, write_down
from subquad.hub.attach import options_of as mechanism_options
from subquad.hub.layers import keep_heads, keep_layers, require_head_dim
from subquad.hub.looking import load_with_tokenizer, longest_input
from subquad.hub.swapping import swap
from subquad.results import Row
from subquad.tasks.mlm.corpus import split_texts
from subquad.tasks.mlm.masking import MaskedBatch, choose
from subquad.types import AttentionOptions

USUAL = 512  # longest input in tokens of a model whose config does not state one
MOST = 2048  # largest length in tokens of an excerpt, even if the model takes more
MASKED, BLANK, OTHER = 0.15, 0.8, 0.1  # BERT: share of chosen tokens; of these the share of [MASK], and of random tokens

Pooling = Literal["mean", "cls", "max"]


class Pretrained:
    """A Hugging Face model with its tokenizer and the text that it is converted on."""

    has_costs = True

    def __init__(self, path: str | Path, documents: Documents, *, seed: int = 0, length: int | None = None) -> None:
        """`length` is the number of tokens of the longest excerpts; by default as many as the model takes."""
        model, self.tokenizer = load_with_tokenizer(path)
        self.dtype = model.dtype
        model.float()  # transformers loads in the dtype of the file, in whose half precision most updates would be lost
        self.path, self.kind = path, kind_of(model)
        self.takes_cache = any(getattr(module, "is_causal", False) for module in attention_modules(model).values())
        if any(mechanism_options(module) is not None for module in attention_modules(model).values()):
            raise SubquadError(f"{path} was converted before: convert the model that it was made of")
        if self.kind == "masked" and self.tokenizer.mask_token_id is None:
            raise SubquadError(
                f"{path} is a masked language model, but its tokenizer has no mask token: use the model's own"
            )
        takes = longest_input(model)
        self.longest = length or min(takes or USUAL, MOST)
        if self.longest < 8 or (takes is not None and self.longest > takes):
            raise SubquadError(f"--length is {self.longest}, but must be from 8 to the {takes} tokens that the model takes")
        splits = split_texts(documents, seed)
        self.training, self.splits = splits.train, {"development": splits.development, "test": splits.test}
        self.pooling: Pooling = _pooling(path) if self.kind == "encoder" else "mean"
        self.compared: list[tuple[str, str, float]] = []
        self.teacher: Any = swap(model, Softmax(), layers=[])
        self.origins = list(range(len(self.mechanisms(self.teacher))))
        self.kept_heads = list(range(shape_of(next(iter(attention_modules(model).values())))[0]))
        for parameter in self.teacher.parameters():
            parameter.requires_grad_(False)

    @property
    def notes(self) -> dict[str, object]:
        described = {"class": type(self.teacher).__name__, "kind": self.kind, "longest": self.longest}
        layers = {"layers": len(self.mechanisms(self.teacher)), "origins": self.origins, "kept_heads": self.kept_heads}
        return {**described, **layers, "pooling": self.pooling}

    def student(self, attention: Sequence[AttentionOptions | None], seed: int) -> Any:
        model = deepcopy(self.teacher)
        if len(self.origins) < len(self.mechanisms(self.teacher)):
            keep_layers(model, self.origins)
        if len(self.kept_heads) < self._heads():
            model = swap(keep_heads(model, self.kept_heads), Softmax(), layers=[])
        modules = attention_modules(model).values()
        for place, (module, options) in enumerate(zip(modules, attention, strict=True)):
            if options is not None:
                hang(module, options, seed + getattr_int(module, "layer_idx", place))
        write_down(model.config, list(attention))
        for parameter in model.parameters():
            parameter.requires_grad_(True)
        return model

    def head_groups(self) -> int:
        require_head_dim(self.teacher)
        return getattr_int(self.teacher.config, "num_key_value_heads") or self._heads()

    def _heads(self) -> int:
        """Returns the number of query heads of the teacher's first layer."""
        return shape_of(next(iter(attention_modules(self.teacher).values())))[0]

    def mechanisms(self, model: nn.Module) -> list[nn.Module]:
        assert isinstance(model, PreTrainedModel)
        return [attached(module) for module in attention_modules(model).values()]

    def embeddings(self, model: nn.Module) -> list[nn.Parameter]:
        """Parameters of the token and position embeddings, and of the output embedding."""
        assert isinstance(model, PreTrainedModel)
        tables: list[Any] = [module for module in model.modules() if isinstance(module, nn.Embedding)]
        last: Any = model.get_output_embeddings()
        return [parameter for module in [*tables, *([] if last is None else [last])] for parameter in module.parameters()]

    def batch(self, tokens: int, length: int, seed: int) -> MaskedBatch:
        return self._stretches(self.training, max(1, tokens // length), length, seed)

    def held_out(self, split: Split, count: int, length: int, seed: int) -> MaskedBatch:
        return self._stretches(self.splits[split], count, length, seed)

    def outputs(self, model: Any, batch: MaskedBatch, *, logits: bool = False) -> Outputs:
        inputs: dict[str, Any] = {"input_ids": batch.tokens, "output_hidden_states": True}
        if not bool(batch.keep.all()):
            inputs["attention_mask"] = batch.keep.long()
        if self.takes_cache:
            inputs["use_cache"] = False
        if not logits:
            return Outputs(model.base_model(**inputs).hidden_states[1:], None)
        with _only(model, batch.chosen):
            output = model(**inputs)
        return Outputs(output.hidden_states[1:], output.logits[0])

    def pool(self, hidden: Float[Tensor, "b n w"], keep: Bool[Tensor, "b n"]) -> Float[Tensor, "b w"]:
        if self.pooling == "cls":
            return hidden[:, 0]
        if self.pooling == "max":
            return hidden.masked_fill(~keep[..., None], -torch.inf).amax(1)
        real = keep[..., None].to(hidden.dtype)
        return (hidden * real).sum(1) / real.sum(1)

    def pairs(self, most: int | None = None) -> Pairs | None:
        if not self.compared:
            return None
        chosen = self.compared[:: 1 if most is None else math.ceil(len(self.compared) / max(1, most))]
        first, second, scores = zip(*chosen, strict=True)
        sides = [[self.encode(list(part)) for part in _parts(side, 64)] for side in (first, second)]
        return Pairs(sides[0], sides[1], list(scores))

    def compare(self, first: Sequence[str], second: Sequence[str], scores: Sequence[float]) -> None:
        """Sets the sentence pairs with human similarity scores that `pairs` returns."""
        self.compared = list(zip(first, second, scores, strict=True))

    def save(self, model: Any, attention: Sequence[AttentionOptions | None], folder: Path) -> None:
        try:
            saved = model if self.dtype == torch.float32 else deepcopy(model).to(self.dtype)
            saved.save_pretrained(folder)
            self.tokenizer.save_pretrained(folder)
            if (pooling := _pooling_file(self.path)) is not None:
                (folder / "1_Pooling").mkdir(exist_ok=True)
                shutil.copyfile(pooling, folder / "1_Pooling" / "config.json")
        except OSError as error:
            raise SubquadError(
                f"cannot write {folder}: {error.strerror or error}; free disk space, then resume the run"
            ) from None

    def costs(self, folder: Path, length: int, seconds: float) -> Iterator[Row]:
        return costs(self.path, folder, length, seconds)

    def encode(self, texts: list[str], length: int | None = None) -> MaskedBatch:
        """Tokenizes texts into a padded batch, cut to `length` tokens, without places to predict."""
        most = self.longest if length is None else length
        rows = self.tokenizer(texts, truncation=True, max_length=most, verbose=False)["input_ids"]
        size = max(1, *map(len, rows))
        blank = self.tokenizer.pad_token_id or 0
        tokens = torch.tensor([[*row, *[blank] * (size - len(row))] for row in rows])
        keep = torch.arange(size) < torch.tensor([len(row) for row in rows])[:, None]
        return MaskedBatch(tokens, tokens, torch.zeros_like(keep), keep)

    def _stretches(self, texts: Sequence[str], count: int, length: int, seed: int) -> MaskedBatch:
        drawing = torch.Generator().manual_seed(seed)
        plain = self.encode(draw_stretches(texts, count, length, drawing), length)
        if self.kind == "causal":
            after = plain.keep.roll(-1, 1)
            after[:, -1] = False
            return plain._replace(right=plain.tokens.roll(-1, 1), chosen=after)
        return plain if self.kind == "encoder" else self._masked(plain, drawing)

    def _masked(self, plain: MaskedBatch, drawing: torch.Generator) -> MaskedBatch:
        """Masks tokens of a batch as in the training of masked language models."""
        words = torch.arange(plain.tokens.shape[1]).expand(plain.tokens.shape)
        special = torch.isin(plain.tokens, torch.tensor(self.tokenizer.all_special_ids))
        chosen = choose(words, plain.keep & ~special, MASKED, drawing)
        fate = torch.rand(words.shape, generator=drawing)
        others = torch.randint(len(self.tokenizer), words.shape, generator=drawing)
        tokens = torch.where(chosen & (fate < BLANK), self.tokenizer.mask_token_id, plain.tokens)
        tokens = torch.where(chosen & (fate >= BLANK) & (fate < BLANK + OTHER), others, tokens)
        return plain._replace(tokens=tokens, chosen=chosen)


def kind_of(model: PreTrainedModel) -> Kind:
    """Returns the kind of a model, which the name of its class tells."""
    name = type(model).__name__
    if model.config.is_encoder_decoder:
        raise SubquadError(f"{name} has an encoder and a decoder: only models with one of the two can be converted")
    if name.endswith("ForMaskedLM"):
        return "masked"
    if name.endswith(("ForCausalLM", "LMHeadModel")):
        return "causal"
    if model.base_model is not model:
        raise SubquadError(
            f"{name} is neither an encoder nor a masked or causal language model: convert the model that it is built on"
        )
    return "encoder"


@contextmanager
def _only(model: Any, chosen: Bool[Tensor, "b n"]) -> Iterator[None]:
    """Within the `with` block, the language-model head sees only the chosen places, which saves most of its work."""

    def pick(module: nn.Module, inputs: Any, outputs: Any) -> Any:
        outputs["last_hidden_state"] = outputs["last_hidden_state"][chosen][None]
        return outputs

    hook = model.base_model.register_forward_hook(pick)
    try:
        yield
    finally:
        hook.remove()


def _pooling(path: str | Path) -> Pooling:
    """Reads the pooling mode of a sentence encoder; mean if there is none. Raises `SubquadError` for an unknown one."""
    file = _pooling_file(path)
    try:
        config: Mapping[str, Any] = {} if file is None else json.loads(file.read_text())
    except (OSError, ValueError):
        return "mean"
    modes: dict[str, Pooling] = {
        "pooling_mode_mean_tokens": "mean",
        "pooling_mode_cls_token": "cls",
        "pooling_mode_max_tokens": "max",
    }
    chosen = [name for name, value in config.items() if name.startswith("pooling_mode_") and value is True]
    if chosen and not any(name in modes for name in chosen):
        raise SubquadError(f"{path} has vectors by {chosen[0]}, which a conversion does not know: mean, cls or max it does")
    return next((mode for name, mode in modes.items() if config.get(name)), "mean")


def _pooling_file(path: str | Path) -> Path | None:
    """The file with the pooling mode, in a folder or on the hub; None if there is none."""
    folder = Path(path).expanduser()
    if folder.is_dir():
        return file if (file := folder / "1_Pooling" / "config.json").is_file() else None
    quiet = {f"_raise_exceptions_for_{what}": False for what in ("gated_repo", "missing_entries", "connection_errors")}
    found = cached_file(str(path), "1_Pooling/config.json", **quiet)
    return None if found is None else Path(found)


def _parts(items: Sequence[str], size: int) -> Iterator[Sequence[str]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]


def read_pairs(path: Path) -> tuple[list[str], list[str], list[float], list[str]]:
    """Reads sentence pairs and scores from a tab-separated file: (first, second, scores, warnings about bad lines)."""
    lines = read_text(path).splitlines()
    first, second, scores, bad = [], [], [], []
    for number, line in enumerate(lines, start=1):
        cells = line.split("\t")
        try:
            score = float(cells[4])
            left, right = cells[5].strip(), cells[6].strip()
        except (IndexError, ValueError):
            bad.append(number)
            continue
        first.append(left)
        second.append(right)
        scores.append(score)
    if len(scores) < 2:
        raise SubquadError(f"--pairs: {path} has no scores in column 5 and sentences in 6 and 7, with tabs between columns")
    bad_lines = "1 line is" if len(bad) == 1 else f"{len(bad):,} lines are"
    warnings = [
        f"{path.name}: {bad_lines} left out, without a score and two sentences: the first is line {n}" for n in bad[:1]
    ]
    return first, second, scores, warnings
