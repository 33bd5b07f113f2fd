"""A model folder's tokenizer with its chat template, as Hugging Face folders hold them.

Reads `tokenizer.json`, and the template from `chat_template.jinja` or `tokenizer_config.json`. Templates are rendered
as transformers does it (utils/chat_template_utils.py; a test compares): a sandbox, blocks trimmed, `raise_exception`,
`strftime_now` and `tojson` known. A template that asks for today's date gets one date for the whole log: today's,
unless another is given.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from vocabulary.errors import UsageError
from workloads.traces.base import MalformedRow, TokenIds

TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token")


class ChatTokenizer:
    """Text and chats to token IDs."""

    def __init__(self, folder: Path, *, template: Path | None = None, date: datetime.datetime | None = None) -> None:
        """`template`: a file in place of the folder's own. UsageError where something is missing or broken."""
        self.folder = folder
        try:
            self._tokenizer = Tokenizer.from_str((folder / "tokenizer.json").read_text(encoding="utf-8"))
            config = folder / "tokenizer_config.json"
            self._config = json.loads(config.read_text(encoding="utf-8")) if config.exists() else {}
        except OSError as error:
            raise UsageError(
                f"{folder}: no tokenizer there ({error.strerror}: {error.filename}); name a model folder"
            ) from None
        except Exception as error:  # noqa: BLE001  (tokenizers raises plain Exception for a file it cannot read)
            raise UsageError(f"{folder}: its tokenizer cannot be read: {error}") from None
        self._date = date or datetime.datetime.now(datetime.UTC)
        self._template = self._compiled(template)

    @property
    def vocab_size(self) -> int:
        """IDs lie below."""
        size: int = self._tokenizer.get_vocab_size(with_added_tokens=True)
        return size

    def encode(self, text: str, *, special: bool = False) -> TokenIds:
        """IDs of a text; `special`: with what the tokenizer puts around a plain prompt (often a first token)."""
        return np.array(self._tokenizer.encode(text, add_special_tokens=special).ids, np.int32)

    def chat(self, body: Mapping[str, Any]) -> TokenIds:
        """IDs of a chat completion's prompt. MalformedRow where the template refuses it or it is not text alone."""
        if self._template is None:
            raise UsageError(f"{self.folder}: has no chat template; give one with --chat-template")
        messages = body.get("messages")
        if not isinstance(messages, list) or not all(isinstance(each, dict) for each in messages):
            raise MalformedRow("`messages` is no list of objects")
        tokens = {name: _text(self._config[name]) for name in TOKENS if self._config.get(name)}
        more = body.get("chat_template_kwargs")
        try:
            text = self._template.render(
                messages=[_plain(message) for message in messages],
                tools=body.get("tools") or None,
                documents=body.get("documents"),
                add_generation_prompt=body.get("add_generation_prompt", True),
                **tokens,
                **(more if isinstance(more, dict) else {}),
            )
        except (TemplateError, TypeError, ValueError) as error:
            raise MalformedRow(f"the chat template refuses it: {error}") from None
        return self.encode(text)

    def _compiled(self, file: Path | None) -> Any:
        source = self._source(file)
        if source is None:
            return None
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation]
        )
        environment.filters["tojson"] = _json
        environment.globals["raise_exception"] = _refuse
        environment.globals["strftime_now"] = self._date.strftime
        try:
            return environment.from_string(source)
        except TemplateError as error:
            raise UsageError(f"{file or self.folder}: the chat template is broken: {error}") from None

    def _source(self, file: Path | None) -> str | None:
        beside = self.folder / "chat_template.jinja"
        try:
            if file is not None or beside.exists():
                return (file or beside).read_text(encoding="utf-8")
        except OSError as error:
            raise UsageError(f"{file or beside}: cannot be read: {error.strerror or error}") from None
        found = self._config.get("chat_template")
        if isinstance(found, list):  # several by name
            found = next((each.get("template") for each in found if each.get("name") == "default"), None)
        return found if isinstance(found, str) else None


class _Generation(Extension):
    """`{% generation %}` marks what a model is trained on; it changes nothing about the text."""

    tags = {"generation"}  # noqa: RUF012  (jinja2's own declaration)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _plain(message: Mapping[str, Any]) -> dict[str, Any]:
    """Content parts of text as one text; servers give templates either form, and most templates take a text."""
    message = dict(message) | _calls(message)
    content = message.get("content")
    if not isinstance(content, list):
        return message
    if not all(isinstance(part, dict) and part.get("type") == "text" for part in content):
        raise MalformedRow("it holds an image, audio or file, whose tokens the tokenizer does not know")
    return message | {"content": "\n".join(str(part.get("text", "")) for part in content)}


def _calls(message: Mapping[str, Any]) -> dict[str, Any]:
    """Tool calls with their arguments as objects: the API sends a text, templates are given what it says."""
    calls = message.get("tool_calls")
    if not isinstance(calls, list):
        return {}
    parsed = []
    for call in calls:
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict) and isinstance(arguments := function.get("arguments"), str):
            function = function | {"arguments": json.loads(arguments or "{}")}
            call = call | {"function": function}  # noqa: PLW2901
        parsed.append(call)
    return {"tool_calls": parsed}


def _text(token: Any) -> str:
    return str(token.get("content", "")) if isinstance(token, dict) else str(token)


def _json(value: Any, ensure_ascii: bool = False, indent: int | None = None, **more: Any) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **more)


def _refuse(message: str) -> NoReturn:
    raise TemplateError(message)
