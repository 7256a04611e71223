"""Opens a model and the sequences on which its attention is examined."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from rich.console import Console
from torch import Tensor

from subquad.capacity import require_memory
from subquad.cli.pretrained import check_pretrained
from subquad.cli.streams import say
from subquad.data.texts import load_texts, python_topics
from subquad.errors import SubquadError
from subquad.runs import TrainedModel, load

SEQUENCE_BYTES = 500
"""Lower bound of the memory of one sequence in bytes."""


@dataclass(frozen=True)
class Examination:
    """Which model is examined, and on which sequences."""

    model: str
    """Folder of a run of `subquad train` or of a Hugging Face model, or name of a model on its hub."""
    text: Path | None
    """Text that sequences are cut from; by default a run's held-out text, or Python's help topics."""
    length: int | None
    """Number of tokens in a sequence; None for the usual one."""
    sequences: int
    seed: int


def open_run(examination: Examination, console: Console) -> tuple[TrainedModel, list[Any]]:
    """Loads the model of a run of `subquad train`, and returns it with batches of one sequence each."""
    trained = load(examination.model, say=say)
    if examination.text is not None or examination.length is not None:
        trained.task.require_texts()
    require_memory("so many sequences", examination.sequences * SEQUENCE_BYTES, "give fewer --sequences")
    texts = None if examination.text is None else _texts(examination.text)
    drawing = torch.Generator().manual_seed(examination.seed)
    examples = trained.task.examples(examination.sequences, drawing, texts=texts, length=examination.length)
    _check_number(len(examples), examination, examples[0][0].shape[1], console)
    return trained, examples


def open_pretrained(examination: Examination, usual: int, console: Console) -> tuple[Any, Int[Tensor, "b n"]]:
    """Loads a Hugging Face model, and returns it with token sequences, of `usual` tokens unless a length is chosen."""
    check_pretrained(examination.model)
    from subquad.hub.looking import load_with_tokenizer, longest_input, stretches

    texts = python_topics().texts if examination.text is None else _texts(examination.text)
    model, tokenizer = load_with_tokenizer(examination.model)
    longest = longest_input(model) or usual
    length = examination.length or min(usual, longest)
    if length > longest:
        raise SubquadError(f"--length is {length}, but the model has {longest} positions: give a smaller one")
    drawing = torch.Generator().manual_seed(examination.seed)
    tokens = stretches(tokenizer, texts, examination.sequences, length, drawing)
    _check_number(len(tokens), examination, length, console)
    return model, tokens


def _texts(path: Path) -> Sequence[str]:
    """Reads the texts of a file or folder, and prints what could not be read."""
    documents = load_texts(path)
    for complaint in documents.complaints:
        say(complaint)
    return documents.texts


def _check_number(number: int, examination: Examination, length: int, console: Console) -> None:
    """Raises `SubquadError` if there is no excerpt of the length, and prints a note if there are too few."""
    if not number:
        where = "the text" if examination.text is None else examination.text
        raise SubquadError(f"{where} has no stretch of {length} tokens: give more text or a smaller --length")
    if number < examination.sequences:
        console.print(f"There are {number} stretches of {length} tokens, so not {examination.sequences}.")
