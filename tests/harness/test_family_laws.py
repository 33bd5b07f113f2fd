"""Each family separates what its picture says: hits by the laws, side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from lying_engine import LyingEngine
from typer.testing import CliRunner

from checkpoints import Checkpoint
from harness.cell import CellOutcome, CellRun
from harness.cli import app
from harness.experiment import Checks, load_experiment
from harness.explain.recorded import world_of
from harness.interrupt import Interrupt
from harness.judge import Judge
from harness.plan import Cell, PlannedWorkload, plan, scale_of
from harness.progress import ConsoleProgress
from harness.records import FindingKind, RequestRecord, Role
from harness.runner import Runner, open_run
from harness.store import RequestLog, load_run
from vocabulary.engine import Reply, TokenRequest
from vocabulary.errors import ExitCode, LawDoesNotCover, UsageError
from vocabulary.ledger import Cause
from workloads.registry import FAMILIES
from workloads.source import TokenSource

VLLM, SGLANG, SLOTS = "vllm@0.32", "sglang@0.5.23", "llama.cpp"
HYBRID = {"groups": ["full:64", "gdn:64"]}
Ran = tuple[CellOutcome, list[RequestRecord]]
Play = Callable[..., Ran]
CATALOGUE = Path(__file__).parents[2] / "workloads" / "catalogue"


class Crowded(LyingEngine):
    """Publishes as soon as it has started: of requests sent together, all but the first hit."""

    def send_together(self, requests: Sequence[TokenRequest]) -> list[Reply]:
        return [self.send(request) for request in requests]


@pytest.fixture
def play(tmp_path: Path, checkpoint: Callable[[str], Checkpoint]) -> Play:
    """Run a family on a law that plays an engine; gives the outcome and the probes."""
    model = checkpoint("tiny-qwen3")

    def run(family: str, law: str, options: dict[str, Any] | None = None, **parameters: Any) -> Ran:
        engine = Crowded(model, law=law, **(options or {}))
        kind = FAMILIES[family]
        workload = PlannedWorkload(family, kind, kind.parameters.model_validate(parameters), 0)
        records: list[RequestRecord] = []
        with Interrupt() as interrupt, RequestLog(tmp_path / f"cell-{len(list(tmp_path.iterdir()))}") as log:
            cell = CellRun(
                engine, Judge(engine.facts), Cell("cell", law, "tiny-qwen3", workload),
                Checks(verify_reset=False, control=False), log=log, interrupt=interrupt, on_request=records.append,
            )  # fmt: skip
            source = TokenSource(0, model.vocab_size, reserved=model.reserved_ids, granule=engine.facts.granule)
            outcome = cell.run(source)
        return outcome, [record for record in records if record.role is Role.PROBE]

    return run


def hits(ran: Ran) -> list[int | None]:
    return [record.hit_len for record in ran[1]]


def kinds(ran: Ran) -> set[FindingKind]:
    return {f.kind for record in ran[1] for f in record.findings} | {f.kind for f in ran[0].findings}


def test_ladder_tells_blocks_from_states_and_slots(play: Play) -> None:
    rungs: dict[str, Any] = {"first": 100, "step": 100, "rungs": 3}
    assert hits(play("ladder", VLLM, {"block_size": 16}, **rungs)) == [0, 96, 192, 192, 96]
    assert hits(play("ladder", SLOTS, **rungs)) == [0, 100, 200, 199, 99]
    whole_blocks: dict[str, Any] = {"first": 64, "step": 64, "rungs": 3}
    assert hits(play("ladder", VLLM, {"block_size": 64}, **whole_blocks)) == [0, 64, 128, 64, 0]
    assert hits(play("ladder", VLLM, HYBRID, **whole_blocks)) == [0, 0, 64, 64, 0]  # no state behind the last token


def test_retokenised_answers_cost_what_is_behind_the_seam(play: Play) -> None:
    chat: dict[str, Any] = {"first": 100, "max_tokens": 40, "question": 10, "turns": 2}
    assert hits(play("grow", SLOTS, **chat)) == [0, 139]
    assert hits(play("retokenised", SLOTS, seams=["last"], **chat)) == [0, 139]
    assert hits(play("retokenised", SLOTS, seams=["first"], **chat)) == [0, 100]
    assert hits(play("retokenised", VLLM, {"block_size": 16}, seams=["last"], **chat)) == [0, 128]
    assert hits(play("retokenised", VLLM, {"block_size": 16}, seams=["first"], **chat)) == [0, 96]


def test_a_fork_is_hit_by_token_or_by_block(play: Play) -> None:
    parameters: dict[str, Any] = {"prompt": 100, "max_tokens": 60, "kept": [1, 33], "own": 9}
    assert hits(play("fork", SGLANG, {"page_size": 1}, **parameters)) == [0, 101, 110, 133, 142, 99]
    assert hits(play("fork", VLLM, {"block_size": 16}, **parameters)) == [0, 96, 96, 128, 128, 96]


def test_tools_cost_a_slot_its_trunk(play: Play) -> None:
    parameters: dict[str, Any] = {"trunk": 200, "call": 40, "note": 10, "branches": 2, "depth": 1}
    assert hits(play("tools", SGLANG, {"page_size": 1}, **parameters)) == [0, 200, 200, 210, 210, 239]
    assert hits(play("tools", SLOTS, **parameters)) == [0, 200, 200, 210, 210, 200]


def test_edits_lose_all_behind_the_head_unless_chunks_are_moved(play: Play) -> None:
    parameters: dict[str, Any] = {"head": 100, "cut": 20, "tail": 200}
    plain = play("edit", SLOTS, **parameters)
    assert hits(plain) == [0, 100, 100, 100, 100, 100, 100] and not kinds(plain)
    moved = play("edit", SLOTS, {"n_cache_reuse": 16}, **parameters)
    assert moved[1][1].hit_len == 299
    assert FindingKind.APPROXIMATE in kinds(moved)


def test_windows_need_all_but_one_of_their_tokens(play: Play) -> None:
    ran = play("window", VLLM, {"groups": ["full:16", "swa:16:64"]})
    by_length = {n: [r.hit_len for r in ran[1] if r.label.startswith(f"S={n} ")] for n in (63, 64, 65, 128)}
    assert {n: found[1] for n, found in by_length.items()} != {n: n // 16 * 16 for n in by_length}
    assert any(Cause.WINDOW in record.by_cause() for record in ran[1])


def test_keys_never_share(play: Play) -> None:
    ran = play("key", VLLM, {"block_size": 16}, by=["salt"], length=65)
    assert hits(ran) == [0, 64, 0, 64, 0, 64, 64] and not kinds(ran)
    assert {record.namespace for record in ran[1]} == {None, "salt 1", "salt 2"}


def test_images_are_keys_from_the_block_on_that_they_touch(play: Play) -> None:
    ran = play("key", VLLM, {"block_size": 16}, by=["image"], length=65)
    assert hits(ran) == [0, 64, 32, 64, 32, 64, 64] and not kinds(ran)
    assert [record.media for record in ran[1]][2:5:2] == [(("image 1", 32, 16),), (("image 2", 32, 16),)]
    assert len({record.prompt_sha256 for record in ran[1]}) == 3
    assert {record.lcp_len for record in ran[1][2:5:2]} == {32}


def test_a_hit_across_keys_is_a_finding_even_where_the_law_would_allow_it(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    from reference_engine.laws.vllm.law import VllmLaw

    monkeypatch.setattr(VllmLaw, "_space", lambda self, request: "one for all")
    ran = play("key", VLLM, {"block_size": 16}, length=65)
    assert FindingKind.FORBIDDEN_HIT in kinds(ran)
    assert [len(record.findings) > 0 for record in ran[1]] == [False, False, True, False, True, False, False]


def test_engines_without_keys_are_told_so(play: Play) -> None:
    with pytest.raises(UsageError, match="has no cache salt"):
        play("key", SLOTS)
    with pytest.raises(UsageError, match="served without adapters"):
        play("key", VLLM, {"block_size": 16}, by=["adapter"])
    with pytest.raises(UsageError, match="takes no images"):
        play("key", SLOTS, by=["image"])


def test_poison_is_served_by_nobody_but_chunk_movers(play: Play) -> None:
    for law, options in ((VLLM, {"block_size": 16}), (SGLANG, {"page_size": 1}), (SLOTS, {})):
        ran = play("poison", law, options, block=32, tail=17)
        assert hits(ran)[:5] == [0, 0, 0, 0, 0] and ran[1][5].hit_len and not kinds(ran)
    moved = play("poison", SLOTS, {"n_cache_reuse": 16}, block=32, tail=17)
    assert FindingKind.FORBIDDEN_HIT in kinds(moved)


def test_features_turn_the_lookup_off_and_still_publish(play: Play) -> None:
    asked = ["prompt_logprobs", "skip_lookup"]
    ran = play("features", VLLM, {"block_size": 16}, length=65, features=asked)
    assert hits(ran) == [0, 64, 0, 64, 0, 64] * 2
    assert [Cause.DISABLED in record.by_cause() for record in ran[1]] == [False, False, True, False, False, False] * 2


def test_interleaved_chats_need_a_slot_each(play: Play) -> None:
    two = {"n_parallel": 2, "n_ctx": 4096}
    slots, tree = (
        play("interleaved", SLOTS, two, chats=[2, 3]),
        play("interleaved", SGLANG, {"page_size": 1}, chats=[2, 3]),
    )
    later = [record.label for record in slots[1] if "turn 1" not in record.label]
    hit = {record.label: bool(record.hit_len) for record in slots[1]}
    assert all(hit[label] for label in later if label.startswith("2"))
    assert not any(hit[label] for label in later if label.startswith("3"))
    assert all(record.hit_len for record in tree[1] if "turn 1" not in record.label)


def test_churn_is_hit_until_the_pool_is_full(play: Play) -> None:
    ran = play("churn", VLLM, {"block_size": 16, "num_gpu_blocks_override": 41}, length="4g+1")
    shares: dict[str, list[int | None]] = {}
    for record in ran[1]:
        shares.setdefault(record.label.split(" ")[0], []).append(record.hit_len)
    assert shares["0.5"] == [0] * 4 + [64] * 4
    assert not any(shares["2"])
    assert any(Cause.EVICTED in record.by_cause() for record in ran[1])


def test_of_a_burst_nothing_is_predicted_until_the_reset(play: Play) -> None:
    ran = play("burst", VLLM, {"block_size": 16}, length=65, count=3, serial=2)
    assert hits(ran) == [0, 64, 64, 64, 64, 0, 64] and not kinds(ran)
    assert [record.together for record in ran[1]] == [3, 3, 3, 1, 1, 1, 1]
    assert [record.law for record in ran[1]] == [None] * 5 + [VLLM] * 2
    assert [record.lcp_len for record in ran[1]] == [65] * 5 + [0, 65]
    assert "sent together" in ran[1][0].native["law_left"] and "law_left" not in ran[1][5].native
    assert ran[1][0].by_cause() == {Cause.NOVEL: 65}
    assert ran[1][1].by_cause() == {Cause.REUSED: 64, Cause.LAST_TOKEN: 1}


def test_the_slots_of_llama_cpp_remember_a_burst_beyond_a_reset(play: Play) -> None:
    ran = play("burst", SLOTS, {"n_parallel": 2, "n_ctx": 4096}, length=65, count=2, serial=1)
    assert [record.law for record in ran[1]] == [None] * 4
    alone = play("burst", SLOTS, {}, length=65, count=2, serial=1)
    assert [record.law for record in alone[1]] == [None] * 3 + [SLOTS]


def test_what_a_burst_did_not_find_was_in_flight(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    def miss(self: Crowded, requests: Sequence[TokenRequest]) -> list[Reply]:
        import dataclasses

        return [dataclasses.replace(self.send(each), hit_len=0, position_start=0) for each in requests]

    monkeypatch.setattr(Crowded, "send_together", miss)
    ran = play("burst", VLLM, {"block_size": 16}, length=65, own=9, count=2, serial=1)
    assert ran[1][0].by_cause() == {Cause.NOVEL: 74}
    assert ran[1][1].by_cause() == {Cause.IN_FLIGHT: 65, Cause.NOVEL: 9}


EXPERIMENT = """
name = "bursts"
models = ["tiny-qwen3"]
[[engine]]
name = "law"
law = "vllm@0.32"
label = "blocks of 32"
options = { block_size = 32 }
[[engine]]
name = "law"
law = "vllm@0.32"
options = { block_size = 16 }
[[workload]]
family = "burst"
length = "4g+1"
engines = ["blocks of 32"]
[[workload]]
family = "churn"
engines = ["law"]
"""


def test_a_run_keeps_the_lengths_of_its_engine_and_explains_what_follows_a_reset(tmp_path: Path) -> None:
    file = tmp_path / "bursts.toml"
    file.write_text(EXPERIMENT, encoding="utf-8")
    experiment = load_experiment(file)
    groups = plan(experiment)
    folder = open_run(experiment, file, groups, tmp_path / "results", resume=False)
    assert Runner(experiment, file, folder, ConsoleProgress()).run(groups) is ExitCode.USAGE  # churn: unbounded pools
    run = load_run(folder)
    burst, *churns = sorted(run.cells, key=lambda cell: cell.workload)
    assert [cell.workload for cell in (burst, *churns)] == ["burst", "churn", "churn"]  # a label names one, a name all
    assert burst.parameters["length"] == 129
    assert all("unbounded" in cell.why and cell.parameters["rounds"] == 2 for cell in churns)
    probes = {r.label: r for r in run.requests if r.role is Role.PROBE}
    assert len(world_of(run, burst, probes["alone 2"]).sent) == 2
    with pytest.raises(LawDoesNotCover, match="sent together"):
        world_of(run, burst, probes["after 1"])


@pytest.mark.parametrize(
    ("law", "options", "expected"),
    [
        (VLLM, {"block_size": 16, "num_gpu_blocks_override": 257}, (16, None, 4096)),
        (VLLM, {"groups": ["full:16", "swa:16:100"]}, (16, 100, None)),
        (SGLANG, {"page_size": 16, "max_total_tokens": 4096}, (16, None, 4096)),
    ],
)
def test_the_scale_of_an_engine(
    checkpoint: Callable[[str], Checkpoint], law: str, options: dict[str, Any], expected: tuple[int | None, ...]
) -> None:
    scale = scale_of(LyingEngine(checkpoint("tiny-qwen3"), law=law, **options).facts)
    assert (scale.granule, scale.window, scale.pool) == expected


def test_ready_experiments_cover_every_family_of_this_package() -> None:
    experiments = [load_experiment(path) for path in sorted(CATALOGUE.glob("families*.toml"))]
    sent = {group.id: {cell.workload.family.name for cell in group.cells} for e in experiments for group in plan(e)}
    assert set().union(*sent.values()) >= set(FAMILIES) - {"questions", "pairs", "trace"}
    assert all({"repeat", "edit", "poison", "tools", "fork"} <= families for families in sent.values())


def test_one_family_is_listed_with_its_prompts() -> None:
    shown = CliRunner().invoke(app, ["list", "workloads", "key"]).output
    assert "must miss" in shown and "may hit 0" in shown and "salt 2" in shown
    for wrong in (["list", "workloads", "kee"], ["list", "laws", "key"]):
        assert isinstance(CliRunner().invoke(app, wrong).exception, UsageError)


EXPLAIN = ("explain", "--prompt-lengths", "9", "--engine")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([*EXPLAIN, VLLM, "--option", "block_size=-1"], "positive whole number"),
        ([*EXPLAIN, VLLM, "--option", "a=1", "--option", "a=2"], "given twice"),
        (
            ["explain", "--prompt-lengths", "9", "--engine", SGLANG, "--page", "2", "--option", "page_size=4"],
            "the same",
        ),
        (["handover", "--prompt-lengths", "9", "--option", "a=1", "--option", "a=2"], "given twice"),
        (["fuzz", VLLM, "--groups", "full", "--option", "a=1", "--option", "a=2"], "given twice"),
        (["blocksize", "--drafts", "2"], "--config"),
    ],
)
def test_options_that_contradict_or_say_nothing(arguments: list[str], words: str) -> None:
    error = CliRunner().invoke(app, arguments).exception
    assert error is not None and words in str(error) and getattr(error, "exit_code", None) == 2
