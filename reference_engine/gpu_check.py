"""One short run on a card: do the kernels compute what the reference computes, and how fast are they there?

    python -m reference_engine.gpu_check --device cuda --out gpu_check.json

Needs torch and Triton for the device (CUDA), or torch, torch_npu and triton-ascend beside CANN (Ascend). With --dry-run
it goes through all of it on the CPU at toy sizes, kernels in Triton's interpreter; its times mean nothing.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from reference_engine.kernels.bench import DEVICE_SIZES, DRY_SIZES, ceilings, timings
from reference_engine.kernels.interface import TritonKernels, kernels_for
from reference_engine.kernels.proofs.cases import all_cases, equality
from vocabulary.engine import TokenRequest
from vocabulary.errors import EngineUnavailable, HitparityError

PREFIXES = (1024, 4096, 8192, 16384)
DRY_PREFIXES = (64, 128)
TAIL = 14
LAYERS, HIDDEN, HEADS, KV_HEADS, INTERMEDIATE, VOCAB = 24, 896, 14, 2, 4864, 151_936
"""Qwen2.5-0.5B's sizes as a Llama model: 0.49 billion random weights."""


@dataclass(frozen=True, slots=True)
class Ttft:
    """Cold and warm time to the first token of the reference engine."""

    prefix_len: int
    prompt_len: int
    hit_len: int
    cold_ms: float
    warm_ms: float
    equal_bits: bool
    """Whether the warm logits are the cold ones."""


@dataclass(slots=True)
class Report:
    """What the run found; written as JSON."""

    device: str
    dry_run: bool
    torch: str
    triton: str
    equality: list[dict[str, Any]] = field(default_factory=list)
    ceilings: dict[str, float] = field(default_factory=dict)
    kernels: list[dict[str, Any]] = field(default_factory=list)
    ttft: list[dict[str, Any]] = field(default_factory=list)
    not_measured: list[str] = field(default_factory=list)
    """Parts that were refused, with the reason."""
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def failed(self) -> list[str]:
        """Names of kernels that are wrong."""
        return [each["name"] for each in self.equality if each["broken"]]


def run(device_name: str, *, dry_run: bool) -> Report:
    """The whole check. Raises EngineUnavailable when the device or Triton is not there."""
    kernels, device = _kernels(device_name, dry_run)
    import triton

    sizes, repeats = (DRY_SIZES, 1) if dry_run else (DEVICE_SIZES, 20)
    report = Report(_card(device), dry_run, torch.__version__, triton.__version__)
    begin = time.perf_counter()
    for case in all_cases(device, matrix="brief" if dry_run else "device"):
        check = equality("equality", case, kernels)
        report.equality.append({"name": check.name, "broken": check.broken, **check.measured})
        _say(f"{'WRONG' if check.broken else 'equal'}  {check.name} {'; '.join(check.broken)}")
    report.seconds["equality"], begin = time.perf_counter() - begin, time.perf_counter()
    found = ceilings(device, sizes, repeats)
    report.ceilings = asdict(found)
    _say(f"copy {found.copy_tb_s:.3g} TB/s, matmul {found.matmul_tflop_s:.4g} TFLOP/s")
    for timing in timings(kernels, device, sizes, found, repeats):
        report.kernels.append(asdict(timing))
        _say(
            f"{timing.name}: {timing.ms:.3f} ms, {timing.tb_s:.3g} TB/s ({timing.copy_share:.0%} of copy), "
            f"{timing.tflop_s:.4g} TFLOP/s ({timing.matmul_share:.0%} of matmul)"
        )
    report.seconds["kernels"], begin = time.perf_counter() - begin, time.perf_counter()
    try:
        for ttft in _ttft("cpu" if dry_run else device_name, dry_run):
            report.ttft.append(asdict(ttft))
            _say(f"prefix {ttft.prefix_len}: cold {ttft.cold_ms:.1f} ms, warm {ttft.warm_ms:.1f} ms")
    except HitparityError as error:
        report.not_measured.append(f"ttft: {error}")
        _say(report.not_measured[-1])
    report.seconds["ttft"] = time.perf_counter() - begin
    return report


def _kernels(device_name: str, dry_run: bool) -> tuple[TritonKernels, torch.device]:
    if dry_run:
        from reference_engine.kernels.proofs.interpreter import ONE_EACH, decode_bf16_operands

        decode_bf16_operands()
        return TritonKernels(ONE_EACH), torch.device("cpu")
    if device_name == "npu":
        try:
            import torch_npu  # noqa: F401  (makes the device known to torch)
        except ImportError as error:
            raise EngineUnavailable(f"gpu-check: torch_npu cannot be loaded ({error}); it needs CANN") from None
    elif not torch.cuda.is_available():
        raise EngineUnavailable("gpu-check: torch sees no CUDA device; use --device npu, or --dry-run on a CPU")
    device = torch.device(device_name)
    kernels = kernels_for("triton", device)
    assert isinstance(kernels, TritonKernels)
    return kernels, device


