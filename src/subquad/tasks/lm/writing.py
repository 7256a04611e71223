"""Continues a text token by token, with a state of constant size where the mechanism has one."""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from subquad.models import Decoder, Sampling, generate
from subquad.tasks.lm.vocabulary import BEGIN


class TextSampling(Sampling):
    """Chooses tokens of text only, never the one that begins texts, at any temperature and by a generator of the CPU."""

    def choose(self, logits: Float[Tensor, "b v"], generator: torch.Generator | None = None) -> Int[Tensor, "b 1"]:
        precise = logits.cpu().double().index_fill(-1, torch.tensor([BEGIN]), -torch.inf)
        return super().choose(precise - precise.amax(-1, keepdim=True), generator).to(logits.device)


def write(
    model: Decoder, prompt: Sequence[int], count: int, length: int, temperature: float, generator: torch.Generator
) -> list[int]:
    """Returns `count` tokens after the prompt.

    The model was trained on `length` tokens. Whenever so many are read, it starts again from the second half of them, so
    that it never reads at positions that it has not learned.
    """
    device = next(model.parameters()).device
    known, sampling = list(prompt), TextSampling(temperature)
    while (left := count + len(prompt) - len(known)) > 0:
        seen = known if len(known) < length else known[-max(1, length // 2) :]
        tokens = torch.tensor([seen], device=device)
        rest = min(left, max(1, length - len(seen)))
        known += generate(model, tokens, length=rest, sampling=sampling, generator=generator)[0].tolist()
    return known[len(prompt) :]
