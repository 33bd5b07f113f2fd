"""vLLM-Ascend's patches over the stock trees: published tables, and what differs from the vLLM below.

Measured values were taken with an executor of the same kind before this worker existed (12 recurrent layers, 4 full,
1 of MTP); the published rows are those of the vllm-ascend 0.23 and vLLM 0.30.0rc2 services.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import count

import pytest

from adapters.lookup import Lookup, open_lookup
from vocabulary.engine import Fidelity, Reply, TokenRequest

RELEASES = {"0.23": "0.23.0", "0.26": "0.26.0rc1", "0.30": "0.30.0rc2"}
_draw = random.Random(11)
P, Q, R = ([_draw.randrange(100_000) for _ in range(9000)] for _ in range(3))
_ids = count()


def hybrid(block: int) -> list[str]:
    return [f"gdn:{block}"] * 3 + [f"full:{block}"]


def ask(lookup: Lookup, ids: Sequence[int], outputs: Sequence[int] = ()) -> Reply:
    reply = lookup.send(TokenRequest(request_id=f"r{next(_ids)}", ids=tuple(ids)), outputs)
    assert reply.position_start == reply.hit_len == reply.backed_len
    return reply


def hits(lookup: Lookup, *prompts: Sequence[int]) -> list[int | None]:
    assert lookup.reset()
    return [ask(lookup, ids).hit_len for ids in prompts]


@pytest.fixture(
    scope="module",
    params=[pytest.param(v, marks=pytest.mark.live(f"vllm-ascend-lookup@{r}")) for v, r in RELEASES.items()],
)
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def lookup(version: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lookup]:
    options = {"groups": hybrid(1536), "num_speculative_tokens": 1}
    lookup = open_lookup(f"vllm-ascend@{version}", options, tmp_path_factory.mktemp(f"ascend-{version}"))
    yield lookup
    lookup.close()


def test_the_patched_classes_are_in_force(lookup: Lookup, version: str) -> None:
    lookup.reconfigure({"groups": hybrid(1536), "num_speculative_tokens": 1})
    facts = lookup.facts
    assert (facts.engine, facts.version, facts.fidelity) == ("vllm-ascend-lookup", RELEASES[version], Fidelity.LOOKUP)
    assert facts.options["coordinator"].startswith("vllm_ascend.")
    assert "AscendMambaManager" in facts.options["managers"]
    assert facts.options["vllm"] == {"0.23": "0.23.0", "0.26": "0.26.0", "0.30": "0.30.0"}[version]


LONG = ((3714, 3714), (3714, 1857), (3714, 3914), (1857, 1857), (1857, 2057))


@pytest.mark.parametrize("speculative", [1, 3])
def test_first_published_table(lookup: Lookup, version: str, speculative: int) -> None:
    """Published 1536, 0, hit; stock 0.23.0 answers an unbacked 1536 in the second."""
    lookup.reconfigure({"groups": hybrid(1536), "num_speculative_tokens": speculative})
    expected = [3072, 0, 3072, 1536, 1536] if version == "0.30" else [1536, 0, 1536, 0, 0]
    assert [hits(lookup, P[:a], P[:b])[1] for a, b in LONG] == expected


def test_first_published_table_without_mtp(lookup: Lookup, version: str) -> None:
    lookup.reconfigure({"groups": hybrid(1536)})
    assert [hits(lookup, P[:a], P[:b])[1] for a, b in LONG] == [3072, 0, 3072, 1536, 1536]


def test_exact_multiples(lookup: Lookup, version: str) -> None:
    """The repaired Mamba lookup of 0.23 also loses the unbacked hits that stock 0.23.0 has at exact multiples."""
    if version == "0.30":
        pytest.skip("measured for 0.23 and 0.26; 0.30 has the second table")
    lookup.reconfigure({"groups": hybrid(1536), "num_speculative_tokens": 1})
    lengths = (1536, 1537, 3071, 3072, 3073, 4608, 4609)
    found = [hits(lookup, *[P[:n]] * 3) for n in lengths]
    assert [each[1] for each in found] == [0, 0, 0, 0, 1536, 0, 3072]
    assert found[5][2] == (1536 if version == "0.26" else 0)


@pytest.mark.parametrize("speculative", [0, 1])
def test_second_published_table(lookup: Lookup, version: str, speculative: int) -> None:
    """Published for 0.30.0rc2: from 0.29.0rc1 on a standalone instance drops nothing."""
    if version != "0.30":
        pytest.skip("the table is that of 0.30.0rc2")
    lookup.reconfigure({"groups": hybrid(896), "num_speculative_tokens": speculative})
    found = [hits(lookup, *[P[:n]] * 3) for n in (895, 896, 897, 1792, 1793, 2688, 2689)]
    assert [each[1] for each in found] == [0, 0, 896, 0, 1792, 0, 2688]
    assert [each[2] for each in found] == [0, 0, 896, 896, 1792, 1792, 2688]


@pytest.mark.parametrize(
    ("version_of", "block", "shared", "expected"),
    [
        ("0.30", 896, 2 * 896 + 300, [0, 0, 1792, 1792]),
        ("0.30", 896, 896 + 1, [0, 0, 896, 896]),
        ("0.30", 896, 896 - 1, [0, 0, 0, 0]),
        ("0.23", 1536, 2 * 1536 + 300, [0, 1536, 1536, 1536]),
        ("0.23", 1536, 1536 + 1, [0, 0, 0, 0]),
    ],
)
def test_siblings(lookup: Lookup, version: str, version_of: str, block: int, shared: int, expected: list[int]) -> None:
    if version != version_of:
        pytest.skip(f"measured on {version_of}")
    lookup.reconfigure({"groups": hybrid(block), "num_speculative_tokens": 1})
    tails = (Q[:1000], R[:1000], Q[1000:2000], R[1000:2000])
    assert hits(lookup, *[[*P[:shared], *tail] for tail in tails]) == expected


def test_after_decoding(lookup: Lookup, version: str) -> None:
    """A turn that crosses a block boundary while generating."""
    if version == "0.26":
        pytest.skip("measured on 0.23 and 0.30")
    block = 896 if version == "0.30" else 1536
    lookup.reconfigure({"groups": hybrid(block), "num_speculative_tokens": 1})
    ask(lookup, P[: block - 20], Q[:60])
    assert ask(lookup, [*P[: block - 20], *Q[:60], *R[:500]]).hit_len == (896 if version == "0.30" else 0)
    lookup.reset()
    ask(lookup, P[: 2 * block + 5], Q[: 2 * block])
    follow_up = [*P[: 2 * block + 5], *Q[: 2 * block], *R[:500]]
    assert ask(lookup, follow_up).hit_len == (4 * 896 if version == "0.30" else 3 * 1536)
