"""The command `subquad choose --model`: which conversion of a pretrained model, and of which layers."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import tyro
from jaxtyping import Int
from numpy import ndarray

from subquad.attention import Linear, options_from
from subquad.checking import Checked, Count, FilePath, GivenFileName, NonNegative, Positive, Seed, Words, read
from subquad.choose.candidates import Candidate
from subquad.choose.converting import ModelRace, ModelTerms
from subquad.choose.decision import Wishes
from subquad.choose.race import Watch
from subquad.choose.records import read_wishes
from subquad.choose.textscores import Texts
from subquad.cli.convert import ATTENTIONS
from subquad.cli.parsing import parse
from subquad.cli.pretrained import check_pretrained
from subquad.cli.values import choose, parse_bytes, parse_seconds
from subquad.conversion import ConversionOptions
from subquad.conversion.convertible import Convertible
from subquad.conversion.engine import check
from subquad.data.texts import load_texts, python_topics
from subquad.errors import SubquadError
from subquad.feature_maps import FEATURE_MAPS
from subquad.results import Run, describe_run, holds_run, new_folder, place_of
from subquad.types import AttentionOptions

PROG = "subquad choose"
USUAL = ("hybrid", "learned", "window")
"""Attentions that a model is converted to if none are named; learned is linear attention with a learned feature map."""
CHARACTERS = 8
"""Number of characters of a text that are read for each token that the model takes, to count its tokens."""
COUNTED = 1000
"""Largest number of texts of each split whose tokens are counted."""


@dataclass(frozen=True)
class ChooseModel(Checked):
    """Converts a pretrained model to several attentions in all or some layers, and recommends one of them, or none."""

    model: GivenFileName
    """Folder of a Hugging Face model, or name of a model on its hub."""
    text: FilePath | None = None
    """Text, a folder or file: *.txt, *.md, *.jsonl(.gz); default: Python's help topics."""
    length: Count | None = None
    """Number of tokens of the longest texts; by default as many as the model takes."""
    mechanisms: Annotated[
        tuple[Words, ...],
        tyro.conf.arg(help=f"Attentions to convert to: {', '.join(ATTENTIONS)}. Default: {', '.join(USUAL)}."),
    ] = ()
    budget: Words = "10m"
    """Time for everything, such as 90s, 10m or 2h."""
    quality_loss: NonNegative | None = None
    """Largest loss of quality beside the original, in nats per token or in cosine, at which a faster model is recommended;
    default: a share of 3 percent of what the original gains over the frequencies of tokens, or 0.01 of cosine."""
    max_seconds: Positive | None = None
    """Largest time in seconds of a forward pass through the attention of all layers, for a text of the 90 percent length."""
    max_memory: Words = ""
    """Largest peak memory of one attention, forward and backward, for the longest text, such as 500MB."""
    seed: Seed = 0
    """Seed of texts and new parameters."""
    out: FilePath | None = None
    """Folder of the race; default: runs/choose-model-DATE-TIME."""


@dataclass(frozen=True)
class KeptModel(Checked):
    """Options of a race of conversions as stored in run.json."""

    model: GivenFileName
    text: FilePath | None
    length: Count | None
    attentions: dict[str, dict[str, Any]]
    budget: Positive
    seed: Seed
    wishes: dict[str, Any]


class Opened(NamedTuple):
    """A race of conversions with its model and texts."""

    run: Run
    kept: KeptModel
    original: Convertible
    texts: Texts

    def race(self, watch: Watch, started: float) -> ModelRace:
        """The race, which goes on where it stopped."""
        from subquad.hub.files import load

        place = f"{place_of(self.run.about)}: options"
        wishes = read_wishes(self.kept.wishes, f"{place}: wishes")
        attentions = {
            name: options_from(fields, f"{place}: attentions: {name}") for name, fields in self.kept.attentions.items()
        }
        return ModelRace(
            self.run,
            self.original,
            attentions,
            ModelTerms(self.kept.budget, self.kept.seed, wishes),
            texts=self.texts,
            load=load,
            describe=self.describe,
            watch=watch,
            started=started,
        )

    def describe(self, candidate: Candidate, options: ConversionOptions) -> tuple[dict[str, Any], list[str]]:
        """The options of a candidate's run of `subquad convert`, and the words that repeat it."""
        mechanism: Any = candidate.attention.for_length(self.original.longest)
        text = None if self.kept.text is None else str(self.kept.text)
        described: dict[str, Any] = {"model": self.kept.model, "text": text, "length": self.kept.length}
        described |= {"mechanism": dataclasses.asdict(mechanism), "original": self.original.notes}
        words = ["convert", self.kept.model, "--attention", candidate.mechanism, "--minutes", f"{options.minutes:.4g}"]
        words += ["--no-controls", "--seed", str(self.kept.seed)]
        for name, value in (("--text", text), ("--length", self.kept.length)):
            words += [] if value is None else [name, str(value)]
        words += ["--keep-layers", *map(str, candidate.exact)] if candidate.exact else []
        return {**described, "conversion": dataclasses.asdict(options)}, words


