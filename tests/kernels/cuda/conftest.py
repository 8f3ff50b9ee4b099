"""Kernels of the card, run on the processor."""

import pytest

from tools.cuda_on_cpu.device import EmulatedDevice, missing_compiler


@pytest.fixture(params=[False, True], ids=["", "backwards"])
def device(request):
    """A device without a card; its blocks run in one order and in the other."""
    if missing_compiler():
        pytest.skip(missing_compiler())
    made = EmulatedDevice(blocks_backwards=request.param)
    yield made
    made.check_guards()
