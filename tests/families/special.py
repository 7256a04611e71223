"""What the rules of `shrink` do not find out: fields of single families, by model type."""

from typing import Any

_HYBRID: dict[str, Any] = {"num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"]}
_SERIES: dict[str, Any] = {"num_time_features": 1, "context_length": 16, "prediction_length": 8}
_SWIN: dict[str, Any] = {"image_size": 32, "patch_size": 4, "window_size": 2, "embed_dim": 32}
_SWIN |= {"depths": [1, 1], "num_heads": [2, 4], "num_layers": 2}

SPECIAL: dict[str, dict[str, Any]] = {
    "autoformer": _SERIES,
    "bamba": {"attn_layer_indices": [1]},
    "chameleon": {"vocabulary_map": {"<image>": 63}, "vq_config.base_channels": 32, "vq_config.channel_multiplier": [1, 1]},
    "dbrx": {"attn_config.rope_theta": 10000.0},
    "deepseek_v2": {"num_experts_per_tok": 2},
    "dots1": {"n_routed_experts": 4, "num_experts_per_tok": 2},
    "donut-swin": _SWIN,
    "esmc": {"num_key_value_heads": None},
    "glm5_next": {"text_config.num_key_value_heads": 4},
    "glm5_next_text": {"num_key_value_heads": 4},
    "granitemoehybrid": _HYBRID,
    "hrm_text": {"num_layers_per_stack": None},
    "informer": _SERIES,
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "lfm2_moe": {**_HYBRID, "layer_types": ["conv", "full_attention"]},
    "mamba2": {"num_heads": 8},
    "mistral4": {"qk_nope_head_dim": 8, "qk_head_dim": 16, "head_dim": 16},
    "mobilebert": {"intra_bottleneck_size": 64},
    "reformer": {"axial_pos_embds_dim": [16, 48], "axial_pos_shape": [8, 16]},
    "sapiens2": {"num_key_value_heads_per_layer": [4, 2]},
    "segformer": {"sr_ratios": [4, 2, 1, 1]},  # else there is but one key, and every attention gives its value
    "step3p7": {"text_config.sliding_window": 64},
    "swin": _SWIN,
    "time_series_transformer": _SERIES,
    "xlnet": {"d_head": 16},
}
