"""Stand-alone worker: TensorRT-LLM's second KV cache manager without a model, JSON lines over stdin and stdout.

Protocol: adapters/worker.py, version 1, and `{"op": "configure", "settings": {...}}`. Run by the Python of an
environment that has tensorrt_llm (1.4 line) and a GPU; written from its interface and never run against it.

Per request: `probe_reuse` (holds nothing), then admission (`create_kv_cache`), then the commits that the executor would
make: chunk by chunk, at snapshot points, or at the end of the prompt. The prompt is passed without its last token,
as the executor passes it. ASSUMPTION: `commit` with recurrent layers keeps their state at the position it ends at.
"""

import hashlib
import json
import os
import sys
import time
from typing import IO, Any

HELLO = 1
QUOTA_BYTES = 1 << 30
BYTES_PER_TOKEN = 256  # of one buffer; only bookkeeping is asked, so any size does
CONTEXT_LEN = 1 << 20


class Manager:
    """One configured KV cache manager."""

    def __init__(self, settings: dict[str, Any]) -> None:
        """Raises ImportError, RuntimeError or ValueError with the package's own words."""
        import torch
        from tensorrt_llm.runtime import kv_cache_manager_v2 as api

        self.api, self.settings = api, settings
        self.stream = api.CudaStream(torch.cuda.current_stream().cuda_stream)
        self.device = torch.cuda.get_device_name()
        self.manager = api.KVCacheManager(
            api.KVCacheManagerConfig(
                tokens_per_block=settings["tokens_per_block"],
                cache_tiers=[api.GpuCacheTierConfig(quota=QUOTA_BYTES)],
                layers=[self.layer(index, group) for index, group in enumerate(settings["groups"])],
                enable_partial_reuse=settings["enable_partial_reuse"],
                reuse_match_backoff=settings["reuse_match_backoff"],
                commit_min_snapshot=settings["commit_min_snapshot"],
            )
        )

    def layer(self, index: int, group: str) -> Any:
        """One layer stands for its group."""
        kind, *numbers = group.split(":")
        buffer = self.api.BufferConfig(role="key", size=self.settings["tokens_per_block"] * BYTES_PER_TOKEN)
        if kind == "gdn":
            return self.api.SsmLayerConfig(layer_id=index, buffers=[buffer])
        window = int(numbers[-1]) if kind == "swa" else None
        return self.api.AttentionLayerConfig(
            layer_id=index,
            buffers=[buffer],
            sliding_window_size=window,
            num_sink_tokens=self.settings["sink_token_length"] if window is not None else None,
        )

    def commits(self, start: int, length: int) -> list[int]:
        """Positions at which the executor commits a prompt that starts at `start`."""
        given, recurrent = self.settings, any(group.startswith("gdn") for group in self.settings["groups"])
        if recurrent:
            step = given["periodic_snapshot_interval"]
            points = {*given["offsets_from_start"], *(length - offset for offset in given["offsets_from_end"])}
            points.update(range(step, length + 1, step) if step else ())
            return sorted(point for point in points if start < point <= length)
        if given["commit_at_end_only"] or given["chunk_tokens"] is None:
            return [length]
        ends, block = [start], given["tokens_per_block"]
        while ends[-1] < length:
            reach = ends[-1] + given["chunk_tokens"]
            ends.append(length if reach >= length else reach // block * block)
        return ends[1:]

    def serve(self, request: dict[str, Any]) -> dict[str, Any]:
        """Fields of a Reply."""
        sent_ns, ids, length = time.monotonic_ns(), request["ids"], len(request["ids"])
        scope = self.api.ReuseScope(lora_id=number(request["lora"]), salt=number(request["namespace"]))
        lookup = ids[:-1] if self.settings["enable_block_reuse"] else []
        probed = self.manager.probe_reuse(scope, lookup)
        cache = self.manager.create_kv_cache(scope, lookup)
        try:
            found = cache.num_committed_tokens
            if not cache.resume(self.stream) or not cache.resize(length + 1):
                raise RuntimeError(f"the manager has no memory for {length} tokens")
            if self.settings["enable_block_reuse"]:
                for end in self.commits(found, length):
                    cache.commit(ids[cache.num_committed_tokens : end])
            cache.stop_committing()
        finally:
            cache.close()
        return {
            "request_id": request["request_id"],
            "prompt_len": length,
            "hit_len": found,
            "hit_source": "num_committed_tokens of create_kv_cache",
            "position_start": None,
            "position_source": "none",
            "output_ids": request["outputs"],
            "first_logprob": None,
            "sent_ns": sent_ns,
            "first_token_ns": None,
            "done_ns": time.monotonic_ns(),
            "steps": None,
            "native": {"probe_reuse": probed},
        }

    def facts(self) -> dict[str, Any]:
        """Fields of EngineFacts."""
        import tensorrt_llm

        return {
            "version": tensorrt_llm.__version__,
            "device": self.device,
            "dtype": "none",
            "granule": 1 if self.settings["enable_partial_reuse"] else self.settings["tokens_per_block"],
            "groups": self.settings["groups"],
            "context_len": CONTEXT_LEN,
            "vocab_size": 1 << 31,
            "options": self.settings,
        }

    def close(self) -> None:
        """Free the pools."""
        self.manager.shutdown()


def number(text: str | None) -> int | None:
    """The number a salt or adapter name stands for: first eight bytes, little endian, of its SHA-256."""
    return None if text is None else int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")


def say(pipe: IO[str], line: dict[str, Any]) -> None:
    """Write one line."""
    print(json.dumps(line), file=pipe, flush=True)


def serve(manager: Manager, pipe: IO[str]) -> None:
    """Answer line by line until told to close, or until the other side is gone."""
    for line in sys.stdin:
        message = json.loads(line)
        if message["op"] == "close":
            break
        try:
            if message["op"] == "reset":
                manager.manager.clear_reusable_blocks()
                say(pipe, {"ok": True, "reset": True})
            elif message["op"] == "configure":
                manager.close()
                manager = Manager(message["settings"])
                say(pipe, {"ok": True, "facts": manager.facts()})
            else:
                say(pipe, {"ok": True, "replies": [manager.serve(request) for request in message["requests"]]})
        except (RuntimeError, ValueError, AssertionError, TypeError) as error:
            say(pipe, {"ok": False, "failed": f"{type(error).__name__}: {error}"})
    manager.close()


def main() -> None:
    """Say hello, then serve."""
    pipe = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever the package prints belongs in the log
    try:
        manager = Manager(json.loads(sys.argv[1]))
    except ImportError as error:
        say(pipe, {"failed": f"needs {error.name}, which {sys.executable} does not have; install tensorrt_llm there"})
    except (RuntimeError, ValueError, AssertionError, TypeError, AttributeError) as error:
        say(pipe, {"failed": f"cannot build the cache manager: {type(error).__name__}: {error}"})
    else:
        say(pipe, {"hello": HELLO, "facts": manager.facts()})
        serve(manager, pipe)


if __name__ == "__main__":
    main()
