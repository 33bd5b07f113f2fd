"""Stand-alone child, run by the environment's Python: llama-server out of the xllamacpp wheel.

    host.py '{"model.path": "model.gguf", "n_ctx": 8192, "flash_attn_type": "LLAMA_FLASH_ATTN_TYPE_DISABLED", ...}'
    <- {"address": "http://127.0.0.1:PORT", "version": "2026.10.11549"}

Keys are attributes of xllamacpp.CommonParams, enumerators go by name. Serves until its stdin closes, so it
cannot outlive the harness.
"""

import functools
import json
import os
import sys
from enum import Enum

import xllamacpp

if __name__ == "__main__":
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever the engine prints belongs in the log
    params = xllamacpp.CommonParams()
    for key, value in json.loads(sys.argv[1]).items():
        *path, name = key.split(".")
        owner = functools.reduce(getattr, path, params)
        default = getattr(owner, name)
        setattr(owner, name, type(default)[value] if isinstance(default, Enum) else value)
    server = xllamacpp.Server(params)
    print(json.dumps({"address": server.listening_address, "version": xllamacpp.__version__}), file=answer, flush=True)
    sys.stdin.read()
