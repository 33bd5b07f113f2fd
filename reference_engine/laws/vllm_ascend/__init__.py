"""vLLM-Ascend's laws: vLLM's with the switches of its releases."""

from __future__ import annotations

from reference_engine.laws.vllm import entry
from reference_engine.laws.vllm.switches import ASCEND

ENTRIES = tuple(entry(switches) for switches in ASCEND)
