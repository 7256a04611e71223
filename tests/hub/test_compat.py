"""Each assumption about transformers' inside by itself: a new version that breaks one names it."""

import ast
import inspect
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import subquad
from tests.hub.families import CONFIGS, hf, hub  # noqa: F401, which skips where transformers is not installed

compat: Any = pytest.importorskip("subquad.hub._compat")
SOURCES = Path(subquad.__file__).parent


def arguments(function: Any) -> set[str]:
    return set(inspect.signature(function).parameters)


def bert(name: str = "eager") -> Any:
    return hf.BertModel._from_config(CONFIGS["bert"](), attn_implementation=name).eval()


def attention(model: Any) -> Any:
    return next(type(module) for module in model.modules() if type(module).__name__.endswith("SelfAttention"))


def test_this_version_is_among_those_tested() -> None:
    assert hf.__version__ in compat.TESTED_VERSIONS, (
        f"transformers {hf.__version__} is new: if all tests of tests/hub pass, add it to TESTED_VERSIONS"
    )


def test_only_one_file_knows_what_is_inside() -> None:
    """Other files import from the top level, and logging, which is documented."""
    inner = set()
    for path in SOURCES.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("transformers."):
                inner |= {(path.name, alias.name) for alias in node.names if alias.name != "logging"}
            if isinstance(node, ast.Attribute) and node.attr.startswith(("_attn_implementation", "_supports_", "_can_set")):
                inner.add((path.name, node.attr))
    assert {file for file, _ in inner} == {"_compat.py"}, sorted(inner)


def test_a_config_holds_the_name_of_the_attention() -> None:
    model = bert("sdpa")
    assert compat.implementation_in(model.config) == compat.implementation_of(model) == "sdpa"
    compat.name_implementation(model.config, "eager")
    assert compat.implementation_of(model) == "eager"


def test_names_of_attentions_can_be_put_back_without_a_check() -> None:
    model = bert("sdpa")
    names = compat.implementations(model)
    model.set_attn_implementation("eager")
    compat.set_implementations(names)
    assert compat.implementation_of(model) == "sdpa"


def test_a_class_says_whether_its_attention_can_be_chosen() -> None:
    assert compat.can_swap(hf.BertModel)
    assert not compat.can_swap(hf.BloomModel)


def test_a_class_says_whether_it_has_fused_attention() -> None:
    assert compat.own_implementation(bert()) == "sdpa"


@pytest.mark.parametrize("method", compat.NAMING_METHODS)
def test_models_are_named_by_these_methods(method: str) -> None:
    assert callable(getattr(hf.PreTrainedModel, method))


def test_a_model_names_its_attention_through_these_methods(monkeypatch: pytest.MonkeyPatch) -> None:
    called = []
    for method in compat.NAMING_METHODS:
        original = getattr(hf.PreTrainedModel, method)

        def noted(*args: Any, method: str = method, original: Any = original, **others: Any) -> Any:
            called.append(method)
            return original(*args, **others)

        monkeypatch.setattr(hf.PreTrainedModel, method, noted)
    bert("sdpa").set_attn_implementation("eager")
    assert set(called) == set(compat.NAMING_METHODS)


def test_attention_classes_look_up_their_function_by_name() -> None:
    assert compat.looks_up(attention(bert()))
    assert not compat.looks_up(nn.Linear)


def test_the_function_is_looked_up_when_a_model_runs() -> None:
    seen = []

    def note(module: nn.Module, query: Any, key: Any, value: Any, mask: Any, **others: Any) -> tuple[Any, None]:
        seen.append(query.shape)
        return value.transpose(1, 2).contiguous(), None

    hf.AttentionInterface.register("noting", note)
    bert("noting")(torch.ones(1, 5, dtype=torch.long))
    assert [tuple(shape) for shape in seen] == [(1, 3, 5, 8)] * 2


def test_families_that_choose_keys_by_the_mask_are_known_by_their_source() -> None:
    from transformers.models.deepseek_v32.modeling_deepseek_v32 import DeepseekV32Attention

    assert compat.changes_mask(DeepseekV32Attention)
    assert not compat.changes_mask(attention(bert()))


