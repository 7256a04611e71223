"""Real runs and inputs, as small as they can be, that cases start from."""

import json
import os
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

SENTENCES = [f"the cat number {n} sat on the mat and saw {n * n % 17} mice run by" for n in range(60)]
SMALL = ("--layers", "1", "--heads", "1", "--head-dim", "4", "--steps", "2", "--batch", "2", "--checkpoint-every", "1")

COMMANDS: dict[str, tuple[str, ...]] = {
    "copied": ("train", "copy", "--length", "2", "--held-out", "2", *SMALL),
    "masked": (
        *("train", "mlm", "--attention", "softmax", "--text", "texts", "--vocabulary", "bytes", "--length", "16"),
        *("--held-out", "2", "--tested", "2", "--no-page", *SMALL),
    ),
    "continued": (
        *("train", "lm", "--attention", "softmax", "--text", "texts", "--vocabulary", "bytes", "--length", "8"),
        *("--held-out", "8", "--tested", "8", "--no-page", *SMALL),
    ),
    "classified": (
        *("train", "classify", "--text", "labelled.jsonl", "--vocabulary", "characters", "--length", "8"),
        *("--held-out", "2", "--no-page", *SMALL),
    ),
    "events": ("train", "events", "--sequences", "4", "--inner", "4", "--components", "2", "--no-page", *SMALL),
    "clients": (
        *("train", "transactions", "--clients", "60", "--shortest-history", "2", "--longest-history", "4"),
        *("--no-page", *SMALL),
    ),
    "compared": (
        *("compare", "--lengths", "16", "32", "--mechanisms", "linear", "--what", "forward", "--heads", "1"),
        *("--head-dim", "4", "--budget", "5", "--run-limit", "5", "--bidirectional"),
    ),
    "converted": (
        *("convert", "masked", "--attention", "elu", "--steps", "1", "--tune-steps", "1", "--texts", "2"),
        *("--batch-tokens", "16", "--no-controls", "--no-page"),
    ),
    "raced": (
        *("choose", "recall", "--length", "8", "--pairs", "2", "--keys", "3", "--values", "2", "--held-out", "2"),
        *("--tested", "2", "--layers", "1", "--heads", "1", "--head-dim", "4", "--batch", "2", "--budget", "1s"),
    ),
    "looked": ("spectrum", "masked", "--sequences", "1", "--length", "8"),
    "estimated": (
        *("error", "masked", "--features", "4", "--kernels", "positive", "--projections", "orthogonal", "independent"),
        *("--sizes", "1", "--draws", "2", "--sequences", "1", "--length", "8"),
    ),
}
"""Runs by the name of their folder, in the order in which they are made."""


def make(folder: Path) -> None:
    """Fills a folder with templates. Everything is made in a child process, so that the parent stays as it is."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = folder / "texts"
    texts.mkdir()
    for number in range(6):
        (texts / f"{number}.txt").write_text("\n".join(SENTENCES[10 * number : 10 * number + 10]) + "\n")
    lines = [json.dumps({"text": text, "label": "ab"[n % 2]}) for n, text in enumerate(SENTENCES)]
    (folder / "labelled.jsonl").write_text("\n".join(lines) + "\n")
    (folder / "events.csv").write_text("sequence,time,type\n" + "".join(f"s{n % 3},{n},{n % 2}\n" for n in range(12)))
    rows = "".join(f"c{n % 3},{n},N{n % 3},card,{n}.5\n" for n in range(12))
    (folder / "clients.csv").write_text("client,time,code,type,amount\n" + rows)
    _in_child(folder, _make_runs)


def _make_runs(folder: Path) -> None:
    from subquad import cli

    _save_models(folder)
    for name, argv in COMMANDS.items():
        code = cli.main([*argv, "--out", name])
        assert code == 0, f"{' '.join(argv)} ended with {code}"


def _save_models(folder: Path) -> None:
    """A model of Hugging Face with its tokenizer, as it comes and with its attention swapped."""
    import torch
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit
    from transformers import BertConfig, BertForMaskedLM, PreTrainedTokenizerFast

    from subquad import Favor
    from subquad.hub import swap

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *sorted({word for text in SENTENCES for word in text.split()})]
    plain = Tokenizer(WordLevel({word: number for number, word in enumerate(words)}, unk_token="[UNK]"))
    plain.pre_tokenizer = WhitespaceSplit()
    special = {
        "pad_token": "[PAD]",
        "unk_token": "[UNK]",
        "cls_token": "[CLS]",
        "sep_token": "[SEP]",
        "mask_token": "[MASK]",
    }
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=plain, **special)
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 8}
    model = BertForMaskedLM(BertConfig(vocab_size=len(words), max_position_embeddings=32, **sizes))
    for name in ("bert", "swapped"):
        if name == "swapped":
            swap(model, Favor(features=4))
        model.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)


def _in_child(folder: Path, work: Callable[[Path], None]) -> None:
    """Runs the work in a fork. What it prints is shown if it fails."""
    log = folder.with_name("templates.log")
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.chdir(folder)
            for number in (1, 2):
                os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), number)
            work(folder)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    assert status == 0, f"the templates could not be made:\n{log.read_text()}"
