"""Laws beside the engines' own caches, in one run: tokens per second of a prompt's whole way through the cache.

A resident prompt is sent again (warm) and a new one is sent (cold). Ours: `Law.send` and `Law.finish`, with the ledger.
vLLM's: chained hashes, lookup, allocation, free of its KV cache manager. SGLang's: match and insertion of its radix
cache, with its compiled core. `lookup` is their lookup alone (vLLM: hashes made before). Medians; read the ratios.

`resident` rows send one prompt of 1,024 tokens with that many others in the cache: the cost should not grow.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from adapters.base import EngineSpec
from adapters.environments import python_for
from adapters.registry import adapter_for
from reference_engine.laws.registry import make_law
from vocabulary.engine import Mode, TokenRequest

LENGTHS = (1024, 16_384, 131_072)
RESIDENTS, REPEATS = 4, 9
CROWDS = (10, 1000, 10_000)
SCRIPTS = Path(__file__).parent / "in_engines"
ADAPTERS = Path(__file__).parent.parent / "adapters"
VOCAB = 150_000
Row = dict[str, object]


def measure() -> list[Row]:
    """Rows by system and prompt length, then by number of resident prompts."""
    rows: list[Row] = []
    paths = (ADAPTERS / "torchvision_shim",)
    for system, law, options, script, asked, more in (
        ("vllm", "vllm@0.32", {"block_size": 16}, "vllm_manager.py", {"block_size": 16}, paths),
        ("sglang", "sglang@0.5.23", {"page_size": 16}, "sglang_tree.py", {"page_size": 16, "core": "rust"}, paths),
        ("sglang", "sglang@0.5.23", {"page_size": 1}, "sglang_tree.py", {"page_size": 1, "core": "rust"}, paths),
    ):
        theirs = _theirs(system, script, asked, (*more, ADAPTERS / "sglang" / "shim"))
        ours = {row["prompt_len"]: row for row in _ours(law, options)}
        rows += [_beside(law, options, ours[row["prompt_len"]], row) for row in theirs]
    for law, options in (("vllm@0.32", {"block_size": 16}), ("sglang@0.5.23", {"page_size": 16})):
        rows += _crowded(law, options)
    return rows


def _theirs(system: str, script: str, asked: Mapping[str, Any], paths: Sequence[Path]) -> list[dict[str, Any]]:
    adapter = adapter_for(system)
    version = adapter.default_version
    spec = EngineSpec(engine=system, version=version, mode=Mode.WORKER, options=adapter.options.model_validate({}))
    question = {"lengths": LENGTHS, "residents": RESIDENTS, "repeats": REPEATS, **asked}
    done = subprocess.run(
        [python_for(spec), SCRIPTS / script, json.dumps(question)],
        env={"PYTHONPATH": ":".join(map(str, paths)), "PATH": "/usr/bin:/bin", "VLLM_LOGGING_LEVEL": "ERROR"},
        capture_output=True,
        text=True,
        check=True,
    )
    answer: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return answer


def _ours(law_id: str, options: Mapping[str, Any]) -> list[dict[str, Any]]:
    rng = np.random.default_rng(0)
    rows = []
    for length in LENGTHS:
        send = _sender(law_id, options)
        residents = [_ids(rng, length) for _ in range(RESIDENTS)]
        for ids in residents:
            send(ids)
        warm, cold = [], []
        for number in range(REPEATS):
            warm.append(send(residents[number % RESIDENTS]))
            cold.append(send(_ids(rng, length)))
        assert all(hit for hit, _ in warm) and not any(hit for hit, _ in cold)
        rows.append({"prompt_len": length, "warm_send_s": [t for _, t in warm], "cold_send_s": [t for _, t in cold]})
    return rows


def _crowded(law_id: str, options: Mapping[str, Any]) -> list[Row]:
    rng = np.random.default_rng(1)
    rows: list[Row] = []
    send, resident = _sender(law_id, options), 0
    probe = _ids(rng, 1024)
    for crowd in CROWDS:
        while resident < crowd:
            send(_ids(rng, 1024))
            resident += 1
        send(probe)
        took = statistics.median(send(probe)[1] for _ in range(51))
        rows.append({"law": law_id, "options": _text(options), "prompt_len": 1024, "resident": crowd})
        rows[-1]["ours_warm_us"] = round(took * 1e6, 1)
    return rows


def _sender(law_id: str, options: Mapping[str, Any]) -> Callable[[tuple[int, ...]], tuple[int, float]]:
    law, number = make_law(law_id, options), 0

    def send(ids: tuple[int, ...]) -> tuple[int, float]:
        nonlocal number
        number += 1
        request = TokenRequest(request_id=str(number), ids=ids)
        assert request.array.size  # made before, as the engines' requests are
        start = time.perf_counter()
        hit = law.send(request).hit_len
        law.finish(request, (1,))
        return hit, time.perf_counter() - start

    return send


def _ids(rng: np.random.Generator, length: int) -> tuple[int, ...]:
    return tuple(rng.integers(0, VOCAB, length).tolist())


def _beside(law: str, options: Mapping[str, Any], ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> Row:
    length = int(ours["prompt_len"])

    def rate(seconds: Sequence[float]) -> float:
        return length / statistics.median(seconds) / 1e6

    row: Row = {"law": law, "options": _text(options), "prompt_len": length, "resident": RESIDENTS}
    for name in ("warm", "cold"):
        mine, other = rate(ours[f"{name}_send_s"]), rate(theirs[f"{name}_send_s"])
        row |= {f"ours_{name}_Mtok_s": round(mine, 1), f"theirs_{name}_Mtok_s": round(other, 1)}
        row[f"{name}_ratio"] = round(mine / other, 1)
    lookup = rate(theirs["lookup_s"])
    row |= {
        "theirs_lookup_Mtok_s": round(lookup, 1),
        "ours_warm_over_lookup": round(rate(ours["warm_send_s"]) / lookup, 1),
    }
    return row


def _text(options: Mapping[str, Any]) -> str:
    return " ".join(f"{key}={value}" for key, value in options.items())
