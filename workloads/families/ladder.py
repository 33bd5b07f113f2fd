"""Ladder: prefixes of one sequence, growing and then shrinking.

    1   [ P ]
    2   [ P         ]
    3   [ P                 ]        each step `step` tokens longer
    4   [ P                         ]
    3   [ P                 ]        and down again
    2   [ P         ]
    1   [ P ]

Separates: where states are kept. Going up hits the last rung wherever its end was kept; going down needs a boundary
inside a longer prompt: full attention has every block, "align" and snapshots only ends of chunks, a slot what lies
before its checkpoint.
"""

from __future__ import annotations

from workloads.families.base import Count, Parameters
from workloads.lengths import Length, relative
from workloads.sequence import Send
from workloads.source import TokenSource


class Ladder(Parameters):
    """`rungs` lengths, `step` tokens apart, up and down `rounds` times."""

    first: Length = relative("g+1")
    step: Length = relative("2g+1")
    rungs: Count = 4
    rounds: Count = 1


def ladder(parameters: Ladder, source: TokenSource) -> tuple[Send, ...]:
    """Up and down; the top rung is sent once per round."""
    up = [parameters.first + parameters.step * rung for rung in range(parameters.rungs)]
    whole = source.fresh(up[-1])
    lengths = (up + up[-2::-1]) * parameters.rounds
    return tuple(Send(label=f"L={n}", parts=(whole[:n],), max_tokens=parameters.max_tokens) for n in lengths)
