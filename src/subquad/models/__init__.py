"""Models around the mechanisms."""

from subquad.models.block import Block
from subquad.models.causal import CausalEncoder, detached
from subquad.models.embeddings import PixelEmbedding, TimeEmbedding, TokenEmbedding, ValueEmbedding
from subquad.models.generation import Sampling, generate
from subquad.models.multihead import MultiheadAttention, Projected
from subquad.models.stacks import Decoder, DecoderState, Encoder, EncoderDecoder, ModelOptions

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
    "TimeEmbedding",
    "TokenEmbedding",
    "ValueEmbedding",
    "detached",
    "generate",
]
