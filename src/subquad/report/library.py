"""The JavaScript that draws charts: Vega, Vega-Lite and Vega-Embed as one text, so that a page needs no network.

Bundling takes two seconds, so the text is kept in the user's cache folder, one file for each version.
"""

import hashlib
import os
from contextlib import suppress
from functools import cache
from importlib import metadata
from pathlib import Path

from altair import SCHEMA_VERSION

from subquad.errors import SubquadError
from subquad.files import write_whole

GRAMMAR = "_".join(SCHEMA_VERSION.split(".")[:2])
"""Version of Vega-Lite in which charts are specified."""


@cache
def chart_library() -> str:
    """The text of a script that defines `window.vegaEmbed`, safe to stand in an HTML page."""
    import vl_convert

    kept = _cache_folder() / f"vega-{metadata.version('vl-convert-python')}-{GRAMMAR}.js"
    text = _read_kept(kept)
    if text is None:
        text = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", GRAMMAR).replace("</script", r"<\/script")
        with suppress(SubquadError, OSError):  # the page is written all the same where nothing can be kept
            kept.parent.mkdir(parents=True, exist_ok=True)
            write_whole(kept, f"{_digest(text)}\n{text}")
    return text


def _cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()) / "subquad"


def _read_kept(path: Path) -> str | None:
    """The kept text, or None if there is none or it is not as it was written."""
    try:
        digest, _, text = path.read_bytes().decode().partition("\n")
    except (OSError, UnicodeDecodeError):
        return None
    return text if digest == _digest(text) else None


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
