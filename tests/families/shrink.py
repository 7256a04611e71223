"""Small configs of transformers' families: every size that a default config names, cut down by the name of its field."""

import re
from pathlib import Path
from sys import modules
from typing import Any

from transformers import PreTrainedConfig

HIDDEN, HEADS, KEY_VALUE_HEADS, HEAD_DIM, LAYERS = 64, 4, 2, 16, 2
VOCABULARY, POSITIONS, IMAGE, PATCH = 64, 128, 32, 8

# The first rule whose pattern is the whole name of an integer field gives its largest value.
RULES: list[tuple[str, int]] = [
    (r".*(kv|key_value)(_attention)?_heads|kv_n_heads", KEY_VALUE_HEADS),
    (r"mamba_n(um)?_heads", 8),
    (r"(.*_)?(heads?|n_head)", HEADS),
    (r"qk_rope_head_dim|rotary_dim", 8),
    (r"qk_head_dim", 24),
    (r"(.*_)?(head_dim|d_kv|dim_head|kv_channels|attention_head_size|mamba_d_head|query_pre_attn_scalar)", HEAD_DIM),
    (r"first_k_dense_replace|num_dense_layers", 1),
    (r"num_(kv_shared|nextn_predict)_layers|num_mtp_.*|mtp_.*layers", 0),
    (r"(.*_)?layers?|depth|num_(hidden_)?blocks|resampler_depth", LAYERS),
    (r"(kv|q|o)_lora_rank", 16),
    (r".*experts_per_tok(en)?|moe_k|moe_topk|num_selected_experts|moe_top_k|top_k_experts", 2),
    (r"(.*_)?(num|n)_(local_|routed_)?experts|num_experts_.*", 4),
    (r"n_shared_experts|.*num_shared_experts|n_group|topk_group|num_expert_group", 1),
    (r".*(intermediate|ffn|feed_?forward|mlp|inner|ff|expert)_?(hidden_)?(size|dim).*|d_inner|d_ff|n_inner|dim_ff", 48),
    (r"type_vocab_size|additional_vocab_size|vocab_offset", 2),
    (r".*vocab(ulary)?_size.*|n_vocab", VOCABULARY),
    (r"(original_)?max_.*position_embeddings|n_positions|n_ctx|max_position.*|max_seq(uence)?_len.*", POSITIONS),
    (r"seq_length|context_length", POSITIONS),
    (r"max_(source|target)_positions", 64),
    (r"(sliding|attention)_window(_size)?|keep_window_size|local_attention", 64),
    (
        r".*(hidden|embeds?|embedding|emb|model|proj|projection|project|encoder|decoder)_?(size|dims?|width)(_global)?",
        HIDDEN,
    ),
    (r"n_embd|dim|width|d_model|output_dim|lru_width|mid_dim|condition_dim", HIDDEN),
    (r"(.*_)?image_size|img_size|crop_size", IMAGE),
    (r"(vision_)?patch_size", PATCH),
    (r"num_mel_bins|n_mel_bins|num_mels|input_feat_per_channel|feature_size|input_feat_size", 16),
    (r"num_frames|num_queries|num_query_tokens", 4),
    (r"num_position_embeddings", 16),
    (r"mamba_d_state|ssm_state_size|state_size", 8),
    (r"time_step_rank|mamba_dt_rank", 4),
    (r"(mamba_)?chunk_size", 8),
    (r"codebook_size", 16),
    (r"conv_(depthwise_)?kernel_size", 5),
    (r"num_conv_pos_embeddings", 16),
    (r"num_conv_pos_embedding_groups", 4),
]
_TOKEN = re.compile(r"(.*_)?(token_id|token_index|token_idx)")
_KEPT = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
_DERIVED = {"transformers_version", "architectures", "dtype", "_name_or_path", "torch_dtype", "id2label", "label2id"}
_DERIVED |= {"out_features", "out_indices", "stage_names"}
# What some families do not build without, though their default is None.
_NEEDED = {"head_dim": HEAD_DIM, "num_key_value_heads": KEY_VALUE_HEADS, "vocab_size": VOCABULARY, "pad_token_id": 0}
_NEEDED |= {"prediction_length": 8}
_WIDE_LISTS = {"conv_dim", "tdnn_dim"}
_DROPPED = ("dropout", "pdrop", "dropout_prob", "layerdrop", "drop_rate", "drop_path_rate")
_COUNTS = ["num_hidden_layers", "n_layer", "n_layers", "num_layers", "depth", "encoder_layers", "decoder_layers"]
_COUNTS += ["num_feat_extract_layers"]
_MOST_KINDS = 3


