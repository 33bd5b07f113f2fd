"""What several figures draw with: a cause's patch, a subject for titles, medians."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.patches import Patch

from harness.drawing import CAUSE_STYLES
from harness.records import RequestRecord
from harness.wording import plain
from vocabulary.ledger import Cause

MANY = 2
"""More subjects than a title holds."""


def patch_of(cause: Cause) -> Patch:
    """Legend handle and style of a cause."""
    colour, hatch = CAUSE_STYLES[cause]
    return Patch(facecolor=colour, hatch=hatch, edgecolor="#555555", linewidth=0, label=cause.value)


def subject(requests: Sequence[RequestRecord]) -> str:
    """Workload and model, or how many there are."""
    names = list(dict.fromkeys(plain(f"{r.workload} on {r.model}") for r in requests))
    return (", ".join(names) or "no requests") if len(names) <= MANY else f"{len(names)} workloads"
