"""Tiny models with random weights: one per kind of KV cache that engines treat differently.

Two to six megabytes each, drawn in well under a second. Their head dimension, 64, is one that GPU attention
kernels accept.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from numpy.random import PCG64

from checkpoints.bf16 import Bits, Floats, to_bits, to_floats
from checkpoints.bpe import BpeVocabulary, byte_alphabet
from checkpoints.gguf_file import adds_one_to_norm
from checkpoints.layout import Config, tensor_shapes
from checkpoints.model import Model

VOCAB_SIZE = 2048
BOS, EOS = 257, 258

_COMMON = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-6,
    "attention_bias": False,
    "attention_dropout": 0.0,
    "tie_word_embeddings": False,
    "pad_token_id": EOS,
}

MTP_LAYER_SHARE = 0.1
"""What layers of a model with a drafting head add, as a share of what they add in the other tiny models.

With random weights a draft would be right once in 2,048 times. Here the head's joining matrix passes the embedding of
the latest token on, and layers add little to it, in the model as in its head: both then mostly continue the latest
token, and the rest, what the model has read before, decides against the draft often enough.
"""

CONFIGS: dict[str, Config] = {
    "tiny-qwen3": _COMMON
    | {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "hidden_act": "silu",
        "rope_theta": 1e6,
        "use_sliding_window": False,
    },
    "tiny-llama": _COMMON
    | {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "rope_theta": 1e4,
        "mlp_bias": False,
    },
    "tiny-gemma3": _COMMON
    | {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "num_hidden_layers": 6,
        "layer_types": ["sliding_attention"] * 5 + ["full_attention"],
        "sliding_window": 128,
        "sliding_window_pattern": 6,
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": 64,
        "rope_theta": 1e6,
        "rope_local_base_freq": 1e4,
        "tie_word_embeddings": True,
    },
    "tiny-qwen3.5": _COMMON
    | {
        "architectures": ["Qwen3_5ForCausalLM"],
        "model_type": "qwen3_5_text",
        "hidden_act": "silu",
        "num_hidden_layers": 4,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "layer_types": ["linear_attention"] * 3 + ["full_attention"],
        "full_attention_interval": 4,
        # as many value heads as key heads: llama.cpp orders value heads differently otherwise
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 2,
        "linear_key_head_dim": 64,
        "linear_value_head_dim": 64,
        "linear_conv_kernel_dim": 4,
        "partial_rotary_factor": 0.25,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 1e7,
            "partial_rotary_factor": 0.25,
            "mrope_section": [3, 3, 2],
            "mrope_interleaved": True,
        },
    },
}
CONFIGS["tiny-qwen3.5-mtp"] = {**CONFIGS["tiny-qwen3.5"], "mtp_num_hidden_layers": 1}
"""config.json of each tiny model; begin, end and dtype are added when it is written."""


def build(name: str, seed: int) -> Model:
    """Draw the weights of one of `CONFIGS`."""
    config = CONFIGS[name]
    weights = {
        tensor: _draw(tensor, shape, seed, config["model_type"]) for tensor, shape in tensor_shapes(config).items()
    }
    if config.get("mtp_num_hidden_layers"):
        weights |= _easy_to_draft(weights)
    # An engine told to ignore end-of-text may mask it (llama.cpp) or sample it all the same (vLLM, SGLang).
    # A zero row gives logit 0, which never wins, so both decode the same tokens.
    weights["model.embed_tokens.weight" if config["tie_word_embeddings"] else "lm_head.weight"][[BOS, EOS]] = 0
    return Model(name=name, seed=seed, dtype="float32", config=config, vocabulary=vocabulary(), weights=weights)


def _easy_to_draft(weights: Mapping[str, Bits]) -> dict[str, Bits]:
    """The weights that differ where the model has a drafting head; see `MTP_LAYER_SHARE`."""
    outputs = ("o_proj.weight", "out_proj.weight", "down_proj.weight")
    changed = {
        name: to_bits(np.float32(MTP_LAYER_SHARE) * to_floats(values))
        for name, values in weights.items()
        if name.endswith(outputs)
    }
    join = to_floats(weights["mtp.fc.weight"]) * np.float32(MTP_LAYER_SHARE)
    join[:, : len(join)] += np.eye(len(join), dtype=np.float32)
    return changed | {"mtp.fc.weight": to_bits(join)}


def vocabulary() -> BpeVocabulary:
    """ASCII bytes, one merge, begin and end of text; every other ID stands for its own name `<|tN|>`.

    Bytes from 128 up are left out: alone they are no UTF-8, and llama-server answers HTTP 500 when the model
    generates one. The merge is there because llama.cpp refuses a BPE vocabulary without any.
    """
    alphabet = byte_alphabet()
    tokens = [alphabet[token_id] if token_id < 128 else f"<|t{token_id}|>" for token_id in range(VOCAB_SIZE)]
    space = alphabet[ord(" ")]
    merged = 256
    tokens[merged], tokens[BOS], tokens[EOS] = f"{space}t", "<|bos|>", "<|eos|>"
    control = frozenset({BOS, EOS})
    return BpeVocabulary(
        tokens=tuple(tokens),
        merges=(f"{space} t",),
        control=control,
        literal=frozenset(range(128, VOCAB_SIZE)) - control - {merged},
        bos=BOS,
        eos=EOS,
        pre="gpt-2",
    )


def _draw(name: str, shape: tuple[int, ...], seed: int, model_type: str) -> Bits:
    """Weights that keep activations near unit variance, so that no layer is idle and none saturates."""
    values = _normal(name, shape, seed)
    if name.endswith("A_log"):
        return to_bits(values - np.float32(3))  # decay of a few per cent per token: the state remembers dozens
    if "norm" in name.rsplit(".", 2)[-2] or name.endswith("dt_bias"):
        mean = 0 if adds_one_to_norm(model_type, name) else 1
        return to_bits(np.float32(mean) + np.float32(0.1) * values)
    spread = 1 / math.sqrt(shape[-1])
    if "embed_tokens" in name:
        # Gemma multiplies embeddings by sqrt(hidden); at 0.5 its tied head would only echo the last token
        spread = 0.5 * spread if model_type == "gemma3_text" else 0.5
    return to_bits(np.float32(spread) * values)


def _normal(name: str, shape: tuple[int, ...], seed: int) -> Floats:
    """Near-normal numbers, each the sum of the four 16-bit parts of one random word.

    numpy promises the stream of a bit generator for ever (NEP 19) but not that of its distributions.
    """
    words = PCG64([seed, *name.encode()]).random_raw(math.prod(shape))
    sums = words.view(np.uint16).reshape(-1, 4).sum(axis=1, dtype=np.int64)
    standard: Floats = ((sums - 2 * 0xFFFF) / math.sqrt((0x1_0000**2 - 1) / 3)).astype(np.float32)
    return standard.reshape(shape)
