"""How numbers and records read in tables, figures and reports.

Unknown stays unknown: a `None` of the records is shown as "?", never as 0.
"""

from __future__ import annotations

from collections.abc import Iterable

from harness.records import FindingKind, RequestRecord, Role
from vocabulary.engine import Fidelity

UNKNOWN, UNUSABLE = "?", "unusable"


def plain(text: str, *, keep: str = "") -> str:
    """One line without control or bidirectional characters, whatever a model folder or a label is called."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep else "\N{REPLACEMENT CHARACTER}" for c in text)


def count(value: int | None) -> str:
    """A number of tokens, or "?"."""
    return UNKNOWN if value is None else str(value)


def milliseconds(value_ns: int | None) -> str:
    """A time in milliseconds; "-" where there is none."""
    return "-" if value_ns is None else f"{value_ns / 1e6:.1f}"


def percent(share: float | None) -> str:
    """A share of one, or "?"; never rounded up to 100 % or down to 0 %."""
    if share is None:
        return UNKNOWN
    rounded = round(100 * share, 1)
    if rounded == 100 and share < 1:
        return ">99.9 %"
    return "<0.1 %" if rounded == 0 and share > 0 else f"{rounded:.1f} %"


def signed(share: float) -> str:
    """A saved share of one, which may be a loss: "84.9 %", "-0.2 %"."""
    return f"{round(100 * share, 1) + 0:.1f} %"


def span(values: Iterable[int]) -> str:
    """One number, or the least and the greatest."""
    least, *_, greatest = sorted(values) * 2
    return str(least) if least == greatest else f"{least}-{greatest}"


def number(count: int, noun: str) -> str:
    """Such as "1 request" or "no requests"."""
    return f"{count or 'no'} {noun}{'' if count == 1 else 's'}"


def ledger_items(request: RequestRecord) -> list[str]:
    """Such as "reused 1024", "granule 13", "last_token 1"; without a ledger "?", or "unusable"."""
    items = [f"{cause.value} {tokens}" for cause, tokens in request.by_cause().items()]
    return items or [UNUSABLE if is_unusable(request) else UNKNOWN]


def send_name(request: RequestRecord) -> str:
    """The label, which send of this prompt it was if not the first, and whether it is a cold control."""
    again = f" ({request.repetition + 1})" if request.repetition else ""
    control = ", control" if request.role is Role.CONTROL else ""
    return plain(f"{request.label}{again}{control}")


def is_unusable(request: RequestRecord) -> bool:
    """Whether a number that the engine gave is impossible; not the same as giving none."""
    return any(finding.kind is FindingKind.OUT_OF_RANGE for finding in request.findings)


def is_marked(request: RequestRecord) -> bool:
    """Whether the request has a finding or a hit or start that its law does not expect."""
    pairs = ((request.hit_len, request.expected_hit_len), (request.position_start, request.expected_position_start))
    return bool(request.findings) or any(None not in pair and pair[0] != pair[1] for pair in pairs)


def law_text(request: RequestRecord) -> str:
    """The law behind a configuration's expectations, and how it stands to it."""
    if request.law is None:
        return "none covers it"
    if request.fidelity is Fidelity.LAW:
        return f"{request.law} (predicted)"
    return f"{request.law} (emulated)" if request.emulated else request.law
