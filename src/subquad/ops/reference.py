"""The equations as written, with the whole attention matrix in memory: slow and short, to test the fast forms against.

Equation numbers refer to Katharopoulos et al. 2020, *Transformers are RNNs*, unless stated otherwise.
"""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.distributions import Normal


def visible(
    queries: int, keys: int, keep: Bool[Tensor, "b s"] | None, causal: bool, device: torch.device
) -> Bool[Tensor, "#b 1 n s"]:
    """Mask of the keys that each query sees. If causal, the last query is aligned with the last key."""
    seen = torch.ones(queries, keys, dtype=torch.bool, device=device)
    if causal:
        seen = seen.tril(keys - queries)
    return seen[None, None] if keep is None else seen & keep[:, None, None, :]


def softmax_weights(
    q: Float[Tensor, "b h n d"],
    k: Float[Tensor, "b h s d"],
    keep: Bool[Tensor, "b s"] | None = None,
    causal: bool = False,
    places: Int[Tensor, "r"] | None = None,
) -> Float[Tensor, "b h r s"]:
    """Equation 2: the weight of key j for query i is exp(q_i . k_j / sqrt d) divided by the sum. A row without keys is 0.

    There is a row for each query, or only for the queries at `places`.
    """
    return masked_weights(q, k, visible(q.shape[2], k.shape[2], keep, causal, q.device), places)


def masked_weights(
    q: Float[Tensor, "b h n d"],
    k: Float[Tensor, "b h s d"],
    seen: Bool[Tensor, "#b 1 n s"],
    places: Int[Tensor, "r"] | None = None,
) -> Float[Tensor, "b h r s"]:
    """Softmax weights of the pairs of query and key that are `seen`; other pairs have the weight 0."""
    if places is not None:
        q, seen = q[:, :, places], seen[:, :, places]
    scores = (q @ k.mT) / math.sqrt(q.shape[-1])
    scores = scores.masked_fill(~seen, -math.inf)
    rows = seen.any(-1, keepdim=True)
    return scores.masked_fill(~rows, 0.0).softmax(-1) * rows


def attend(weights: Float[Tensor, "b h n s"], v: Float[Tensor, "b h s e"]) -> Float[Tensor, "b h n e"]:
    """Equation 3: out_i = sum over j of weight_ij v_j."""
    return weights @ v


def learned_slots(x: Float[Tensor, "h n d"], weight: Float[Tensor, "#h k longest"]) -> Float[Tensor, "h k d"]:
    """Linformer (Wang et al. 2020, equation 7): E x, for one sequence without padding."""
    return weight[:, :, : x.shape[1]] @ x


def mean_slots(x: Float[Tensor, "h n d"], slots: int) -> Float[Tensor, "h k d"]:
    """Means over at most `slots` runs of positions with nearly equal lengths."""
    n = x.shape[1]
    used = min(slots, n)
    runs: list[list[int]] = [[] for _ in range(used)]
    for position in range(n):
        runs[position * used // n].append(position)
    return torch.stack([x[:, run].mean(1) for run in runs], dim=1) if runs else x


def convolved_slots(x: Float[Tensor, "h n d"], weight: Float[Tensor, "#h run d"]) -> Float[Tensor, "h k d"]:
    """Convolution whose stride is the length of its kernel; the last run is padded with zeros."""
    h, n, d = x.shape
    stride = weight.shape[1] // d
    kernel = weight.expand(h, -1, -1).unflatten(1, (stride, d)).permute(0, 3, 2, 1)  # h, out, in, stride
    filled = torch.cat([x, x.new_zeros(h, -n % stride, d)], dim=1)
    return torch.stack([F.conv1d(head.T, weights, stride=stride).T for head, weights in zip(filled, kernel, strict=True)])


class Bumps(NamedTuple):
    """Basis functions and constants of the continuous memory of one sequence (Martins et al. 2022)."""

    centres: Float[Tensor, "m"]
    widths: Float[Tensor, "m"]
    ridge: float
    tau: float

    def at(self, t: Float[Tensor, "n"]) -> Float[Tensor, "n m"]:
        """Values of the basis functions, psi_j(t) = N(t; mu_j, sigma_j^2)."""
        return Normal(self.centres, self.widths).log_prob(t[:, None]).exp()

    def fit(self, t: Float[Tensor, "n"], x: Float[Tensor, "h n d"]) -> Float[Tensor, "h m d"]:
        """Equation 3: coefficients of the signal closest to x at t, by ridge regression."""
        f = self.at(t).mT
        gram = f @ f.mT + self.ridge * torch.eye(len(f), dtype=f.dtype)
        return torch.linalg.inv(gram) @ f @ x


def remember(
    bumps: Bumps, before: Float[Tensor, "h m d"] | None, points: Float[Tensor, "p"], x: Float[Tensor, "h n d"]
) -> Float[Tensor, "h m d"]:
    """Equation 10: reads the old signal at points, contracts them to [0, tau], and fits them together with new values."""
    new = (torch.arange(x.shape[1], dtype=x.dtype) + 0.5) / x.shape[1]
    if before is None:
        return bumps.fit(new, x)
    old = (torch.arange(len(points), dtype=x.dtype) + 0.5) / len(points)
    t = torch.cat([bumps.tau * old, bumps.tau + (1 - bumps.tau) * new])
    return bumps.fit(t, torch.cat([bumps.at(points) @ before, x], dim=1))


def recall(
    bumps: Bumps, signal: Float[Tensor, "h m e"], mean: Float[Tensor, "h n"], variance: Float[Tensor, "h n"]
) -> Float[Tensor, "h n e"]:
    """Equation 8: E[v(t)], t ~ N(mean, variance), where E[psi_j(t)] = N(mean; mu_j, variance + sigma_j^2)."""
    spread = (variance[..., None] + bumps.widths.square()).sqrt()
    return Normal(bumps.centres, spread).log_prob(mean[..., None]).exp() @ signal
