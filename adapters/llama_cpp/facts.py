"""What a llama-server says about itself, from /props, /v1/models and the log it writes while starting."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adapters.http import HttpClient
from adapters.llama_cpp.kv_types import kv_type
from adapters.llama_cpp.options import LlamaCppOptions
from adapters.llama_cpp.state_size import state_sizes
from checkpoints import Checkpoint
from vocabulary.errors import EngineUnavailable

FILE_TYPES = {"all F32": "float32", "BF16": "bfloat16", "F16": "float16"}
"""`model_ftype` of /props in the vocabulary's words; quantised files keep llama.cpp's name."""
_CONTEXT = re.compile(
    r"llama_context: (n_batch|n_ubatch|n_ctx|n_ctx_seq|flash_attn|kv_unified) += (\w+)$", re.MULTILINE
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFacts:
    """Read back from a server that runs."""

    build_info: str
    dtype: str
    slots: int
    n_ctx_slot: int
    """Tokens, prompt and output, that one slot holds."""
    vocab_size: int


def read_facts(client: HttpClient, model: Checkpoint) -> ServerFacts:
    """Ask the server; EngineUnavailable when it serves another model than the checkpoint."""
    props = client.get_json("/props")
    try:
        vocab_size = int(client.get_json("/v1/models")["data"][0]["meta"]["n_vocab"])
        facts = ServerFacts(
            build_info=str(props["build_info"]),
            dtype=FILE_TYPES.get(props["model_ftype"], str(props["model_ftype"])),
            slots=int(props["total_slots"]),
            n_ctx_slot=int(props["default_generation_settings"]["n_ctx"]),
            vocab_size=vocab_size,
        )
    except (KeyError, IndexError, TypeError) as error:
        raise EngineUnavailable(
            f"{client.engine}: /props and /v1/models lack a field ({error!r}); is it a llama-server, b10434 or later?"
        ) from None
    if (facts.vocab_size, facts.dtype) != (model.vocab_size, model.dtype):
        raise EngineUnavailable(
            f"{client.engine}: serves a model of {facts.vocab_size} tokens in {facts.dtype}, but {model.directory} "
            f"has {model.vocab_size} in {model.dtype}; start it on {model.gguf}"
        )
    return facts


def resolved_options(
    options: LlamaCppOptions, model: Checkpoint, server: ServerFacts, log: Path | None
) -> dict[str, Any]:
    """Options as the server resolved them: what it reports, for the rest what it was started with, and state sizes.

    `log`: of a launched server; without one only what the user stated is known besides.
    """
    read_back = {"n_parallel": server.slots, "n_ctx_slot": server.n_ctx_slot, "build_info": server.build_info}
    if log is None:
        return options.model_dump(mode="json", exclude_unset=True) | read_back
    types = {name: kv_type(getattr(options, name), model.dtype) for name in ("type_k", "type_v")}
    printed = dict(_CONTEXT.findall(log.read_text(encoding="utf-8", errors="replace")))
    values = {name: _value(text) for name, text in printed.items()}
    known = options.model_dump(mode="json") | types | values | read_back
    return known | state_sizes(model, known)


def _value(text: str) -> int | bool | str:
    words: dict[str, bool | str] = {"true": True, "false": False, "enabled": "on", "disabled": "off"}
    return int(text) if text.isdigit() else words.get(text, text)
