"""The times of a request that a comparison can be about."""

from __future__ import annotations

from enum import StrEnum

from harness.records import RequestRecord


class Quantity(StrEnum):
    """What is timed of a request."""

    TTFT = "ttft"
    """Sent to first generated token."""
    TPOT = "tpot"
    """First to last generated token / (generated tokens - 1)."""
    TOTAL = "total"
    """Sent to reply complete."""

    @property
    def name_in_text(self) -> str:
        """As it is written in a sentence."""
        return self.value if self is Quantity.TOTAL else self.value.upper()

    def of(self, request: RequestRecord) -> int | None:
        """Nanoseconds; None where the request does not have it."""
        if self is Quantity.TOTAL or not request.ttft_ns:
            return request.total_ns if self is Quantity.TOTAL else None
        gaps = len(request.output_ids) - 1
        if self is Quantity.TTFT:
            return request.ttft_ns
        return (request.total_ns - request.ttft_ns) // gaps if gaps > 0 else None