def _card(device: torch.device) -> str:
    return "cpu" if device.type == "cpu" else str(torch.get_device_module(device).get_device_name())


def _ttft(device: str, dry_run: bool) -> Iterator[Ttft]:
    from reference_engine.load import EngineConfig, load_engine

    prefixes, block = DRY_PREFIXES if dry_run else PREFIXES, 16
    with tempfile.TemporaryDirectory() as folder:
        _write_model(Path(folder), small=dry_run)
        pool = 2 * max(prefixes) + 1024
        config = EngineConfig(
            law="vllm@0.32",
            law_options={"block_size": block, "num_blocks": pool // block},
            device=device,
            backend="fused" if device == "cpu" else "triton",
            prefill_grid=16 if dry_run else 1024,
            max_num_batched_tokens=max(prefixes) + 1024,
        )
        engine = load_engine(Path(folder), config).engine
    rng = random.Random(0)
    for prefix_len in prefixes:
        prefix = [rng.randrange(256) for _ in range(prefix_len)]
        tails = [[rng.randrange(256) for _ in range(TAIL)] for _ in range(2)]
        prompts = [tuple(prefix + tail) for tail in (tails[0], tails[1])]
        colds, warms = [], []
        for turn in range(2):  # the first pays for compilation and is not counted
            engine.reset()
            begin = time.monotonic_ns()
            cold = engine.generate([TokenRequest(request_id=f"cold-{turn}", ids=prompts[1])])[0]
            colds.append((cold.first_token_ns - begin) / 1e6)
            engine.reset()
            engine.generate([TokenRequest(request_id=f"first-{turn}", ids=prompts[0])])
            begin = time.monotonic_ns()
            warm = engine.generate([TokenRequest(request_id=f"warm-{turn}", ids=prompts[1])])[0]
            warms.append((warm.first_token_ns - begin) / 1e6)
        equal = torch.equal(cold.first_logits, warm.first_logits)
        yield Ttft(prefix_len, len(prompts[1]), warm.hand_over.hit_len, colds[-1], warms[-1], equal)


def _write_model(folder: Path, *, small: bool) -> None:
    layers, hidden, heads, kv_heads, inner, vocab = (
        (2, 64, 4, 2, 128, 256) if small else (LAYERS, HIDDEN, HEADS, KV_HEADS, INTERMEDIATE, VOCAB)
    )
    width, kv_width = hidden, hidden // heads * kv_heads
    config = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": hidden // heads,
        "intermediate_size": inner,
        "vocab_size": vocab,
        "max_position_embeddings": 32768,
        "rope_theta": 1_000_000.0,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": True,
        "hidden_act": "silu",
        "torch_dtype": "bfloat16",
    }
    shapes = {"model.embed_tokens.weight": (vocab, hidden), "model.norm.weight": (hidden,)}
    for index in range(layers):
        at = f"model.layers.{index}"
        shapes |= {
            f"{at}.input_layernorm.weight": (hidden,),
            f"{at}.post_attention_layernorm.weight": (hidden,),
            f"{at}.self_attn.q_proj.weight": (width, hidden),
            f"{at}.self_attn.k_proj.weight": (kv_width, hidden),
            f"{at}.self_attn.v_proj.weight": (kv_width, hidden),
            f"{at}.self_attn.o_proj.weight": (hidden, width),
            f"{at}.mlp.gate_proj.weight": (inner, hidden),
            f"{at}.mlp.up_proj.weight": (inner, hidden),
            f"{at}.mlp.down_proj.weight": (hidden, inner),
        }
    torch.manual_seed(0)
    weights = {
        name: torch.ones(shape, dtype=torch.bfloat16)
        if len(shape) == 1
        else torch.empty(shape, dtype=torch.bfloat16).normal_(std=0.02)
        for name, shape in shapes.items()
    }
    save_file(weights, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")


def _say(line: str) -> None:
    sys.stderr.write(line + "\n")


def main() -> int:
    """The program; 0: everything equal, 1: a kernel is wrong, 4: no device."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("cuda", "npu"), default="cuda")
    parser.add_argument("--out", type=Path, default=Path("gpu_check.json"))
    parser.add_argument("--dry-run", action="store_true")
    given = parser.parse_args()
    try:
        report = run(given.device, dry_run=given.dry_run)
    except HitparityError as error:
        _say(str(error))
        return int(error.exit_code)
    given.out.write_text(json.dumps(asdict(report), indent=1) + "\n", encoding="utf-8")
    _say(f"written: {given.out}; {len(report.equality)} checks, {len(report.failed)} wrong")
    return int(bool(report.failed))


if __name__ == "__main__":
    sys.exit(main())
