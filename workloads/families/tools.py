"""Tools: an agent that leaves its trunk for tool calls and comes back to it.

    trunk      [ system + task            ]
    1.1        [ system + task            ][ call 1 ]
    1.2        [ system + task            ][ call 1 ][ result, next call ]      `depth` steps deep
    back 1     [ system + task            ][ note 1 ]                           the branch is dropped, a note remains
    2.1        [ system + task            ][ note 1 ][ call 2 ]
    ...        the trunk grows by a note per branch
    again      [ system + task            ][ call 1 ][ result, next call ]      the first branch, long left

Separates: trees, which keep trunk and branches side by side, from slots, where a branch overwrites or evicts the trunk;
states and windows, which exist at the trunk's end only if something was kept there.
"""

from __future__ import annotations

from workloads.families.base import Count, Parameters
from workloads.lengths import Length, relative
from workloads.sequence import Part, Send
from workloads.source import TokenSource


class Tools(Parameters):
    """`branches` tool calls one after the other, each `depth` prompts deep."""

    trunk: Length = relative("4g+3")
    call: Length = relative("g+7")
    note: Length = 11
    branches: Count = 3
    depth: Count = 2


def tools(parameters: Tools, source: TokenSource) -> tuple[Send, ...]:
    """Trunk, then branch by branch and back, and the end of the first branch once more."""

    def send(label: str, parts: tuple[Part, ...]) -> None:
        sends.append(Send(label=label, parts=parts, max_tokens=parameters.max_tokens))

    sends: list[Send] = []
    trunk: tuple[Part, ...] = (source.fresh(parameters.trunk),)
    send("trunk", trunk)
    first_branch = trunk
    for number in range(1, parameters.branches + 1):
        branch, call = trunk, source.any(parameters.call)
        first = call[0]
        for step in range(1, parameters.depth + 1):
            branch = (*branch, call)
            send(f"{number}.{step}", branch)
            call = source.any(parameters.call)
        first_branch = branch if number == 1 else first_branch
        trunk = (*trunk, source.differing(parameters.note, first))
        send(f"back {number}", trunk)
    send("again", first_branch)
    return tuple(sends)