def test_latent_attention_changes_the_keys_that_its_cache_gives_back() -> None:
    from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3Attention
    from transformers.models.llama.modeling_llama import LlamaAttention

    assert compat.changes_cached_keys(DeepseekV3Attention)
    assert not compat.changes_cached_keys(LlamaAttention)


def test_requests_for_attention_weights_are_seen_while_a_model_runs() -> None:
    asked = []

    def note(module: nn.Module, query: Any, key: Any, value: Any, mask: Any, **others: Any) -> tuple[Any, Any]:
        asked.append(bool(others.get("output_attentions")) or compat.collects_attentions())
        return value.transpose(1, 2).contiguous(), None

    hf.AttentionInterface.register("noting", note)
    model, tokens = bert("noting"), torch.ones(1, 5, dtype=torch.long)
    model(tokens)
    assert asked == [False, False]
    model(tokens, output_attentions=True)
    assert asked[2:] == [True, True]


def test_a_class_lists_the_modules_of_its_family() -> None:
    assert attention(bert()) in compat.classes_beside(hf.BertModel)


def test_the_mask_functions_tell_causal_from_bidirectional() -> None:
    assert compat.causal_mask_function(0, 0, 3, 3)
    assert not compat.causal_mask_function(0, 0, 3, 4)
    assert compat.bidirectional_mask_function(0, 0, 3, 4)


def test_the_mask_of_fused_attention_takes_sizes_and_a_function() -> None:
    assert {"mask_function", "attention_mask", "device"} <= arguments(compat.sdpa_mask)
    assert list(inspect.signature(compat.sdpa_mask).parameters)[:5] == [
        "batch_size",
        "q_length",
        "kv_length",
        "q_offset",
        "kv_offset",
    ]


def test_fused_attention_takes_a_bias_and_dropout() -> None:
    assert {"dropout", "scaling", "is_causal"} <= arguments(compat.sdpa_attention_forward)


def test_a_layer_of_a_cache_has_these_methods() -> None:
    needed = {"update", "get_mask_sizes", "get_seq_length", "reset", "reorder_cache", "lazy_initialization"}
    assert needed <= set(dir(compat.CacheLayerMixin))


def test_a_cache_has_a_layer_for_each_of_the_models() -> None:
    layers = hf.DynamicCache(config=CONFIGS["llama"]()).layers
    assert [type(layer) for layer in layers] == [compat.DynamicLayer] * 2
    layers = hf.DynamicCache(config=CONFIGS["mistral"]()).layers
    assert [type(layer) for layer in layers] == [compat.DynamicSlidingWindowLayer] * 2


def test_models_that_make_a_cache_of_their_own_are_known_by_their_source() -> None:
    assert compat.own_cache(hf.LlamaForCausalLM(CONFIGS["llama"]())) is None
    with torch.device("meta"):
        assert compat.own_cache(hf.MiniMaxModel(hf.MiniMaxConfig(num_hidden_layers=1))) == "MiniMaxCache"


def test_tensors_are_found_under_the_names_of_older_checkpoints() -> None:
    model = bert()
    assert compat.saved_names(model, list(model.state_dict())) == {name: name for name in model.state_dict()}


def test_outputs_are_mappings_of_names_to_tensors() -> None:
    output = bert()(torch.ones(1, 5, dtype=torch.long))
    assert isinstance(output, compat.ModelOutput)
    assert "last_hidden_state" in dict(output.items())


def test_names_of_arguments_are_those_of_forward() -> None:
    assert compat.parameters_of(hf.BertModel)[:2] == ["input_ids", "attention_mask"]


def test_attention_that_is_causal_only_without_a_mask_is_known_by_its_source() -> None:
    from transformers.models.llama.modeling_llama import LlamaAttention
    from transformers.models.moonshine.modeling_moonshine import MoonshineAttention

    assert compat.decides_causality(MoonshineAttention)
    assert not compat.decides_causality(LlamaAttention)
