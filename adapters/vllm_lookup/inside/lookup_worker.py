"""vLLM's engine core without a model, driven by JSON lines; run by that version's Python, imports nothing of ours.

    python lookup_worker.py '{"options": {"groups": ["full:528", "gdn:528"], ...}, "boot": null}'

`boot` is the path of a script that is run before vLLM is used (vLLM-Ascend's patches); its VERSION is what is asked.
Protocol: adapters/worker.py, and

    -> {"op": "send", "requests": [{"request_id", "ids": base64 of little-endian u32, "outputs": [ids], "max_tokens",
                                    "namespace", "lora", "features"}]}
    -> {"op": "configure", "options": {...}}     <- {"ok": true, "facts": {...}}
"""

from __future__ import annotations

import base64
import gc
import json
import os
import random
import runpy
import sys
import tempfile
import time
import traceback
import zlib
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HIT_SOURCE = "EngineCoreOutput.prefill_stats.num_cached_tokens"
MEDIA_TOKENS = 1 << 20
STEPS_WITHOUT_PROGRESS = 8


class Session:
    """One engine core at a time, rebuilt for each configuration."""

    def __init__(self, options: dict[str, Any], folder: Path, version: str | None) -> None:
        """`version`: of what was loaded on top of vLLM; None: vLLM alone."""
        import lookup_config  # type: ignore[import-not-found]
        import lookup_executor  # type: ignore[import-not-found]

        self.config_of, self.executor_class = lookup_config, lookup_executor.LookupExecutor
        self.folder, self.version = folder, version
        self.count = 0
        self.outputs: dict[str, Iterator[int]] = {}
        self.adapters: dict[str, Any] = {}
        self.core: Any = None
        _without_detours()
        self.configure(options)

    def configure(self, options: dict[str, Any]) -> None:
        """Build the engine core anew; Refused leaves the session without one."""
        import vllm.envs
        from vllm.v1.engine.core import EngineCore

        self.core = None
        # The engine core caches environment variables from its first start on; one of them is an option here.
        vllm.envs.disable_envs_cache()
        self.config, self.groups = self.config_of.configure(options, self.folder)
        self.bounded = options.get("num_gpu_blocks_override") is not None
        self.executor_class.layer_specs = staticmethod(lambda config: self.config_of.layer_specs(config, self.groups))
        self.executor_class.outputs_of = staticmethod(lambda request_id: self.outputs[request_id])
        try:
            core = EngineCore(self.config, self.executor_class, log_stats=True)
        except (ValueError, NotImplementedError, AssertionError) as error:
            raise self.config_of.Refused(f"vLLM {self.config_of.version}: {error}") from error
        self._admit_media(core.scheduler)
        self.manager = core.scheduler.kv_cache_manager
        self.order = self.config_of.built_groups(self.manager.kv_cache_config, self.groups)
        self.null_block = self.manager.block_pool.null_block
        self.lookups: dict[str, Any] = {}
        self.evicted = 0
        self._observe()
        self.core = core
        self.facts = self._facts(options)

    def send(self, requests: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Serve the requests together; one reply each, as keyword arguments of Reply."""
        if self.core is None:
            raise self.config_of.Refused("no configuration is in force: the last one was refused")
        sent_ns = time.monotonic_ns()
        self.evicted = 0
        self.lookups.clear()
        done_ns: dict[str, int] = {}
        try:
            ids_of = [self._add(request) for request in requests]
            stats, generated = self._run(done_ns)
        except self.config_of.Refused:
            self._abandon()
            raise
        finally:
            self.outputs.clear()
        if self.evicted and not self.bounded:
            raise self.config_of.Refused(
                f"the pool of {self.config_of.BLOCKS} blocks is full and cached blocks were evicted; "
                "reset, or set num_gpu_blocks_override"
            )
        running = self.core.model_executor.running
        replies = []
        for request, request_id in zip(requests, ids_of, strict=True):
            steps, prompt_len = running.pop(request_id).steps, len(request["ids"])
            prefill = [(start, min(end, prompt_len)) for start, end in steps if start < prompt_len]
            hit = stats[request_id]
            replies.append(
                {
                    "request_id": request["request_id"],
                    "prompt_len": prompt_len,
                    "hit_len": hit,
                    "hit_source": HIT_SOURCE,
                    "position_start": prefill[0][0],
                    "position_source": "scheduler",
                    "output_ids": generated[request_id],
                    "first_logprob": None,
                    "sent_ns": sent_ns,
                    "first_token_ns": None,
                    "done_ns": done_ns[request_id],
                    "steps": prefill,
                    **self._truth(request_id, hit),
                }
            )
        return replies

    def reset(self) -> bool:
        """Empty the prefix cache, and forget all items."""
        if self.core is None:
            return False
        self._admit_media(self.core.scheduler)
        return bool(self.core.scheduler.reset_prefix_cache())

    def _add(self, request: dict[str, Any]) -> str:
        from vllm import SamplingParams
        from vllm.v1.engine import EngineCoreRequest

        data = base64.b64decode(request["ids"])
        ids = array("I", data)
        if sys.byteorder != "little":
            ids.byteswap()
        request["ids"] = prompt = ids.tolist()
        self.count += 1
        request_id = str(self.count)
        outputs = request["outputs"]
        if not outputs:
            own = random.Random(zlib.crc32(data))
            outputs = [own.randrange(self.config_of.VOCAB_SIZE) for _ in range(request["max_tokens"])]
        longest = self.config.model_config.max_model_len
        if len(prompt) + len(outputs) > longest:
            raise self.config_of.Refused(
                f"prompt of {len(prompt)} and output of {len(outputs)} tokens exceed max_model_len = {longest}"
            )
        features = request["features"]
        params: dict[str, Any] = {"max_tokens": len(outputs), "temperature": 0, "ignore_eos": True, "detokenize": False}
        if "prompt_logprobs" in features:
            params["prompt_logprobs"] = 0
        if "skip_lookup" in features:
            params["skip_reading_prefix_cache"] = True
        core_request = EngineCoreRequest(
            request_id=request_id,
            prompt_token_ids=prompt,
            mm_features=self._media(request["media"]),
            sampling_params=SamplingParams(**params),
            pooling_params=None,
            arrival_time=time.time(),
            lora_request=self._adapter(request["lora"]),
            cache_salt=request["namespace"],
            data_parallel_rank=None,
        )
        self.outputs[request_id] = iter(outputs)
        self.core.add_request(*self.core.preprocess_add_request(core_request))
        return request_id

    def _admit_media(self, scheduler: Any) -> None:
        """Room for encoders, which a text model's scheduler has none of; a model's own limits are not the look-up's."""
        from vllm.v1.core.encoder_cache_manager import EncoderCacheManager

        scheduler.max_num_encoder_input_tokens = MEDIA_TOKENS
        scheduler.encoder_cache_manager = EncoderCacheManager(cache_size=MEDIA_TOKENS)
        self.media: dict[str, int] = {}

    def _media(self, items: list[tuple[str, int, int]]) -> list[Any] | None:
        """Features without data, for nothing computes them: keys come of identifier and place."""
        from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange

        for name, _, length in items:
            if (before := self.media.setdefault(name, length)) != length:
                raise self.config_of.Refused(
                    f"item {name!r} has {length} positions and had {before}: equal identifiers are equal content"
                )
        return [
            MultiModalFeatureSpec(
                data=None, modality="image", identifier=name, mm_position=PlaceholderRange(offset=start, length=length)
            )
            for name, start, length in items
        ] or None

    def _adapter(self, text: str | None) -> Any:
        if text is None:
            return None
        if text not in self.adapters:
            from vllm.lora.request import LoRARequest

            name, _, path = text.partition("@")
            self.adapters[text] = LoRARequest(name, len(self.adapters) + 1, path or name)
        return self.adapters[text]

    def _run(self, done_ns: dict[str, int]) -> tuple[dict[str, int], dict[str, list[int]]]:
        core, scheduler = self.core, self.core.scheduler
        stats: dict[str, int] = {}
        generated: dict[str, list[int]] = {}
        idle = 0
        # A finished request is told to the executor with the next step, as in the engine's own loop.
        while scheduler.has_requests():
            outputs, executed = core.step()
            core.post_step(executed)
            idle = 0 if executed or not scheduler.has_unfinished_requests() else idle + 1
            if idle > STEPS_WITHOUT_PROGRESS:
                raise self.config_of.Refused(
                    f"the pool of {self.config.cache_config.num_gpu_blocks} blocks is too small for this request"
                )
            for output in (each for client in outputs.values() for each in client.outputs):
                if output.prefill_stats is not None:
                    stats.setdefault(output.request_id, output.prefill_stats.num_cached_tokens)
                generated.setdefault(output.request_id, []).extend(output.new_token_ids)
                done_ns[output.request_id] = time.monotonic_ns()
        return stats, generated

    def _abandon(self) -> None:
        """Leave nothing of requests that were refused, together or half-way."""
        from vllm.v1.request import RequestStatus

        stuck = [*self.core.scheduler.requests]
        self.core.scheduler.finish_requests(stuck, RequestStatus.FINISHED_ABORTED)
        self.core.step()
        for each in stuck:
            self.core.model_executor.running.pop(each, None)

    def _observe(self) -> None:
        """See each request's first lookup, and every eviction."""
        lookup, pool = self.manager.get_computed_blocks, self.manager.block_pool
        evict = pool._maybe_evict_cached_block

        def get_computed_blocks(request: Any, *args: Any, **kwargs: Any) -> Any:
            found = lookup(request, *args, **kwargs)
            if request.num_preemptions == 0:
                boundary = found[2] if len(found) > 2 else None  # 0.23 has none
                self.lookups[request.request_id] = ([list(blocks) for blocks in found[0].blocks], boundary)
            return found

        def maybe_evict_cached_block(block: Any) -> bool:
            evicted = evict(block)
            self.evicted += bool(evicted)
            return bool(evicted)

        self.manager.get_computed_blocks = get_computed_blocks
        pool._maybe_evict_cached_block = maybe_evict_cached_block

    def _truth(self, request_id: str, hit: int) -> dict[str, Any]:
        """What each group holds of the hit, by the blocks the lookup handed out."""
        blocks, boundary = self.lookups[request_id]
        held = [self._held(group, blocks[index], hit) for group, index in zip(self.groups, self.order, strict=True)]
        native = {
            "held_tokens": [[str(group), tokens] for group, tokens in zip(self.groups, held, strict=True)],
            "shared_prefix_boundary": boundary,
            "free_blocks": self.manager.block_pool.get_num_free_blocks(),
            "evicted_blocks": self.evicted,
        }
        return {"backed_len": min(held), "native": native}

    def _held(self, group: Any, blocks: list[Any], hit: int) -> int:
        def there(index: int) -> bool:
            return index < len(blocks) and not blocks[index].is_null

        if not hit:
            return 0
        last = -(-hit // group.block) - 1
        if group.kind == "full":
            first_missing = next((i for i in range(last + 1) if not there(i)), last + 1)
            return int(min(hit, first_missing * group.block))
        first = last if group.kind == "gdn" else max(0, hit - group.window + 1) // group.block
        return hit if all(there(i) for i in range(first, last + 1)) else 0

    def _facts(self, options: dict[str, Any]) -> dict[str, Any]:
        cache, scheduler, spec = self.config.cache_config, self.config.scheduler_config, self.config.speculative_config
        resolved: dict[str, Any] = {
            "vllm": self.config_of.version.split("+")[0],
            "groups": [str(group) for group in self.groups],
            "block_size": cache.block_size,
            "max_num_batched_tokens": scheduler.max_num_batched_tokens,
            "max_num_seqs": scheduler.max_num_seqs,
            "max_model_len": self.config.model_config.max_model_len,
            "enable_prefix_caching": cache.enable_prefix_caching,
            "num_gpu_blocks": cache.num_gpu_blocks,
            "mamba_cache_mode": cache.mamba_cache_mode,
            "prefix_cache_retention_interval": self.manager.coordinator.retention_interval,
            "prefix_match_unit": getattr(cache, "prefix_match_unit", None),
            "hash_block_size": self.manager.coordinator.block_pool.hash_block_size,
            "speculative_method": spec.method if spec else None,
            "num_speculative_tokens": spec.num_speculative_tokens if spec else 0,
            "disable_eagle_block_drop": getattr(spec, "disable_eagle_block_drop", None),
            "disable_lookahead_block_hashes": getattr(spec, "disable_lookahead_block_hashes", None),
            "coordinator": f"{type(self.manager.coordinator).__module__}.{type(self.manager.coordinator).__name__}",
            "managers": sorted({type(each).__name__ for each in self.manager.coordinator.single_type_managers}),
        }
        return {
            "engine": "vllm",
            "version": self.version or resolved["vllm"],
            "device": "cpu",
            "dtype": "none",
            "granule": self._granule(),
            "groups": resolved["groups"],
            "context_len": resolved["max_model_len"],
            "vocab_size": self.config_of.VOCAB_SIZE,
            "options": resolved,
            "can_salt": True,
            "can_media": True,
        }

    def _granule(self) -> int:
        """Tokens to which a hit is aligned; the coordinator of 0.23 has no name for it."""
        coordinator = self.manager.coordinator
        if len(self.groups) == 1:
            return int(self.groups[0].block)
        return int(getattr(coordinator, "_cache_hit_alignment_tokens", coordinator.scheduler_block_size))


def _without_detours() -> None:
    """Leave out what costs seconds per configuration and decides nothing here.

    vLLM inspects a model's class in a child process that imports everything anew, because a parent must not touch its
    GPU; and it walks the whole heap to freeze it whenever an engine core starts.
    """
    import vllm.model_executor.models.registry
    import vllm.v1.engine.core

    vllm.model_executor.models.registry._run_in_subprocess = lambda inspect: inspect()
    vllm.v1.engine.core.freeze_gc_heap = lambda: None
    gc.freeze()


def main() -> None:
    """Serve until "close" or the end of input."""
    # vLLM prints on stdout too: the protocol keeps the real one and everybody else gets stderr.
    protocol = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def say(message: dict[str, Any]) -> None:
        protocol.write(json.dumps(message) + "\n")
        protocol.flush()

    arguments = json.loads(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        try:
            loaded = runpy.run_path(arguments["boot"]) if arguments["boot"] is not None else {}
            session = Session(arguments["options"], Path(folder), loaded.get("VERSION"))
        except Exception as error:  # noqa: BLE001 - whatever stops vLLM from starting is reported to the caller
            traceback.print_exc()
            say({"failed": f"could not start: {error}"})
            return
        say({"hello": 1, "facts": session.facts})
        for line in sys.stdin:
            message = json.loads(line)
            try:
                match message["op"]:
                    case "send":
                        say({"ok": True, "replies": session.send(message["requests"])})
                    case "configure":
                        session.configure(message["options"])
                        say({"ok": True, "facts": session.facts})
                    case "reset":
                        say({"ok": True, "reset": session.reset()})
                    case "close":
                        return
            except session.config_of.Refused as error:
                say({"ok": False, "refused": str(error)})
            except Exception as error:  # noqa: BLE001 - reported, and the engine is not used again
                traceback.print_exc()
                say({"ok": False, "failed": f"{type(error).__name__}: {error}"})
                return


if __name__ == "__main__":
    main()
