"""Block sizes of hybrids: the published derivation of Qwen3.5-27B and its neighbours."""

from __future__ import annotations

import pytest

from reference_engine.laws.vllm.block_size import RELEASES, HybridBytes, HybridShape, Rule, hybrid_block_size
from vocabulary.errors import LawDoesNotCover, UsageError

# Qwen3.5-27B on two ranks: bf16 keys and values, fp32 state (published).
SHAPE = HybridShape(
    kv_heads=4,
    head_dim=256,
    kv_dtype_bytes=2,
    recurrent_heads=48,
    recurrent_head_dims=(128, 128),
    recurrent_dtype_bytes=4,
    conv_bytes_per_rank=61_440,
    tp=2,
)
SIZES = SHAPE.bytes_per_rank()


def test_bytes_per_rank() -> None:
    assert (SIZES.k_per_token, SIZES.kv_per_token, SIZES.recurrent, SIZES.state) == (1024, 2048, 1_572_864, 1_634_304)


@pytest.mark.parametrize("law", ["vllm-ascend@0.23", "vllm-ascend@0.26"])
def test_keys_only(law: str) -> None:
    block = hybrid_block_size(law, SIZES)
    assert (block.block_size, block.page_bytes, block.state_page_bytes) == (1536, 3_145_728, 3_207_168)
    assert block.padding == pytest.approx(0.0192, abs=5e-5)
    assert block.rule is Rule.KEYS_ONLY and "1,536" in block.formula


def test_published_block_of_0_30() -> None:
    for block in (
        hybrid_block_size("vllm-ascend@0.30", SIZES),
        hybrid_block_size("vllm@0.30", SIZES, kernel_block=128),
    ):
        assert (block.tokens_needed, block.block_size, block.page_bytes) == (798, 896, 1_835_008)
        assert block.padding == pytest.approx(0.1228, abs=5e-5)


@pytest.mark.parametrize("law", [law for law in RELEASES if law.startswith("vllm@")])
@pytest.mark.parametrize(
    ("alignment", "block", "page", "padding"),
    [
        (16, 800, 1_638_400, 0.0025),
        (32, 800, 1_638_400, 0.0025),
        (64, 832, 1_703_936, 0.0426),
        (128, 896, 1_835_008, 0.1228),
        (256, 1024, 2_097_152, 0.2832),
    ],
)
def test_mainline_alignments(law: str, alignment: int, block: int, page: int, padding: float) -> None:
    for found in (
        hybrid_block_size(law, SIZES, kernel_block=alignment),
        hybrid_block_size(law, SIZES, configured=alignment),
    ):
        assert (found.block_size, found.page_bytes, found.state_page_bytes) == (block, page, page)
        assert found.padding == pytest.approx(padding, abs=5e-5)


@pytest.mark.parametrize(("alignment", "block"), [(16, 1600), (128, 1664)])
def test_eight_bit_keys_and_values(alignment: int, block: int) -> None:
    halved = HybridBytes(k_per_token=512, kv_per_token=1024, recurrent=SIZES.recurrent, conv=SIZES.conv)
    assert hybrid_block_size("vllm@0.30", halved, kernel_block=alignment).block_size == block


def test_smaller_model_on_eight_ranks() -> None:
    # vllm-ascend #7393
    sizes = HybridBytes(k_per_token=512, kv_per_token=1024, recurrent=262_144, conv=12_288)
    block = hybrid_block_size("vllm-ascend@0.23", sizes)
    assert (block.block_size, block.page_bytes) == (512, 524_288)


def test_release_specific_alignments() -> None:
    assert hybrid_block_size("vllm@0.26", SIZES, mla=True).alignment == 16
    assert hybrid_block_size("vllm@0.30", SIZES, mla=True).alignment == 128
    assert [hybrid_block_size(f"vllm@{v}", SIZES, backends_alignment=96).block_size for v in ("0.30", "0.32")] == [
        800,
        864,
    ]
    assert [hybrid_block_size(f"vllm@{v}", SIZES, checkpoint_alignment=64).block_size for v in ("0.32", "0.33")] == [
        800,
        832,
    ]


def test_refusals() -> None:
    uneven = HybridBytes(k_per_token=1000, kv_per_token=2000, recurrent=SIZES.recurrent, conv=SIZES.conv)
    with pytest.raises(LawDoesNotCover, match="not exactly the recurrent"):
        hybrid_block_size("vllm-ascend@0.26", uneven)
    with pytest.raises(UsageError, match="no block-size rule"):
        hybrid_block_size("sglang@0.5.23", SIZES)
    with pytest.raises(UsageError, match="cannot be divided"):
        HybridShape(
            kv_heads=4, head_dim=1, kv_dtype_bytes=2, recurrent_heads=5, recurrent_head_dims=(1, 1),
            recurrent_dtype_bytes=4, conv_bytes_per_rank=0, tp=2,
        ).bytes_per_rank()  # fmt: skip
