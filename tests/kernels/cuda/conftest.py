"""Kernels of the card: on a card where there is one, else on the processor.

The processor is slow at it, so without a card only a part of the cases runs: of formats and models those below, in one order
of blocks. TERRACE_THOROUGH=1 runs all.
"""

import os

import pytest

from engine.backend.cuda.presence import reason_without
from tools.cuda_on_cpu.device import EmulatedDevice, missing_compiler

_CARD = reason_without() is None
THOROUGH = _CARD or os.environ.get("TERRACE_THOROUGH") == "1"
_EVERYDAY_FORMATS = {"Q4_K", "Q6_K", "Q8_0", "Q5_1", "F16"}
_EVERYDAY_MODELS = {"qwen3moe", "qwen4exp"}


def pytest_collection_modifyitems(config, items):
    """Leave out what is for thorough runs only."""
    if THOROUGH:
        return
    kept, left_out = [], []
    for item in items:
        (left_out if _is_thorough(item) else kept).append(item)
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = kept


def _is_thorough(item) -> bool:
    if "kernels/cuda" not in item.path.as_posix() or not hasattr(item, "callspec"):
        return False
    parameters = item.callspec.params
    name = parameters.get("name", parameters.get("model", ""))
    of_formats, of_models = "products" in item.path.name or "formats" in item.name, "model" in item.path.name
    return (parameters.get("device") == "backwards" or (of_formats and name != "" and name not in _EVERYDAY_FORMATS)
            or (of_models and name != "" and name not in _EVERYDAY_MODELS))


@pytest.fixture(params=["card"] if _CARD else ["forwards", "backwards"])
def device(request):
    """A device; one without a card runs the blocks of a grid in one order and in the other."""
    if request.param == "card":
        from engine.backend.cuda.device import GpuDevice
        yield GpuDevice()
        return
    if missing_compiler():
        pytest.skip(missing_compiler())
    made = EmulatedDevice(order=int(request.param == "backwards"))
    yield made
    made.check_guards()
