"""Token IDs by llama.cpp, special tokens parsed, none added. Arguments: GGUF, texts.json; prints JSON.

Run by the Python of the llama-cpp-python environment.
"""

import json
import sys
from pathlib import Path

from llama_cpp import Llama

gguf, texts = sys.argv[1:]
llama = Llama(gguf, vocab_only=True, verbose=False)
tokens = [llama.tokenize(text.encode(), add_bos=False, special=True) for text in json.loads(Path(texts).read_text())]
sys.stdout.write(json.dumps(tokens))
