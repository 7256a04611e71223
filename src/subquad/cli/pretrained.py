"""Models of Hugging Face, as commands are given them."""

from pathlib import Path

from subquad.errors import SubquadError


def check_pretrained(path: str) -> None:
    """A folder has to hold a model. transformers shows its bars for what comes from the hub only: a folder is soon read."""
    folder = Path(path).expanduser()
    if not folder.is_dir():
        return
    if not (folder / "config.json").exists():
        raise SubquadError(
            f"{path} is no model: it has neither a run.json, as runs of subquad train have, nor a config.json, as "
            "save_pretrained writes it"
        )
    from transformers.utils import logging

    logging.disable_progress_bar()
