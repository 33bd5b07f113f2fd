"""vLLM in this process, driven by JSON lines; run by vLLM's own Python, so it imports nothing of ours but the probe.

    python worker.py '{"model": ..., "block_size": 32, ...}'      keyword arguments of vllm.LLM

Protocol: adapters/worker.py. Assumption: vLLM 0.32.0 with VLLM_ENABLE_V1_MULTIPROCESSING=0.
"""

import json
import os
import sys
import time
import traceback
from typing import Any


class InProcess:
    """One `vllm.LLM` and the rows of its scheduler."""

    def __init__(self, arguments: dict[str, Any]) -> None:
        from hitparity_vllm_probe import observe  # type: ignore[import-not-found]

        self.rows: list[dict[str, Any]] = []
        observe(self.rows.append)
        from vllm import LLM
        from vllm.exceptions import VLLMValidationError

        if arguments.get("prefix_cache_retention_interval") == "None":
            arguments["prefix_cache_retention_interval"] = None
        # Validation of one request; what was added of its batch is withdrawn again (entrypoints/common/offline.py).
        self.refusals = (VLLMValidationError, ValueError)
        # Statistics carry the time of the first token.
        self.llm = LLM(**arguments, disable_log_stats=False)
        self.facts = self.rows.pop(0)["facts"]
        self.rows.clear()

    def send(self, requests: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """One reply per request, as keyword arguments of Reply."""
        self.rows.clear()
        prompts: list[Any] = [
            {"prompt_token_ids": r["ids"]} | ({} if r["namespace"] is None else {"cache_salt": r["namespace"]})
            for r in requests
        ]
        sent_ns = time.monotonic_ns()
        outputs = self.llm.generate(prompts, [_sampling(r) for r in requests], use_tqdm=False)
        done_ns = time.monotonic_ns()
        return [
            self._reply(r, output) | {"sent_ns": sent_ns, "done_ns": done_ns}
            for r, output in zip(requests, outputs, strict=True)
        ]

    def _reply(self, request: dict[str, Any], output: Any) -> dict[str, Any]:
        own = [
            row for row in self.rows if row["id"] == output.request_id or row["id"].startswith(f"{output.request_id}-")
        ]
        completion, times = output.outputs[0], output.metrics
        logprobs = completion.logprobs[0] if completion.logprobs else None
        return {
            "request_id": request["request_id"],
            "prompt_len": len(output.prompt_token_ids),
            "hit_len": output.num_cached_tokens,
            "hit_source": "RequestOutput.num_cached_tokens",
            "position_start": own[0]["start"] if own else None,
            "position_source": "scheduler" if own else "none",
            "output_ids": list(completion.token_ids),
            "first_logprob": logprobs[completion.token_ids[0]].logprob if logprobs else None,
            # The engine core's own monotonic clock, this process's.
            "first_token_ns": round(times.first_token_ts * 1e9),
            "steps": [(row["start"], row["end"]) for row in own] or None,
            "native": {
                "preemptions": times.num_preemptions,
                "scheduled_to_first_token_ns": round((times.first_token_ts - times.scheduled_ts) * 1e9),
            },
        }


def _sampling(request: dict[str, Any]) -> Any:
    from vllm import SamplingParams

    features = request["features"]
    return SamplingParams(
        max_tokens=request["max_tokens"],
        temperature=0,
        ignore_eos=True,
        detokenize=False,
        logprobs=0 if "logprob" in features else None,
        prompt_logprobs=0 if "prompt_logprobs" in features else None,
    )


def main() -> None:
    """Serve until "close" or the end of input."""
    # vLLM prints on stdout too: the protocol keeps the real one and everybody else gets stderr.
    protocol = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def say(message: dict[str, Any]) -> None:
        protocol.write(json.dumps(message) + "\n")
        protocol.flush()

    try:
        engine = InProcess(json.loads(sys.argv[1]))
    except Exception as error:  # noqa: BLE001 - whatever stops vLLM from starting is reported to the caller
        traceback.print_exc()
        say({"failed": f"could not start vLLM: {error}"})
        return
    say({"hello": 1, "facts": engine.facts})
    for line in sys.stdin:
        message = json.loads(line)
        try:
            match message["op"]:
                case "send":
                    say({"ok": True, "replies": engine.send(message["requests"])})
                case "reset":
                    say({"ok": True, "reset": engine.llm.reset_prefix_cache()})
                case "close":
                    return
        except engine.refusals as error:
            say({"ok": False, "refused": str(error)})
        except Exception as error:  # noqa: BLE001 - reported, and the engine is not used again
            traceback.print_exc()
            say({"ok": False, "failed": f"{type(error).__name__}: {error}"})
            return


if __name__ == "__main__":
    main()
