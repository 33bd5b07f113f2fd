"""The numbers of `config.json` that the decoder needs, for the architectures it implements."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from vocabulary.bounded import read_json
from vocabulary.errors import UsageError
from vocabulary.groups import Kind, LayerGroup

MAX_LAYERS = 10_000
SUPPORTED = ("llama", "qwen3", "gemma3_text", "qwen3_5_text", "qwen3_next")
_HYBRIDS = ("qwen3_5_text", "qwen3_next")
_KINDS = {"full_attention": Kind.FULL, "sliding_attention": Kind.SWA, "linear_attention": Kind.GDN}
_PATTERN_KEYS = {"gemma3_text": ("sliding_window_pattern", 6)} | dict.fromkeys(_HYBRIDS, ("full_attention_interval", 4))
"""Where `layer_types` is absent: every n-th layer is a full one (transformers 5.19)."""


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary embedding of one kind of layer."""

    theta: float
    dims: int
    """Leading elements of a head that are rotated."""
    stretch: float = 1.0
    """Positions are divided by it (scaling "linear")."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaSizes:
    """Sizes of the gated delta net layers."""

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    conv_width: int

    @property
    def channels(self) -> int:
        """Queries, keys and values of one token: what the convolution runs over."""
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """A dense decoder-only model; lengths in elements or tokens."""

    model_type: str
    layer_kinds: tuple[Kind, ...]
    """What each layer keeps."""
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab_size: int
    context_len: int
    rope: Rope
    """Of full attention layers."""
    window_rope: Rope | None
    """Of sliding-window layers."""
    window: int | None
    """Tokens a sliding-window layer sees, the token itself included."""
    query_scale: float
    norm_eps: float
    activation: Literal["silu", "gelu_tanh"]
    delta: DeltaSizes | None
    mtp: bool
    """Whether the checkpoint has a head that drafts the token after next."""
    tied_head: bool
    """The output matrix is the embedding."""
    stored_dtype: str

    @property
    def layers(self) -> int:
        """Decoder layers, without the drafting head's."""
        return len(self.layer_kinds)

    @property
    def groups(self) -> tuple[str, ...]:
        """One group per kind of layer, as a law's `groups` option takes them: `("full", "swa:128")`."""
        kinds = [kind for kind in Kind if kind in self.layer_kinds]
        return tuple(str(LayerGroup(kind, window=self.window if kind is Kind.SWA else None)) for kind in kinds)

    @property
    def qk_norm(self) -> bool:
        """Whether queries and keys are normalised per head before the rotation."""
        return self.model_type != "llama"

    @property
    def norm_adds_one(self) -> bool:
        """Whether norms multiply by 1 + weight (not that of the delta net's output)."""
        return self.model_type in ("gemma3_text", *_HYBRIDS)

    @property
    def output_norms(self) -> bool:
        """Whether attention's and the MLP's outputs are normalised before they are added (Gemma)."""
        return self.model_type == "gemma3_text"

    @property
    def output_gate(self) -> bool:
        """Whether attention's output is gated by the input (Qwen3-Next, Qwen3.5)."""
        return self.model_type in _HYBRIDS

    @property
    def embedding_scale(self) -> float | None:
        """What embeddings are multiplied by."""
        return self.hidden**0.5 if self.model_type == "gemma3_text" else None

    def rope_of(self, kind: Kind) -> Rope:
        """The rotary embedding of an attention layer."""
        if kind is Kind.SWA:
            assert self.window_rope is not None
            return self.window_rope
        return self.rope

    @classmethod
    def read(cls, directory: Path) -> ModelConfig:
        """Read `config.json` as transformers 4 and 5 write it.

        Raises UsageError for an architecture, activation, bias or rope scaling that the decoder does not implement.
        """
        path = directory / "config.json"
        try:
            raw = read_json(path)
        except UsageError as error:
            raise UsageError(f"{error}; make it again with `hitparity model make`") from None
        if not isinstance(raw, dict):
            raise UsageError(f"{path}: is no JSON object; make it again with `hitparity model make`")
        if raw.get("model_type") not in SUPPORTED:
            raise UsageError(
                f"{path}: model_type {raw.get('model_type')!r} is not supported by the reference engine; "
                f"supported: {', '.join(SUPPORTED)}"
            )
        layers = raw.get("num_hidden_layers", 1)
        if type(layers) is not int or not 0 < layers <= MAX_LAYERS:
            raise UsageError(f"{path}: num_hidden_layers is {layers!r:.40}, not a number from 1 to {MAX_LAYERS}")
        try:
            _refuse_unsupported(path, raw)
            kinds = _layer_kinds(path, raw)
            head_dim = raw.get("head_dim") or raw["hidden_size"] // raw["num_attention_heads"]
            scalar = raw.get("query_pre_attn_scalar", 256) if raw["model_type"] == "gemma3_text" else head_dim
            return cls(
                model_type=raw["model_type"],
                layer_kinds=kinds,
                hidden=raw["hidden_size"],
                heads=raw["num_attention_heads"],
                kv_heads=raw["num_key_value_heads"],
                head_dim=head_dim,
                intermediate=raw["intermediate_size"],
                vocab_size=raw["vocab_size"],
                context_len=raw["max_position_embeddings"],
                rope=_rope(path, raw, head_dim),
                window_rope=_window_rope(path, raw, head_dim) if Kind.SWA in kinds else None,
                window=raw["sliding_window"] if Kind.SWA in kinds else None,
                query_scale=scalar**-0.5,
                norm_eps=raw["rms_norm_eps"],
                activation="gelu_tanh" if raw["model_type"] == "gemma3_text" else "silu",
                delta=_delta(raw) if Kind.GDN in kinds else None,
                mtp=_mtp_layers(raw) > 0,
                tied_head=raw.get("tie_word_embeddings", raw["model_type"] == "gemma3_text"),
                stored_dtype=raw.get("dtype") or raw["torch_dtype"],
            )
        except KeyError as error:
            raise UsageError(f"{path}: key {error} is missing; make the model folder again") from None
        except (TypeError, ValueError, ArithmeticError, AttributeError) as error:
            raise UsageError(f"{path}: a value is of the wrong kind ({error}); make the model folder again") from None


