"""Logits of every position by transformers in float32. Arguments: model folder, ids.json, output.npy.

Run by the Python of the vLLM environment, which has torch and transformers.
"""

import json
import sys
from pathlib import Path


def main(folder: str, ids: str, output: str) -> None:
    """Load, run once, save `[len(ids), vocab]`."""
    # text models need neither, and their prebuilt wheels do not load beside a CPU build of torch
    sys.modules.update(torchvision=None, torchaudio=None)
    import numpy as np
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(2)
    model, info = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", local_files_only=True, output_loading_info=True
    )
    for problem, names in info.items():
        assert not names, f"{problem}: {names}"
    with torch.inference_mode():
        logits = model(torch.tensor([json.loads(Path(ids).read_text())])).logits[0]
    np.save(output, logits.numpy())


main(*sys.argv[1:])
