"""Compares the attention matrices of a converted model with the original's, for each layer and head."""

import torch
from torch import Tensor, nn

from subquad.attention.looking import watched
from subquad.conversion.convertible import Convertible
from subquad.conversion.matching import diverge
from subquad.errors import SubquadError
from subquad.measure.spectrum import effective_rank, singular_values
from subquad.results import Row
from subquad.tasks.mlm.masking import MaskedBatch


@torch.no_grad()
def head_rows(original: Convertible, model: nn.Module, batch: MaskedBatch) -> list[Row]:
    """Rows of each head's divergence from the original's attention on the same texts, and of its effective rank."""
    sums: dict[tuple[str, int, int], float] = {}
    try:
        for row in range(len(batch.tokens)):
            size = int(batch.keep[row].sum())
            text = MaskedBatch(*(part[row : row + 1, :size] for part in batch))
            exact, matrices = (_matrices(original, reader, text) for reader in (original.teacher, model))
            for layer, matrix in matrices.items():
                origin = layer if model is original.teacher else original.origins[layer]
                wanted = exact[origin] if model is original.teacher else exact[origin][:, original.kept_heads]
                divergence = diverge(wanted, matrix, torch.ones(1, matrix.shape[2], dtype=matrix.dtype))
                rank = effective_rank(singular_values(matrix[0]))
                for metric, values in (("attention divergence", divergence), ("effective rank", rank)):
                    for head, value in enumerate(values.tolist()):
                        sums[metric, layer, head] = sums.get((metric, layer, head), 0.0) + value / len(batch.tokens)
    except SubquadError:  # the mechanism has no attention matrix
        return []
    return [
        {"metric": metric, "value": value, "layer": layer, "head": head}
        for (metric, layer, head), value in sorted(sums.items())
    ]


def _matrices(original: Convertible, model: nn.Module, batch: MaskedBatch) -> dict[int, Tensor]:
    """Attention matrices by layer. Layers to which the model gives its own sliding window are left out."""
    mechanisms = original.mechanisms(model)
    layer_of = {id(attend): layer for layer, attend in enumerate(mechanisms)}
    with watched(mechanisms) as calls:
        original.outputs(model, batch)
    return {layer_of[id(call.attend)]: call.matrix() for call in calls}
