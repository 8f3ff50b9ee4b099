"""Takes an upcycled mixture back to the dense model it was made from: every expert is the same FFN, so one of them is kept.

The reverse of packs/upcycle.py; a tool or a test that needs the dense model then needs no second download.
"""

import re
from pathlib import Path

import numpy as np

from engine.errors import BadModel
from engine.gguf import open_model
from packs.gguf_file import Stored, write_gguf
from packs.upcycle import plain_metadata, stored_tensors

_EXPERTS = re.compile(r"(blk\.\d+\.ffn_(?:gate|up|down))_exps\.weight")
_ROUTER = re.compile(r"blk\.\d+\.ffn_gate_inp\.weight")


def write_dense(mixture: Path, out: Path) -> None:
    """Write the dense model, its blocks as they are stored; BadModel if the experts differ."""
    with open_model(mixture) as model:
        metadata = plain_metadata(model)
        arch = metadata["general.architecture"]
        for key in ("expert_count", "expert_used_count"):
            metadata.pop(f"{arch}.{key}", None)
        tensors = {}
        for name, tensor in stored_tensors(model).items():
            if match := _EXPERTS.fullmatch(name):
                if not all(np.array_equal(expert, tensor.data[0]) for expert in tensor.data[1:]):
                    raise BadModel(f"{mixture.name}: the experts of {name} differ, so no one of them is the dense model's")
                tensors[f"{match[1]}.weight"] = Stored(tensor.data[0], tensor.shape[1:], tensor.type_id)
            elif not _ROUTER.fullmatch(name):
                tensors[name] = tensor
        write_gguf(out, arch, metadata=metadata, tensors=tensors)
