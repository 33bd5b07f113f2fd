"""One request by one law: how far it reaches, what binds, in a sentence with numbers, and what would change it.

Nothing here knows a rule. What "would" happen is asked of a fresh copy of the law that is sent the changed sequence.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from harness.explain.counterfactual import World
from harness.explain.levers import Lever, group_words, levers
from reference_engine.laws.base import Expectation
from reference_engine.laws.parts.history import History
from vocabulary.groups import Kind, parse_groups
from vocabulary.ledger import Cause, Interval, Ledger


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Why one request hits what it hits."""

    prompt_len: int
    lcp_len: int
    """Longest common prefix with anything computed before in its namespace, in tokens."""
    hit_len: int
    position_start: int
    ledger: Ledger
    per_group: dict[str, int]
    """Longest reuse each layer group alone would allow."""
    junction: int
    backed_len: int | None
    approximate_len: int
    binding: Cause | None
    """Cause of the first recomputed token."""
    sentence: str
    one_more_hit: int | None
    """Hit of the prompt with one more token; None: the law refuses it."""
    again_hit: int | None
    """Hit of the same prompt sent once more."""
    levers: tuple[Lever, ...] | None
    """What lengthens the hit; None: not asked, or the hit cannot be longer."""


def explain(world: World, *, with_levers: bool = True) -> Explanation:
    """About the last request of a world. Raises LawDoesNotCover and UsageError."""
    expectation = world.expectations()[-1]
    length = world.sent[-1].request.prompt_len
    more, again = world.longer(1).last(), world.again().last()
    lcp = common_prefix_before(world)
    hit = expectation.hit_len
    return Explanation(
        prompt_len=length,
        lcp_len=lcp,
        hit_len=hit,
        position_start=expectation.position_start,
        ledger=expectation.ledger,
        per_group=dict(expectation.per_group),
        junction=expectation.junction,
        backed_len=expectation.backed_len,
        approximate_len=expectation.approximate_len,
        binding=expectation.binding,
        sentence=_sentence(world, expectation, more, again, lcp),
        one_more_hit=None if more is None else more.hit_len,
        again_hit=None if again is None else again.hit_len,
        levers=tuple(levers(world, hit)) if with_levers and hit < min(lcp, length - 1) else None,
    )


def common_prefix_before(world: World) -> int:
    """P of the last request."""
    history = History()
    for each in world.sent[:-1]:
        history.add(each.request.computed(each.output_ids), each.request.space)
    last = world.sent[-1].request
    return history.lcp(last.array, last.space)


def _sentence(world: World, now: Expectation, more: Expectation | None, again: Expectation | None, lcp: int) -> str:
    length = now.ledger.prompt_len
    first = next((i for i in now.ledger.intervals if i.cause is not Cause.REUSED), None)
    if first is None:
        return f"all {length} tokens are reused"
    parts = [_binding(world, now, more, first, lcp)]
    if first.cause is Cause.NOVEL:
        return parts[0]  # the hit cannot be longer, whatever is sent
    if more is not None and more.hit_len > now.hit_len + (first.cause is Cause.LAST_TOKEN):
        parts.append(f"one more token in the prompt would hit {more.hit_len}")
    if again is not None and again.hit_len > now.hit_len:
        parts.append(f"sent once more it would hit {again.hit_len}")
    elif now.junction > now.hit_len:
        parts.append(f"the next prompt that shares {now.junction} tokens will hit {now.junction}")
    if now.backed_len is not None and now.backed_len < now.hit_len:
        parts.append(f"only {now.backed_len} tokens of the hit are really held by every layer group")
    if now.approximate_len:
        parts.append(f"{now.approximate_len} tokens of the hit were computed behind another prefix")
    return "; ".join(parts)


SENTENCES: dict[Cause, str] = {
    Cause.LAST_TOKEN: "everything before the last position is reused; that one is computed to get logits",
    Cause.GRANULE: "{end} tokens match, and blocks of {blocks} tokens leave {hit}",
    Cause.ALIGNMENT: "{end} tokens match, and groups with blocks of {blocks} agree on a multiple of {common}: {hit}",
    Cause.SPEC_DROP: "{end} tokens match, and the drafter gives back the last {tokens}",
    Cause.SUCCESSOR: "the key up to {end} covers the token behind it too, and that one differs or is not there yet",
    Cause.NAMESPACE: "another namespace computed the next {tokens} tokens; salt or adapter differs",
    Cause.EVICTED: "the next {tokens} tokens were held and have been evicted or overwritten",
    Cause.SLOT: "the next {tokens} tokens are not in the slot that was chosen",
    Cause.DISABLED: "the lookup is off for this request",
    Cause.REPLAY: "the last {tokens} tokens before {end} are recomputed whatever the hit",
    Cause.MIN_REUSE: "{end} tokens match, fewer than the engine cares to reuse",
    Cause.IN_FLIGHT: "the next {tokens} tokens belong to a request that has not published them",
}
"""By the cause that binds; states, windows and checkpoints have `_depths`."""


def _binding(world: World, now: Expectation, more: Expectation | None, first: Interval, lcp: int) -> str:
    if first.cause is Cause.NOVEL:
        return f"the whole common prefix of {lcp} tokens is reused" if lcp else "nothing like it was computed before"
    if first.cause in (Cause.NO_STATE, Cause.WINDOW, Cause.CHECKPOINT):
        return _depths(world, now, more)
    blocks = _blocks(world)
    return SENTENCES.get(first.cause, "{cause} from {hit} to {end}").format(
        cause=first.cause.value,
        hit=first.start,
        end=first.end,
        tokens=first.tokens,
        blocks=" and ".join(map(str, blocks)),
        common=math.lcm(*blocks),
    )


def _depths(world: World, now: Expectation, more: Expectation | None) -> str:
    """How far each layer group reaches, the one that binds last."""
    cap = now.ledger.prompt_len - 1
    names, texts = group_words(now.per_group), []
    order = sorted(now.per_group, key=lambda text: -now.per_group[text])
    kinds = {text: parse_groups([text.partition("#")[0]])[0].kind for text in order}
    order.sort(key=lambda text: kinds[text] is not Kind.FULL)
    for text in order:
        reach, beyond = now.per_group[text], None if more is None else more.per_group.get(text)
        past_cap = beyond is not None and beyond > cap
        if kinds[text] is Kind.FULL:
            texts.append(f"{names[text]} reaches {beyond if past_cap else reach}")
        elif past_cap and kinds[text] is Kind.GDN:
            also = f" besides {reach}" if reach else ""
            texts.append(f"{names[text]} only exists at {beyond}{also}, which is past the cap {cap}")
        elif past_cap:
            texts.append(f"{names[text]} is whole only before {beyond}, which is past the cap {cap}")
        elif kinds[text] is Kind.GDN:
            texts.append(
                f"{names[text]} exists at {reach}" if reach else f"{names[text]} exists nowhere below the cap {cap}"
            )
        else:
            texts.append(f"{names[text]} is whole before {reach}" if reach else f"{names[text]} is whole nowhere")
    return ", ".join(texts)


def _blocks(world: World) -> list[int]:
    """Block sizes of the layer groups, or the law's own granule where the groups name none."""
    named = [group.block for group in parse_groups(world.options.get("groups", ("full",))) if group.block]
    return list(dict.fromkeys(named)) or [world.make(world.law_id, world.options).granule]
