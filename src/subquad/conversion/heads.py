"""The attention of a converted model, layer by layer and head by head, beside the original's."""

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
    """How far each head's attention is from the original's on the same texts, and its effective rank."""
    sums: dict[tuple[str, int, int], float] = {}
    try:
        for row in range(len(batch.tokens)):
            size = int(batch.keep[row].sum())
            text = MaskedBatch(*(part[row : row + 1, :size] for part in batch))
            exact, found = (_matrices(original, each, text) for each in (original.teacher, model))
            for layer, matrix in found.items():
                divergence = diverge(exact[layer], matrix, torch.ones(1, matrix.shape[2], dtype=matrix.dtype))
                rank = effective_rank(singular_values(matrix[0]))
                for metric, values in (("attention divergence", divergence), ("effective rank", rank)):
                    for head, value in enumerate(values.tolist()):
                        sums[metric, layer, head] = sums.get((metric, layer, head), 0.0) + value / len(batch.tokens)
    except SubquadError:  # a mechanism without matrices
        return []
    return [
        {"metric": metric, "value": value, "layer": layer, "head": head}
        for (metric, layer, head), value in sorted(sums.items())
    ]


def _matrices(original: Convertible, model: nn.Module, batch: MaskedBatch) -> dict[int, Tensor]:
    """Attention matrices by layer. A layer with a sliding window of the model's own has none."""
    mechanisms = original.mechanisms(model)
    layer_of = {id(attend): layer for layer, attend in enumerate(mechanisms)}
    with watched(mechanisms) as calls:
        original.outputs(model, batch)
    return {layer_of[id(call.attend)]: call.matrix() for call in calls}
