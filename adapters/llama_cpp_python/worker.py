"""Stand-alone worker, run by the environment's Python: one `llama_cpp.Llama`, JSON lines over stdin and stdout.

    worker.py '{"model_path": "model.gguf", "n_ctx": 8192, "type_k": "f32", ...}'

Protocol: adapters/worker.py, version 1. Requests sent together run one after the other: this engine has no
batching of requests.

Source of the rules read here: llama-cpp-python 0.3.36, `Llama.generate` and `Llama.eval`. Every prefill step
passes through `LlamaContext.decode`, whose batch carries absolute positions; nothing else reports them. What a hit
stands on is read from the context's memory before the request: its first position (`llama_memory_seq_pos_min`).
"""

import contextlib
import json
import os
import sys
import time
from typing import Any

import llama_cpp
import numpy as np

HELLO = 1
FILE_TYPES = {"0": "float32", "1": "float16", "32": "bfloat16"}
LOGPROB, LOGITS = "logprob", "logits"


class RefusedError(Exception):
    """This request only."""


class Engine:
    """A Llama whose decode calls are recorded as (first position, tokens)."""

    def __init__(self, options: dict[str, Any]) -> None:
        for name in ("type_k", "type_v"):
            options[name] = getattr(llama_cpp, f"GGML_TYPE_{options[name].upper()}")
        self.llama = llama_cpp.Llama(**options)
        self.llama.verbose = False  # the load is worth logging, a line per request would count into its time
        self.batches: list[tuple[int, int]] = []
        decode = self.llama._ctx.decode

        def recorded(batch: Any) -> Any:
            self.batches.append((int(batch.batch.pos[0]), int(batch.batch.n_tokens)))
            return decode(batch)

        self.llama._ctx.decode = recorded

    def facts(self) -> dict[str, Any]:
        """What the hello line says of the loaded model."""
        llama, params = self.llama, self.llama.context_params
        file_type = llama.metadata.get("general.file_type", "unknown")
        return {
            "version": llama_cpp.__version__,
            "dtype": FILE_TYPES.get(file_type, f"llama.cpp file type {file_type}"),
            "context_len": llama.n_ctx(),
            "vocab_size": llama.n_vocab(),
            "options": {
                "n_ctx": llama.n_ctx(),
                "n_batch": llama.n_batch,
                "n_ubatch": params.n_ubatch,
                "n_threads": llama.n_threads,
                "n_threads_batch": llama.n_threads_batch,
                "swa_full": bool(params.swa_full),
                "type_k": type_name(params.type_k),
                "type_v": type_name(params.type_v),
                "flash_attn": params.flash_attn_type == llama_cpp.LLAMA_FLASH_ATTN_TYPE_ENABLED,
            },
        }

    def check(self, request: dict[str, Any]) -> None:
        """RefusedError for a request that this engine cannot honour; `generate` would not notice."""
        ids, vocab, n_ctx = request["ids"], self.llama.n_vocab(), self.llama.n_ctx()
        if request["namespace"] is not None:
            raise RefusedError("has no cache salt; send this request without a namespace")
        if unknown := set(request["features"]) - {LOGPROB, LOGITS}:
            raise RefusedError(f"cannot do {', '.join(sorted(unknown))}")
        if not ids:
            raise RefusedError("the prompt is empty")
        if request["max_tokens"] < 1:
            raise RefusedError("generates at least one token; max_tokens must be 1 or more")
        if bad := next((i for i in ids if not 0 <= i < vocab), None):
            raise RefusedError(f"token ID {bad} is outside the vocabulary of {vocab}")
        if len(ids) + request["max_tokens"] > n_ctx:
            raise RefusedError(f"{len(ids)} + {request['max_tokens']} tokens exceed n_ctx = {n_ctx}; raise it")

    def send(self, request: dict[str, Any]) -> dict[str, Any]:
        """Generate greedily; the fields of a Reply."""
        ids = request["ids"]
        self.batches.clear()
        first_held = llama_cpp.llama_memory_seq_pos_min(self.llama._ctx.memory, 0)
        native: dict[str, Any] = {}
        sent = time.monotonic_ns()
        # Closed before the last token would be decoded: it stays without KV, as in a server.
        with contextlib.closing(self.llama.generate(ids, temp=0.0)) as tokens:
            output = [next(tokens)]
            first = time.monotonic_ns()
            steps = [(start, start + count) for start, count in self.batches]
            logprob = self.logprob(output[0]) if LOGPROB in request["features"] else None
            if LOGITS in request["features"]:
                native["logits"] = self.logits().tolist()
            output += [next(tokens) for _ in range(request["max_tokens"] - 1)]
        hit = steps[0][0] if steps else len(ids)
        return {
            "request_id": request["request_id"],
            "prompt_len": len(ids),
            "hit_len": hit,
            "hit_source": "first position passed to llama_decode; none: the whole prompt",
            "position_start": hit,
            "position_source": "llama_batch.pos of the first llama_decode",
            "output_ids": output,
            "first_logprob": logprob,
            "sent_ns": sent,
            "first_token_ns": first,
            "done_ns": time.monotonic_ns(),
            "steps": steps,
            "backed_len": self.backed(hit, first_held),
            "native": {"n_tokens": self.llama.n_tokens, **native},
        }

    def backed(self, hit: int, first_held: int) -> int:
        """Tokens of a hit that every layer holds; `first_held`: first position in memory before the request, -1: none.

        A recurrent state stands behind one position only; a window layer must hold what the first new token sees.
        """
        window = llama_cpp.llama_model_n_swa(self.llama._model.model)
        if self.llama._is_recurrent or self.llama._is_hybrid:
            held = first_held == hit - 1
        else:
            held = 0 <= first_held <= max(0, hit - window + 1 if window else 0)
        return hit if held else 0

    def logits(self) -> Any:
        """Logits of the last decoded position, float64 of the vocabulary's size."""
        row = np.ctypeslib.as_array(self.llama._ctx.get_logits_ith(-1), shape=(self.llama.n_vocab(),))
        return row.astype(np.float64)

    def logprob(self, token: int) -> float:
        """Natural-log probability of `token` under the logits of the last decoded position."""
        row = self.logits()
        top = row.max()
        return float(row[token] - top - np.log(np.exp(row - top).sum()))

    def reset(self) -> bool:
        """Forget the tokens and the KV behind them."""
        self.llama.reset()
        self.llama._ctx.kv_cache_clear()
        return True


