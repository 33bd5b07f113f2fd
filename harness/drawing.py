"""What all figures share: one colour per engine, one pattern per cause, labels that keep apart, reproducible files.

Figures are made and drawn inside `style()`; nothing of pyplot's global state is touched. Colours are
Okabe and Ito's, distinct for colour-blind readers; markers, hatches and direct labels carry the same
meaning in grey.
"""

from __future__ import annotations

import importlib.util
import io
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vocabulary.ledger import Cause

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NO_FIGURES = "without figures, since matplotlib is not installed (pip install matplotlib)"

ENGINE_COLOURS = {
    "vllm": "#0072B2",
    "sglang": "#D55E00",
    "llama.cpp": "#222222",
    "llama-cpp-python": "#AA4488",
    "reference": "#008F68",
    "vllm-ascend": "#56A0D3",
    "tensorrt-llm": "#7A8B00",
}
OTHER_COLOUR = "#6B6B6B"
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
PNG_DPI = 150

CAUSE_STYLES: dict[Cause, tuple[str, str]] = {
    Cause.REUSED: ("#1D3F5E", ""),
    Cause.NOVEL: ("#E9E9E9", ""),
    Cause.LAST_TOKEN: ("#F7E08A", "||||"),
    Cause.GRANULE: ("#F2B56B", "////"),
    Cause.SPEC_DROP: ("#F2B56B", "\\\\\\\\"),
    Cause.SUCCESSOR: ("#F7E08A", "...."),
    Cause.ALIGNMENT: ("#F2B56B", "++++"),
    Cause.NO_STATE: ("#9CCBE8", "////"),
    Cause.WINDOW: ("#9CCBE8", "----"),
    Cause.CHECKPOINT: ("#9CCBE8", "||||"),
    Cause.REPLAY: ("#9CCBE8", "\\\\\\\\"),
    Cause.MIN_REUSE: ("#9CCBE8", "...."),
    Cause.SLOT: ("#A6D8C2", "////"),
    Cause.NAMESPACE: ("#A6D8C2", "oooo"),
    Cause.EVICTED: ("#A6D8C2", "\\\\\\\\"),
    Cause.IN_FLIGHT: ("#A6D8C2", "...."),
    Cause.DISABLED: ("#DDB8D6", "xxxx"),
    Cause.NO_LAW: ("#E9E9E9", "xxxx"),
    Cause.UNEXPLAINED: ("#D7263D", "xxxx"),
}
"""Fill and hatch: rounding in orange, absent memory in blue, held or dropped elsewhere in green.

Grey claims nothing: novel tokens, and crossed where no law covers the engine.
"""

_SETTINGS: Any = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#888888",
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "xtick.color": "#444444",
    "ytick.color": "#444444",
    "hatch.linewidth": 0.6,
    "text.parse_math": False,  # a model called "$x$" is not a formula
    "svg.hashsalt": "hitparity",
    "svg.fonttype": "path",
}
_NO_DATE = {"Date": None, "Creator": None}


def style() -> AbstractContextManager[None]:
    """The settings for making and saving a figure; the caller's are back afterwards."""
    import matplotlib as mpl

    return mpl.rc_context(_SETTINGS)


def can_draw() -> bool:
    """Whether matplotlib is there; colours and the HTML page need none."""
    return importlib.util.find_spec("matplotlib") is not None


def engine_colour(engine: str) -> str:
    """The same everywhere; grey for an engine that is not ours."""
    return ENGINE_COLOURS.get(engine.removesuffix("-lookup"), OTHER_COLOUR)


def spread(wanted: Sequence[float], gap: float, *, low: float, high: float) -> list[float]:
    """Positions near the wanted ones, in the same order, at least `gap` apart and within the limits if they fit."""
    order = sorted(range(len(wanted)), key=wanted.__getitem__)
    placed: list[float] = []
    for index in order:
        placed.append(max(wanted[index], placed[-1] + gap if placed else low))
    limit = high
    for i in reversed(range(len(placed))):
        placed[i] = min(placed[i], limit)
        limit = placed[i] - gap
    result = [0.0] * len(wanted)
    for position, index in zip(placed, order, strict=True):
        result[index] = position
    return result


@dataclass(frozen=True, slots=True)
class Inline:
    """A figure as the last value of a notebook's cell."""

    figure: Figure

    def _repr_svg_(self) -> str:
        text = io.StringIO()
        with style():
            self.figure.savefig(text, format="svg", metadata=_NO_DATE)
        return text.getvalue()


def save_figure(figure: Figure, folder: Path, name: str) -> list[Path]:
    """Write `name.svg` and `name.png`; the same figure gives the same bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{name}.svg", folder / f"{name}.png"]
    with style():
        figure.savefig(paths[0], metadata=_NO_DATE)
        figure.savefig(paths[1], dpi=PNG_DPI, metadata={"Software": None})
    return paths
