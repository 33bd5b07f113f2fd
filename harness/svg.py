"""Small inline drawings for the HTML report: stacked ledgers and staircases, in the figures' colours and hatches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from harness.drawing import CAUSE_STYLES, engine_colour
from harness.records import RequestRecord
from harness.views import WorkloadView
from harness.wording import plain
from vocabulary.engine import Fidelity
from vocabulary.ledger import Cause

STAIRS = 4
"""Repeated lengths that make a staircase."""
LEAST = 0.15
"""Percent of a bar that the smallest share fills, so that one token is seen."""
PANEL, MARGIN = 210, 34
"""Side of a staircase panel and its margin, in SVG units."""
_STROKES = {
    "/": "M-1,7 L7,-1",
    "\\": "M-1,-1 L7,7",
    "|": "M3,0 V6",
    "-": "M0,3 H6",
    "+": "M3,0 V6 M0,3 H6",
    "x": "M0,0 L6,6 M6,0 L0,6",
}


@dataclass(frozen=True, slots=True)
class Panel:
    """One engine configuration's staircase."""

    label: str
    colour: str
    drawing: Markup


def hatches() -> Markup:
    """Pattern definitions, one for each cause: `url(#cause-granule)` and so on."""
    patterns = []
    for cause, (fill, hatch) in CAUSE_STYLES.items():
        stroke = _STROKES.get(hatch[:1])
        line = Markup('<path d="{}" stroke="#555" stroke-width=".8" fill="none"/>').format(stroke) if stroke else ""
        if hatch[:1] in (".", "o"):
            line = Markup('<circle cx="3" cy="3" r="{}" fill="#555"/>').format(".9" if hatch[0] == "." else "1.5")
        patterns.append(
            Markup(
                '<pattern id="cause-{}" width="6" height="6" patternUnits="userSpaceOnUse">'
                '<rect width="6" height="6" fill="{}"/>{}</pattern>'
            ).format(cause.value, fill, line)
        )
    return Markup('<svg class="defs" width="0" height="0" aria-hidden="true"><defs>{}</defs></svg>').format(
        Markup("").join(patterns)
    )


def ledger_bar(tokens: Mapping[Cause, int]) -> Markup:
    """Shares of all tokens by cause, `reused` first; a grey bar where nothing is known."""
    total = sum(tokens.values())
    words = ", ".join(f"{cause.value} {tokens[cause]}" for cause in Cause if tokens.get(cause)) or "nothing is known"
    x, parts = 0.0, []
    for cause in Cause:
        if held := tokens.get(cause, 0):
            share = held / total
            parts.append(
                Markup(
                    '<rect x="{:.2f}%" width="{:.2f}%" height="100%" fill="url(#cause-{})">'
                    "<title>{}: {} tokens, {:.1%}</title></rect>"
                ).format(100 * x, max(100 * share, LEAST), cause.value, cause.value, held, share)
            )
            x += share
    return Markup('<svg class="bar" role="img" aria-label="{}">{}</svg>').format(words, Markup("").join(parts))


def staircase_panels(view: WorkloadView) -> list[Panel]:
    """Hit over prompt length at the first repeat, a panel per configuration; none where too few lengths repeat."""
    repeated = [r for r in view.requests if r.repetition == 1]
    if len({r.prompt_len for r in repeated}) < STAIRS:
        return []
    longest = max(r.prompt_len for r in repeated)
    panels = []
    for label in view.labels:
        own = sorted((r for r in repeated if r.engine_label == label), key=lambda r: r.prompt_len)
        if own:
            panels.append(Panel(plain(label), engine_colour(own[0].engine), _staircase(own, longest)))
    return panels


def _staircase(requests: Sequence[RequestRecord], longest: int) -> Markup:
    """Law dotted, hits solid, the diagonal grey."""
    colour = engine_colour(requests[0].engine)
    side = PANEL + MARGIN
    expected = [(r.prompt_len, r.expected_hit_len) for r in requests if r.expected_hit_len is not None]
    hits = [(r.prompt_len, r.hit_len) for r in requests if r.hit_len is not None]
    predicted = requests[0].fidelity is Fidelity.LAW
    words = f"hit length up to {max((hit for _, hit in hits), default=0)} of {longest} tokens"
    return Markup(
        '<svg class="stairs" viewBox="0 0 {side} {side}" role="img" aria-label="{words}">'
        '<path d="M{m},0 V{p} H{side}" stroke="#999" fill="none"/>'
        '<path d="M{m},{p} L{side},0" stroke="#ccc" fill="none"/>'
        '<text x="{m}" y="{low}">0</text><text x="{side}" y="{low}" text-anchor="end">L {longest}</text>'
        '<text x="{left}" y="10" text-anchor="end">{longest}</text>{law}{hit}</svg>'
    ).format(
        side=side,
        m=MARGIN,
        p=PANEL,
        low=PANEL + 14,
        left=MARGIN - 4,
        longest=longest,
        words=words,
        law=_line(expected, longest, Markup('stroke-width="5" stroke-dasharray="1 3" opacity=".5"'), colour),
        hit=Markup("") if predicted else _line(hits, longest, Markup('stroke-width="1.6"'), colour),
    )


def _line(points: Sequence[tuple[int, int]], longest: int, style: Markup, colour: str) -> Markup:
    scale = PANEL / max(longest, 1)
    places = " ".join(f"{MARGIN + x * scale:.1f},{PANEL - y * scale:.1f}" for x, y in points)
    return Markup('<polyline points="{}" fill="none" stroke="{}" {}/>').format(places, escape(colour), style)