def _layer_kinds(path: Path, raw: dict[str, Any]) -> tuple[Kind, ...]:
    count = raw["num_hidden_layers"]
    names = raw.get("layer_types")
    if names is None:
        key, default = _PATTERN_KEYS.get(raw["model_type"], ("", 1))
        step = raw.get(key, default)
        other = "sliding_attention" if raw["model_type"] == "gemma3_text" else "linear_attention"
        names = ["full_attention" if (index + 1) % step == 0 else other for index in range(count)]
    if unknown := set(names) - set(_KINDS):
        raise UsageError(f"{path}: layer_types {sorted(unknown)} are not implemented; known: {', '.join(_KINDS)}")
    if len(names) != count:
        raise UsageError(f"{path}: {len(names)} layer_types for {count} layers")
    return tuple(_KINDS[name] for name in names)


def _rope(path: Path, raw: dict[str, Any], head_dim: int) -> Rope:
    section = _rope_section(raw, "full_attention")
    theta = section.get("rope_theta") or raw["rope_theta"]
    partial = 0.25 if raw["model_type"] in _HYBRIDS else 1.0
    share = section.get("partial_rotary_factor") or raw.get("partial_rotary_factor") or partial
    return Rope(float(theta), int(head_dim * share), _stretch(path, raw, section))


def _window_rope(path: Path, raw: dict[str, Any], head_dim: int) -> Rope:
    section = _rope_section(raw, "sliding_attention")
    theta = section.get("rope_theta") or raw["rope_local_base_freq"]
    return Rope(float(theta), head_dim, _stretch(path, raw, section))


def _rope_section(raw: dict[str, Any], layer_type: str) -> dict[str, Any]:
    """transformers 5 writes `rope_parameters`, by layer type where these differ; 4 wrote `rope_scaling` for full
    attention, with the thetas beside it.
    """
    section: dict[str, Any] = raw.get("rope_parameters") or {}
    if "full_attention" in section or "sliding_attention" in section:
        return section.get(layer_type) or {}
    return section or (raw.get("rope_scaling") or {} if layer_type == "full_attention" else {})


def _stretch(path: Path, raw: dict[str, Any], section: dict[str, Any]) -> float:
    kind = section.get("rope_type", section.get("type", "default"))
    if kind == "linear" and raw["model_type"] == "gemma3_text":
        return float(section["factor"])
    if kind != "default":
        raise _not_implemented(path, "rope scaling", kind, "default")
    return 1.0


def _delta(raw: dict[str, Any]) -> DeltaSizes:
    return DeltaSizes(
        key_heads=raw["linear_num_key_heads"],
        value_heads=raw["linear_num_value_heads"],
        key_dim=raw["linear_key_head_dim"],
        value_dim=raw["linear_value_head_dim"],
        conv_width=raw["linear_conv_kernel_dim"],
    )


def _mtp_layers(raw: dict[str, Any]) -> int:
    """Key of Qwen3.5, else of Qwen3-Next (vLLM 0.32.0, models/qwen3_5_mtp.py and qwen3_next_mtp.py)."""
    layers: int = raw.get("mtp_num_hidden_layers", raw.get("num_nextn_predict_layers", 0))
    return layers if raw["model_type"] in _HYBRIDS else 0


def _refuse_unsupported(path: Path, raw: dict[str, Any]) -> None:
    gemma = raw["model_type"] == "gemma3_text"
    wanted = {
        "hidden_act": (raw.get("hidden_act", "silu"), "silu"),
        "hidden_activation": (raw.get("hidden_activation", "gelu_pytorch_tanh"), "gelu_pytorch_tanh"),
        "attention_bias": (raw.get("attention_bias", False), False),
        "mlp_bias": (raw.get("mlp_bias", False), False),
        "use_sliding_window": (raw.get("use_sliding_window", False), False),
        "attn_logit_softcapping": (raw.get("attn_logit_softcapping"), None),
        "final_logit_softcapping": (raw.get("final_logit_softcapping"), None),
        "use_bidirectional_attention": (raw.get("use_bidirectional_attention") or False, False),
        "mtp_num_hidden_layers": (max(_mtp_layers(raw), 1), 1),
        "layers with experts": (_expert_layers(raw), 0),
    }
    del wanted["hidden_act" if gemma else "hidden_activation"]
    for key, (found, implemented) in wanted.items():
        if found != implemented:
            raise _not_implemented(path, key, found, implemented)


def _expert_layers(raw: dict[str, Any]) -> int:
    """Layers of Qwen3-Next whose MLP is a mixture (transformers 5.19: 512 experts in every layer by default)."""
    if raw["model_type"] != "qwen3_next" or raw.get("num_experts", 512) == 0:
        return 0
    dense = set(raw.get("mlp_only_layers") or ())
    step = raw.get("decoder_sparse_step", 1)
    return sum(index not in dense and (index + 1) % step == 0 for index in range(raw.get("num_hidden_layers", 0)))


def _not_implemented(path: Path, key: str, found: object, implemented: object) -> UsageError:
    return UsageError(
        f"{path}: {key} = {found!r} is not implemented by the reference engine (only {implemented!r}); "
        f"use another model or another engine"
    )
