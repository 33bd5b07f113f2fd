"""Lets the packaged torchvision be imported beside a CPU-only torch; `PATH` goes in front of an engine's PYTHONPATH.

The torchvision wheels on the package index are CUDA builds. Beside a CPU torch their library does not
load, and their import then dies on `operator torchvision::nms does not exist` (torchvision 0.28.0 with torch
2.13.0), although nothing that serves text calls the operator. SGLang 0.5.23 imports torchvision
unconditionally, vLLM 0.32 for Qwen3.5.

`PATH` holds a package called torchvision that shadows the installed one, declares the missing operators
and then becomes the installed one. It needs no `.pth` file, no `sitecustomize` and no change to the
environment, and children that an engine spawns inherit it with PYTHONPATH.
"""

from pathlib import Path

PATH = Path(__file__).parent
