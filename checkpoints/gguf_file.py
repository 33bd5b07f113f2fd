"""Write a GGUF with the weights of an HF checkpoint, for llama.cpp.

llama.cpp stores a few tensors in another form than transformers computes with (gguf 0.19, llama.cpp b11549):
RMSNorm weights that HF adds 1 to are stored with the 1, `A_log` is stored as the decay rate itself, and only
the "llama" architecture pairs rotary dimensions (2i, 2i+1) where HF pairs (i, i + head_dim/2).
"""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt

from checkpoints.bf16 import Bits, Floats, to_bits, to_floats
from checkpoints.bpe import BpeVocabulary
from checkpoints.layout import Config

ARCHITECTURES = {
    "llama": gguf.MODEL_ARCH.LLAMA,
    "qwen3": gguf.MODEL_ARCH.QWEN3,
    "gemma3_text": gguf.MODEL_ARCH.GEMMA3,
    "qwen3_5_text": gguf.MODEL_ARCH.QWEN35,
}
"""`model_type` of config.json to llama.cpp's architecture."""


class GgufWriter:
    """One GGUF being written: metadata at construction, then `add` per tensor, then `finish`."""

    def __init__(self, path: Path, name: str, config: Config, vocabulary: BpeVocabulary, dtype: str) -> None:
        """`dtype` ("float32" or "bfloat16") is that of matrices; vectors are always float32, as llama.cpp asks."""
        self._config, self._dtype = config, dtype
        architecture = ARCHITECTURES[config["model_type"]]
        self._names = gguf.get_tensor_name_map(architecture, config["num_hidden_layers"])
        self._writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[architecture])
        self._writer.add_name(name)
        types = gguf.LlamaFileType
        self._writer.add_file_type(types.MOSTLY_BF16 if dtype == "bfloat16" else types.ALL_F32)
        _add_dimensions(self._writer, config)
        _add_vocabulary(self._writer, vocabulary)

    def add(self, name: str, weights: Bits) -> None:
        """Add one tensor by its HF name; a drafting head's are left out, llama.cpp runs the model without it."""
        if name.startswith("mtp."):
            return
        values = _as_llama_cpp(name, to_floats(weights), self._config)
        target = gguf_name(self._names, name)
        if values.ndim > 1 and self._dtype == "bfloat16":
            raw = to_bits(values).view(np.uint8)
            self._writer.add_tensor(target, raw, raw_dtype=gguf.GGMLQuantizationType.BF16)
        else:
            self._writer.add_tensor(target, np.ascontiguousarray(values, np.float32))

    def finish(self) -> None:
        """Write everything out and close the file."""
        self._writer.write_header_to_file()
        self._writer.write_kv_data_to_file()
        self._writer.write_tensors_to_file()
        self._writer.close()


def gguf_name(names: gguf.TensorNameMap, name: str) -> str:
    """GGUF name of an HF tensor."""
    # llama.cpp has no name for `dt_bias`; it keeps the bias of a projection called dt_proj
    found = names.get_name(name.replace(".dt_bias", ".dt_proj.bias"), try_suffixes=(".weight", ".bias"))
    assert found, name
    return str(found)


def interleaved(rows: Floats, heads: int) -> Floats:
    """Reorder q or k rows `[heads * head_dim, hidden]` from half-split rotary pairs to neighbouring ones."""
    return rows.reshape(heads, 2, -1, rows.shape[-1]).swapaxes(1, 2).reshape(rows.shape)


def half_split(rows: Floats, heads: int) -> Floats:
    """Undo `interleaved`."""
    return rows.reshape(heads, -1, 2, rows.shape[-1]).swapaxes(1, 2).reshape(rows.shape)


def adds_one_to_norm(model_type: str, name: str) -> bool:
    """Whether the HF class multiplies by 1 + weight in this RMSNorm."""
    if not name.endswith(("norm.weight", "norm_embedding.weight", "norm_hidden.weight")):
        return False
    return model_type == "gemma3_text" or (model_type == "qwen3_5_text" and "linear_attn" not in name)


def _as_llama_cpp(name: str, values: Floats, config: Config) -> Floats:
    model_type = config["model_type"]
    if model_type == "llama" and name.endswith("q_proj.weight"):
        return interleaved(values, config["num_attention_heads"])
    if model_type == "llama" and name.endswith("k_proj.weight"):
        return interleaved(values, config["num_key_value_heads"])
    if adds_one_to_norm(model_type, name):
        return values + np.float32(1)
    if name.endswith("A_log"):
        rates: npt.NDArray[np.float64] = -np.exp(values.astype(np.float64))
        return rates.astype(np.float32)
    return values.squeeze(1) if name.endswith("conv1d.weight") else values


def _add_dimensions(writer: gguf.GGUFWriter, config: Config) -> None:
    writer.add_vocab_size(config["vocab_size"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    rotary = config.get("rope_parameters", config)
    writer.add_rope_freq_base(rotary["rope_theta"])
    if config["model_type"] == "llama":
        writer.add_rope_dimension_count(config["head_dim"])
    if config["model_type"] == "gemma3_text":
        writer.add_sliding_window(config["sliding_window"])
    if config["model_type"] == "qwen3_5_text":
        writer.add_rope_dimension_count(int(config["head_dim"] * rotary["partial_rotary_factor"]))
        writer.add_rope_dimension_sections([*rotary["mrope_section"], 0])
        writer.add_full_attention_interval(config["layer_types"].index("full_attention") + 1)
        writer.add_ssm_conv_kernel(config["linear_conv_kernel_dim"])
        writer.add_ssm_state_size(config["linear_key_head_dim"])
        writer.add_ssm_group_count(config["linear_num_key_heads"])
        writer.add_ssm_time_step_rank(config["linear_num_value_heads"])
        writer.add_ssm_inner_size(config["linear_num_value_heads"] * config["linear_value_head_dim"])


def _add_vocabulary(writer: gguf.GGUFWriter, vocabulary: BpeVocabulary) -> None:
    kinds = [gguf.TokenType.NORMAL] * len(vocabulary.tokens)
    for token_id in vocabulary.literal:
        kinds[token_id] = gguf.TokenType.USER_DEFINED
    for token_id in vocabulary.control:
        kinds[token_id] = gguf.TokenType.CONTROL
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(vocabulary.pre)
    writer.add_token_list(vocabulary.tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges(vocabulary.merges)
    writer.add_bos_token_id(vocabulary.bos)
    writer.add_eos_token_id(vocabulary.eos)
    writer.add_pad_token_id(vocabulary.eos)
    writer.add_add_bos_token(False)
    writer.add_add_space_prefix(False)
    if vocabulary.chat_template is not None:
        writer.add_chat_template(vocabulary.chat_template)
