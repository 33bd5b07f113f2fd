"""How vLLM-Ascend's lookup worker is started: vLLM's own, with the patches loaded first."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from adapters.base import EngineSpec
from adapters.lookup_engine import checked
from adapters.vllm_lookup.lookup import VllmLookup
from adapters.vllm_lookup.options import VllmLookupOptions
from vocabulary.engine import Mode
from vocabulary.errors import UsageError

BOOT = Path(__file__).parent / "inside" / "ascend_boot.py"
VERSIONS = {"0.23": "0.23.0", "0.26": "0.26.0rc1", "0.30": "0.30.0rc2"}
"""Version of a law id to the release that answers for it."""


def open_vllm_ascend(version: str, options: Mapping[str, Any], folder: Path) -> VllmLookup:
    """`adapters.lookup.OpenLookup` of vLLM-Ascend."""
    if version not in VERSIONS:
        raise UsageError(f"vllm-ascend@{version}: no lookup worker for this version; there are: {', '.join(VERSIONS)}")
    return start(
        EngineSpec(
            engine="vllm-ascend-lookup",
            version=VERSIONS[version],
            mode=Mode.WORKER,
            options=checked(VllmLookupOptions, options),
        ),
        folder,
    )


def start(spec: EngineSpec, folder: Path) -> VllmLookup:
    """The worker; EngineUnavailable when the patches do not load or leave vLLM's own coordinator in place."""
    return VllmLookup("vllm-ascend", spec, folder, boot=BOOT)
