"""Whatever bytes a parser is given: a value, or one of our own errors; never another exception, never for long."""

from __future__ import annotations

import json
import os
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from adapters.checked import facts_from, reply_from
from adapters.growing_file import GrowingJsonLines
from checkpoints import Checkpoint
from checkpoints.headers import check_gguf, check_safetensors
from harness.block_size import shape_of
from harness.cases.reading import read_cases
from harness.data import load_tables
from harness.experiment import load_experiment
from harness.page import page
from harness.store import CELL_FILE, REQUESTS_FILE, RUN_FILE, load_run
from reference_engine.config import ModelConfig
from vocabulary.bounded import MAX_DEPTH, parse_json
from vocabulary.errors import HitparityError
from workloads.traces.registry import READERS, open_trace

EXAMPLES = int(os.environ.get("HITPARITY_HOSTILE_EXAMPLES", "6"))
"""For each parser; the nightly number is 2000."""
ROOT = Path(__file__).parents[2]
FUZZ = settings(max_examples=EXAMPLES, deadline=None, derandomize=EXAMPLES < 100, database=None,
                suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])  # fmt: skip
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.just(10**30), st.just(-(10**30)), st.floats(), st.text(max_size=8),
    st.sampled_from(["", "..", "../../etc", "\x1b[2J", "\u202e", "a" * 300, "vllm@0.32", "full:528", "\x00"]),
)  # fmt: skip
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
)
NASTY = [b"", b"\x00", b"\xff\xfe", b"[" * 100_000, b'{"a":' * 5000, b"9" * 5000, b"NaN", b'"\\ud800"', b"\r\n" * 9]


def run_folder() -> Path:
    return ROOT / "results/quickstart-all/example"


def first_lines(path: Path, count: int = 3) -> bytes:
    with path.open("rb") as file:
        return b"".join(file.readline() for _ in range(count))


def as_run(data: bytes, folder: Path, name: str) -> None:
    """A run whose one file is hostile; all that reads a run reads it."""
    good = run_folder()
    manifest = json.loads((good / RUN_FILE).read_bytes())
    cell = manifest["cells"][0]
    manifest["cells"] = [cell]
    (folder / cell).mkdir(exist_ok=True)
    (folder / RUN_FILE).write_text(json.dumps(manifest), encoding="utf-8")
    for each in (CELL_FILE, REQUESTS_FILE):
        (folder / cell / each).write_bytes((good / cell / each).read_bytes())
    where = folder / name if name == RUN_FILE else folder / cell / name
    where.write_bytes(data)
    run = load_run(folder)
    load_tables(folder)
    page(run)


def parsers() -> dict[str, tuple[Callable[[bytes, Path], object], bytes]]:
    """Name to what reads hostile bytes, given an empty folder, and an honest input to start from."""
    good = run_folder()
    cell = json.loads((good / RUN_FILE).read_bytes())["cells"][0]
    config = {"model_type": "qwen3", "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4,
              "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 64, "vocab_size": 100, "dtype": "float32",
              "max_position_embeddings": 512, "rope_theta": 1e6, "rms_norm_eps": 1e-6,
              "layer_types": ["full_attention"] * 2, "linear_num_key_heads": 4, "linear_key_head_dim": 16,
              "linear_num_value_heads": 4, "linear_value_head_dim": 16, "linear_conv_kernel_dim": 4}  # fmt: skip
    reply = {"request_id": "a", "prompt_len": 3, "hit_len": 0, "hit_source": "x", "position_start": 0,
             "position_source": "y", "output_ids": [1], "first_logprob": -1.0, "sent_ns": 1, "first_token_ns": 2,
             "done_ns": 3, "steps": None}  # fmt: skip
    traces = {
        "hitparity": {"format": "hitparity.trace/1", "source": "x"},
        "mooncake": {"hash_ids": [1, 2], "input_length": 600, "output_length": 3, "timestamp": 0},
        "bailian": {"chat_id": 1, "parent_chat_id": -1, "timestamp": 0.5, "input_length": 20, "output_length": 3,
                    "type": "text", "turn": 1, "hash_ids": [1, 2]},
    }  # fmt: skip

    def written(name: str, read: Callable[[Path], object]) -> Callable[[bytes, Path], object]:
        def parse(data: bytes, folder: Path) -> object:
            (folder / name).write_bytes(data)
            return read(folder / name)

        return parse

    found: dict[str, tuple[Callable[[bytes, Path], object], bytes]] = {
        "experiment": (
            written("e.toml", load_experiment),
            (ROOT / "workloads/catalogue/quickstart.toml").read_bytes(),
        ),
        "case": (written("c.jsonl", read_cases), first_lines(min((ROOT / "workloads/cases").rglob("*.jsonl")), 2)),
        "run": (lambda data, folder: as_run(data, folder, RUN_FILE), (good / RUN_FILE).read_bytes()),
        "cell": (lambda data, folder: as_run(data, folder, CELL_FILE), (good / cell / CELL_FILE).read_bytes()),
        "requests": (
            lambda data, folder: as_run(data, folder, REQUESTS_FILE),
            first_lines(good / cell / REQUESTS_FILE, 1),
        ),
        "config": (written("config.json", lambda path: ModelConfig.read(path.parent)), json.dumps(config).encode()),
        "block size": (
            written(
                "config.json", lambda path: shape_of(path, tp=1, kv_dtype_bytes=2, recurrent_dtype_bytes=2, drafts=0)
            ),
            json.dumps(config).encode(),
        ),
        "model folder": (
            written("hitparity.json", lambda path: Checkpoint.open(path.parent)),
            json.dumps({"name": "x", "seed": 0, "dtype": "float32", "reserved_ids": [], "sha256": {}}).encode(),
        ),
        "safetensors": (written("m.safetensors", check_safetensors), safetensors()),
        "gguf": (written("m.gguf", check_gguf), gguf()),
        "reply": (lambda data, _: reply_from("x", parse_json(data, "x")), json.dumps(reply).encode()),
        "facts": (lambda data, _: facts_from(mapping(parse_json(data, "x"))), json.dumps({"engine": "x"}).encode()),
        "probe log": (written("p.jsonl", lambda path: GrowingJsonLines(path).new()), b'{"rid": "a", "first": 1}\n'),
    }
    for name in READERS:
        found[f"trace {name}"] = (
            written("t.jsonl", lambda path, name=name: list(open_trace(path, name, limit=50))),  # type: ignore[misc]
            json.dumps(traces.get(name, traces["mooncake"])).encode() + b"\n" + b'{"ids": [[1, 9]]}\n',
        )
    found["trace packed"] = (written("t.jsonl.gz", lambda path: list(open_trace(path))), b"\x1f\x8b\x08\0\0\0\0\0\0\0")
    return found


def mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def gguf() -> bytes:
    text = struct.pack("<Q", 3) + b"abc"
    keys = text + struct.pack("<IIQ", 9, 8, 2) + 2 * text + text + struct.pack("<II", 4, 7)
    tensor = text + struct.pack("<IQIQ", 1, 4, 0, 0)
    return b"GGUF" + struct.pack("<IQQ", 3, 1, 2) + keys + tensor + bytes(32)


def safetensors() -> bytes:
    header = json.dumps({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    return struct.pack("<Q", len(header)) + header + bytes(4)


PARSERS = parsers()


def survives(name: str, data: bytes, folder: Path) -> None:
    began = time.process_time()
    try:
        PARSERS[name][0](data, folder)
    except HitparityError as error:
        assert str(error)
    assert time.process_time() - began < 20


@pytest.mark.parametrize("name", PARSERS)
def test_the_honest_input_is_read(name: str, tmp_path: Path) -> None:
    if name in ("model folder", "facts", "trace packed", "trace agents", "trace counters"):
        with pytest.raises(HitparityError):
            PARSERS[name][0](PARSERS[name][1], tmp_path)
        return
    if name in ("trace mooncake", "trace bailian"):
        PARSERS[name][0](PARSERS[name][1].splitlines()[0], tmp_path)
        return
    PARSERS[name][0](PARSERS[name][1], tmp_path)


@pytest.mark.parametrize("name", PARSERS)
@pytest.mark.parametrize("number", range(len(NASTY)))
def test_known_nasty_inputs(name: str, number: int, tmp_path: Path) -> None:
    survives(name, NASTY[number], tmp_path)
    survives(name, PARSERS[name][1] + NASTY[number], tmp_path)


@pytest.mark.parametrize("name", PARSERS)
@FUZZ
@given(data=st.data())
def test_bytes_changed_at_random(name: str, data: st.DataObject, tmp_path: Path) -> None:
    good = bytearray(PARSERS[name][1])
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(good)))
        good[at : at + data.draw(st.integers(0, 4))] = data.draw(st.binary(max_size=8))
    survives(name, bytes(good), tmp_path)


@pytest.mark.parametrize("name", [name for name in PARSERS if PARSERS[name][1][:1] in (b"{", b"[")])
@FUZZ
@given(data=st.data())
def test_values_changed_at_random(name: str, data: st.DataObject, tmp_path: Path) -> None:
    """One value somewhere in the first object is replaced, left out, or added."""
    honest = PARSERS[name][1]
    try:
        value, rest = json.loads(honest), b""
    except ValueError:
        first, _, rest = honest.partition(b"\n")
        value = json.loads(first)
    at: Any = value
    for _ in range(data.draw(st.integers(0, 4))):
        keys = list(at) if isinstance(at, dict) else range(len(at))
        inner = [key for key in keys if isinstance(at[key], dict | list) and at[key]]
        if not inner:
            break
        at = at[data.draw(st.sampled_from(inner))]
    key = data.draw(st.sampled_from(list(at) if isinstance(at, dict) else range(len(at))))
    if data.draw(st.booleans()):
        at[key] = data.draw(VALUES)
    elif isinstance(at, dict):
        del at[key]
        at[data.draw(st.text(max_size=8))] = data.draw(VALUES)
    indented = 1 if honest[:2] == b"{\n" else None
    survives(name, json.dumps(value, indent=indented).encode() + b"\n" + rest, tmp_path)


@FUZZ
@given(depth=st.integers(1, 3 * MAX_DEPTH), kind=st.sampled_from(["[]", "{}"]))
@example(depth=MAX_DEPTH, kind="[]")
@example(depth=MAX_DEPTH + 1, kind="[]")
def test_depth_is_bounded(depth: int, kind: str) -> None:
    opening = "[" if kind == "[]" else '{"a":'
    text = opening * depth + "1" + kind[1] * depth
    if depth <= MAX_DEPTH:
        parse_json(text, "x")
    else:
        with pytest.raises(HitparityError, match="nested over 64 deep"):
            parse_json(text, "x")
