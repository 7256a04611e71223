"""What every mechanism keeps to inside a model: padding changes nothing, packed sequences do not meet, no future is seen."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from subquad import SubquadError
from tests.hub.families import (
    CAUSAL,
    CONFIGS,
    DECODERS,
    LENGTH,
    OPTIONS,
    VOCABULARY,
    bart,
    big_bird_pegasus,
    hf,
    hidden,
    hub,
    model,
    padding,
    tokens,
)

CLOSE: dict[str, Any] = {"rtol": 1e-4, "atol": 1e-4}
EVERY = [("bert", name) for name in OPTIONS] + [("distilbert", "favor")]
EVERY += [(family, name) for family in ("gpt2", "llama") for name in CAUSAL]


@pytest.mark.parametrize(("family", "name"), EVERY)
@pytest.mark.parametrize("side", ["right", "left"])
def test_padding_changes_nothing(family: str, name: str, side: str) -> None:
    network = hub.swap(model(CONFIGS[family]()), OPTIONS[name])
    ids, mask = tokens(), padding(side)
    places = (mask.cumsum(1) - 1).clamp(min=0)
    together = hidden(network, ids, attention_mask=mask, position_ids=places)
    for row in range(3):
        real = mask[row].bool()
        assert_close(together[row, real][None], hidden(network, ids[row : row + 1, real]), **CLOSE)


@pytest.mark.parametrize("family", ["llama", "qwen3", "modernbert"])
@pytest.mark.parametrize("name", ["softmax", "linear", "favor", "hybrid", "infinity"])
@pytest.mark.parametrize("way", ["swap", "name", "config"])
def test_rotary_positions_count_behind_left_padding(family: str, name: str, way: str) -> None:
    """Where no position_ids are given. Only softmax is blind to a shift of all positions."""
    config = CONFIGS[family]()
    config.local_attention = 64
    if way == "swap":
        network = hub.swap(model(config), OPTIONS[name])
    elif way == "name":
        network = model(config)
        network.set_attn_implementation(f"subquad_{name}")
    else:
        torch.manual_seed(0)
        network = hf.AutoModel.from_config(config, attn_implementation=f"subquad_{name}").eval()
    ids, mask = tokens(), padding("left")
    for given in ((ids, mask), (ids, mask, None)):
        with torch.no_grad():
            together = network(*given).last_hidden_state
        for row in range(3):
            real = mask[row].bool()
            assert_close(together[row, real][None], hidden(network, ids[row : row + 1, real]), **CLOSE)


def test_rotary_positions_that_cannot_be_given() -> None:
    """The encoder of Moonshine takes none."""
    sizes = {"vocab_size": VOCABULARY, "hidden_size": 24, "intermediate_size": 32, "pad_token_id": 0}
    heads = {f"{part}_{what}": 2 for part in ("encoder", "decoder") for what in ("num_hidden_layers", "num_attention_heads")}
    network = hub.swap(model(hf.MoonshineConfig(**sizes, **heads)), "linear")
    sound, mask = torch.randn(2, 4000), torch.ones(2, 4000, dtype=torch.long)
    hidden(network, sound, attention_mask=mask, decoder_input_ids=tokens(2))
    mask[0, :2000] = 0
    with pytest.raises(SubquadError, match="takes no position_ids and was given a mask with padding on the left"):
        network(sound, attention_mask=mask, decoder_input_ids=tokens(2))
    restored = hub.restore(network)
    assert hidden(restored, sound, attention_mask=mask, decoder_input_ids=tokens(2)).isfinite().all()


@pytest.mark.parametrize(("family", "name"), [each for each in EVERY if each[0] in ("gpt2", "llama")])
def test_packed_sequences_do_not_meet(family: str, name: str) -> None:
    """Restarting positions tell where one begins, as with transformers' own attention."""
    network = hub.swap(model(CONFIGS[family]()), OPTIONS[name])
    ids, lengths = tokens(2), [5, 9, 3]
    places = torch.cat([torch.arange(length) for length in lengths])[None].expand(2, -1)
    packed = hidden(network, ids, position_ids=places, use_cache=False)
    apart = torch.cat([hidden(network, part) for part in ids.split(lengths, 1)], 1)
    assert_close(packed, apart, **CLOSE)


