"""Loads models with their mechanisms from folders or the Hugging Face hub, with clear messages for bad files."""

import json
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, PreTrainedConfig, PreTrainedModel
from transformers.utils import logging

from subquad.attention import Softmax
from subquad.errors import SubquadError
from subquad.hub._compat import cached_file, implementation_in, name_implementation, saved_names
from subquad.hub.attach import (
    ATTRIBUTE,
    SWAPPED,
    attention_modules,
    getattr_int,
    hang,
    options_of,
    read_back,
    shape_of,
    write_down,
)
from subquad.types import AttentionOptions

_INFIX = f".{ATTRIBUTE}."
MOST_DERIVED = 2**27
"""Largest number of tensor elements that the mechanisms of a model may compute from their options."""
MOST_MISSING = 2**20
"""Largest number of tensor elements that may be missing from the file when mechanisms are built."""


def load(path: str | Path, model_class: type[PreTrainedModel] | None = None) -> PreTrainedModel:
    """Loads a model from a folder or by its name on the hub, with the class and the mechanisms that it was saved with.

    A class that transformers does not have must be given as `model_class`.
    """
    folder = _folder(path)
    path = path if folder is None else folder  # in which ~ is written out
    config = _config(path, folder)
    is_swapped = implementation_in(config) == SWAPPED or getattr(config, ATTRIBUTE, None) is not None
    name_implementation(config, None)
    if is_swapped and read_back(config) is None:
        raise SubquadError(f"{path} was saved with subquad's attention, but config.json does not say which: save it again")
    kind: Any = model_class or _class(config, path)
    with _in_words(path, folder), _quietly(is_swapped):
        model: PreTrainedModel
        model, info = kind.from_pretrained(path, config=config, output_loading_info=True)
    model.eval()
    if not is_swapped:
        return model
    mechanism_keys = {name for name in info["unexpected_keys"] if _INFIX in name}
    foreign = sorted(set(info["unexpected_keys"]) - mechanism_keys)
    if model_class is None and (foreign or info["missing_keys"]):
        difference = f"lack {min(info['missing_keys'])}" if info["missing_keys"] else f"hold {foreign[0]}, which it has not"
        raise SubquadError(f"the weights in {path} are not of the model in its config.json: they {difference}")
    with _in_words(path, folder):
        read_from = folder or Path(str(cached_file(str(path), "config.json"))).parent  # what transformers has just read
        _hang_all(model, config, path, _mechanism_tensors(read_from))
    model.set_attn_implementation(SWAPPED)
    write_down(model.config, [options_of(module) for module in attention_modules(model).values()])
    return model


def _hang_all(model: PreTrainedModel, config: PreTrainedConfig, path: str | Path, tensors: dict[str, Tensor]) -> None:
    """Builds the mechanisms that the config describes, and loads their tensors."""
    modules = attention_modules(model)
    described = read_back(config, len(modules)) or []
    _refuse_unsaved(list(modules.values()), described, tensors, path)
    for place, ((_, module), options) in enumerate(zip(modules.items(), described, strict=True)):
        hang(module, options or Softmax(), getattr_int(module, "layer_idx", place), original=options is None)
    targets = {name: held for name, held in model.state_dict(keep_vars=True).items() if _INFIX in name}
    keys = saved_names(model, list(tensors))
    for name, target in targets.items():
        key = keys.get(name)
        if key is None or tensors[key].shape != target.shape:
            problem = "lack" if key is None else "hold with another shape"
            raise SubquadError(f"the weights in {path} {problem} {name}, which its config.json speaks of")
        with torch.no_grad():
            target.copy_(tensors[key])
    if foreign := sorted(tensors.keys() - {keys[name] for name in targets}):
        raise SubquadError(f"the weights in {path} hold {foreign[0]}, which its config.json does not speak of")


def _refuse_unsaved(
    modules: list[nn.Module], described: list[AttentionOptions | None], tensors: dict[str, Tensor], path: str | Path
) -> None:
    """Raises `SubquadError` for mechanisms that are larger than their tensors in the file, before they are built."""
    needed = derived = 0
    for module, options in zip(modules, described, strict=True):
        if options is not None:
            heads, head_dim = shape_of(module)
            size = options.size(heads=heads, head_dim=head_dim)
            needed, derived = needed + size.numbers - size.derived, derived + size.derived
    saved = sum(tensor.numel() for tensor in tensors.values())
    if derived > MOST_DERIVED:
        raise SubquadError(
            f"config.json in {path} speaks of mechanisms that would compute {derived:,} numbers before they begin, where "
            f"{MOST_DERIVED:,} are allowed: check their options under 'subquad'"
        )
    if needed > saved + MOST_MISSING:
        raise SubquadError(
            f"config.json in {path} speaks of mechanisms with {needed:,} numbers, but the weights hold {saved:,} for them: "
            "the config.json belongs to another model"
        )


