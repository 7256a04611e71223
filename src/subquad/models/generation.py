"""Generation of tokens, one after the other, with a recurrent state."""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from subquad.checking import Checked, Count, NonNegative, PositiveShare
from subquad.errors import SubquadError
from subquad.models.stacks import Context, Decoder


@dataclass(frozen=True)
class Sampling(Checked):
    """How the next token is chosen; by default the likeliest one."""

    temperature: NonNegative = 0.0  # 0 takes the likeliest token; 1 samples as the model predicts; higher is more random
    top_k: Count | None = None  # sample only from this number of the likeliest tokens
    top_p: PositiveShare | None = None  # sample only from the smallest set of tokens with this probability

    def choose(self, logits: Float[Tensor, "b v"], generator: torch.Generator | None = None) -> Int[Tensor, "b 1"]:
        """Chooses a token for each sequence."""
        if self.temperature == 0:
            return logits.argmax(-1, keepdim=True)
        probabilities = torch.softmax(self.kept(logits) / self.temperature, -1)
        return torch.multinomial(probabilities, 1, generator=generator)

    def kept(self, logits: Float[Tensor, "b v"]) -> Float[Tensor, "b v"]:
        """Returns the logits with -inf for tokens that `top_k` and `top_p` exclude."""
        if self.top_k is not None and self.top_k < logits.shape[-1]:
            least = logits.topk(self.top_k, -1).values[..., -1:]
            logits = logits.masked_fill(logits < least, -torch.inf)
        if self.top_p is not None:
            ordered, places = torch.softmax(logits / self.temperature, -1).sort(-1, descending=True)
            beyond = ordered.cumsum(-1) - ordered >= self.top_p  # tokens before it have the probability already
            logits = logits.masked_fill(torch.zeros_like(beyond).scatter(-1, places, beyond), -torch.inf)
        return logits


@torch.no_grad()
def generate(
    decoder: Decoder,
    prompt: Int[Tensor, "b n"],
    *,
    length: int,
    sampling: Sampling | None = None,
    stop: int | None = None,
    context: Context | None = None,
    context_keep: Bool[Tensor, "b s"] | None = None,
    generator: torch.Generator | None = None,
) -> Int[Tensor, "b m"]:
    """Generates up to `length` tokens after the prompt; after the token `stop`, a sequence is filled with it."""
    sampling = sampling or Sampling()
    if prompt.shape[1] < 1:
        raise SubquadError("the prompt must have at least one token to go on from")
    if isinstance(context, Tensor):
        context = decoder.project(context)
    about: dict[str, Any] = {"context": context, "context_keep": context_keep}
    was_training = decoder.training
    decoder.eval()
    try:
        logits, state = decoder.causal(prompt, **about)
        written: list[Tensor] = []
        ended = torch.zeros(len(prompt), 1, dtype=torch.bool, device=prompt.device)
        for _ in range(length):
            token = sampling.choose(logits[:, -1], generator)
            if stop is not None:
                token = token.masked_fill(ended, stop)
                ended |= token == stop
            written.append(token)
            if len(written) == length or bool(ended.all()):
                break
            logits, state = decoder.step(token, state, **about, reuse=True)
    finally:
        decoder.train(was_training)
    return torch.cat(written, 1) if written else prompt[:, :0]
