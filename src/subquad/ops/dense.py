"""A linear layer for the few rows of a decoding step."""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from subquad import native
from subquad.ops.autocast import is_traced
from subquad.ops.linear.layout import are_plain

FEW_ROWS = 4  # most rows for which reading the weights takes longer than multiplying them


def linear(
    x: Float[Tensor, "*b inputs"], weight: Float[Tensor, "outputs inputs"], bias: Float[Tensor, "outputs"] | None
) -> Float[Tensor, "*b outputs"]:
    """Returns x weight^T + bias. For a few rows without gradients, native kernels read the weights at memory's speed.

    PyTorch's product of a matrix and a vector reaches a third of that speed on some CPUs.
    """
    if torch.is_grad_enabled() or is_traced() or not native.is_chosen():
        return F.linear(x, weight, bias)
    *batch, width = x.shape
    outputs, inputs = weight.shape
    rows = x.numel() // (inputs or 1)
    if rows > FEW_ROWS or width != inputs or torch.is_autocast_enabled("cpu") or not _fits(x, weight, bias):
        return F.linear(x, weight, bias)
    y = torch.empty((*batch, outputs), dtype=torch.float32, device="cpu")
    pointers = (x.data_ptr(), weight.data_ptr(), 0 if bias is None else bias.data_ptr(), y.data_ptr())
    native.call("dense", "float", (rows, inputs, outputs, torch.get_num_threads(), *pointers, 0))
    return y


def _fits(x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    """Whether all tensors are contiguous float32 tensors on the CPU."""
    return are_plain(x, weight) if bias is None else are_plain(x, weight, bias)
