"""Chat templates are rendered as transformers renders them, and API bodies are read however they are wrapped."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from checkpoints import Checkpoint
from vocabulary.errors import UsageError
from workloads.traces.base import MalformedRow
from workloads.traces.logs import openai
from workloads.traces.logs.base import LogReport
from workloads.traces.logs.template import ChatTokenizer

TEMPLATE = """{%- if tools %}{{ bos_token }}tools: {{ tools | tojson }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'never' %}{{ raise_exception('no such role') }}{% endif %}
    {%- if message.role == 'skip' %}{% continue %}{% endif %}
[{{ message.role }}]
    {%- if message.tool_calls %}
        {%- for call in message.tool_calls %} {{ call.function.name }}({{ call.function.arguments | tojson(indent=1) }})
        {%- endfor %}
    {%- endif %} {% generation %}{{ message.content or '' }}{% endgeneration %}

{% endfor %}
{%- if add_generation_prompt %}[assistant]{{ eos_token }}{% endif %}
"""
GOLDEN = Path(__file__).parent / "golden"
CALL = {"id": "1", "type": "function", "function": {"name": "look", "arguments": '{"at": "<b>", "n": [1, 2]}'}}
BODIES: list[dict[str, Any]] = [
    {"messages": [{"role": "user", "content": "Hello  you\n"}]},
    {"messages": [{"role": "user", "content": "a"}, {"role": "skip", "content": "b"}], "add_generation_prompt": False},
    {
        "messages": [
            {"role": "user", "content": "look"},
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            {"role": "tool", "content": 'there\'s "it"'},
        ],
        "tools": [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}],
    },
]


@pytest.fixture
def folder(tmp_path: Path, checkpoint: Callable[[str], Checkpoint]) -> Path:
    model = tmp_path / "model"
    model.mkdir()
    source = Path(checkpoint("tiny-qwen3").directory)
    shutil.copy(source / "tokenizer.json", model)
    config = json.loads((source / "tokenizer_config.json").read_text())
    (model / "tokenizer_config.json").write_text(json.dumps(config | {"chat_template": TEMPLATE}))
    return model


def test_transformers_renders_the_same(folder: Path) -> None:
    """The golden file holds what transformers 5.19.0 makes of TEMPLATE and BODIES (render_with_transformers.py)."""
    golden = json.loads((GOLDEN / "transformers-5.19.0.json").read_text())
    assert (golden["template"], golden["bodies"]) == (TEMPLATE, BODIES), "made of something else: make it again"
    assert [ChatTokenizer(folder).chat(body).tolist() for body in BODIES] == golden["ids"]


def test_what_a_template_cannot_render_is_said(folder: Path) -> None:
    tokenizer = ChatTokenizer(folder)
    with pytest.raises(MalformedRow, match="refuses it: no such role"):
        tokenizer.chat({"messages": [{"role": "never", "content": "x"}]})
    with pytest.raises(MalformedRow, match="an image"):
        tokenizer.chat({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]})
    parts = [{"type": "text", "text": "Hello  you\n"}]
    assert tokenizer.chat({"messages": [{"role": "user", "content": parts}]}).tolist() == (
        tokenizer.chat(BODIES[0]).tolist()
    )
    (folder / "tokenizer_config.json").write_text("{}")
    with pytest.raises(UsageError, match="no chat template; give one with --chat-template"):
        ChatTokenizer(folder).chat(BODIES[0])
    (folder / "chat_template.jinja").write_text("{% for %}")
    with pytest.raises(UsageError, match="chat template is broken"):
        ChatTokenizer(folder)
    with pytest.raises(UsageError, match="name a model folder"):
        ChatTokenizer(folder / "none")


def test_bodies_are_found_however_they_are_wrapped(folder: Path, tmp_path: Path) -> None:
    body = BODIES[0] | {"cache_salt": "tenant"}
    usage = {"prompt_tokens": 1, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 16}}
    answer = {"choices": [{"message": {"role": "assistant", "content": "Yes"}}], "usage": usage}
    rows: list[Any] = [
        body,
        {
            "custom_id": "a",
            "url": "/v1/chat/completions",
            "body": body,
            "response": {"status_code": 200, "body": answer},
        },
        {"request": body, "response": answer, "time": 12.5, "session_id": "s"},
        {"payload": {"prompt": [5, 6, 7]}, "timestamp": "2026-11-30T01:50:36Z"},
        {"payload": {"prompt": ["a", "b"]}},
        [1],
    ]
    log = tmp_path / "log.jsonl"
    log.write_text("\n".join(map(json.dumps, rows)))
    report = LogReport()
    requests = list(openai.read(log, report, ChatTokenizer(folder)))
    assert [each.line for each in requests] == [1, 2, 3, 4]
    assert requests[0].ids.tolist() == requests[1].ids.tolist() == requests[2].ids.tolist()
    assert [each.namespace for each in requests] == ["tenant", "tenant", "tenant", None]
    assert [each.hit_len for each in requests] == [None, 16, 16, None]
    assert [each.arrival_ns for each in requests] == [None, None, 12_500_000_000, 1_796_003_436_000_000_000]
    assert requests[2].session == "s"
    assert requests[1].output_ids is not None and len(requests[1].output_ids) == 3
    assert requests[3].ids.tolist() == [5, 6, 7]
    assert [row.line for row in report.skipped_rows] == [5, 6]
    assert "2 of 2 prompts have another length by the server's own count" in report.notes[0]
