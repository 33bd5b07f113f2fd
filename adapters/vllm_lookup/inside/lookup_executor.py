"""An executor without a model: vLLM's engine core, scheduler and cache manager stay real, only the worker is ours.

Hooks as vLLM calls them in 0.23.0, 0.26.0, 0.30.0, 0.32.0 and 0.33.0 (v1/engine/core.py, v1/executor/abstract.py).
Drafts are proposed where the configuration asks for them, and never accepted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

from vllm.v1.executor.abstract import Executor
from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput

MEMORY_BYTES = 1 << 46
"""Never the limit: the number of blocks is set by `num_gpu_blocks_override`."""
DRAFT_TOKEN = 0


class Progress:
    """One request inside the executor."""

    __slots__ = ("computed", "known", "outputs", "prompt_len", "steps")

    def __init__(self, prompt_len: int, computed: int, outputs: Iterator[int]) -> None:
        self.prompt_len = self.known = prompt_len
        """`known`: prompt and generated tokens so far."""
        self.computed = computed
        self.outputs = outputs
        self.steps: list[tuple[int, int]] = []
        """Every step `[start, end)`, drafts excluded."""


class LookupExecutor(Executor):  # type: ignore[misc]
    """Answers every step at once with tokens that the caller gave."""

    layer_specs: Callable[[Any], dict[str, Any]]
    """`(vllm config) -> {layer name: KVCacheSpec}`; set by the session before the engine core is built."""
    outputs_of: Callable[[str], Iterator[int]]
    """Tokens a request generates, by its id."""

    def _init_executor(self) -> None:
        self.running: dict[str, Progress] = {}
        self.drafts: Any = None

    def collective_rpc(
        self,
        method: Any,
        timeout: float | None = None,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
        non_block: bool = False,
        single_value: bool = False,
        **_: Any,
    ) -> Any:
        """What the engine core asks of its workers; a question we have no answer to gets None, as from idle workers."""
        name = method if isinstance(method, str) else method.__name__
        answer = getattr(self, f"rpc_{name}", lambda *_args, **_kwargs: None)(*args, **(kwargs or {}))
        return self._delivered(answer if single_value else [answer], non_block)

    def rpc_get_kv_cache_spec(self) -> dict[str, Any]:
        """The layers, from the groups asked for."""
        return type(self).layer_specs(self.vllm_config)

    def rpc_determine_available_memory(self) -> int:
        """Bytes."""
        return MEMORY_BYTES

    def rpc_get_supported_tasks(self) -> tuple[str, ...]:
        """Text generation."""
        return ("generate",)

    def rpc_get_supported_kv_cache_layouts(self) -> list[str]:
        """0.30 and later: all, the engine takes its default."""
        from vllm.v1.kv_cache_interface import KVCacheLayout

        return [layout.name for layout in KVCacheLayout]

    def rpc_set_kv_cache_layout(self, name: str, *_: Any) -> None:
        """0.30 and later."""
        self.cache_config.kv_cache_layout = name

    def initialize_from_config(self, kv_cache_configs: Any) -> None:
        """There are no tensors."""

    def compile_or_warm_up_model(self) -> None:
        """There is no model."""

    def take_draft_token_ids(self) -> Any:
        """Drafts of the last step, once."""
        drafts, self.drafts = self.drafts, None
        return drafts

    def check_health(self) -> None:
        """Always well."""

    def shutdown(self) -> None:
        """Nothing to stop."""

    def execute_model(self, scheduler_output: Any, non_block: bool = False) -> Any:
        """Record the step; requests whose tokens are all computed get their next token."""
        for new in scheduler_output.scheduled_new_reqs:
            outputs = type(self).outputs_of(new.req_id)
            self.running[new.req_id] = Progress(len(new.prompt_token_ids), new.num_computed_tokens, outputs)
        cached = scheduler_output.scheduled_cached_reqs
        for request_id, computed in zip(cached.req_ids, cached.num_computed_tokens, strict=True):
            self.running[request_id].computed = computed
        ids = list(scheduler_output.num_scheduled_tokens)
        sampled = [self._step(self.running[each], scheduler_output.num_scheduled_tokens[each]) for each in ids]
        if (spec := self.vllm_config.speculative_config) is not None:
            sampling = [request_id for request_id, tokens in zip(ids, sampled, strict=True) if tokens]
            self.drafts = DraftTokenIds(sampling, [[DRAFT_TOKEN] * spec.num_speculative_tokens for _ in sampling])
        output = ModelRunnerOutput(
            req_ids=ids, req_id_to_index={each: i for i, each in enumerate(ids)}, sampled_token_ids=sampled
        )
        return self._delivered(output, non_block)

    @staticmethod
    def _step(request: Progress, scheduled: int) -> list[int]:
        end = min(request.computed + scheduled, request.known)
        request.steps.append((request.computed, end))
        if end < request.known:
            return []
        request.known += 1
        return [next(request.outputs)]

    @staticmethod
    def _delivered(answer: Any, non_block: bool) -> Any:
        if not non_block:
            return answer
        future: Future[Any] = Future()
        future.set_result(answer)
        return future
