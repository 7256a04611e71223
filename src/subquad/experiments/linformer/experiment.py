"""The experiment on Linformer."""

from pathlib import Path

from subquad.experiments.base import Experiment, Instruments
from subquad.experiments.linformer.grid import CLAIM, SCALES, Variant
from subquad.experiments.linformer.measuring import measure_slots
from subquad.experiments.linformer.page import linformer_page
from subquad.experiments.linformer.verdicts import judge
from subquad.report.page import Page
from subquad.statistics import Verdict


class LinformerExperiment(Experiment):
    """Do k slots suffice for masked language models, however projections are shared and however long sequences are?"""

    claim = CLAIM
    scales = SCALES
    takes_data = True

    def measure(self, folder: Path, scale: str, instruments: Instruments) -> None:
        grid = SCALES[scale]
        for seed in grid.seeds:
            instruments.look(folder / Variant(grid.spectrum_length).name(seed), folder / f"spectrum-{seed}")
        measure_slots(folder, grid, scale)
        instruments.time(folder / "timing", grid.timing)

    def judge(self, folder: Path, scale: str) -> list[Verdict]:
        return judge(folder, scale)

    def page(self, folder: Path, scale: str) -> Page:
        return linformer_page(folder, scale)
