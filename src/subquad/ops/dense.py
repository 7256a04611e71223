"""A linear layer for the few rows of a decoding step."""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from subquad import native
from subquad.ops.autocast import is_traced

FEW_ROWS = 4  # most rows for which reading the weights takes longer than multiplying them


def linear(
    x: Float[Tensor, "*b inputs"], weight: Float[Tensor, "outputs inputs"], bias: Float[Tensor, "outputs"] | None
) -> Float[Tensor, "*b outputs"]:
    """Returns x weight^T + bias. For a few rows without gradients, native kernels read the weights at memory's speed.

    PyTorch's product of a matrix and a vector reaches a third of that speed on some CPUs.
    """
    outputs, inputs = weight.shape
    rows = x.numel() // max(1, inputs)
    if rows > FEW_ROWS or torch.is_grad_enabled() or is_traced() or not native.is_chosen() or not _fits(x, weight, bias):
        return F.linear(x, weight, bias)
    y = x.new_empty(*x.shape[:-1], outputs)
    pointers = (x.data_ptr(), weight.data_ptr(), 0 if bias is None else bias.data_ptr(), y.data_ptr())
    native.call("dense", "float", (rows, inputs, outputs, torch.get_num_threads(), *pointers, 0))
    return y


def _fits(x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    """Whether all tensors are contiguous float32 tensors on the CPU, outside of autocast."""
    if x.dtype is not torch.float32 or weight.dtype is not torch.float32 or torch.is_autocast_enabled("cpu"):
        return False
    if not (x.is_cpu and weight.is_cpu and x.is_contiguous() and weight.is_contiguous() and x.shape[-1] == weight.shape[1]):
        return False
    return bias is None or (bias.dtype is torch.float32 and bias.is_cpu and bias.is_contiguous())
