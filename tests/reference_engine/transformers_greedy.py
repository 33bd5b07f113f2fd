"""Run by an interpreter that has transformers: greedy tokens and first logits of a model folder, fp32, on the CPU.

transformers_greedy.py MODEL_DIR OUT.npz < '{"prompts": [[1, 2, 3], ...], "max_tokens": 8}'
"""

import json
import sys

import numpy as np
import torch

sys.modules["torchvision"] = None  # type: ignore[assignment]  # not needed, and often built for another torch

from transformers import AutoModelForCausalLM  # noqa: E402

job = json.load(sys.stdin)
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32).eval()
arrays = {}
with torch.inference_mode():
    for number, prompt in enumerate(job["prompts"]):
        ids, cache, output = torch.tensor([prompt]), None, []
        for step in range(job["max_tokens"]):
            answer = model(ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
            logits, cache = answer.logits[0, -1], answer.past_key_values
            if step == 0:
                arrays[f"logits{number}"] = logits.numpy()
            output.append(int(logits.argmax()))
            ids = torch.tensor([output[-1:]])
        arrays[f"output{number}"] = np.array(output)
np.savez(sys.argv[2], **arrays)
