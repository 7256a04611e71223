"""What texts cost a model before and after its conversion."""

import subprocess
import sys
from pathlib import Path

import pytest

from subquad.conversion.costs import costs
from tests.hub.families import CONFIGS, OPTIONS, hf, hub, model


@pytest.mark.slow
def test_costs_before_and_after(tmp_path: Path) -> None:
    """A head is left out: with one the peak would hold logits."""
    network = model(CONFIGS["bert"](), hf.AutoModelForMaskedLM)
    network.save_pretrained(tmp_path / "one")
    hub.swap(network, OPTIONS["learned"]).save_pretrained(tmp_path / "two")
    rows = [row for length in (32, 256) for row in costs(tmp_path / "one", tmp_path / "two", length)]
    assert [(row["length"], row["model"], row["metric"]) for row in rows] == [
        (length, which, metric) for length in (32, 256) for which in ("before", "after") for metric in ("seconds", "bytes")
    ]
    assert all(row["low"] <= row["value"] <= row["high"] for row in rows)
    assert all(row["value"] > 0 for row in rows if row["metric"] == "seconds")
    assert {row["unit"] for row in rows} == {"s", "B"}


def test_what_fails_leaves_a_row_that_says_so(tmp_path: Path) -> None:
    model(CONFIGS["bert"]()).save_pretrained(tmp_path / "one")
    hub.swap(model(CONFIGS["bert"]()), OPTIONS["linformer"]).save_pretrained(tmp_path / "two")
    rows = list(costs(tmp_path / "one", tmp_path / "two", 200))  # longer than linformer was built for
    (failed,) = [row for row in rows if row["metric"] == "failure"]
    assert (failed["model"], failed["length"], failed["failure"]) == ("after", 200, "error")
    assert "128" in failed["message"]


@pytest.mark.slow
def test_children_leave_nothing_behind(tmp_path: Path) -> None:
    """Locks of progress bars did, of which Python told at its end."""
    model(CONFIGS["bert"]()).save_pretrained(tmp_path / "one")
    script = tmp_path / "run.py"
    script.write_text(
        "import sys\nfrom subquad.conversion.costs import costs\n"
        'if __name__ == "__main__":\n    list(costs(sys.argv[1], sys.argv[1], 16))\n'
    )
    done = subprocess.run([sys.executable, script, tmp_path / "one"], capture_output=True, text=True, check=True)
    assert done.stderr == ""
