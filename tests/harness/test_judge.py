"""What a hit borrows: chunks computed for another prompt, and layers that do not hold what it claims."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from harness.judge import Judge
from harness.records import FindingKind
from vocabulary.engine import EngineFacts, Reply, TokenRequest
from vocabulary.ledger import Cause

FACTS = EngineFacts(
    engine="llama.cpp",
    version="0",
    mode=None,
    device="cpu",
    dtype="float32",
    granule=1,
    groups=("full",),
    context_len=1000,
    vocab_size=1000,
)
PROMPT = list(range(40))


def judged(judge: Judge, ids: Sequence[int], hit: int | None, backed: int | None = None) -> dict[FindingKind, str]:
    """Findings of one reply that tells `hit` and `backed`."""
    request = TokenRequest(request_id="r", ids=tuple(ids))
    reply = told(request, hit, hit, backed_len=backed)
    return {finding.kind: finding.detail for finding in judge.judge(request, reply).findings}


def told(request: TokenRequest, hit: int | None, start: int | None, **more: Any) -> Reply:
    """A reply that tells `hit` and `start`."""
    reply = Reply(
        request_id=request.request_id,
        prompt_len=request.prompt_len,
        hit_len=hit,
        hit_source="told",
        position_start=start,
        position_source="told",
        output_ids=(999,),
        first_logprob=None,
        sent_ns=0,
        first_token_ns=None,
        done_ns=0,
        steps=None,
    )
    return replace(reply, **more)


@pytest.mark.parametrize(
    ("hit", "start", "found"),
    [
        (32, 32, []),
        (None, 32, []),
        (32, None, []),
        (16, 16, [FindingKind.UNEXPLAINED] * 2),
        (39, 39, [FindingKind.SURPLUS] * 2),
        (32, 16, [FindingKind.SOURCES_DISAGREE, FindingKind.UNEXPLAINED]),
        (40, 32, [FindingKind.OUT_OF_RANGE, FindingKind.SOURCES_DISAGREE, FindingKind.SURPLUS]),
    ],
)
def test_a_reply_is_held_against_the_law(hit: int | None, start: int | None, found: list[FindingKind]) -> None:
    judge = Judge(replace(FACTS, engine="vllm", law="vllm@0.32", law_options={"block_size": 16}))
    request = TokenRequest(request_id="r", ids=tuple(PROMPT))
    assert not judge.judge(request, told(request, 0, 0)).findings
    assert [finding.kind for finding in judge.judge(request, told(request, hit, start)).findings] == found


@pytest.mark.parametrize(
    ("steps", "disagree"),
    [
        (((32, 40),), False),
        (((32, 36), (36, 40)), False),
        ((), True),
        (((31, 40),), True),
        (((32, 36), (37, 40)), True),
        (((32, 32), (32, 40)), True),
        (((32, 39),), True),
        (((32, 41),), True),
    ],
)
def test_prefill_steps_cover_what_was_computed(steps: tuple[tuple[int, int], ...], disagree: bool) -> None:
    judge, request = Judge(FACTS), TokenRequest(request_id="r", ids=tuple(PROMPT))
    judge.judge(request, told(request, 0, 0))
    findings = judge.judge(request, told(request, 32, 32, steps=steps)).findings
    assert [finding.kind for finding in findings] == [FindingKind.SOURCES_DISAGREE] * disagree


def test_all_but_the_last_generated_token_were_computed() -> None:
    judge, request = Judge(FACTS), TokenRequest(request_id="r", ids=tuple(PROMPT))
    judge.judge(request, told(request, 0, 0, output_ids=(997, 998, 999)))
    longer = TokenRequest(request_id="s", ids=(*PROMPT, 997, 998, 999, 5))
    assert judge.judge(longer, told(longer, 42, 42)).lcp_len == 42


def test_every_request_sent_together_has_a_reply() -> None:
    request = TokenRequest(request_id="r", ids=tuple(PROMPT))
    with pytest.raises(ValueError, match="shorter"):
        Judge(FACTS).judge_together([request, replace(request, request_id="s")], [told(request, 0, 0)])


@pytest.mark.parametrize(("backed", "found"), [(None, False), (39, False), (38, True), (0, True)])
def test_the_engine_shows_what_backs_its_hit(backed: int | None, found: bool) -> None:
    judge = Judge(FACTS)
    judged(judge, PROMPT, 0)
    assert (FindingKind.UNBACKED in judged(judge, PROMPT, 39, backed)) is found


def law_judge(groups: Sequence[str], **options: Any) -> Judge:
    return Judge(replace(FACTS, law="llama.cpp", law_options={"groups": list(groups), **options}))


def test_the_law_says_what_backs_a_hit_that_the_engine_does_not_show() -> None:
    judge = law_judge(("full", "gdn"), n_ubatch=64)
    assert not judged(judge, [1, 2, 3, 4, 5], 0) and not judged(judge, PROMPT[10:], 0)
    stale = judged(judge, [*PROMPT[10:20], 7], 1)
    assert set(stale) == {FindingKind.UNBACKED} and "by law llama.cpp" in stale[FindingKind.UNBACKED]


def test_moved_chunks_are_found_again_in_a_repeat() -> None:
    judge = law_judge(("full",), n_cache_reuse=8)
    shorter = [*PROMPT[:10], *PROMPT[20:], 7, 8]
    assert not judged(judge, PROMPT, 0)
    assert "longer than the true common prefix 10" in judged(judge, shorter, 30)[FindingKind.APPROXIMATE]
    assert judged(judge, shorter, 31) == {
        FindingKind.APPROXIMATE: "20 tokens of hit 31 were computed behind another prefix and moved"
    }


def test_a_law_is_left_where_a_request_goes_beyond_it() -> None:
    facts = replace(FACTS, engine="vllm", law="vllm@0.32", law_options={"block_size": 16, "num_gpu_blocks_override": 4})
    judge = Judge(facts)

    def law_of(ids: Sequence[int]) -> tuple[str | None, set[str]]:
        request = TokenRequest(request_id="r", ids=tuple(ids))
        judgement = judge.judge(request, told(request, 0, 0))
        assert judgement.ledger is not None
        return judgement.law, {cause.value for cause in judgement.ledger.by_cause()}

    assert law_of(range(20)) == ("vllm@0.32", {"novel"})
    assert law_of(range(100, 200)) == (None, {"novel"})  # does not fit the pool
    assert judge.left
    assert law_of(range(20)) == (None, {"no_law", "last_token"})  # nothing is claimed about what the pool holds now


@pytest.mark.parametrize("value", [-1, 0, 1, 39, 40, 41])
@pytest.mark.parametrize(("capped", "most"), [(True, 39), (False, 40)])
def test_numbers_lie_between_nothing_and_all_that_a_lookup_may_take(value: int, capped: bool, most: int) -> None:
    judge, request = Judge(replace(FACTS, caps_last_token=capped)), TokenRequest(request_id="r", ids=tuple(PROMPT))
    judge.judge(request, told(request, 0, 0, output_ids=(0,)))
    for hit, start in ((value, None), (None, value)):
        judgement = judge.judge(request, told(request, hit, start))
        outside = FindingKind.OUT_OF_RANGE in {finding.kind for finding in judgement.findings}
        assert outside is not (0 <= value <= most) and (judgement.ledger is None) is outside


@pytest.mark.parametrize(("token", "outside"), [(-1, True), (0, False), (1, False), (999, False), (1000, True)])
def test_generated_tokens_are_of_the_vocabulary(token: int, outside: bool) -> None:
    request = TokenRequest(request_id="r", ids=tuple(PROMPT))
    findings = Judge(FACTS).judge(request, told(request, 0, 0, output_ids=(5, token, 6))).findings
    assert [finding.kind for finding in findings] == [FindingKind.OUT_OF_RANGE] * outside
    assert all(f"token {token} " in finding.detail for finding in findings)


def test_of_several_tokens_outside_the_vocabulary_the_first_is_named() -> None:
    request = TokenRequest(request_id="r", ids=tuple(PROMPT))
    (finding,) = Judge(FACTS).judge(request, told(request, 0, 0, output_ids=(5, 2000, -3))).findings
    assert "token 2000 " in finding.detail


def test_a_wrong_prompt_count_is_found() -> None:
    request = TokenRequest(request_id="r", ids=tuple(PROMPT))
    for counted in (39, 41):
        (finding,) = Judge(FACTS).judge(request, told(request, 0, 0, prompt_len=counted)).findings
        assert (finding.kind, str(counted) in finding.detail) == (FindingKind.PROMPT_MISCOUNT, True)


def test_salt_and_adapter_both_separate() -> None:
    spaces = [(None, None), ("a", None), ("b", None), (None, "a"), ("a", "a"), ("a", "b")]
    requests = [TokenRequest(request_id="r", ids=(*PROMPT, 7), namespace=salt, lora=lora) for salt, lora in spaces]
    for first in requests:
        judge = Judge(FACTS)
        judge.judge(first, told(first, 0, 0))
        for second in requests:
            known = judge.judge(replace(second, ids=(*PROMPT, 8)), told(second, 0, 0))
            assert known.lcp_len == (40 if first is second else 0) and known.ledger is not None
            # A later prompt of a foreign space finds the first one, or one of those judged before it, elsewhere.
            assert known.ledger.tokens(Cause.NAMESPACE) == (0 if first is second else 40)
            judge.reset()
            judge.judge(first, told(first, 0, 0))


def test_without_a_law_only_what_was_computed_before_is_booked() -> None:
    judge, request = Judge(FACTS), TokenRequest(request_id="r", ids=tuple(PROMPT))
    judge.judge(replace(request, namespace="other"), told(request, 0, 0))
    judge.judge(replace(request, ids=tuple(PROMPT[:30])), told(request, 0, 0, prompt_len=30))
    longer = replace(request, ids=(*PROMPT, 5, 6))
    judgement = judge.judge(longer, told(longer, 24, 24))
    assert judgement.ledger is not None and judgement.law is None and judgement.expectation is None
    assert [(part.start, part.end, part.cause) for part in judgement.ledger.intervals] == [
        (0, 24, Cause.REUSED),
        (24, 30, Cause.NO_LAW),
        (30, 40, Cause.NAMESPACE),
        (40, 42, Cause.NOVEL),
    ]


def test_the_last_token_is_booked_only_where_the_lookup_leaves_it() -> None:
    request = TokenRequest(request_id="r", ids=tuple(PROMPT))
    for capped, cause in ((True, Cause.LAST_TOKEN), (False, Cause.NO_LAW)):
        judge = Judge(replace(FACTS, caps_last_token=capped))
        judge.judge(request, told(request, 0, 0))
        ledger = judge.judge(request, told(request, 38, 38)).ledger
        assert ledger is not None and ledger.intervals[-1].cause is cause
        assert ledger.tokens(Cause.NO_LAW) == 2 - capped


def test_of_requests_sent_together_the_later_may_wait_for_the_first() -> None:
    judge = Judge(FACTS)
    ids = [PROMPT, [*PROMPT[:20], 7, 8], [*PROMPT[:30], 9]]
    requests = [TokenRequest(request_id=str(n), ids=tuple(one)) for n, one in enumerate(ids)]
    judged = judge.judge_together(requests, [told(request, 0, 0) for request in requests])
    assert [judgement.lcp_len for judgement in judged] == [30, 20, 30]
    causes = [judgement.ledger.by_cause() for judgement in judged if judgement.ledger is not None]
    assert causes == [{Cause.NOVEL: 40}, {Cause.IN_FLIGHT: 20, Cause.NOVEL: 2}, {Cause.IN_FLIGHT: 30, Cause.NOVEL: 1}]
    apart = [replace(request, ids=(3, *request.ids), namespace=request.request_id) for request in requests]
    judged = judge.judge_together(apart, [told(request, 0, 0) for request in apart])
    assert [judgement.lcp_len for judgement in judged] == [0, 0, 0]


@pytest.mark.parametrize(
    ("law", "options", "forgets"),
    [
        ("vllm@0.32", {"block_size": 16}, True),
        ("llama.cpp", {"groups": ["full"], "n_parallel": 2, "cache_ram_mib": 0}, False),
    ],
)
def test_after_requests_sent_together_a_law_returns_where_a_reset_leaves_nothing(
    law: str, options: dict[str, object], forgets: bool
) -> None:
    judge, request = (
        Judge(replace(FACTS, law=law, law_options=options)),
        TokenRequest(request_id="r", ids=tuple(PROMPT)),
    )
    assert judge.judge(request, told(request, 0, 0)).law == law
    (judgement,) = judge.judge_together([request], [told(request, 0, 0)])
    assert judgement.law is None and not judgement.findings and law in str(judge.left)
    assert judge.judge(request, told(request, 0, 0)).law is None
    judge.reset()
    after = judge.judge(request, told(request, 0, 0))
    assert (after.law, after.findings, judge.left is None) == (law if forgets else None, (), forgets)


def test_a_reset_forgets() -> None:
    judge, request = law_judge(("full",)), TokenRequest(request_id="r", ids=tuple(PROMPT))
    for _ in range(2):
        judgement = judge.judge(request, told(request, 0, 0))
        assert judgement.lcp_len == 0 and not judgement.findings
        judge.reset()


def test_whether_a_prompt_would_hit_an_empty_cache_the_second_time() -> None:
    blocks = Judge(replace(FACTS, law="vllm@0.32", law_options={"block_size": 16}))
    assert [blocks.would_hit(tuple(PROMPT[:length])) for length in (2, 16, 17)] == [False, False, True]
    assert law_judge(("full",)).would_hit((1, 2)) is True and law_judge(("full",)).would_hit((1,)) is False
    assert Judge(FACTS).would_hit(tuple(PROMPT)) is None


def test_a_hit_and_a_start_that_differ_are_found() -> None:
    judge, request = Judge(FACTS), TokenRequest(request_id="r", ids=tuple(PROMPT))
    judge.judge(request, told(request, 0, 0))
    (finding,) = judge.judge(request, told(request, 32, 31)).findings
    assert finding.kind is FindingKind.SOURCES_DISAGREE and "hit 32" in finding.detail and "at 31" in finding.detail


@pytest.mark.parametrize(
    ("hit", "start", "reused"), [(32, 31, 31), (31, 32, 32), (32, None, 32), (None, 31, 31), (None, None, None)]
)
@pytest.mark.parametrize("law", [None, "vllm@0.32"])
def test_the_ledger_follows_the_start_or_else_the_hit(
    hit: int | None, start: int | None, reused: int | None, law: str | None
) -> None:
    judge, request = Judge(replace(FACTS, law=law)), TokenRequest(request_id="r", ids=tuple(PROMPT))
    judge.judge(request, told(request, 0, 0))
    ledger = judge.judge(request, told(request, hit, start)).ledger
    assert (ledger.reused if ledger else None) == reused


@pytest.mark.parametrize(("hit", "unbacked"), [(0, False), (768, False), (1536, False), (1537, True), (3072, True)])
def test_a_hit_is_unbacked_only_beyond_what_the_law_says_is_held(hit: int, unbacked: bool) -> None:
    # vLLM 0.23 with MTP looks one unit past the candidate: a hit of 3072, of which the states hold 1536.
    options = {"groups": ["full:1536", "gdn:1536"], "method": "mtp", "num_speculative_tokens": 1}
    judge = Judge(replace(FACTS, law="vllm@0.23", law_options=options))
    judged(judge, range(5250), 0)
    assert (FindingKind.UNBACKED in judged(judge, range(3393), hit)) is unbacked
