"""Stands in front of the installed torchvision, declares its operators if its library cannot, and becomes it.

Runs inside an engine's own Python, so it imports nothing of ours.
"""

import sys
from importlib.machinery import PathFinder
from pathlib import Path

import torch

_HERE = Path(__file__).resolve().parent.parent
_SPEC = PathFinder.find_spec("torchvision", [entry for entry in sys.path if Path(entry or ".").resolve() != _HERE])
if _SPEC is None or _SPEC.origin is None or _SPEC.loader is None:
    raise ModuleNotFoundError("No module named 'torchvision' behind hitparity's torchvision shim", name="torchvision")

try:
    torch.ops.load_library(str(Path(_SPEC.origin).with_name("_C.so")))  # type: ignore[no-untyped-call]
except OSError:
    # Schemas without kernels: torchvision registers fake kernels for both at import, and a call still raises.
    torch.library.define("torchvision::nms", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    torch.library.define("torchvision::qnms", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

_module = sys.modules[__name__]
_module.__file__, _module.__spec__, _module.__loader__ = _SPEC.origin, _SPEC, _SPEC.loader
_module.__path__[:] = _SPEC.submodule_search_locations or []
_SPEC.loader.exec_module(_module)
