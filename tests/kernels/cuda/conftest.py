"""Kernels of the card: on a card where there is one, else on the processor."""

import pytest

from engine.backend.cuda.presence import reason_without
from tools.cuda_on_cpu.device import EmulatedDevice, missing_compiler

_CARD = reason_without() is None


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
