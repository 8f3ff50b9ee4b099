"""Whether there is a card to compute on. Imports nothing heavy before it has to."""

_LEAST_MAJOR = 8  # compute capability: int8 tensor cores with 32 elements, asynchronous copies


def reason_without() -> str | None:
    """Why CUDA cannot be used here, or None if it can."""
    try:
        from cuda.bindings import driver
    except ImportError as error:
        return f"the package cuda-bindings is not there ({error}); pip install -e '.[cuda]'"
    try:
        status, = driver.cuInit(0)
        if status != driver.CUresult.CUDA_SUCCESS:
            return f"the driver does not start: {status.name}"
        status, count = driver.cuDeviceGetCount()
        if status != driver.CUresult.CUDA_SUCCESS or count == 0:
            return "there is no CUDA device"
        attribute = driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR
        status, major = driver.cuDeviceGetAttribute(attribute, 0)
    except RuntimeError as error:  # the driver's library is not installed
        return f"no CUDA driver: {error}"
    if major < _LEAST_MAJOR:
        return f"the card's compute capability is {major}.x, at least {_LEAST_MAJOR}.0 is needed"
    return None
