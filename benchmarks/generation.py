"""Whether `generate` with a state cache takes as long for its last tokens as for its first. Run by `make bench-generation`.

Models of GPT-2's and of Llama's shape with random weights write 2048 tokens, on one thread. The time of the last 100 is put
beside that of the first 100 after the prompt, in seconds of the processor, which other programs disturb least; so are the
bytes of the cache, and the memory of the process. Softmax with the cache that grows is there to compare with.

That the tokens are those of the model without a cache is seen twice: the first are written once more with and without, in
float64, as two tokens may be equally likely in float32; and all of them are read in one pass, in which every token has to be
the likeliest after those before it.
"""

from dataclasses import dataclass
from statistics import median
from time import process_time
from typing import Any

import psutil
import torch
import transformers
import tyro
from rich.console import Console
from rich.table import Column, Table
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from subquad import hub
from subquad.measure.memory import in_fresh_process

EDGE = 100


@dataclass(frozen=True)
class Options:
    """The time of a token, early and late."""

    families: tuple[str, ...] = ("gpt2", "llama")
    attentions: tuple[str, ...] = ("linear", "favor", "infinity", "softmax")
    tokens: int = 2048
    again: int = 256  # tokens that are written without a cache as well
    rounds: int = 3
    layers: int = 4
    width: int = 256
    heads: int = 4
    vocabulary: int = 1024


def build(family: str, given: Options) -> Any:
    """With weights so large that the text does not repeat itself at once."""
    torch.manual_seed(0)
    common: dict[str, Any] = {
        "vocab_size": given.vocabulary,
        "initializer_range": 0.08,
        "bos_token_id": None,
        "eos_token_id": None,
    }
    longest = given.tokens + 64
    if family == "gpt2":
        sizes: dict[str, Any] = {
            "n_layer": given.layers,
            "n_embd": given.width,
            "n_head": given.heads,
            "n_positions": longest,
        }
        return GPT2LMHeadModel(GPT2Config(**sizes, **common)).eval()
    sizes = {"num_hidden_layers": given.layers, "hidden_size": given.width, "num_attention_heads": given.heads}
    sizes |= {
        "num_key_value_heads": given.heads // 2,
        "intermediate_size": 3 * given.width,
        "max_position_embeddings": longest,
    }
    return LlamaForCausalLM(LlamaConfig(**sizes, **common)).eval()


class Clock(transformers.LogitsProcessor):
    """Notes the time and the memory whenever a token has been computed."""

    def __init__(self, cache: Any) -> None:
        self.cache, self.seconds, self.bytes, self.resident = cache, [], [], []  # type: ignore[var-annotated]

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        self.seconds.append(process_time())
        self.bytes.append(self.cache.nbytes)
        self.resident.append(psutil.Process().memory_info().rss)
        return scores


def measure(family: str, attention: str, given: Options) -> dict[str, float]:
    """One text."""
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    model = hub.swap(build(family, given), attention)
    prompt = torch.randint(0, given.vocabulary, (1, 16))
    model.generate(
        prompt, max_new_tokens=8, past_key_values=hub.state_cache(model)
    )  # nothing is then done for the first time
    cache = hub.state_cache(model)
    clock = Clock(cache)
    asked: dict[str, Any] = {"do_sample": False, "logits_processor": [clock], "past_key_values": cache}
    written = model.generate(prompt, max_new_tokens=given.tokens, **asked)
    unlike = _unlike(model, written, prompt.shape[1])
    model.double()
    brief: dict[str, Any] = {"do_sample": False, "max_new_tokens": given.again}
    once, again = (
        model.generate(prompt, **brief, past_key_values=hub.state_cache(model)),
        model.generate(prompt, **brief, use_cache=False),
    )
    early, late = EDGE, given.tokens - 1
    return {
        "early": clock.seconds[early] - clock.seconds[0],
        "late": clock.seconds[late] - clock.seconds[late - EDGE],
        "bytes early": clock.bytes[early],
        "bytes late": clock.bytes[late],
        "more memory": clock.resident[late] - clock.resident[early],
        "same": float(torch.equal(once, again)),
        "unlike": unlike,
    }


@torch.no_grad()
def _unlike(model: Any, written: Tensor, start: int) -> float:
    """How many of the tokens are not the likeliest, or as likely to rounding, when the whole text is read at once."""
    logits = model(written[:, :-1], use_cache=False).logits[:, start - 1 :]
    chosen = logits.gather(2, written[:, start:, None])[..., 0]
    return float((chosen < logits.amax(-1) - 1e-3).sum())


def main(given: Options) -> None:
    """Every model and mechanism, each round in a fresh process."""
    columns = ("last / first 100", "ms a token", "cache at 100, kB", "at the end, kB", "process, MB more", "same", "unlike")
    table = Table("model", "attention", *(Column(name, justify="right") for name in columns))
    for family in given.families:
        for attention in given.attentions:
            runs = [in_fresh_process(measure, family, attention, given) for _ in range(given.rounds)]
            ratios = sorted(run["late"] / run["early"] for run in runs)
            table.add_row(
                family,
                attention,
                f"{median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})",
                f"{median(run['late'] for run in runs) / EDGE * 1e3:.2f}",
                f"{runs[0]['bytes early'] / 1e3:.0f}",
                f"{runs[0]['bytes late'] / 1e3:.0f}",
                f"{max(run['more memory'] for run in runs) / 1e6:.1f}",
                "yes" if all(run["same"] for run in runs) else "no",
                f"{max(run['unlike'] for run in runs):.0f} of {given.tokens}",
            )
    console = Console(width=160)
    about = (
        f"{given.layers} layers of width {given.width}, {given.heads} heads, {given.tokens} tokens, {given.rounds} rounds"
    )
    console.print(
        f"{about}; same: {given.again} as without a cache, in float64; unlike: not the likeliest when read at once"
    )
    console.print(table)


if __name__ == "__main__":
    main(tyro.cli(Options))
