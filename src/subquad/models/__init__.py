"""Transformer models that use the mechanisms."""

from subquad.models.block import Block
from subquad.models.causal import CausalEncoder, detached, mapped, state_of, tensors_of
from subquad.models.embeddings import PixelEmbedding, TimeEmbedding, TokenEmbedding, ValueEmbedding
from subquad.models.generation import Sampling, generate
from subquad.models.multihead import MultiheadAttention, Projected, attentions_of, mechanisms_of
from subquad.models.options import ModelOptions
from subquad.models.sizes import Size, decoder_size, linear_numbers, with_stack
from subquad.models.stacks import Decoder, DecoderState, Encoder, EncoderDecoder

__all__ = [
    "Block",
    "CausalEncoder",
    "Decoder",
    "DecoderState",
    "Encoder",
    "EncoderDecoder",
    "ModelOptions",
    "MultiheadAttention",
    "PixelEmbedding",
    "Projected",
    "Sampling",
    "Size",
    "TimeEmbedding",
    "TokenEmbedding",
    "ValueEmbedding",
    "attentions_of",
    "decoder_size",
    "detached",
    "generate",
    "linear_numbers",
    "mapped",
    "mechanisms_of",
    "state_of",
    "tensors_of",
    "with_stack",
]
