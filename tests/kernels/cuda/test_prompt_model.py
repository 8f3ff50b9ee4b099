"""A whole model's prompt on the (emulated) card: the logits that windows give, cut in any way."""

import numpy as np
import pytest

from engine.backend.cuda.backend import WINDOW_DTYPE
from engine.backend.cuda.prompt.chunk import Chunk
from engine.backend.cuda.prompt.model import prompt_launches
from tests.kernels.cuda.test_models import MODELS, described
from tests.kernels.test_architectures import divergence
from tools.make_tiny_gguf import write_tiny


@pytest.mark.parametrize("name", ["qwen3moe", "qwen2moe", "olmoe", "gpt-oss", "llama"])
def test_logits_of_a_prompt(name, device, tmp_path):
    backend, files = described(device, write_tiny(tmp_path / "m.gguf", **MODELS[name])[0])
    chunk = Chunk(backend.window, backend.memory, 24, backend.max_context)
    launches = prompt_launches(backend._operations, chunk)
    backend.prepare()
    tokens = np.random.default_rng(0).integers(0, 60, 40).astype(np.int32)
    expected = np.concatenate([backend.run(tokens[i:i + 8], position=i, out_rows=8) for i in range(0, len(tokens), 8)])

    def read(start: int, stop: int) -> np.ndarray:
        window = np.zeros(1, WINDOW_DTYPE)
        window["rows"], window["position"] = stop - start, start
        window["out_rows"] = wanted = min(8, stop - start)
        window["out_first"] = stop - start - wanted
        device.upload(chunk.ids.address, tokens[start:stop])
        device.upload(backend.window.address, window)
        for launch in launches:
            device.run(launch)
        logits = np.empty((wanted, expected.shape[1]), np.float32)
        device.download(backend._head.logits.address, logits)
        return logits

    for cuts in ((24, 40), (3, 19, 20, 40)):
        for entry in backend.state:
            entry.array.fill(0)
        for start, stop in zip((0, *cuts), cuts, strict=False):
            logits = read(start, stop)
            apart = divergence(expected[stop - len(logits):stop], logits)
            assert apart.max() <= 2e-2 and np.median(apart) <= 3e-3, (start, stop, apart)
    backend.close()
    files.close()


def test_what_has_no_form_for_many_tokens_is_read_in_windows(device, tmp_path):
    backend, files = described(device, write_tiny(tmp_path / "m.gguf", **MODELS["qwen4exp"])[0])
    assert prompt_launches(backend._operations, Chunk(backend.window, backend.memory, 24, backend.max_context)) is None
    backend.close()
    files.close()
