"""One function per figure: records in, `matplotlib.figure.Figure` out; `harness.drawing` saves them."""

from harness.figures.ledger import MAX_BARS, ledger_bars
from harness.figures.savings import savings_dumbbells
from harness.figures.staircase import staircase

__all__ = ["MAX_BARS", "ledger_bars", "savings_dumbbells", "staircase"]
