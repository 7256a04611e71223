"""Running sums over the terms of chunks, all at once, in time and memory that are linear in their number."""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from subquad.ops.autocast import product
from subquad.ops.linear.sums import finite

GROUP = 16  # terms that are added by one product


def running_sums(terms: Float[Tensor, "b h t x"], peaks: Float[Tensor, "b h t"]) -> Float[Tensor, "b h t x"]:
    """Returns for each t the sum over s <= t of 2^(peak_s - peak_t) term_s; peaks never fall.

    Terms are summed in groups: within each group by a product with the fades of its pairs, then over the sums of whole
    groups in the same way. An exported program has one group for all, since the number of rounds would fix its length.
    """
    if torch.compiler.is_exporting() or terms.shape[2] <= GROUP:
        return product(_fades(peaks, peaks).tril(), terms)
    count, padding = terms.shape[2], -terms.shape[2] % GROUP
    last = peaks[:, :, -1:].expand(*peaks.shape[:2], padding)
    terms = F.pad(terms, (0, 0, 0, padding)).unflatten(2, (-1, GROUP))
    peaks = torch.cat([peaks, last], dim=2).unflatten(2, (-1, GROUP))
    inside, ends = product(_fades(peaks, peaks).tril(), terms), peaks[:, :, :-1, -1]
    earlier = running_sums(inside[:, :, :-1, -1], ends)
    rest = inside[:, :, 1:] + _fades(ends[..., None], peaks[:, :, 1:]) * earlier[:, :, :, None]
    return torch.cat([inside[:, :, :1], rest], dim=2).flatten(2, 3)[:, :, :count]


def _fades(old: Float[Tensor, "*b s"], new: Float[Tensor, "*b t"]) -> Float[Tensor, "*b t s"]:
    """Returns 2^(old - new) for each pair: the factors of sums relative to old peaks in sums relative to new ones."""
    return torch.exp2(old[..., None, :] - finite(new)[..., None])
