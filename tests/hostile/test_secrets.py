"""A key is in the request header and nowhere else: not in what a run prints, writes or raises."""

from __future__ import annotations

import json
import stat
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest
from commands import hitparity

from adapters.base import EngineSpec
from adapters.exposure import api_key, is_loopback, warnings
from adapters.registry import adapter_for
from harness.data import run_folders
from harness.experiment import load_experiment
from harness.records import FindingKind, answer_sha256
from harness.store import load_run
from vocabulary.engine import Mode
from vocabulary.errors import UsageError

KEY = 'sk-made-up/"5e'
SPELLINGS = (KEY, json.dumps(KEY)[1:-1], "sk-made-up")
EXPERIMENT = """
name = "e"
models = ["tiny-qwen3"]
contents = "{contents}"
[[engine]]
name = "vllm"
url = "http://127.0.0.1:{port}"
{key}
[[workload]]
family = "changed"
shared = 64
"""


class Vllm(BaseHTTPRequestHandler):
    """As much of vLLM 0.32's server as attach mode needs; it repeats the header that it was sent wherever it can."""

    seen: list[list[int]]
    headers_seen: set[str | None]
    trouble: bool

    def do_GET(self) -> None:
        self.headers_seen.add(self.headers["Authorization"])
        if self.path == "/metrics":
            self.plain(b'vllm:cache_config_info{block_size="16",enable_prefix_caching="True",num_gpu_blocks="4096"} 1')
        elif self.path == "/version":
            self.json({"version": "0.32.0"})
        else:
            self.json({"data": [{"id": f"model {self.headers['Authorization']}", "max_model_len": 4096}]})

    def do_POST(self) -> None:
        self.headers_seen.add(self.headers["Authorization"])
        text = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.path != "/v1/completions":
            self.seen.clear()
            self.json({"success": True})
        elif self.trouble and self.seen:
            self.json({"error": {"message": f"who is {self.headers['Authorization']}?", "code": 401}}, 401)
        else:
            self.stream(json.loads(text))

    def stream(self, body: dict[str, Any]) -> None:
        ids, key = body["prompt"], self.headers["Authorization"]
        common = max((sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(ids, other, strict=False)))
                      for other in self.seen), default=0)  # fmt: skip
        hit, output = min(common, len(ids) - 1) // 16 * 16, [1234] * body["max_tokens"]
        self.seen.append(ids + output)
        choice = {"token_ids": output, "prompt_token_ids": ids, "logprobs": {"token_logprobs": [-1.0]}}
        usage = {"prompt_tokens": len(ids), "prompt_tokens_details": {"cached_tokens": hit}}
        said = {"id": f"cmpl-{body['request_id']}", "choices": [choice], "usage": usage, "echo": key}
        self.plain(b"data: " + json.dumps(said).encode() + b"\n\ndata: [DONE]\n\n")

    def json(self, value: object, status: int = 200) -> None:
        self.plain(json.dumps(value).encode(), status)

    def plain(self, data: bytes, status: int = 200) -> None:
        self.wfile.write(f"HTTP/1.1 {status} {self.headers['Authorization']}\r\n\r\n".encode() + data)
        self.close_connection = True

    def log_message(self, *_: object) -> None:
        """Quiet."""


@contextmanager
def server(*, trouble: bool = False) -> Iterator[tuple[int, set[str | None]]]:
    headers: set[str | None] = set()
    handler = type("Handler", (Vllm,), {"seen": [], "headers_seen": headers, "trouble": trouble})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as served:
        threading.Thread(target=served.serve_forever, daemon=True).start()
        yield served.server_address[1], headers
        served.shutdown()


def left_behind(folder: Path) -> str:
    """All that files below a folder hold, and their names."""
    paths = [path for path in folder.rglob("*") if path.is_file()]
    return "".join(f"{path}\n{path.read_bytes().decode('utf-8', errors='replace')}\n" for path in paths)