def _mechanism_tensors(folder: Path) -> dict[str, Tensor]:
    """Reads the mechanisms' tensors from all safetensors files in a folder."""
    tensors: dict[str, Tensor] = {}
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, framework="pt") as held:
            tensors |= {name: held.get_tensor(name) for name in held.keys() if _INFIX in name}  # noqa: SIM118
    return tensors


def _folder(path: str | Path) -> Path | None:
    """Returns the folder at `path`, or None if `path` is a name on the hub."""
    folder = Path(path).expanduser()
    if not folder.exists():
        if isinstance(path, Path) or path.startswith((".", "/", "~")) or path.count("/") > 1 or "\\" in path:
            raise SubquadError(f"there is no folder {path}")
        return None
    if not folder.is_dir() or not (folder / "config.json").is_file():
        raise SubquadError(f"{path} is no model: give a folder with a config.json and weights, as save_pretrained writes it")
    weight_files = [file.name for file in folder.iterdir() if file.name.startswith(("model", "pytorch_model"))]
    if not any(
        name.endswith((".safetensors", ".safetensors.index.json", ".bin", ".bin.index.json")) for name in weight_files
    ):
        raise SubquadError(f"{path} has a config.json but no weights: there should be a model.safetensors beside it")
    return folder


def _config(path: str | Path, folder: Path | None) -> PreTrainedConfig:
    with _in_words(path, folder):
        config: PreTrainedConfig = AutoConfig.from_pretrained(path)
    return config


def _class(config: PreTrainedConfig, path: str | Path) -> Any:
    """Returns the class that a model was saved from."""
    names = config.architectures or []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise SubquadError(
            f"config.json in {path}: 'architectures' must be a list of the names of classes, but is {names!r:.80}"
        )
    candidates = [getattr(transformers, name, None) for name in names]
    kinds = [kind for kind in candidates if isinstance(kind, type) and issubclass(kind, PreTrainedModel)]
    if names and not kinds:
        raise SubquadError(
            f"{path} was saved from a {names[0]}, which transformers {transformers.__version__} does not have, and another "
            "class may lack a part of it: give its class as model_class, or name one that transformers has under "
            "'architectures' in its config.json"
        )
    return kinds[0] if kinds else AutoModel


@contextmanager
def _in_words(path: str | Path, folder: Path | None) -> Iterator[None]:
    """Turns errors of reading a model into a `SubquadError` with one clear sentence."""
    try:
        yield
    except SubquadError:
        raise
    except (SafetensorError, EOFError, json.JSONDecodeError, KeyError) as error:
        raise SubquadError(f"{path} cannot be read ({_first_line(error)}): a file is damaged or not of this model") from None
    except Exception as error:  # transformers may raise any exception for an edited config.json
        is_pickle = isinstance(error, AttributeError) and "pickle" in str(error).lower()
        if is_pickle or isinstance(error, pickle.UnpicklingError):
            raise SubquadError(
                f"the weights in {path} are a pickle that holds more than tensors and could run anything when it is read: "
                "ask for them as safetensors"
            ) from None
        if folder is None:
            raise SubquadError(
                f"{path!r} is no folder here and cannot be had from the Hugging Face hub ({_first_line(error)}): give the "
                "path of a folder with a config.json and model.safetensors, or check the name and the network"
            ) from None
        raise SubquadError(f"{path} cannot be read as a model of transformers: {_first_line(error)}") from error


@contextmanager
def _quietly(is_quiet: bool) -> Iterator[None]:
    """Silences transformers' warning about the mechanisms' tensors, which it does not know; they are loaded afterwards."""
    before = logging.get_verbosity()
    try:
        if is_quiet:
            logging.set_verbosity_error()
        yield
    finally:
        logging.set_verbosity(before)


def _first_line(error: BaseException) -> str:
    """Returns the first line of an error's message, with characters escaped that cannot be encoded."""
    line = next((line.strip().rstrip(".") for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return line.encode(errors="backslashreplace").decode()
