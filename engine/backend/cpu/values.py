"""Small float tensors as float32 arrays: norms, biases, convolution taps. Large ones are read where they lie."""

import numpy as np

from engine.errors import BadModel
from engine.gguf import Tensor


def float_array(tensor: Tensor) -> np.ndarray:
    """A float tensor as a contiguous f32 array of its own shape."""
    name = tensor.format.name
    if tensor.scale is not None:
        raise BadModel(f"{tensor.scale.name}: these values are not multiplied as a matrix, so none scales them")
    if name == "F32":
        values = np.ascontiguousarray(tensor.data).view(np.float32)
    elif name == "F16":
        values = np.ascontiguousarray(tensor.data).view(np.float16).astype(np.float32)
    elif name == "BF16":
        values = (np.ascontiguousarray(tensor.data).view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    else:
        raise BadModel(f"{tensor.name}: expected F32, F16 or BF16, found {name}")
    return np.ascontiguousarray(values.reshape(tensor.shape))
