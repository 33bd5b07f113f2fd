"""One configuration of SGLang's real scheduler in this process, its model's forward replaced by nothing.

Requests enter where the server's would (`process_input_requests`), the scheduler plans batches, allocates, looks up,
inserts and evicts as it does in a server; only the logits are missing. Generated tokens are those the caller gives.

Changed in SGLang 0.5.23 for this, and nothing else:
- `ModelRunner._forward_raw` returns empty logits, `ModelRunner.sample` the caller's tokens;
- outputs go nowhere, log-probabilities are not assembled;
- the platform check of `extra_buffer` lets a CPU pass, and pinning memory does nothing;
- for EAGLE the tree gets its pairs of tokens, while the scheduler decodes plainly: the draft needs compiled kernels.

Runs inside SGLang's own Python, so it imports nothing of ours.
"""

import base64
import tempfile
import time
from array import array
from pathlib import Path
from typing import Any

import torch
from hitparity_sglang_model import (  # type: ignore[import-not-found]
    CONTEXT_LEN,
    VOCAB_SIZE,
    write_config,
)
from sglang.srt import runtime_context
from sglang.srt.arg_groups import mamba_hook
from sglang.srt.layers.logits_processor import LogitsProcessorOutput
from sglang.srt.managers import scheduler as scheduler_module
from sglang.srt.managers.io_struct import TokenizedGenerateReqInput
from sglang.srt.managers.scheduler_components import batch_result_processor, output_streamer
from sglang.srt.model_executor import model_runner
from sglang.srt.sampling.sampling_params import SamplingParams
from sglang.srt.server_args import PortArgs, ServerArgs
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

POOL_TOKENS = 1 << 20
"""Tokens in the KV pool where the configuration names none."""
STATE_SLOTS = 2048
BIGRAM = ("EAGLE", "EAGLE3", "FROZEN_KV_MTP", "NEXTN")
UNBOUNDED_STEPS = 1_000_000
CHECK_INTERVAL = 32
"""Every that many requests SGLang checks its own books, as a server does when it is idle; a leak ends the worker."""
FILLER = 3
"""Generated where the caller gives no tokens."""


class Refused(Exception):
    """The engine takes no such request or configuration."""