def shrunk(config_class: Any, changes: dict[str, Any] | None = None) -> Any:
    """A small config of the class; `changes` are for the fields that no rule fits, with dots for configs inside."""
    default = config_class()
    values = small_values(default.to_dict(), _has_sections(default))
    for path, value in (changes or {}).items():
        holder, names = values, path.split(".")
        for name in names[:-1]:
            holder = holder.setdefault(name, {})
        holder[names[-1]] = value
    return config_class(**values)


def small_values(values: dict[str, Any], has_sections: bool = False) -> dict[str, Any]:
    """The fields of a config as they are in a small one, configs inside included."""
    kept = {name: value for name, value in values.items() if name not in _DERIVED}
    lists = _fewer_layers(kept)
    special = VOCABULARY
    found: dict[str, Any] = {}
    for name, value in {**kept, **lists}.items():
        if isinstance(value, dict) and ("model_type" in value or name.endswith("config")) and name not in lists:
            found[name] = small_values(value, has_sections)
        elif _TOKEN.fullmatch(name) and isinstance(value, int | list):
            special -= name not in _KEPT
            found[name] = _KEPT.get(name, special)
        elif name in lists:
            found[name] = _small_list(name, value)
        else:
            found[name] = _small(name, value)
    if isinstance(found.get("rope_parameters"), dict) and has_sections:
        found["rope_parameters"] = _with_sections(found["rope_parameters"], found)
    if "kv_lora_rank" in found:  # each head has keys of its own, and rotary positions turn a part of them
        found |= {"num_key_value_heads": HEADS} if "num_key_value_heads" in found else {}
        found |= {"head_dim": found["qk_rope_head_dim"]} if "head_dim" in found else {}
    return found


def _small(name: str, value: Any) -> Any:
    if isinstance(value, list):
        return _small_list(name, value)
    if isinstance(value, float) and name.endswith(_DROPPED):
        return 0.0
    if value is None:
        return _NEEDED.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        return value
    return next((min(value, most) for pattern, most in RULES if re.fullmatch(pattern, name)), value)


def _small_list(name: str, value: Any) -> Any:
    """Lists of heads and of widths; all others stay."""
    if not isinstance(value, list):
        return value
    if name in ("num_heads", "num_attention_heads"):
        return [2**place for place in range(len(value))]
    return [HIDDEN] * len(value) if name in _WIDE_LISTS else value


def _fewer_layers(values: dict[str, Any]) -> dict[str, Any]:
    """The numbers of layers and the lists with an entry for each layer, cut to a layer of each kind, at least two."""
    found: dict[str, Any] = {}
    for name in _COUNTS:
        count = values.get(name)
        if isinstance(count, int) and count > LAYERS and name not in found:
            found |= _layer_of_each_kind(values, count)
    return found


def _layer_of_each_kind(values: dict[str, Any], count: int) -> dict[str, Any]:
    lists = {name: value for name, value in values.items() if isinstance(value, list) and len(value) == count}
    special: dict[str, Any] = values.get("per_layer_config") or {}
    layers = [special.get(f"{place:02}", special.get(str(place))) for place in range(count)]
    if not lists and not any(layers):
        return {}
    kinds: list[tuple[Any, ...]] = []
    for layer in zip(*lists.values(), layers, strict=True):
        if layer not in kinds:
            kinds.append(layer)
    kinds = (kinds * LAYERS)[: max(LAYERS, min(len(kinds), _MOST_KINDS))]
    found: dict[str, Any] = {name: [kind[place] for kind in kinds] for place, name in enumerate(lists)}
    if any(layers):
        found["per_layer_config"] = {place: small_values(kind[-1]) for place, kind in enumerate(kinds) if kind[-1]}
    return found | {name: len(kinds) for name in _COUNTS if values.get(name) == count}


def _has_sections(config: PreTrainedConfig) -> bool:
    """Whether a family turns sections of a head by the time, height and width of a token."""
    parts = [config, *(part for part in vars(config).values() if isinstance(part, PreTrainedConfig))]
    folders = {Path(modules[type(part).__module__].__file__ or "").parent for part in parts}
    return any("mrope_section" in file.read_text() for folder in folders for file in folder.glob("modeling_*.py"))


def _with_sections(rope: dict[str, Any], config: dict[str, Any]) -> dict[str, Any]:
    """Sections that together are half of what is turned of a head."""
    if any(isinstance(value, dict) for value in rope.values()):
        return {name: _with_sections(value, config) if isinstance(value, dict) else value for name, value in rope.items()}
    share = rope.get("partial_rotary_factor") or config.get("partial_rotary_factor") or 1.0
    half = int((config.get("head_dim") or HEAD_DIM) * share) // 2
    return {**rope, "mrope_section": [half - 2 * (half // 4), half // 4, half // 4]}
