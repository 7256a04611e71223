"""Centres and rebalances queries and keys, which leaves softmax unchanged and reduces the error of random features.

With a and c the means of queries and keys, and any invertible A,

    q . k = ((q - a) A) . ((k - c) A^-T) + a . k + c . q - a . c

The first term is a product of shorter vectors, and the error of random features grows with their norm. The term a . k goes
into the key's exponent, the last two terms into the query's. The A that gives both sides the same covariance makes them
shortest.
"""

import torch
from jaxtyping import Float
from torch import Tensor

RIDGE = 1e-3  # share of the mean variance that is added to each: a direction without variance would be stretched infinitely


def balance(
    q_cov: Float[Tensor, "h d d"], k_cov: Float[Tensor, "h d d"]
) -> tuple[Float[Tensor, "h d d"], Float[Tensor, "h d d"]]:
    """Returns the symmetric A with A Cq A = A^-1 Ck A^-1, and its inverse.

    A^2 = M solves M Cq M = Ck: it is the geometric mean of Cq^-1 and Ck, Cq^-1/2 (Cq^1/2 Ck Cq^1/2)^1/2 Cq^-1/2.
    """
    q_cov, k_cov = _ridged(q_cov), _ridged(k_cov)
    root, inverse = _power(q_cov, 0.5), _power(q_cov, -0.5)
    mean = inverse @ _power(root @ k_cov @ root, 0.5) @ inverse
    return _power(mean, 0.5), _power(mean, -0.5)


def _ridged(cov: Tensor) -> Tensor:
    mean = cov.diagonal(dim1=-2, dim2=-1).mean(-1)[:, None, None]
    return cov + (RIDGE * mean + 1e-6) * torch.eye(cov.shape[-1], dtype=cov.dtype, device=cov.device)


def _power(x: Tensor, exponent: float) -> Tensor:
    """Returns a power of symmetric positive definite matrices."""
    values, vectors = torch.linalg.eigh((x + x.mT) / 2)
    return (vectors * values.clamp(min=1e-12).pow(exponent)[..., None, :]) @ vectors.mT
