"""The fuzzer: it finds a wrong law and shrinks it to the shortest sequence, and finds nothing in the right ones."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

import harness.fuzz.campaign
from harness.cases.format import Case
from harness.cases.reading import read_cases
from harness.cases.subjects import LawSubject, LookupSubject, Subject
from harness.cli import app
from harness.fuzz.campaign import Found, Tally, campaign, draw, open_subject
from harness.fuzz.configurations import VLLM, VLLM_ASCEND, Configuration, configurations
from harness.fuzz.duel import duel
from harness.fuzz.page import BEGIN, END, fill, load, merged, result_of, save
from harness.fuzz.shrink import Shrinker, runs_of
from reference_engine.laws.base import Expectation, Law, Lease
from reference_engine.laws.registry import make_law
from vocabulary.engine import Fidelity, TokenRequest
from vocabulary.errors import ExitCode, LawDoesNotCover

REQUESTS = int(os.environ.get("HITPARITY_FUZZ_REQUESTS", "200"))
"""Per configuration, with live engines."""
BLOCK = 16
PLAIN = Configuration(name="plain", engine="vllm@0.32", groups=(f"full:{BLOCK}",))


class RightEngine(LawSubject):
    """The right law in the place of an engine."""

    level = Fidelity.LOOKUP


def wrong(change: Callable[[Law], None]) -> LawSubject:
    """A law with one rule changed."""

    def make(case: Case) -> Law:
        law = make_law(case.engine, case.law_options)
        change(law)
        return law

    return LawSubject(make)


def forgets_namespaces(law: Law) -> None:
    admit = law.admit
    law.admit = lambda request: admit(replace(request, namespace=None))  # type: ignore[method-assign]


def forgets_generated_tokens(law: Law) -> None:
    finish = law.finish

    def forget(request: TokenRequest, output_ids: Sequence[int]) -> None:
        finish(request, output_ids[:1])

    law.finish = forget  # type: ignore[method-assign]


def skips_the_first_block(law: Law) -> None:
    """Says 0 where exactly one block is hit."""
    send = law.send

    def one_less(request: TokenRequest) -> Expectation:
        said = send(request)
        return replace(said, hit_len=0, position_start=0) if said.hit_len == BLOCK else said

    law.send = one_less  # type: ignore[method-assign]


def tokens(found: Found) -> list[int]:
    return [len(request.prompt) for request in found.case.requests]


def hunted(change: Callable[[Law], None], configuration: Configuration = PLAIN) -> Found:
    tally = campaign(configuration, 3000, 0, RightEngine(), law=wrong(change))
    assert tally.differing == 1
    return tally.found[0]


def test_a_law_that_forgets_namespaces_is_found_and_shrunk_to_two_short_prompts() -> None:
    found = hunted(forgets_namespaces)
    assert tokens(found) == [BLOCK + 1, BLOCK + 1] or sorted(tokens(found)) == [BLOCK, BLOCK + 1]
    assert len({request.namespace for request in found.case.requests}) == 2
    assert found.requests_before > 2
    assert found.tokens_before > sum(tokens(found))
    assert found.mismatch.differences[0].startswith(f"hit: law {BLOCK}, engine 0")


def test_a_law_that_forgets_generated_tokens_is_found_and_shrunk() -> None:
    found = hunted(forgets_generated_tokens)
    first, second = found.case.requests
    assert first.output is not None
    assert len(first.prompt) < BLOCK
    # The block is completed by generated tokens, the last of which has no KV.
    assert len(first.prompt) + len(first.output) == BLOCK + 1
    assert len(second.prompt) == BLOCK + 1


def test_a_law_that_skips_the_first_block_is_found_and_shrunk() -> None:
    found = hunted(skips_the_first_block)
    assert sorted(tokens(found)) in ([BLOCK, BLOCK + 1], [BLOCK + 1, BLOCK + 1])


def test_the_shrunk_sequence_replays_as_a_case_file(tmp_path: Path) -> None:
    found = hunted(forgets_namespaces)
    path = tmp_path / "found.jsonl"
    path.write_text(found.case.to_line() + "\n")
    case = read_cases(path)[0].case
    assert case.requests[-1].hit_len == 0  # the engine's, not the wrong law's
    assert duel(case, RightEngine(), wrong(forgets_namespaces)).mismatch is not None
    assert CliRunner().invoke(app, ["check", str(path)]).exit_code == ExitCode.CLEAN


def test_two_equal_laws_do_not_differ_and_sequences_mix_hits_with_misses() -> None:
    tally = campaign(PLAIN, 2000, 0, RightEngine())
    assert tally.clean
    assert tally.requests >= 2000
    assert 0.3 < tally.hits / tally.requests < 0.95


def test_a_seed_draws_the_same_sequence_and_lengths_gather_at_edges() -> None:
    cases = [draw(PLAIN, {}, 7, number) for number in range(60)]
    assert cases == [draw(PLAIN, {}, 7, number) for number in range(60)]
    assert cases[0] != cases[1]
    assert draw(PLAIN, {}, 8, 0).requests != cases[0].requests
    lengths = [len(request.prompt) for case in cases for request in case.requests]
    near = sum((length + 2) % BLOCK <= 5 for length in lengths)
    assert near / len(lengths) > 0.55  # 6 of 16 by chance
    assert max(lengths) <= PLAIN.longest


def test_shrinking_keeps_what_prompts_share() -> None:
    case = draw(PLAIN, {}, 3, 1)
    wanted = case.requests[1].prompt.cut(3)

    def fails(smaller: Case) -> bool:
        return any(request.prompt.cut(3) == wanted for request in smaller.requests)

    small = Shrinker(fails).shrink(case)
    assert len(small.requests) == 1
    assert small.requests[0].prompt == wanted
    assert runs_of(small) == list(wanted.ranges)


def test_a_law_that_refuses_is_said_and_not_counted() -> None:
    def refuse(law: Law) -> None:
        def admit(request: TokenRequest) -> Lease:
            raise LawDoesNotCover("not this")

        law.admit = admit  # type: ignore[method-assign]

    tally = campaign(PLAIN, 500, 0, RightEngine(), law=wrong(refuse))
    assert (tally.requests, tally.differing, tally.clean) == (0, 0, False)
    assert list(tally.not_covered) == ["LawDoesNotCover: not this"]


def test_the_command_prints_both_ledgers_and_writes_the_case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = harness.fuzz.campaign.campaign

    def with_wrong_law(*arguments: object, **more: object) -> Tally:
        return real(*arguments, law=wrong(forgets_namespaces), **more)  # type: ignore[arg-type]

    monkeypatch.setattr(harness.fuzz.campaign, "campaign", with_wrong_law)
    monkeypatch.setattr(harness.fuzz.campaign, "open_subject", lambda _: RightEngine())
    results = tmp_path / "fuzz.json"
    result = CliRunner().invoke(
        app,
        ["fuzz", "vllm@0.32", "--groups", "full:16", "--requests", "3000", "--write", str(tmp_path / "found"),
         "--json", str(results)],
    )  # fmt: skip
    assert result.exit_code == ExitCode.FINDINGS, result.output
    assert "hit: law 16, engine 0" in result.output
    assert "reused [0, 16)" in result.output
    written = list((tmp_path / "found").iterdir())
    assert len(written) == 1
    assert read_cases(written[0])[0].case.note is not None
    assert load(results)[0].differing == 1


def test_results_fill_a_page(tmp_path: Path) -> None:
    tally = campaign(PLAIN, 100, 0, RightEngine())
    results = merged(merged([], result_of(tally)), result_of(tally))
    assert len(results) == 1
    save(tmp_path / "fuzz.json", results)
    assert load(tmp_path / "fuzz.json") == results
    page = tmp_path / "page.md"
    page.write_text(f"head\n{BEGIN}\nold\n{END}\ntail\n")
    fill(page, results)
    assert "| vllm@0.32 | plain | full:16 |" in page.read_text()
    assert "old" not in page.read_text()
    assert page.read_text().startswith("head") and page.read_text().endswith("tail\n")


def test_the_committed_results_name_known_configurations_and_nothing_differs() -> None:
    known = {(each.engine, each.name) for each in configurations()}
    path = Path(__file__).parents[2] / "benchmarks" / "results" / "fuzz.json"
    if not path.exists():
        pytest.skip("make fuzz has not been run")
    for result in json.loads(path.read_text()):
        assert (result["engine"], result["configuration"]) in known
        assert result["differing"] == 0


@pytest.fixture(scope="module")
def lookup() -> Iterator[Subject]:
    subject = LookupSubject()
    yield subject
    subject.close()


RELEASES = {
    **{f"vllm@{version}": f"vllm-lookup@{version}.0" for version in VLLM},
    **{
        f"vllm-ascend@{version}": f"vllm-ascend-lookup@{release}"
        for version, release in zip(VLLM_ASCEND, ("0.23.0", "0.26.0rc1", "0.30.0rc2"), strict=True)
    },
    "sglang@0.5.23": "sglang-lookup",
    "llama.cpp": "llama.cpp",
}
LIVE = [
    pytest.param(each, id=f"{each.engine} {each.name}", marks=pytest.mark.live(RELEASES[each.engine]))
    for each in configurations()
]


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("configuration", LIVE)
def test_law_and_engine_agree(configuration: Configuration, lookup: Subject) -> None:
    """A few hundred requests of every named configuration, a few of a served one; `make fuzz` asks thousands."""
    served = configuration.against is Fidelity.SERVED
    subject = open_subject(Fidelity.SERVED) if served else lookup
    try:
        tally = campaign(configuration, REQUESTS // 10 if served else REQUESTS, 1, subject)
    finally:
        if served:
            subject.close()
    assert not tally.failures
    assert not [found.case.to_line() for found in tally.found]
    if not tally.requests:
        pytest.skip(f"the law or the engine refuses it: {next(iter(tally.not_covered))}")