class Serving:
    """A running scheduler; make one per process."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.options = options
        self.batch: Any = None
        self.plans: dict[str, list[int]] = {}
        self.rows: dict[str, dict[str, Any]] = {}
        self.count = 0
        with tempfile.TemporaryDirectory(prefix="hitparity-sglang-lookup-") as folder:  # read by the scheduler's start
            self.scheduler = self._scheduler(Path(folder))
        for name in ("send_to_tokenizer", "send_to_detokenizer"):
            object.__setattr__(self.scheduler.ipc_channels, name, _Nowhere())

    def _scheduler(self, model: Path) -> Any:
        try:
            write_config(model, self.options["groups"])
        except ValueError as error:
            raise Refused(str(error)) from None
        self._patch()
        self.asked = self._arguments(model)
        arguments = ServerArgs(**self.asked)
        ports = PortArgs.init_new(arguments)
        runtime_context.publish(
            arguments,
            role="scheduler",
            ranks=scheduler_module.SpawnRanks(world_rank=0, dp_rank=None, gpu_id=0),
        )
        scheduler = scheduler_module.Scheduler(arguments, ports)
        scheduler.load_snapshot_writer = None
        return scheduler

    # Configuration

    def _arguments(self, model: Path) -> dict[str, Any]:
        own = {
            key: value
            for key, value in self.options.items()
            if key not in ("groups", "speculative_algorithm", "logprob_start_len") and value is not None
        }
        page = int(own.get("page_size", 1))
        defaults: dict[str, Any] = {
            "page_size": page,
            "chunked_prefill_size": -1,
            "max_total_tokens": POOL_TOKENS,
            "context_length": CONTEXT_LEN,
            "max_running_requests": 16,
        }
        if self._hybrid():
            defaults["max_mamba_cache_size"] = STATE_SLOTS
            defaults["mamba_radix_cache_strategy"] = "no_buffer" if page == 1 else "extra_buffer"
        fixed = {
            "model_path": str(model),
            "device": "cpu",
            "load_format": "dummy",
            "skip_tokenizer_init": True,
            "attention_backend": "torch_native",
            "sampling_backend": "pytorch",
            "grammar_backend": "none",
            "disable_cuda_graph": True,
            "disable_overlap_schedule": True,
            "mem_fraction_static": 0.3,
            "log_level": "error",
            "skip_server_warmup": True,
        }
        return defaults | own | fixed

    def _hybrid(self) -> bool:
        return any(group.startswith("gdn") for group in self.options["groups"])

    def facts(self) -> dict[str, Any]:
        """What the scheduler says about itself."""
        from sglang import __version__

        scheduler, schedule = self.scheduler, runtime_context.get_schedule()
        notes = []
        if self.options.get("speculative_algorithm") in BIGRAM:
            notes.append(
                "EAGLE: the tree's keys are pairs of tokens as under speculation, but the scheduler decodes without a "
                "draft, whose kernels do not run on a CPU"
            )
        return {
            "version": __version__,
            "device": "cpu",
            "dtype": "bfloat16",
            "granule": scheduler.page_size,
            "groups": list(self.options["groups"]),
            "context_len": scheduler.max_req_input_len,
            "vocab_size": VOCAB_SIZE,
            "can_salt": True,
            "notes": notes,
            "options": {
                "page_size": scheduler.page_size,
                "chunked_prefill_size": scheduler.chunked_prefill_size or -1,
                "max_total_tokens": scheduler.max_total_num_tokens,
                "max_prefill_tokens": scheduler.max_prefill_tokens,
                "sliding_window": scheduler.sliding_window_size,
                "swa_tokens": scheduler.swa_tokens_per_layer if scheduler.sliding_window_size else None,
                "max_mamba_cache_size": schedule.max_mamba_cache_size if self._hybrid() else None,
                "mamba_radix_cache_strategy": self.asked.get("mamba_radix_cache_strategy"),
                "speculative_algorithm": self.options.get("speculative_algorithm"),
                "disable_radix_cache": scheduler.disable_radix_cache,
                "schedule_policy": schedule.schedule_policy,
                "tree_core": type(scheduler.tree_cache.tree_core).__name__,
            },
        }

    # Requests

    def send(self, requests: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Serve the requests, all queued before the first step, and answer for each."""
        sent = [self._enqueue(fields) for fields in requests]
        sent_ns = time.monotonic_ns()
        for _ in range(UNBOUNDED_STEPS):
            if all(req.finished() for req in sent):
                break
            if not self._step():
                self._give_up(sent)
                raise Refused("the scheduler finds no room for the request and would let it wait for ever")
        self._step()
        if not self.count % CHECK_INTERVAL:
            self.scheduler.on_idle()
        return [self._answer(fields, req, sent_ns) for fields, req in zip(requests, sent, strict=True)]

    def reset(self) -> bool:
        """Flush the caches, and count schedulings from 0: SGLang goes on, which moves its LRU refreshes."""
        self.scheduler.policy._waiting_prefix_refresh_calls = 0
        return bool(self.scheduler.flush_cache())

    def _enqueue(self, fields: dict[str, Any]) -> Any:
        self.count += 1
        rid = str(self.count)
        ids = array("I", base64.b64decode(fields["ids"]))
        outputs, most = fields["outputs"], fields["max_tokens"]
        self.plans[rid] = [*outputs, *[FILLER] * most][: len(outputs) or most]
        if (length := len(ids) + len(self.plans[rid])) > self.scheduler.max_req_input_len:
            raise Refused(
                f"{length} prompt and output tokens exceed the {self.scheduler.max_req_input_len} that SGLang takes "
                f"without cutting the output; raise max_total_tokens"
            )
        features = set(fields["features"])
        if unknown := features - {"logprob", "prompt_logprobs"}:
            raise Refused(f"request feature {', '.join(sorted(unknown))}: SGLang has no such thing")
        if fields.get("lora") is not None:
            raise Refused("LoRA adapters need weights; the lookup worker has none")
        wants_prompt = "prompt_logprobs" in features
        sampling = SamplingParams(max_new_tokens=len(self.plans[rid]), temperature=0, ignore_eos=True)
        sampling.normalize(None)
        self.scheduler.process_input_requests(
            [
                TokenizedGenerateReqInput(
                    rid=rid,
                    input_text=None,
                    input_ids=array("q", ids),
                    input_embeds=None,
                    mm_inputs=None,
                    token_type_ids=None,
                    sampling_params=sampling,
                    return_logprob=bool(features),
                    logprob_start_len=self.options.get("logprob_start_len") or 0 if wants_prompt else -1,
                    top_logprobs_num=0,
                    token_ids_logprob=None,
                    stream=False,
                    cache_salt=fields["namespace"],
                )
            ]
        )
        req = self.scheduler.waiting_queue[-1]
        if req.to_finish is not None:
            self.scheduler.waiting_queue.remove(req)
            raise Refused(f"SGLang refuses the request: {getattr(req.to_finish, 'message', req.to_finish)}")
        self.rows[rid] = {"steps": [], "backed_len": None}
        return req

    def _step(self) -> bool:
        """One pass of the scheduler's own loop; False when it had nothing to run."""
        scheduler = self.scheduler
        with torch.no_grad():
            plan = scheduler.get_next_batch_to_run(
                running_batch=scheduler.running_batch, last_batch=scheduler.last_batch
            )
            scheduler.running_batch = plan.running_batch
            self.batch = batch = plan.batch_to_run
            if batch:
                scheduler.process_batch_result(batch, scheduler.run_batch(batch))
            scheduler.last_batch = batch
        return bool(batch)

    def _give_up(self, sent: list[Any]) -> None:
        for req in sent:
            if req in self.scheduler.waiting_queue:
                self.scheduler.waiting_queue.remove(req)
                self.scheduler.tree_cache.release_aborted_request(req.cache_request_handle)
                if req.kv.holds_mamba and not req.kv.holds_kv:
                    self.scheduler.req_to_token_pool.mamba_allocator.free(req.kv.mamba_pool_idx.unsqueeze(-1))
                    req.kv.mamba_pool_idx = None

    def _answer(self, fields: dict[str, Any], req: Any, sent_ns: int) -> dict[str, Any]:
        row = self.rows.pop(req.rid)
        self.plans.pop(req.rid)
        steps = row["steps"]
        now = time.monotonic_ns()
        return {
            "request_id": fields["request_id"],
            "prompt_len": len(req.origin_input_ids),
            "hit_len": int(req.cached_tokens),
            "hit_source": "Req.cached_tokens",
            "position_start": steps[0][0] if steps else None,
            "position_source": "ForwardBatch.positions" if steps else "none",
            "output_ids": list(req.output_ids),
            "first_logprob": None,
            "sent_ns": sent_ns,
            "first_token_ns": now,
            "done_ns": now,
            "steps": steps,
            "backed_len": row["backed_len"],
            "native": {"mamba_branching_seqlen": row.get("branching"), "retractions": int(req.retraction_count)},
        }

    # Hooks

    def _forward(self, runner: Any, forward: Any) -> Any:
        """In place of the model: note what would be computed."""
        if forward.forward_mode.is_extend():
            positions, at = forward.positions.tolist(), 0
            lengths = [int(length) for length in forward.extend_seq_lens_cpu]
            for req, length in zip(self.batch.reqs, lengths, strict=True):
                row = self.rows[req.rid]
                if length:
                    if not row["steps"]:
                        row["backed_len"] = self._backed(req, positions[at])
                        row["branching"] = req.mamba_branching_seqlen
                    row["steps"].append([positions[at], positions[at + length - 1] + 1])
                at += length
        runner._maybe_execute_deferred_mamba_cow_and_clear(forward)
        logits = LogitsProcessorOutput(
            next_token_logits=torch.zeros(forward.batch_size, 1),
            next_token_logprobs=torch.zeros(forward.batch_size),
        )
        return model_runner.ModelRunnerOutput(logits_output=logits, can_run_graph=False)

    def _backed(self, req: Any, hit: int) -> int:
        """Tokens of the hit that every layer group holds: window slots still mapped, a state to start from."""
        scheduler = self.scheduler
        if not hit:
            return 0
        if self._hybrid():
            copied = self.batch.mamba_cow_dst_indices
            return hit if copied is not None and bool((copied == req.kv.mamba_pool_idx).any()) else 0
        if scheduler.is_hybrid_swa:
            first = max(0, hit - scheduler.sliding_window_size)
            slots = scheduler.req_to_token_pool.req_to_token[req.kv.req_pool_idx, first:hit].to(torch.int64)
            mapped = scheduler.token_to_kv_pool_allocator.translate_loc_from_full_to_swa(slots)
            missing = torch.nonzero(mapped <= 0)
            return hit if not len(missing) else first + int(missing[0])
        return hit

    def _sample(self) -> Any:
        """In place of the sampler: the caller's tokens."""
        tokens = []
        for req in self.batch.reqs:
            plan, done = self.plans[req.rid], len(req.output_ids)
            tokens.append(plan[done] if done < len(plan) else FILLER)
        return torch.tensor(tokens, dtype=torch.int64)

    def _patch(self) -> None:
        if not torch.cuda.is_available():
            torch.Tensor.pin_memory = lambda tensor, *_a, **_k: tensor  # type: ignore[method-assign]
        mamba_hook._platform_supports_mamba_cache_extra_buffer = lambda: True
        model_runner.ModelRunner._forward_raw = lambda runner, forward, *_a, **_k: self._forward(runner, forward)
        model_runner.ModelRunner.sample = lambda *_a, **_k: self._sample()
        output_streamer.SchedulerOutputStreamer.stream_output = lambda *_a, **_k: None
        processor = batch_result_processor.SchedulerBatchResultProcessor
        processor.move_logprobs_to_cpu = lambda *_a, **_k: None
        processor._apply_prefill_logprobs = lambda _self, *, logprob_pt, **_k: logprob_pt
        processor._apply_chunked_prefill_logprobs = lambda _self, *, logprob_pt, **_k: logprob_pt
        processor._apply_decode_logprobs = lambda *_a, **_k: None
        if self.options.get("speculative_algorithm") in BIGRAM:
            build = scheduler_module.kv_cache_builder.build_kv_cache
            scheduler_module.kv_cache_builder.build_kv_cache = lambda **fields: build(
                **(fields | {"spec_algorithm": SpeculativeAlgorithm.EAGLE})
            )


class _Nowhere:
    def send_output(self, *_arguments: Any, **_options: Any) -> None:
        """Drop it."""
