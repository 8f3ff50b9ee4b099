"""Float copies of a dense llama model's first layers, as they are and as a mixture of experts.

In F32 the mixture must say what the dense model says; the test of that uses these two files.

    python -m tools.float_twins SOURCE.gguf FOLDER [--layers 6]
"""

import argparse
import re
from pathlib import Path

import gguf
import numpy as np
from gguf.constants import GGMLQuantizationType

from engine.gguf import ModelFiles, open_model
from packs.gguf_file import write_gguf
from packs.upcycle import plain_metadata, upcycle

_LAYER = re.compile(r"blk\.(\d+)\.")


def float_tensors(model: ModelFiles, layers: int) -> dict[str, np.ndarray]:
    """All tensors but those of layers from `layers` on, as f32 in numpy order."""
    out = {}
    for name, tensor in model.tensors.items():
        match = _LAYER.match(name)
        if match is None or int(match[1]) < layers:
            floats = gguf.quants.dequantize(tensor.data, GGMLQuantizationType(tensor.format.id))
            out[name] = floats.reshape(tensor.shape)
    return out


def write_float_twins(source: Path, folder: Path, *, layers: int = 6) -> tuple[Path, Path]:
    """Write dense.gguf and mixture.gguf, both F32, of the first `layers` layers of `source`."""
    with open_model(source) as model:
        metadata = plain_metadata(model) | {"llama.block_count": layers}
        tensors = float_tensors(model, layers)
    metadata.pop("general.file_type", None)
    dense, mixture = folder / "dense.gguf", folder / "mixture.gguf"
    write_gguf(dense, "llama", metadata=metadata, tensors=tensors)
    metadata, tensors = upcycle(metadata, tensors)
    write_gguf(mixture, "llama", metadata=metadata, tensors=tensors)
    return dense, mixture


def main() -> None:
    """Command line entry."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--layers", type=int, default=6)
    args = parser.parse_args()
    print(*write_float_twins(args.source, args.folder, layers=args.layers), sep="\n")


if __name__ == "__main__":
    main()
