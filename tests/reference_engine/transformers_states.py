"""Run by an interpreter that has transformers: logits of every position of several model folders, fp32, on the CPU.

transformers_states.py OUT.npz < '{"name": {"folder": "...", "ids": [1, 2, 3]}, ...}'

A folder whose weights have a drafting head gives its logits too (`NAME.draft`): transformers leaves the head out, so it
is put together here from transformers' own layers. There the last ID is only drafted from.
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch

# text models need neither, and their prebuilt wheels do not load beside a CPU build of torch
sys.modules.update(torchvision=None, torchaudio=None)  # type: ignore[arg-type]

from safetensors.torch import load_file  # noqa: E402
from transformers import AutoModelForCausalLM  # noqa: E402
from transformers.models.qwen3_5 import modeling_qwen3_5 as qwen  # noqa: E402


def draft(model, weights, ids, hidden):  # type: ignore[no-untyped-def]
    config = type(model.config)(
        **(model.config.to_dict() | {"layer_types": ["full_attention"], "num_hidden_layers": 1})
    )
    size = (config.hidden_size, config.rms_norm_eps)
    head = torch.nn.ModuleDict(
        {
            "pre_fc_norm_embedding": qwen.Qwen3_5RMSNorm(*size),
            "pre_fc_norm_hidden": qwen.Qwen3_5RMSNorm(*size),
            "fc": torch.nn.Linear(2 * config.hidden_size, config.hidden_size, bias=False),
            "layers": torch.nn.ModuleList([qwen.Qwen3_5DecoderLayer(config, 0)]),
            "norm": qwen.Qwen3_5RMSNorm(*size),
        }
    )
    head.load_state_dict({name[4:]: values for name, values in weights.items() if name.startswith("mtp.")})
    embedded = head["pre_fc_norm_embedding"](model.model.embed_tokens(ids[:, 1:]))
    joined = head["fc"](torch.cat([embedded, head["pre_fc_norm_hidden"](hidden)], dim=-1))
    rows = joined.shape[1]
    angles = model.model.rotary_emb(joined, torch.arange(rows)[None])
    mask = torch.full((rows, rows), -torch.inf).triu(1)[None, None]
    made = head["layers"][0](joined, position_embeddings=angles, attention_mask=mask)
    return model.lm_head(head["norm"](made))


torch.set_num_threads(2)
arrays = {}
for name, job in json.load(sys.stdin).items():
    model, info = AutoModelForCausalLM.from_pretrained(
        job["folder"], dtype=torch.float32, attn_implementation="eager", local_files_only=True, output_loading_info=True
    )
    assert not any(info.values()), info
    ids, weights = torch.tensor([job["ids"]]), load_file(Path(job["folder"]) / "model.safetensors")
    drafting = "mtp.fc.weight" in weights
    with torch.inference_mode():
        hidden = model.eval().model(ids[:, :-1] if drafting else ids).last_hidden_state
        arrays[name] = model.lm_head(hidden)[0].numpy()
        if drafting:
            arrays[f"{name}.draft"] = draft(model, weights, ids, hidden)[0].numpy()
np.savez(sys.argv[1], **arrays)
