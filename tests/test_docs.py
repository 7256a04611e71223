"""The code in the documents runs as it stands."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("document", ["README.md", "CONTRIBUTING.md"])
def test_code_blocks_run(document: str) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / document).read_text(), flags=re.DOTALL)
    assert blocks
    names: dict[str, object] = {"__name__": document}
    for block in blocks:
        exec(compile(block, document, "exec"), names)
