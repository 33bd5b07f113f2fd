"""What a hit borrows: chunks computed for another prompt, and layers that do not hold what it claims."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from harness.judge import Judge
from harness.records import FindingKind
from vocabulary.engine import EngineFacts, Reply, TokenRequest

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