def is_model_race(about: Mapping[str, Any]) -> bool:
    """Whether the run.json of a race is about a pretrained model, not about a task."""
    options = about["options"]
    return isinstance(options, Mapping) and isinstance(options.get("model"), str)


def new_model_race(words: Sequence[str]) -> Opened:
    """Reads the options, opens the model and makes the folder of a race of conversions."""
    options = parse(ChooseModel, list(words), prog=PROG)
    names = [choose("attention", name, ATTENTIONS) for name in dict.fromkeys(options.mechanisms)] or list(USUAL)
    attentions: dict[str, Any] = {name: _attention(name) for name in names}
    memory = parse_bytes("--max-memory", options.max_memory) if options.max_memory else None
    described = {
        "model": options.model,
        "text": None if options.text is None else str(options.text),
        "length": options.length,
        "attentions": {name: dataclasses.asdict(each) for name, each in attentions.items()},
        "budget": parse_seconds("--budget", options.budget),
        "seed": options.seed,
        "wishes": Wishes(options.quality_loss, options.max_seconds, memory)._asdict(),
    }
    kept = read(KeptModel, described, "the options")
    original, texts = open_model(kept)
    for attention in attentions.values():
        check(original, attention.for_length(original.longest), ConversionOptions(controls=False, cost_lengths=()))
    about = describe_run(described, ["choose", *words], seed=options.seed)
    return Opened(Run.create(options.out or new_folder("choose", "model"), "choose", about), kept, original, texts)


def open_model_race(run: Run, budget: float | None) -> Opened:
    """Opens a race of conversions that was started before, with its budget or another one."""
    kept = read(KeptModel, run.about["options"], f"{place_of(run.about)}: options")
    kept = kept if budget is None else dataclasses.replace(kept, budget=budget)
    return Opened(run, kept, *open_model(kept))


def open_model(kept: KeptModel) -> tuple[Convertible, Texts]:
    """Loads the model, and reads the texts and counts their tokens."""
    if holds_run(Path(kept.model)):
        raise SubquadError(
            f"{kept.model} is a run of subquad train: race attentions by `subquad choose TASK`, or convert it by "
            "`subquad convert`; --model is for models of transformers"
        )
    check_pretrained(kept.model)
    documents = python_topics() if kept.text is None else load_texts(kept.text)
    from subquad.conversion.pretrained import Pretrained

    original = Pretrained(kept.model, documents, seed=kept.seed, length=kept.length)
    lengths = {
        part: token_counts(original, texts[:COUNTED])
        for part, texts in (("train", original.training), *original.splits.items())
        if len(texts)
    }
    return original, Texts(lengths, tuple(documents.complaints))


def token_counts(original: Any, texts: Sequence[str]) -> Int[ndarray, "texts"]:
    """Number of tokens of each text that the model reads: at most as many as it takes."""
    cut = [text[: CHARACTERS * original.longest] for text in texts]
    encoded = original.tokenizer(cut, truncation=True, max_length=original.longest, verbose=False)["input_ids"]
    return np.array([max(1, len(tokens)) for tokens in encoded], np.int64)


def _attention(name: str) -> AttentionOptions:
    """The options of an attention by its name; a feature map means linear attention with that map."""
    options = ATTENTIONS[name]()
    return Linear(options) if name in FEATURE_MAPS else options