@pytest.mark.parametrize("trouble", [False, True])
def test_a_run_leaves_no_key_behind(trouble: bool, tmp_path: Path) -> None:
    (tmp_path / "key").write_text(f"{KEY}\n", encoding="utf-8")
    (tmp_path / "key").chmod(0o600)
    named = f'api_key_file = "{tmp_path}/key"' if trouble else 'api_key_env = "MADE_UP_KEY"'
    results = tmp_path / "r"
    with server(trouble=trouble) as (port, headers):
        path = tmp_path / "e.toml"
        path.write_text(EXPERIMENT.format(port=port, key=named, contents="hashes"), encoding="utf-8")
        run = f"glob:{results}/e/*"
        commands = [
            ["run", str(path), "--dry-run"],
            ["run", str(path), "--results", str(results)],
            ["report", run, "--html", str(results / "x.html"), "--json", str(results / "x.json")],
        ]
        results.mkdir()
        ends = hitparity(*commands, environment={"MADE_UP_KEY": KEY, "PYTHONUTF8": "1", "TMPDIR": str(results)})
    assert headers == {f"Bearer {KEY}"}
    said = "".join(f"{each.said}{each.escaped}" for each in ends)
    assert [each.status for each in ends[:2]] == [0, 2 if trouble else 0], said
    everything = left_behind(results)
    assert everything.count("requests.jsonl") >= 1
    for spelled in SPELLINGS:
        assert spelled not in said
        assert spelled not in everything
    if trouble:
        assert "refused with 401" in said
        assert "Bearer [API key]" in said
    else:
        (run,) = run_folders(results / "e")
        records = load_run(run).requests
        assert {record.output_ids for record in records} == {()}
        assert {record.output_sha256 for record in records} == {answer_sha256((1234,))}
        assert not any(finding.kind is FindingKind.WARM_DIFFERS for record in records for finding in record.findings)


def spec(**fields: Any) -> EngineSpec:
    adapter = adapter_for("vllm")
    return EngineSpec(engine="vllm", version="0.32.0", options=adapter.options(), **{"mode": Mode.ATTACH} | fields)


def test_a_key_file_must_be_private_and_hold_a_key(tmp_path: Path) -> None:
    path = tmp_path / "key"
    with pytest.raises(UsageError, match="cannot be read"):
        api_key(spec(api_key_file=path))
    path.write_text(KEY, encoding="utf-8")
    path.chmod(0o644)
    with pytest.raises(UsageError, match="others may read this key; chmod 600 it"):
        api_key(spec(api_key_file=path))
    path.chmod(0o600)
    assert api_key(spec(api_key_file=path)) == KEY
    path.write_text("\n", encoding="utf-8")
    with pytest.raises(UsageError, match="holds no key"):
        api_key(spec(api_key_file=path))
    path.write_text("k" * 5000, encoding="utf-8")
    with pytest.raises(UsageError, match="over 4096 bytes"):
        api_key(spec(api_key_file=path))


@pytest.mark.parametrize(
    "line",
    [f"api_key = {KEY!r}", f"environment = {KEY!r}", f"environment = {{ X = [{KEY!r}] }}", f"api_key_env = [{KEY!r}]"],
)
def test_a_mistaken_experiment_does_not_show_what_may_be_a_key(line: str, tmp_path: Path) -> None:
    path = tmp_path / "e.toml"
    path.write_text(EXPERIMENT.format(port=1, key=line, contents="full"), encoding="utf-8")
    with pytest.raises(UsageError) as caught:
        load_experiment(path)
    assert "sk-made-up" not in str(caught.value)


def test_what_a_configuration_exposes_is_said() -> None:
    assert warnings(spec(url="http://127.0.0.1:8000", api_key_env="K")) == []
    assert warnings(spec(mode=Mode.LAUNCH)) == []
    assert any("port 8000" in each for each in warnings(spec(mode=Mode.LAUNCH, port=8000)))
    away = warnings(spec(url="http://host.example", api_key_env="K"))
    assert any("the API key cross the network unencrypted" in each for each in away)
    assert len(warnings(spec(url="https://host.example"))) == 1
    assert is_loopback("http://[::1]:1")
    assert not is_loopback("http://127.0.0.1.example")


def test_temporary_folders_are_private() -> None:
    with tempfile.TemporaryDirectory() as folder:
        assert stat.S_IMODE(Path(folder).stat().st_mode) == 0o700
    root = Path(__file__).parents[2]
    for package in ("adapters", "checkpoints", "harness", "reference_engine", "workloads"):
        for path in (root / package).rglob("*.py"):
            text = path.read_text(encoding="utf-8")
            assert "mktemp(" not in text, path
            assert '"/tmp' not in text, path
