"""`hitparity blocksize`: the block vLLM gives a hybrid model, release by release."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from harness.terminal import terminal
from vocabulary.errors import UsageError

NEEDED = ("--kv-heads", "--head-dim", "--recurrent-heads", "--recurrent-head-dims", "--conv-state-bytes")


def blocksize(
    config: Annotated[Path | None, typer.Option(metavar="FILE", help="A model's config.json, for the sizes.")] = None,
    kv_heads: Annotated[int | None, typer.Option(min=1, help="Key-value heads of an attention layer.")] = None,
    head_dim: Annotated[int | None, typer.Option(min=1)] = None,
    kv_dtype_bytes: Annotated[int, typer.Option(min=1, help="Bytes of a key or value.")] = 2,
    tp: Annotated[int, typer.Option(min=1, help="Ranks of tensor parallelism.")] = 1,
    recurrent_heads: Annotated[int | None, typer.Option(min=1, help="Value heads of a recurrent layer.")] = None,
    recurrent_head_dims: Annotated[
        str | None, typer.Option(metavar="K,V", help="Key and value dimension of one.")
    ] = None,
    recurrent_dtype_bytes: Annotated[int, typer.Option(min=1)] = 4,
    conv_state_bytes: Annotated[int | None, typer.Option(min=0, help="Convolution state of a layer, per rank.")] = None,
    drafts: Annotated[int, typer.Option(min=0, help="With --config: speculative tokens; they widen the state.")] = 0,
    kernel_block: Annotated[
        int, typer.Option(min=1, help="Smallest block of the attention backend: 16 on most GPUs, 128 on a CPU.")
    ] = 16,
    configured: Annotated[int | None, typer.Option("--block-size", min=1, help="block_size as set by you.")] = None,
    mla: Annotated[bool, typer.Option("--mla", help="The attention layers are MLA.")] = False,
    version: Annotated[
        list[str], typer.Option(metavar="ENGINE@VERSION", help="Only these releases, such as vllm@0.30.")
    ] = [],  # noqa: B006  (typer copies it)
) -> None:
    """Derive the block size of a hybrid model, with the arithmetic."""
    from harness.block_size import by_release, shape_of
    from reference_engine.laws.vllm.block_size import HybridShape

    if config is not None:
        shape = shape_of(
            config, tp=tp, kv_dtype_bytes=kv_dtype_bytes, recurrent_dtype_bytes=recurrent_dtype_bytes, drafts=drafts
        )
    elif drafts:
        raise UsageError(
            "--drafts widens the convolution state of a model's config.json: give --config FILE; without one, "
            "--conv-state-bytes already counts the drafts"
        )
    else:
        values = (kv_heads, head_dim, recurrent_heads, recurrent_head_dims, conv_state_bytes)
        missing = [name for name, value in zip(NEEDED, values, strict=True) if value is None]
        if missing:
            raise UsageError(f"give --config FILE, or also {', '.join(missing)}")
        assert kv_heads and head_dim and recurrent_heads and recurrent_head_dims and conv_state_bytes is not None
        shape = HybridShape(
            kv_heads=kv_heads, head_dim=head_dim, kv_dtype_bytes=kv_dtype_bytes, tp=tp,
            recurrent_heads=recurrent_heads, recurrent_head_dims=_dims(recurrent_head_dims),
            recurrent_dtype_bytes=recurrent_dtype_bytes, conv_bytes_per_rank=conv_state_bytes,
        )  # fmt: skip
    sizes = shape.bytes_per_rank()
    table = Table("release", "block", "page B", "state page B", "padding", "because")
    for each in by_release(sizes, version, kernel_block=kernel_block, configured=configured, mla=mla):
        block = each.block
        if block is None:
            table.add_row(each.law_id, "-", "-", "-", "-", escape(each.stops or ""))
        else:
            table.add_row(
                each.law_id, str(block.block_size), f"{block.page_bytes:,}", f"{block.state_page_bytes:,}",
                f"{100 * block.padding:.2f} %", escape(block.formula),
            )  # fmt: skip
    console = terminal()
    console.print(
        f"per rank: K {sizes.k_per_token:,} B and K+V {sizes.kv_per_token:,} B per token, recurrent state "
        f"{sizes.recurrent:,} B, convolution {sizes.conv:,} B"
    )
    console.print(table)


def _dims(text: str) -> tuple[int, int]:
    parts = text.split(",")
    if len(parts) != 2 or not all(part.strip().isdigit() for part in parts):
        raise UsageError(f"--recurrent-head-dims {text!r}: two numbers such as 128,128 are needed")
    return int(parts[0]), int(parts[1])
