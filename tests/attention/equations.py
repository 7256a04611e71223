"""The equation of each mechanism, written as in its paper, that the contract suite holds it to."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Normal

from subquad.attention.linformer import ConvolutionSlots, LearnedSlots, MeanSlots
from subquad.ops import reference
from subquad.ops.linear import reference as linear_reference
from subquad.ops.lsh import reference as lsh_reference
from subquad.ops.nystrom import reference as nystrom_reference
from subquad.ops.sparse.patterns import drawn
from subquad.types import Features


def _softmax(attend: Any, q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None, causal: bool) -> Tensor:
    return reference.attend(reference.softmax_weights(q, k, keep, causal), v)


def _linear(attend: Any, q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None, causal: bool) -> Tensor:
    phi_q, phi_k = attend.feature_map.sides()
    return reference.attend(linear_reference.weights(phi_q(q), phi_k(k), keep, causal), v)


def _linformer(attend: Any, q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None, causal: bool) -> Tensor:
    """Sequence by sequence, with padding taken out for real."""
    rows = []
    for index in range(len(q)):
        real = slice(None) if keep is None else keep[index]
        slots = [_slots(attend.projection, x[index][:, real], side)[None] for side, x in ((0, k), (-1, v))]
        rows.append(reference.attend(reference.softmax_weights(q[index : index + 1], slots[0]), slots[1]))
    return torch.cat(rows)


def _slots(projection: Any, x: Tensor, side: int) -> Tensor:
    if isinstance(projection, LearnedSlots):
        return reference.learned_slots(x, projection.weight[side])
    if isinstance(projection, ConvolutionSlots):
        return reference.convolved_slots(x, projection.weight[side])
    assert isinstance(projection, MeanSlots)
    return reference.mean_slots(x, projection.options.k)


def _infinity(attend: Any, q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None, causal: bool) -> Tensor:
    """Sequence by sequence, with padding taken out for real; a query of the causal form is one of its keys."""
    rows = []
    for index in range(len(q)):
        real = torch.ones(k.shape[2], dtype=torch.bool) if keep is None else keep[index]
        aligned = causal or q.shape[2] == k.shape[2]
        asked = q[index][:, real] if aligned else q[index]
        mixed = _one_stream(attend, asked, k[index][:, real], v[index][:, real], causal, aligned)
        if aligned and keep is not None:  # what stands on padding is nobody's business
            mixed = torch.zeros_like(q[index][..., :1]).expand(-1, -1, v.shape[3]).index_copy(1, real.nonzero()[:, 0], mixed)
        rows.append(mixed)
    return torch.stack(rows)


def _cosformer(attend: Any, q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None, causal: bool) -> Tensor:
    """Positions count real keys; queries that are not at their places come after them."""
    real = torch.ones(k.shape[0], k.shape[2], dtype=torch.bool) if keep is None else keep
    of_keys = (real.cumsum(1) - 1).clamp(min=0)
    of_queries = of_keys if q.shape[2] == k.shape[2] else real.sum(1, keepdim=True).expand(-1, q.shape[2])
    weights = linear_reference.cosine_weights(q, k, of_queries, of_keys, attend.options.max_length)
    weights = weights * reference.visible(q.shape[2], k.shape[2], keep, causal, q.device)
    total = weights.sum(-1, keepdim=True)
    return torch.where(total == 0, 0.0, weights / torch.where(total == 0, 1.0, total)) @ v


def _lsh(attend: Any, q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None, causal: bool) -> Tensor:
    """Sequence by sequence, with padding taken out for real; aligned queries at padding ask from where they stand."""
    options, rows, aligned = attend.options, [], q.shape[2] == k.shape[2]
    for index in range(len(q)):
        real = torch.ones(k.shape[2], dtype=torch.bool) if keep is None else keep[index]
        places = real.cumsum(0) - 1 if aligned else torch.full((q.shape[2],), int(real.sum()))
        asking = k[index] * real[:, None] if options.shared and aligned else q[index]
        mixed = lsh_reference.attend(
            asking,
            k[index][:, real],
            v[index][:, real],
            attend.rotations.to(q.dtype),
            options.chunk,
            places,
            causal=causal,
            aligned=real if aligned else torch.zeros_like(places, dtype=torch.bool),
            shared=options.shared,
        )
        rows.append(mixed)
    return torch.stack(rows)


def _nystrom(attend: Any, q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None, causal: bool) -> Tensor:
    """Sequence by sequence, with padding taken out for real; queries at padding are answered, but no part of landmarks."""
    options, rows = attend.options, []
    for index in range(len(q)):
        real = torch.ones(k.shape[2], dtype=torch.bool) if keep is None else keep[index]
        asked = real if q.shape[2] == k.shape[2] else torch.ones(q.shape[2], dtype=torch.bool)
        q_real, k_real, v_real = q[index][:, asked], k[index][:, real], v[index][:, real]
        rows.append(nystrom_reference.attend(q[index], k_real, v_real, q_real, options.landmarks, options.iterations))
    return torch.stack(rows)


def _hybrid(attend: Any, q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None, causal: bool) -> Tensor:
    """Sequence by sequence, with padding taken out for real."""
    mixed = 0.0 * v.sum() + torch.zeros(*q.shape[:3], v.shape[3], dtype=v.dtype)
    for index in range(len(q)):
        real = (torch.ones(k.shape[2]) > 0 if keep is None else keep[index]).nonzero()[:, 0]
        if not len(real):
            continue
        aligned = q.shape[2] == k.shape[2]
        rows = real if aligned else torch.arange(q.shape[2])
        weights = _hybrid_weights(attend, q[index, :, rows], k[index, :, real], causal=causal, aligned=aligned)
        row = torch.zeros_like(mixed[0]).index_copy(1, rows, weights @ v[index, :, real])
        mixed = mixed.index_copy(0, torch.tensor([index]), row[None])
    return mixed


def _hybrid_weights(attend: Any, q: Tensor, k: Tensor, *, causal: bool, aligned: bool) -> Tensor:
    """exp(q . k / sqrt d) for keys in the query's own block and the neighbouring ones, gain phi(q) . phi(k) for the others.

    Queries that are not at the places of keys have no neighbours among them.
    """
    phi_q, phi_k = (phi(x[None]) for phi, x in zip(attend.feature_map.sides(), (q, k), strict=True))
    far = (_plain(phi_q) @ _plain(phi_k).mT)[0] * attend.log_gain.to(q.dtype).exp()[:, None, None]
    near = torch.exp(q @ k.mT / q.shape[-1] ** 0.5)
    query, key = torch.arange(q.shape[1])[:, None], torch.arange(k.shape[1])
    block = attend.options.block
    is_near = ((query // block - key // block).abs() <= 1) & aligned
    weights = torch.where(is_near, near, far) * ((key <= query) | (not causal))
    total = weights.sum(-1, keepdim=True)
    return torch.where(total == 0, 0.0, weights / torch.where(total == 0, 1.0, total))


def _window(attend: Any, q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None, causal: bool) -> Tensor:
    """Query by query, with padding taken out for real. Queries that are not at the places of keys see all of them."""
    if q.shape[2] != k.shape[2]:
        return _softmax(attend, q, k, v, keep, causal)
    options = attend.options
    places = torch.arange(k.shape[2])
    mixed = [(0 * v[index].sum(1, keepdim=True)).expand_as(v[index]) for index in range(len(v))]
    for index in range(len(q)):
        real = places if keep is None else places[keep[index]]
        rows = []
        for at in range(len(real)):
            near = [at + step * options.dilation for step in range(-options.reach, options.reach + 1)]
            seen = range(len(real)) if at < options.global_tokens else [*range(options.global_tokens), *near]
            seen = sorted({other for other in seen if 0 <= other < (at + 1 if causal else len(real))})
            keys = real[torch.tensor(seen)]
            weights = (k[index, :, keys] @ q[index, :, real[at], :, None] / q.shape[-1] ** 0.5).softmax(1)
            rows.append((weights * v[index, :, keys]).sum(1))
        if rows:
            mixed[index] = mixed[index].index_copy(1, real, torch.stack(rows, dim=1))
    return torch.stack(mixed) if mixed else torch.zeros_like(v)


def _sparse(attend: Any, q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None, causal: bool) -> Tensor:
    """Sequence by sequence, with padding taken out for real. Queries that are not at the places of keys see all of them."""
    if q.shape[2] != k.shape[2]:
        return _softmax(attend, q, k, v, keep, causal)
    rows = []
    for index in range(len(q)):
        real = torch.arange(k.shape[2]) if keep is None else torch.arange(k.shape[2])[keep[index]]
        size = len(real)
        block = torch.arange(size) // attend.options.block
        pairs = _sparse_blocks(attend, int(block[-1]) + 1 if size else 0, causal)[block[:, None], block]
        pairs = pairs.tril() if causal else pairs
        scores = (q[index, :, real] @ k[index, :, real].mT / q.shape[-1] ** 0.5).exp() * pairs
        total = scores.sum(-1, keepdim=True)
        mixed = scores / torch.where(total == 0, 1.0, total) @ v[index, :, real]
        rows.append((0 * v[index].sum(1, keepdim=True)).expand_as(v[index]).index_copy(1, real, mixed))
    return torch.stack(rows)


def _sparse_blocks(attend: Any, count: int, causal: bool) -> Tensor:
    """The pairs of blocks that count, each by the sentence that describes its pattern."""
    options = attend.options
    row, column = torch.arange(count)[:, None], torch.arange(count)
    apart = (row - column).abs()
    if options.pattern == "strided":
        return (apart < options.stride) | (apart % options.stride == 0)
    if options.pattern == "fixed":
        same = row // options.stride == column // options.stride
        return same | (column % options.stride >= options.stride - options.summary)
    if options.pattern == "given":
        return torch.tensor([[mark == "1" for mark in line] for line in options.blocks.split("/")])[:count, :count]
    pairs = (apart <= options.near) | (row < options.global_blocks) | (column < options.global_blocks)
    for block in range(count):
        last = block + 1 if causal else count
        others = [other for other in range(last) if not pairs[block, other]]
        for run in range(options.random_blocks):
            some = others[run * len(others) // options.random_blocks : (run + 1) * len(others) // options.random_blocks]
            if some:
                pairs[block, some[int(drawn(attend.pattern.seed, torch.tensor(block), torch.tensor(run))) % len(some)]] = (
                    True
                )
    return pairs


def _plain(features: Features) -> Tensor:
    return features.values if features.exponent is None else features.values * torch.exp2(features.exponent)


def _one_stream(attend: Any, q: Tensor, k: Tensor, v: Tensor, causal: bool, aligned: bool) -> Tensor:
    options, segment = attend.options, attend.options.segment
    pieces = [slice(start, start + segment) for start in range(0, max(1, k.shape[1]), segment)]
    if not aligned:
        exact = reference.attend(reference.softmax_weights(q[None], k[None, :, pieces[-1]]), v[None, :, pieces[-1]])[0]
        return exact + _recalled(attend, q, pieces[:-1], [], k, v)
    mixed = []
    for at, piece in enumerate(pieces):
        seen = slice(max(0, piece.start - segment), piece.stop) if options.previous else piece
        weights = reference.softmax_weights(q[None, :, piece], k[None, :, seen], causal=causal)
        total = reference.attend(weights, v[None, :, seen])[0] + _recalled(attend, q[:, piece], pieces[:at], q, k, v)
        if options.both and not causal:
            flipped = [x.flip(1) for x in (q, k, v)]
            size = k.shape[1]
            later = [slice(max(0, size - p.stop), size - p.start) for p in reversed(pieces[at + 1 :])]
            total = total + _recalled(attend, q[:, piece], later, *flipped)
        mixed.append(total)
    return torch.cat(mixed, dim=1)


def _recalled(attend: Any, asked: Tensor, pieces: list[slice], q: Any, k: Tensor, v: Tensor) -> Tensor:
    """What a memory of these pieces, in their order, says to the queries."""
    options = attend.options
    if not pieces or not options.basis:
        return torch.zeros(*asked.shape[:2], v.shape[-1], dtype=v.dtype)
    of_each_width = options.basis // len(options.widths)
    centres = torch.linspace(0, 1, of_each_width, dtype=torch.float64).repeat(len(options.widths))
    widths = torch.tensor(options.widths, dtype=torch.float64).repeat_interleave(of_each_width)
    bumps = reference.Bumps(centres, widths, options.ridge, options.tau)
    signal, points = None, (torch.arange(options.points, dtype=torch.float64) + 0.5) / options.points
    for piece in pieces:
        x = torch.cat([k[:, piece], v[:, piece]], dim=2)
        if options.sticky and signal is not None and len(q):
            mean, variance = _densities(attend, q[:, piece], signal)
            edges = torch.linspace(0, 1, options.bins + 1, dtype=x.dtype)
            mass = Normal(mean[..., None], variance.sqrt()[..., None]).cdf(edges).diff(dim=-1).sum((0, 1)).detach()
            points = _drawn(mass, attend.places, attend.within)
        signal = reference.remember(bumps, signal, points, x.detach() if options.detached else x)
    assert signal is not None
    mean, variance = _densities(attend, asked, signal)
    return reference.recall(bumps, signal[..., asked.shape[2] :], mean, variance)


def _densities(attend: Any, q: Tensor, signal: Tensor) -> tuple[Tensor, Tensor]:
    """Equations 6 and 7 of Martins et al. 2022: mu = sigmoid(w_mu . K q / sqrt d + b_mu), sigma^2 with softplus likewise."""
    scores = torch.einsum("hnd,hmd->hnm", q, signal[..., : q.shape[2]]) / q.shape[2] ** 0.5
    mean, variance = (torch.einsum("hnm,hm->hn", scores, attend.weight[:, at]) + attend.bias[:, at, None] for at in (0, 1))
    return torch.sigmoid(mean), torch.log1p(torch.exp(variance))


def _drawn(mass: Tensor, places: Tensor, within: Tensor) -> Tensor:
    """A point for each place u: somewhere in the first bin at whose end the share of the mass so far reaches u."""
    reached = (mass / mass.sum()).cumsum(0)
    bins = [min(int((reached < place).sum()), len(mass) - 1) for place in places]
    return ((torch.tensor(bins) + within) / len(mass)).sort().values


EQUATIONS: dict[str, Callable[..., Tensor]] = {
    "softmax": _softmax,
    "linear": _linear,
    "favor": _linear,
    "linformer": _linformer,
    "infinity": _infinity,
    "hybrid": _hybrid,
    "window": _window,
    "sparse": _sparse,
    "nystrom": _nystrom,
    "lsh": _lsh,
    "cosformer": _cosformer,
}
