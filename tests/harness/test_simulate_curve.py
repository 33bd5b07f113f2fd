"""The curve over pool sizes against the law in pools of many sizes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from harness.simulate.curve import Curve, curve
from reference_engine.laws.parts.chained import chained_request
from reference_engine.laws.registry import make_law
from vocabulary.errors import LawDoesNotCover
from vocabulary.ledger import Cause
from workloads.traces.base import TraceRequest

UNIT = 16
Row = tuple[np.ndarray, int]


def traffic(seed: int, block: int, *, whole: bool) -> Iterator[Row]:
    """Prompts that grow, fork and come again; without `whole` none ends on a block boundary of the engine."""
    rng = np.random.default_rng(seed)
    paths: list[list[int]] = [[]]
    count = 0
    for _ in range(80):
        path = list(paths[rng.integers(len(paths))])
        path = path[: rng.integers(len(path) + 1)]
        for _ in range(rng.integers(1, 5)):
            count += 1
            path.append(count)
        paths.append(path)
        length = len(path) * block - int(rng.integers(block))
        if whole or length % UNIT:
            yield np.asarray(path[: -(-length // block)]), length


def served(rows: list[Row], block: int, pool: int) -> int | None:
    """Tokens hit by the law in a pool of so many blocks; None where it refuses a request."""
    law, hit = make_law("vllm@0.32", {"block_size": UNIT, "num_blocks": pool}), 0
    for number, (blocks, length) in enumerate(rows, start=1):
        request = chained_request(str(number), blocks, block, length, number)
        try:
            hit += law.send(request).hit_len
        except LawDoesNotCover:
            return None
        law.finish(request, (1,))
    return hit


def made(rows: list[Row], block: int, spaces: Sequence[str | None] = (None,)) -> Curve:
    requests = (
        TraceRequest(
            line=n,
            arrival_ns=None,
            blocks=blocks,
            block_len=block,
            input_len=length,
            output_len=1,
            namespace=spaces[n % len(spaces)],
        )
        for n, (blocks, length) in enumerate(rows)
    )
    return curve(zip(requests, (blocks for blocks, _ in rows), strict=True), UNIT)


@pytest.mark.parametrize("block", [16, 24, 32, 40, 48])
def test_it_is_the_laws_hit_at_every_size(block: int) -> None:
    compared = 0
    for seed in range(2):
        rows = list(traffic(seed, block, whole=False))
        found = made(rows, block)
        assert not found.whole
        for pool in (40, 60, 100, 150, 300, 2000):
            hit = served(rows, block, pool)
            if hit is not None:
                assert found.hit_tokens(pool) == hit
                compared += 1
        assert found.ceiling == served(rows, block, 100_000)
        assert found.hit_tokens(found.enough) == found.ceiling > found.hit_tokens(found.enough - 1)
    assert compared >= 6


@pytest.mark.parametrize("spaces", [(None,), ("a", "b", "a")])
def test_totals_by_cause_are_the_laws(spaces: tuple[str | None, ...]) -> None:
    rows, pool = list(traffic(1, 32, whole=False)), 120
    rows += rows[-5:]
    law = make_law("vllm@0.32", {"block_size": UNIT, "num_blocks": pool})
    totals: dict[Cause, int] = {}
    for n, (blocks, length) in enumerate(rows):
        request = chained_request(str(n), blocks, 32, length, n, namespace=spaces[n % len(spaces)])
        for cause, tokens in law.send(request).ledger.by_cause().items():
            totals[cause] = totals.get(cause, 0) + tokens
        law.finish(request, (1,))
    found = made(rows, 32, spaces).by_cause(pool)
    assert {cause: tokens for cause, tokens in found.items() if tokens} == totals
    assert (
        totals[Cause.EVICTED] > 0
        and totals[Cause.LAST_TOKEN] > 0
        and (len(spaces) == 1) == (Cause.NAMESPACE not in totals)
    )


def test_prompts_of_whole_blocks_move_a_few_blocks() -> None:
    rows = list(traffic(0, 32, whole=True))
    found = made(rows, 32)
    assert found.whole > 0 and found.requests == len(rows)
    for pool in (100, 200, 400):
        hit = served(rows, 32, pool)
        assert hit is not None
        assert abs(found.hit_tokens(pool) - hit) <= 2 * UNIT * found.whole


def test_an_empty_trace_has_a_curve() -> None:
    found = made([], 16)
    assert found.hit_tokens(1000) == found.ceiling == found.enough == 0
