"""Stand-alone worker of the reference engine, JSON lines over stdin and stdout.

    worker.py '{"model": "DIR", "law": "vllm@0.32", "law_options": {"block_size": 16, "num_blocks": 1024}, ...}'

Protocol: adapters/worker.py, version 1. The argument holds the fields of `EngineConfig`, and `model`.
"""

import json
import os
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

# Behind the interpreter's own packages: this folder may be a site-packages of another Python version.
sys.path.append(str(Path(__file__).parents[2]))

from vocabulary.engine import Feature, TokenRequest
from vocabulary.errors import HitparityError, RequestRefused

if TYPE_CHECKING:
    from reference_engine.load import Loaded
    from reference_engine.request import Completion

HELLO = 1


def load(arguments: dict[str, Any]) -> "Loaded":
    """The started engine; HitparityError with the reason when it cannot be had."""
    from reference_engine.load import EngineConfig, load_engine

    directory = Path(arguments.pop("model"))
    return load_engine(directory, EngineConfig(**arguments))


def facts(loaded: "Loaded") -> dict[str, Any]:
    """Fields of EngineFacts, read back from the started engine."""
    import torch

    engine, types, config = loaded.engine, loaded.types, loaded.config
    decoder, rooms = engine.runner.decoder, engine.runner.rooms
    return {
        "device": str(decoder.weights.embedding.device),
        "dtype": str(types.weights).removeprefix("torch."),
        "granule": engine.law.granule,
        "groups": list(engine.config.groups),
        "context_len": engine.config.context_len,
        "vocab_size": engine.config.vocab_size,
        "caps_last_token": engine.law.caps_last_token,
        "can_salt": engine.law.can_salt,
        "notes": [types.note] if types.note else [],
        "options": {
            "compute_dtype": str(types.compute).removeprefix("torch."),
            "kv_dtype": str(types.compute).removeprefix("torch."),
            "pool_tokens": engine.law.pool_tokens or config.pool_tokens,
            "pool_bytes": sum(pool.nbytes for pool in decoder.pools),
            "rooms": {f"{at} {room.group}": room.slots for at, room in enumerate(rooms)},
            "backend": config.backend,
            "drafts": engine.drafts,
            "prefill_grid": engine.runner.prefill_grid,
            "max_num_batched_tokens": config.max_num_batched_tokens,
            "max_num_seqs": config.max_num_seqs,
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
        },
    }


def answer(loaded: "Loaded", message: dict[str, Any]) -> dict[str, Any]:
    """One line out for one line in."""
    if message["op"] == "reset":
        loaded.engine.reset()
        return {"ok": True, "reset": True}
    sent_ns = time.monotonic_ns()
    completions = loaded.engine.generate([request(fields) for fields in message["requests"]])
    return {"ok": True, "replies": [reply(completion, loaded, sent_ns) for completion in completions]}


def request(fields: dict[str, Any]) -> TokenRequest:
    """A TokenRequest from a message's fields."""
    return TokenRequest(
        request_id=fields["request_id"],
        ids=tuple(fields["ids"]),
        max_tokens=fields["max_tokens"],
        namespace=fields["namespace"],
        features=frozenset(Feature(name) for name in fields["features"]),
        lora=fields["lora"],
        external_hit=fields["external_hit"],
        fork_of=fields["fork_of"],
    )


def reply(completion: "Completion", loaded: "Loaded", sent_ns: int) -> dict[str, Any]:
    """Fields of a Reply."""
    return {
        "request_id": completion.request.request_id,
        "prompt_len": completion.request.prompt_len,
        "hit_len": completion.expectation.hit_len,
        "hit_source": f"{loaded.engine.law.id} as cache manager, when the request was admitted",
        "position_start": completion.hand_over.position_start,
        "position_source": "positions tensor of the first forward call",
        "output_ids": completion.output_ids,
        "first_logprob": completion.first_logprob,
        "sent_ns": sent_ns,
        "first_token_ns": completion.first_token_ns,
        "done_ns": completion.done_ns,
        "steps": completion.steps,
        "native": {
            "hand_over": asdict(completion.hand_over),
            "drafted": completion.drafted,
            "accepted": completion.accepted,
        },
    }


def serve(loaded: "Loaded", pipe: IO[str]) -> None:
    """Answer line by line until told to close, or until the other side is gone."""
    for line in sys.stdin:
        message = json.loads(line)
        if message["op"] == "close":
            return
        try:
            say(pipe, answer(loaded, message))
        except RequestRefused as error:
            say(pipe, {"ok": False, "refused": str(error)})
        except RuntimeError as error:  # torch: out of memory, a device fault
            say(pipe, {"ok": False, "failed": str(error)})


def say(pipe: IO[str], line: dict[str, Any]) -> None:
    """Write one line."""
    print(json.dumps(line), file=pipe, flush=True)


def main() -> None:
    """Say hello, then serve."""
    pipe = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a library prints belongs in the log
    try:
        loaded = load(json.loads(sys.argv[1]))
    except ImportError as error:
        why = f"needs {error.name}, which {sys.executable} does not have: pip install 'hitparity[reference]'"
        say(pipe, {"failed": why})
    except (HitparityError, RuntimeError) as error:
        say(pipe, {"failed": f"cannot start: {error}"})
    else:
        say(pipe, {"hello": HELLO, "facts": facts(loaded)})
        serve(loaded, pipe)


if __name__ == "__main__":
    main()