def type_name(number: int) -> str:
    """A ggml type in lower case, such as "f32"."""
    prefix = "GGML_TYPE_"
    names: list[str] = [name for name, value in vars(llama_cpp).items() if name.startswith(prefix) and value == number]
    return names[0].removeprefix(prefix).lower()


def answer(engine: Engine, message: dict[str, Any]) -> dict[str, Any]:
    """One line out for one line in."""
    if message["op"] == "reset":
        return {"ok": True, "reset": engine.reset()}
    for request in message["requests"]:
        engine.check(request)
    return {"ok": True, "replies": [engine.send(request) for request in message["requests"]]}


def main() -> None:
    """Say hello, then answer until told to close."""
    pipe = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever the engine prints belongs in the log

    def say(line: dict[str, Any]) -> None:
        print(json.dumps(line), file=pipe, flush=True)

    try:
        engine = Engine(json.loads(sys.argv[1]))
    except (ValueError, RuntimeError, AttributeError) as error:
        say({"failed": f"cannot load the model: {error}"})
        return
    say({"hello": HELLO, "facts": engine.facts()})
    for line in sys.stdin:
        message = json.loads(line)
        if message["op"] == "close":
            break
        try:
            say(answer(engine, message))
        except RefusedError as error:
            say({"ok": False, "refused": str(error)})
        except RuntimeError as error:
            say({"ok": False, "failed": str(error)})


if __name__ == "__main__":
    main()
