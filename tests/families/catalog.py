"""The families of the installed transformers: folders of its models, with the types and heads in each."""

from dataclasses import dataclass
from typing import Any

import transformers.models.auto.modeling_auto as auto
from transformers import CONFIG_MAPPING
from transformers.models.auto.configuration_auto import model_type_to_module_name

# By the names of transformers' own tables; a class that stands in several has the first of these heads.
HEADS = {
    "base": "MODEL_MAPPING_NAMES",
    "causal-lm": "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",
    "masked-lm": "MODEL_FOR_MASKED_LM_MAPPING_NAMES",
    "seq2seq-lm": "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES",
    "sequence-classification": "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES",
    "image-text-to-text": "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES",
    "image-classification": "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES",
    "video-classification": "MODEL_FOR_VIDEO_CLASSIFICATION_MAPPING_NAMES",
    "audio-classification": "MODEL_FOR_AUDIO_CLASSIFICATION_MAPPING_NAMES",
    "ctc": "MODEL_FOR_CTC_MAPPING_NAMES",
    "speech-seq2seq": "MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES",
}
_RANKS = ["causal-lm", "seq2seq-lm", "speech-seq2seq", "image-text-to-text"]
_RANKS += [*(head for head in HEADS if head not in ("base", *_RANKS)), "base", "other"]
# Tried only for a type that has none of the heads above.
OTHERS = [
    "MODEL_FOR_PRETRAINING_MAPPING_NAMES",
    "MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES",
    "MODEL_FOR_BACKBONE_MAPPING_NAMES",
    "MODEL_FOR_DEPTH_ESTIMATION_MAPPING_NAMES",
    "MODEL_FOR_OBJECT_DETECTION_MAPPING_NAMES",
    "MODEL_FOR_UNIVERSAL_SEGMENTATION_MAPPING_NAMES",
    "MODEL_FOR_MASK_GENERATION_MAPPING_NAMES",
    "MODEL_FOR_KEYPOINT_DETECTION_MAPPING_NAMES",
    "MODEL_FOR_TEXT_TO_WAVEFORM_MAPPING_NAMES",
    "MODEL_FOR_TIME_SERIES_PREDICTION_MAPPING_NAMES",
]


@dataclass(frozen=True)
class Entry:
    """A class of models, and the family and type it belongs to."""

    family: str
    model_type: str
    head: str
    class_name: str


def entries() -> list[Entry]:
    """Every class that stands under a head, once, in the order of families."""
    found: dict[str, Entry] = {}
    for head, table in HEADS.items():
        for model_type, names in getattr(auto, table).items():
            for name in (names,) if isinstance(names, str) else names:
                found.setdefault(name, Entry(model_type_to_module_name(model_type), model_type, head, name))
    covered = {entry.model_type for entry in found.values()}
    for table in OTHERS:
        for model_type, names in getattr(auto, table).items():
            if model_type not in covered:
                name = names if isinstance(names, str) else names[0]
                found.setdefault(name, Entry(model_type_to_module_name(model_type), model_type, "other", name))
    return sorted(
        found.values(),
        key=lambda entry: (entry.family, entry.model_type, list(HEADS).index(entry.head) if entry.head in HEADS else 99),
    )


def first_of_each(every: list[Entry]) -> list[Entry]:
    """One class of each family: one that generates if there is one, else one with another head, else the body."""
    found: dict[str, Entry] = {}
    for entry in sorted(every, key=lambda entry: _RANKS.index(entry.head)):
        found.setdefault(entry.family, entry)
    return sorted(found.values(), key=lambda entry: entry.family)


def entry_of(class_name: str) -> Entry:
    """The entry of a class."""
    return next(entry for entry in entries() if entry.class_name == class_name)


def config_class(entry: Entry) -> Any:
    """The class of the entry's config."""
    return CONFIG_MAPPING[entry.model_type]
