"""Stacks with every mechanism in them."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from subquad import (
    MECHANISMS,
    Decoder,
    Encoder,
    EncoderDecoder,
    Linear,
    Linformer,
    ModelOptions,
    Nystrom,
    Sampling,
    Softmax,
    SubquadError,
    TokenEmbedding,
    generate,
)
from subquad.models import PixelEmbedding, TimeEmbedding, ValueEmbedding
from subquad.models.positions import rotate, rotation, sinusoids
from subquad.training import checkpoints

CAUSAL = [name for name, options in MECHANISMS.items() if options().traits.causal]
POSITIONS = ["sinusoidal", "learned", "rotary"]


def options(**given: object) -> ModelOptions:
    return ModelOptions(**({"layers": 2, "heads": 2, "head_dim": 8, "longest": 40} | given))  # type: ignore[arg-type]


def decoder(name: str = "linear", **given: object) -> Decoder:
    return Decoder(7, MECHANISMS[name](), options(**given), generator=torch.Generator().manual_seed(0)).eval()


def tokens(batch: int = 3, length: int = 11, seed: int = 0) -> Tensor:
    return torch.randint(7, (batch, length), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("name", CAUSAL)
def test_steps_and_parts_equal_the_whole(name: str, norm: str, positions: str) -> None:
    model, x = decoder(name, norm=norm, positions=positions), tokens()
    whole = model(x)
    first, state = model.causal(x[:, :5])
    parts = [first]
    for at in range(5, 11):
        one, state = model.step(x[:, at : at + 1], state)
        parts.append(one)
    assert int(state.position) == 11
    assert_close(torch.cat(parts, 1), whole, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", CAUSAL)
def test_the_future_changes_nothing(name: str) -> None:
    model, x, other = decoder(name), tokens(), tokens(seed=1)
    changed = torch.cat([x[:, :6], other[:, 6:]], 1)
    assert_close(model(x)[:, :6], model(changed)[:, :6])


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(1.0), Sampling(0.7, top_k=3), Sampling(1.3, top_p=0.8)])
@pytest.mark.parametrize("name", CAUSAL)
def test_generating_equals_recomputing_from_scratch(name: str, sampling: Sampling) -> None:
    model, prompt = decoder(name), tokens(length=4)
    written = generate(model, prompt, length=9, sampling=sampling, generator=torch.Generator().manual_seed(5))
    again, drawing = prompt, torch.Generator().manual_seed(5)
    for _ in range(9):
        with torch.no_grad():
            again = torch.cat([again, sampling.choose(model(again)[:, -1], drawing)], 1)
    assert torch.equal(written, again[:, 4:])


@pytest.mark.parametrize("name", CAUSAL)
def test_an_encoder_decoder_generates_from_its_source(name: str) -> None:
    mechanism = MECHANISMS[name]()
    model = EncoderDecoder(7, mechanism, options(), generator=torch.Generator().manual_seed(0)).eval()
    source, start = tokens(length=6), tokens(length=1, seed=2)
    keep = torch.tensor([[True] * 6, [True] * 4 + [False] * 2, [True] * 3 + [False] * 3])
    with torch.no_grad():
        context = model.encoder(source, keep=keep)
        written = generate(model.decoder, start, length=5, context=context, context_keep=keep)
        again = start
        for _ in range(5):
            again = torch.cat([again, model(source, again, source_keep=keep)[:, -1].argmax(-1, keepdim=True)], 1)
        short = model.encoder(source[2:, :3])
    assert torch.equal(written, again[:, 1:])
    assert_close(context[2:, :3], short, rtol=1e-4, atol=1e-5)  # padding changes nothing


def test_mechanisms_may_differ() -> None:
    model = EncoderDecoder(7, Linear(), options(), encoder_attention=Linformer(k=4, max_length=16), cross=Softmax())
    kinds = {type(module).__name__ for module in model.modules() if type(module).__name__.endswith("Attention")}
    assert kinds == {"MultiheadAttention", "LinearAttention", "LinformerAttention", "SoftmaxAttention"}
    assert model(tokens(length=6), tokens(length=4)).shape == (3, 4, 7)


def test_linformer_is_refused_in_a_decoder() -> None:
    with pytest.raises(
        SubquadError,
        match=r"linformer has no causal form: it mixes positions; choose softmax, linear, favor, infinity, .* or cosformer",
    ):
        Decoder(7, Linformer(), options())
    with pytest.raises(SubquadError, match="linformer has no causal form"):
        EncoderDecoder(7, Linformer(), options())


def test_recomputing_changes_nothing_but_memory() -> None:
    plain, x = decoder(), tokens()
    plain.train()
    plain(x).sum().backward()
    wanted = [parameter.grad for parameter in plain.parameters()]
    other = decoder().train()
    other.recompute = True
    other(x).sum().backward()
    for parameter, gradient in zip(other.parameters(), wanted, strict=True):
        assert_close(parameter.grad, gradient)


def test_tied_embeddings_are_one_parameter() -> None:
    tied, untied = decoder(tied=True), decoder(tied=False)
    extra = sum(p.numel() for p in untied.parameters()) - sum(p.numel() for p in tied.parameters())
    assert extra == 7 * 16 + 7


def test_dropout_works_in_training_only() -> None:
    model, x = decoder(dropout=0.5), tokens()
    assert torch.equal(model(x), model(x))
    model.train()
    assert not torch.equal(model(x), model(x))


def test_rotation_depends_on_distances_only() -> None:
    q, k = torch.randn(2, 1, 1, 9, 8, dtype=torch.float64)

    def weights(start: int) -> Tensor:
        by = rotation(start, 9, 8, q)
        return rotate(q, by) @ rotate(k, by).mT

    assert_close(weights(0), weights(100), rtol=1e-4, atol=1e-4)
    assert_close(rotate(q, rotation(0, 9, 8, q)).norm(dim=-1), q.norm(dim=-1), rtol=1e-5, atol=1e-5)


def test_sinusoids_are_those_of_the_paper() -> None:
    found = sinusoids(torch.tensor([0.0, 3.0]), 6)
    angles = [3.0 / 10_000 ** (2 * at / 6) for at in range(3)]
    wanted = torch.tensor([part for angle in angles for part in (torch.tensor(angle).sin(), torch.tensor(angle).cos())])
    assert_close(found[0], torch.tensor([0.0, 1.0] * 3))
    assert_close(found[1], wanted)


def test_embeddings() -> None:
    assert ValueEmbedding(3, 16)(torch.randn(2, 5, 3)).shape == (2, 5, 16)
    times = TimeEmbedding(16, unit=0.5)(torch.tensor([[0.0, 1.5]]))
    assert_close(times[0, 1], sinusoids(torch.tensor([3.0]), 16)[0])
    pixels = PixelEmbedding(3, 4, 16)
    image = torch.randint(256, (2, 12))
    whole = pixels(image)
    assert_close(torch.cat([pixels(image[:, :5]), pixels(image[:, 5:], start=5)], 1), whole)
    with pytest.raises(SubquadError, match="there are 13 pixels, but the image has 3 rows of 4"):
        pixels(torch.zeros(1, 13, dtype=torch.int64))
    encoder = Encoder(ValueEmbedding(3, 16), Linear(), options())
    assert encoder(torch.randn(2, 5, 3)).shape == (2, 5, 16)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda: decoder()(torch.tensor([[1, 7]])), "the symbol 7 is outside the vocabulary, which goes from 0 to 6"),
        (lambda: decoder(positions="learned")(tokens(length=41)), "has 41 positions, but the model has learned 40"),
        (lambda: decoder(layers=0), "layers must be positive, but is 0"),
        (lambda: decoder(dropout=1.0), "dropout must be below 1, but is 1.0"),
        (lambda: decoder(head_dim=7, positions="rotary"), "head_dim must be even, but is 7"),
        (lambda: generate(decoder(), tokens(length=0), length=3), "the prompt must have at least one token"),
        (
            lambda: generate(decoder(), tokens(), length=3, sampling=Sampling(-1.0)),
            "temperature must be 0 or more, but is -1.0",
        ),
        (
            lambda: generate(decoder(), tokens(), length=3, sampling=Sampling(1.0, top_k=0)),
            "top_k must be positive, but is 0",
        ),
        (
            lambda: generate(decoder(), tokens(), length=3, sampling=Sampling(1.0, top_p=0.0)),
            "top_p must be positive, but is 0.0",
        ),
    ],
)
def test_bad_input(wrong: object, words: str) -> None:
    with pytest.raises(SubquadError, match=words):
        wrong()  # type: ignore[operator]


def test_sampling_keeps_to_its_limits() -> None:
    logits = torch.tensor([[3.0, 2.0, 1.0, 0.0]])
    assert Sampling(1.0, top_k=2).kept(logits).isfinite().tolist() == [[True, True, False, False]]
    shares = torch.softmax(logits, -1)[0].cumsum(0)
    assert Sampling(1.0, top_p=float(shares[0]) - 0.01).kept(logits).isfinite().sum() == 1
    assert Sampling(1.0, top_p=float(shares[1]) - 0.01).kept(logits).isfinite().sum() == 2
    drawing = torch.Generator().manual_seed(0)
    drawn = torch.cat([Sampling(1.0).choose(logits, drawing) for _ in range(4000)])
    counts = torch.bincount(drawn[:, 0], minlength=4) / 4000
    assert_close(counts, torch.softmax(logits, -1)[0], rtol=0, atol=0.03)


def test_a_sequence_that_has_ended_goes_on_with_the_stop() -> None:
    model = decoder()
    free = generate(model, tokens(), length=12)
    stop = int(free[0, 3])
    written = generate(model, tokens(), length=12, stop=stop)
    for row, unbounded in zip(written.tolist(), free.tolist(), strict=True):
        end = unbounded.index(stop) if stop in unbounded else len(unbounded)
        assert row[:end] == unbounded[: min(end, len(row))]
        assert set(row[end:]) <= {stop}


def test_symbols_are_small_beside_positions() -> None:
    """A vector of length 1, where sinusoids have the length sqrt(head_dim / 2)."""
    model = TokenEmbedding(500, 64, torch.Generator().manual_seed(0))
    assert float(model(torch.arange(500)[None]).detach().norm(dim=-1).mean()) == pytest.approx(1.0, abs=0.05)
    assert float(sinusoids(torch.arange(9.0), 64).norm(dim=-1).mean()) == pytest.approx(32**0.5, abs=1e-3)


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_the_last_positions_alone_are_those_of_the_whole(norm: str) -> None:
    model = Decoder(7, Linear(), options(norm=norm))
    seen = tokens(length=9)
    assert_close(model(seen, last=2), model(seen)[:, -2:])


def test_layerwise_projections_are_one_for_all_layers(tmp_path: Path) -> None:
    def encoder(sharing: Any, seed: int = 0) -> Encoder:
        generator = torch.Generator().manual_seed(seed)
        attention = Linformer(k=3, max_length=11, sharing=sharing)
        return Encoder(TokenEmbedding(7, 16, generator), attention, options(layers=3), generator=generator)

    own, one = encoder("keys-values"), encoder("layerwise")
    sizes = [sum(weight.numel() for weight in each.parameters()) for each in (own, one)]
    assert sizes[0] - sizes[1] == 2 * 3 * 11
    assert len({id(block.attention.attend.projection) for block in one.blocks}) == 1  # type: ignore[union-attr]
    checkpoints.save(tmp_path, 1, one, torch.optim.AdamW(one.parameters()), {})
    found, complaints = checkpoints.load(tmp_path)
    assert found is not None
    assert not complaints
    other = encoder("layerwise", seed=1)
    checkpoints.restore(found, other)
    assert_close(other(tokens()), one(tokens()), rtol=0, atol=0)


@pytest.mark.parametrize("name", CAUSAL)
def test_a_source_as_long_as_the_target_is_seen_as_step_by_step(name: str) -> None:
    model = EncoderDecoder(7, MECHANISMS[name](), options(), generator=torch.Generator().manual_seed(0)).eval()
    source, target, state, parts = tokens(length=6), tokens(length=6, seed=2), None, []
    keep = torch.tensor([[True] * 6, [True] * 4 + [False] * 2, [True] * 3 + [False] * 3])
    with torch.no_grad():
        whole, context = model(source, target, source_keep=keep), model.encoder(source, keep=keep)
        for at in range(6):
            one, state = model.decoder.step(target[:, at : at + 1], state, context=context, context_keep=keep)
            parts.append(one)
    assert_close(torch.cat(parts, 1), whole, rtol=1e-4, atol=1e-4)


def test_cross_attention_that_mixes_queries_is_refused() -> None:
    with pytest.raises(SubquadError, match="nystrom mixes queries"):
        EncoderDecoder(7, Linear(), options(), cross=Nystrom(landmarks=2))