@pytest.mark.parametrize("name", OPTIONS)
def test_packed_sequences_of_an_encoder(name: str) -> None:
    network = hub.swap(model(CONFIGS["bert"]()), OPTIONS[name])
    ids, lengths = tokens(1), [5, 9, 3]
    given = {"position_ids": torch.cat([torch.arange(length) for length in lengths])[None]}
    packed = hidden(network, ids, cu_seq_lens_q=torch.tensor([0, 5, 14, 17]), **given)
    apart = torch.cat([hidden(network, part) for part in ids.split(lengths, 1)], 1)
    assert_close(packed, apart, **CLOSE)
    with pytest.raises(
        SubquadError, match="offsets of sequences in one row of 17 positions, and end with 17, but there are 2"
    ):
        network(tokens(2), cu_seq_lens_q=torch.tensor([0, 5, 14, 17]))


def test_gradients_of_packed_sequences() -> None:
    network = hub.swap(model(CONFIGS["llama"]()), OPTIONS["learned"])
    ids, lengths = tokens(1), [5, 12]
    found: list[Tensor] = []
    for packed in (True, False):
        network.zero_grad()
        if packed:
            places = torch.cat([torch.arange(length) for length in lengths])[None]
            network(ids, position_ids=places, use_cache=False).last_hidden_state.square().sum().backward()
        else:
            for part in ids.split(lengths, 1):
                network(part).last_hidden_state.square().sum().backward()
        found.append(hub.attention_modules(network)["layers.0.self_attn"].subquad.feature_map.keys.weight.grad)
    assert found[0].count_nonzero() > 0
    assert_close(found[0], found[1], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(("family", "name"), [each for each in EVERY if each[0] in ("gpt2", "llama")])
def test_the_future_is_not_seen(family: str, name: str) -> None:
    network = hub.swap(model(CONFIGS[family]()), OPTIONS[name])
    ids = tokens()
    changed = ids.clone()
    changed[:, 11:] = (changed[:, 11:] + 7) % VOCABULARY
    assert torch.equal(hidden(network, ids)[:, :11], hidden(network, changed)[:, :11])


@pytest.mark.parametrize("name", CAUSAL)
def test_a_decoder_that_trusts_in_its_mask_is_causal(name: str) -> None:
    """Its modules say that they are not."""
    network = hub.swap(model(big_bird_pegasus(), hf.AutoModelForSeq2SeqLM), OPTIONS[name], check=False)
    changed = tokens()
    changed[:, 11:] = (changed[:, 11:] + 7) % VOCABULARY
    with torch.no_grad():
        for mask in (None, torch.ones(3, LENGTH), padding("right")):
            given = {"attention_mask": padding("left"), "decoder_attention_mask": mask}
            before, after = (network(tokens(), decoder_input_ids=each, **given).logits for each in (tokens(), changed))
            assert torch.equal(before[:, :11], after[:, :11])
            assert not torch.allclose(before[:, 11:], after[:, 11:], atol=1e-2)


@pytest.mark.parametrize("family", ["bert", "llama"])
@pytest.mark.parametrize("side", ["none", "right", "left"])
@pytest.mark.parametrize("is_float", [False, True])
def test_a_dense_mask_that_hides_the_future_or_padding(family: str, side: str, is_float: bool) -> None:
    """Users and families may bring one instead of a mask of (batch, positions)."""
    network = hub.swap(model(CONFIGS[family]()), "linear")
    keep = torch.ones(3, LENGTH) if side == "none" else padding(side)
    dense = keep.bool()[:, None, None].expand(3, 1, LENGTH, LENGTH)
    dense = dense.tril() if family == "llama" else dense
    places = (keep.long().cumsum(1) - 1).clamp(min=0)
    wanted = hidden(network, tokens(), attention_mask=keep, position_ids=places)
    mask = torch.where(dense, 0.0, torch.finfo(torch.float32).min) if is_float else dense
    found = hidden(network, tokens(), attention_mask=mask, position_ids=places)
    assert_close(found[keep.bool()], wanted[keep.bool()], **CLOSE)


def test_an_encoder_that_makes_its_own_mask_looks_both_ways() -> None:
    """Its modules do not say whether they are causal."""
    network = hub.swap(model(CONFIGS["layoutlm"]()), "linear")
    changed = tokens()
    changed[:, -1] = (changed[:, -1] + 7) % VOCABULARY
    assert not torch.allclose(hidden(network, tokens())[:, 0], hidden(network, changed)[:, 0], atol=1e-3)


@pytest.mark.parametrize("name", CAUSAL)
def test_chunks_that_begin_behind_left_padding(name: str) -> None:
    network = hub.swap(model(DECODERS["llama4"]()), OPTIONS[name])
    mask = padding("left")
    places = (mask.cumsum(1) - 1).clamp(min=0)
    together = hidden(network, tokens(), attention_mask=mask, position_ids=places)
    for row in range(3):
        real = mask[row].bool()
        assert_close(together[row, real][None], hidden(network, tokens()[row : row + 1, real]), **CLOSE)


@pytest.mark.parametrize("name", CAUSAL)
def test_grouped_keys_serve_their_groups(name: str) -> None:
    """As a model whose groups are written out has it."""
    config = CONFIGS["llama"]()
    network = hub.swap(model(config), OPTIONS[name])
    config = CONFIGS["llama"]()
    config.num_key_value_heads = config.num_attention_heads
    wide = hub.swap(model(config), OPTIONS[name])
    tensors = network.state_dict()
    for key, value in tensors.items():
        if "k_proj" in key or "v_proj" in key:
            tensors[key] = value.view(2, 8, -1).repeat_interleave(3, 0).flatten(0, 1)
    wide.load_state_dict(tensors)
    assert_close(hidden(network, tokens()), hidden(wide, tokens()), **CLOSE)


@pytest.mark.parametrize("family", ["gpt2-by-layer", "gpt2-unscaled"])
@pytest.mark.parametrize("name", CAUSAL)
def test_scores_are_scaled_as_the_model_says(family: str, name: str) -> None:
    """As a model has it that scales by 1 / sqrt d and whose queries make up for the rest."""
    network, plain = (hub.swap(model(CONFIGS[each]()), OPTIONS[name]) for each in (family, "gpt2"))
    plain.load_state_dict(network.state_dict())
    for layer, other in zip(plain.h, network.h, strict=True):
        factor = other.attn.scaling / layer.attn.scaling
        layer.attn.c_attn.weight.data[:, :24] *= factor
        layer.attn.c_attn.bias.data[:24] *= factor
    assert plain.h[1].attn.scaling != network.h[1].attn.scaling
    assert_close(hidden(network, tokens()), hidden(plain, tokens()), **CLOSE)


@pytest.mark.parametrize("name", ["linear", "favor", "infinity"])
def test_a_decoder_sees_its_encoder_alike_at_once_and_step_by_step(name: str) -> None:
    """Even where there are as many queries as keys, which is no reason to take them for the same sequence."""
    network = hub.swap(model(bart(), hf.AutoModelForSeq2SeqLM), OPTIONS[name])
    ids, mask, written = tokens(), padding("right"), tokens(seed=5)
    with torch.no_grad():
        whole = network(ids, attention_mask=mask, decoder_input_ids=written).logits
        for length in (1, 6, 16):
            part = network(ids, attention_mask=mask, decoder_input_ids=written[:, :length]).logits
            assert_close(part, whole[:, :length], **CLOSE)


def test_no_dense_mask_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is asked for pair by pair would take the time and memory that linear attention saves."""

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("a dense mask was made")

    monkeypatch.setattr(hub.masks, "sdpa_mask", refuse)
    monkeypatch.setattr("subquad.hub.forward.visible", refuse)
    monkeypatch.setattr("subquad.hub.forward.sdpa_attention_forward", refuse)
    shapes: list[tuple[int, ...]] = []
    network = hub.swap(model(CONFIGS["llama"]()), "linear")
    for module in hub.attention_modules(network).values():
        module.register_forward_pre_hook(
            lambda _, given, named: shapes.append(tuple(named["attention_mask"].shape)), with_kwargs=True
        )
    hidden(network, tokens(), attention_mask=padding("left"))
    places = torch.arange(17).remainder(6)[None].expand(3, -1)
    hidden(network, tokens(), position_ids=places, use_cache=False)
    assert set(shapes) == {(3, 1, 1, 17)}


def test_a_mask_says_which_sequence_a_key_belongs_to() -> None:
    numbers = torch.tensor([[0, 0, 0, 1, 1, 2], [0, 1, 1, 1, 1, 1]])
    packed = hf.masking_utils.causal_mask_function

    def sees(batch: Tensor, head: Tensor, q: Tensor, k: Tensor) -> Any:
        return packed(batch, head, q, k) & (numbers[batch, q] == numbers[batch, k])

    def described(*sizes: int, **given: Any) -> Any:
        mask = hub.masks.describe_mask(*sizes, **given)
        return mask.dtype, mask[:, 0, 0].tolist()

    packed_causal, causal = hub.masks.PACKED_CAUSAL, hub.masks.CAUSAL
    assert described(2, 6, 6, mask_function=sees) == (packed_causal, (numbers + 1).tolist())
    keep = torch.tensor([[1, 1, 1, 1, 1, 0], [0, 1, 1, 1, 1, 1]])
    found = described(2, 6, 6, mask_function=sees, attention_mask=keep)
    assert found == (packed_causal, [[1, 1, 1, 2, 2, 0], [0, 2, 2, 2, 2, 2]])
    assert described(2, 6, 6) == (causal, [[1] * 6] * 2)
    assert hub.masks.read_mask(hub.masks.describe_mask(2, 6, 6)) == (True, None, None, None, 6)
    assert described(2, 1, 1, 5, 5, attention_mask=keep.new_ones(2, 6)) == (causal, [[1]] * 2)
    assert described(2, 1, 1, 5, 5, attention_mask=keep) == (causal, [[0], [1]])
    assert hub.masks.describe_mask(2, 6, 6, mask_function=hf.masking_utils.bidirectional_mask_function) is None


@pytest.mark.parametrize("window", [2, 3, 5])
def test_a_window_is_no_sequence(window: int) -> None:
    def sees(batch: Tensor, head: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return (k <= q) & (k > q - window)

    dense = hub.masks.describe_mask(1, 6, 6, mask_function=sees)
    assert dense is not None
    assert dense.shape == (1, 1, 6, 6)
    within = hub.masks.describe_mask(1, window, window, mask_function=sees)
    assert hub.masks.read_mask(within) == (True, None, None, None, window)


def test_a_chunk_is_a_sequence() -> None:
    """Llama 4's attention in chunks: what lies in one chunk sees itself alone."""

    def sees(batch: Tensor, head: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return (k <= q) & (k // 4 == q // 4)

    assert hub.masks.describe_mask(1, 6, 6, mask_function=sees)[:, 0, 0].tolist() == [[1, 1, 1, 1, 2, 2]]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # from torch.jit.trace itself
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # tracing reads every property of a model
@pytest.mark.parametrize("family", ["bert", "llama"])
def test_tracing_is_refused(family: str) -> None:
    network = hub.swap(model(CONFIGS[family]()), "linear")
    with pytest.raises(SubquadError, match=r"torch\.jit\.trace would freeze the mask"):
        torch.jit.trace(network, (tokens(), padding("right")), strict=False, check_trace=False)


@pytest.mark.parametrize("is_float", [False, True])
def test_a_dense_mask_in_which_padding_sees_nothing(is_float: bool) -> None:
    network, keep = hub.swap(model(CONFIGS["llama"]()), "linear"), padding("right")
    real, places = keep.bool(), (keep.cumsum(1) - 1).clamp(min=0)
    dense = (real[:, None, None] & real[:, None, :, None]).tril()
    mask = torch.where(dense, 0.0, torch.finfo(torch.float32).min) if is_float else dense
    wanted = hidden(network, tokens(), attention_mask=keep, position_ids=places)
    assert_close(hidden(network, tokens(), attention_mask=mask, position_ids=places)[real], wanted[real], **CLOSE)
    length = keep.shape[1]
    numbers = torch.tensor([[1] * 5 + [2] * (length - 10) + [0] * 5]).expand(len(keep), -1)
    packed = ((numbers[:, None, :, None] == numbers[:, None, None]) & (numbers > 0)[:, None, None]).tril()
    with pytest.raises(SubquadError, match="hides other keys from one query than from another"):
        network(tokens(), attention_mask=packed, position_ids=places)
