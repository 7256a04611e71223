"""Whether `generate` with a state cache takes as long for its last tokens as for its first. Run by `make bench-generation`.

Models of GPT-2's and of Llama's shape with random weights write 2048 tokens, on one thread. The last 100 of them are written
in turns with the first 100 of another text by the same model, token by token, so that whatever else the machine does hits
both alike; what is compared is the processor's time for a token. Beside it stand the bytes of the cache and what the process
holds. Softmax with the cache that grows is there to compare with.

That the tokens are those of the model without a cache is seen twice: the first are written once more with and without, in
float64, as two tokens may be equally likely in float32; and all of them are read in one pass, in which every token has to be
the likeliest after those before it.
"""

import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Semaphore
from time import thread_time
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
from subquad.statistics import median_interval, ratio_interval

EDGE = 100


@dataclass(frozen=True)
class Options:
    """The time of a token, early and late."""

    families: tuple[str, ...] = ("gpt2", "llama")
    attentions: tuple[str, ...] = ("linear", "favor", "hybrid", "softmax")
    tokens: int = 2048
    again: int = 64  # tokens that are written without a cache as well
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
    """Notes the time of each token and the memory after it. From a token on it takes turns with another one."""

    def __init__(self, cache: Any, turns_from: float) -> None:
        self.cache, self.turns_from, self.other = cache, turns_from, self
        self.seconds, self.bytes, self.resident = [], [], []  # type: ignore[var-annotated]
        self.turn = Semaphore(0)
        self.begun = 0.0

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        self.seconds.append(thread_time() - self.begun)
        self.bytes.append(self.cache.nbytes)
        self.resident.append(psutil.Process().memory_info().rss)
        if len(self.seconds) >= self.turns_from:
            self.other.turn.release()
            self.turn.acquire()
        self.begun = thread_time()
        return scores


def measure(family: str, attention: str, given: Options) -> dict[str, float]:
    """One text to its end, and the beginning of another."""
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    model = hub.swap(build(family, given), attention)
    prompt = torch.randint(0, given.vocabulary, (1, 16))
    _write(model, prompt, 8, None)  # nothing is then done for the first time
    whole, start = Clock(hub.state_cache(model), given.tokens - EDGE), Clock(hub.state_cache(model), 1)
    whole.other, start.other = start, whole
    with ThreadPoolExecutor(2) as threads:
        text = threads.submit(_write, model, prompt, given.tokens, whole)
        start.turn.acquire()  # it begins when the other one is near its end
        threads.submit(_write, model, prompt, EDGE + 1, start).result()
        written = text.result()
    unlike = _unlike(model, written, prompt.shape[1])
    model.double()
    brief: dict[str, Any] = {"do_sample": False, "max_new_tokens": given.again}
    once = model.generate(prompt, **brief, past_key_values=hub.state_cache(model))
    again = model.generate(prompt, **brief, use_cache=False)
    early, late = start.seconds[1 : EDGE + 1], whole.seconds[-EDGE:]
    slower = ratio_interval(late, early)
    return {
        **{"ratio": slower.value, "low": slower.low, "high": slower.high, "seconds": median_interval(late).value},
        **{"bytes early": whole.bytes[EDGE], "bytes late": whole.bytes[-1]},
        **{"more memory": whole.resident[given.tokens - EDGE - 1] - whole.resident[EDGE]},
        **{"same": float(torch.equal(once, again)), "unlike": unlike},
    }


def _write(model: Any, prompt: Tensor, tokens: int, clock: Clock | None) -> Tensor:
    cache = hub.state_cache(model) if clock is None else clock.cache
    asked: dict[str, Any] = {"do_sample": False, "past_key_values": cache, "max_new_tokens": tokens}
    if clock is not None:
        clock.begun = thread_time()
        asked["logits_processor"] = [clock]
    try:
        written: Tensor = model.generate(prompt, **asked)
    finally:
        if clock is not None:  # the other may go on by itself
            clock.other.turns_from = math.inf
            clock.other.turn.release()
    return written


@torch.no_grad()
def _unlike(model: Any, written: Tensor, start: int) -> float:
    """How many of the tokens are not the likeliest, or as likely to rounding, when the whole text is read at once."""
    logits = model(written[:, :-1], use_cache=False).logits[:, start - 1 :]
    chosen = logits.gather(2, written[:, start:, None])[..., 0]
    return float((chosen < logits.amax(-1) - 1e-3).sum())


def main(given: Options) -> None:
    """Every model and mechanism, each in a fresh process."""
    console = Console(width=160)
    columns = ("last / first 100", "ms a token", "cache at 100, kB", "at the end, kB", "process, MB more", "same", "unlike")
    table = Table("model", "attention", *(Column(name, justify="right") for name in columns))
    for family in given.families:
        for attention in given.attentions:
            found = in_fresh_process(measure, family, attention, given)
            console.print(f"{family}, {attention}: last / first 100 {found['ratio']:.2f}", highlight=False)
            table.add_row(
                family,
                attention,
                f"{found['ratio']:.2f} ({found['low']:.2f} to {found['high']:.2f})",
                f"{found['seconds'] * 1e3:.2f}",
                f"{found['bytes early'] / 1e3:.0f}",
                f"{found['bytes late'] / 1e3:.0f}",
                f"{found['more memory'] / 1e6:.1f}",
                "yes" if found["same"] else "no",
                f"{found['unlike']:.0f} of {given.tokens}",
            )
    console.print(
        f"{given.layers} layers of width {given.width}, {given.heads} heads, {given.tokens} tokens; same: {given.again} as "
        "without a cache, in float64; unlike: not the likeliest when read at once"
    )
    console.print(table)


if __name__ == "__main__":
    main(tyro.cli(Options))
