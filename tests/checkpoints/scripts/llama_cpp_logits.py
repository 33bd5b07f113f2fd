"""Logits of every position by llama.cpp, KV in float32, flash attention off. Arguments: GGUF, ids.json, output.npy.

Run by the Python of the llama-cpp-python environment.
"""

import json
import sys
from pathlib import Path

import numpy as np
from llama_cpp import GGML_TYPE_F32, Llama

gguf, ids_file, output = sys.argv[1:]
ids = json.loads(Path(ids_file).read_text())
llama = Llama(
    gguf,
    n_ctx=len(ids) + 8,
    n_threads=2,
    n_threads_batch=2,
    logits_all=True,
    flash_attn=False,
    type_k=GGML_TYPE_F32,
    type_v=GGML_TYPE_F32,
    verbose=False,
)
llama.eval(ids)
np.save(output, np.asarray(llama.scores[: len(ids)], np.float32))
