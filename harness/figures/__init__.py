"""One function per figure: records in, `matplotlib.figure.Figure` out; `harness.drawing` saves them.

`None` where the records hold nothing that the figure could show.
"""

from harness.figures.heat_map import heat_map
from harness.figures.ledger import MAX_BARS, ledger_bars
from harness.figures.ledger_difference import ledger_difference
from harness.figures.position_strip import position_strip
from harness.figures.repetition import hit_by_repetition
from harness.figures.resume_points import ResumePoints, resume_figure, resume_points
from harness.figures.savings import savings_dumbbells
from harness.figures.staircase import staircase
from harness.figures.ttft import ttft_over_prefix, ttft_slopes

__all__ = [
    "MAX_BARS",
    "ResumePoints",
    "heat_map",
    "hit_by_repetition",
    "ledger_bars",
    "ledger_difference",
    "position_strip",
    "resume_figure",
    "resume_points",
    "savings_dumbbells",
    "staircase",
    "ttft_over_prefix",
    "ttft_slopes",
]
