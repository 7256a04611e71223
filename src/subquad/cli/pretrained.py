"""Checks of Hugging Face models that are given to commands."""

from pathlib import Path

from subquad.errors import SubquadError


def check_pretrained(path: str) -> None:
    """Raises `SubquadError` for a folder without a model, and disables the progress bars of loading for one with a model."""
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
