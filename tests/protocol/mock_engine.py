"""The real daemon on a mock session; run as a process of its own by the tests. MOCK_LOAD chooses how loading goes."""

import os
import time

from engine.__main__ import main
from engine.config import EngineConfig
from engine.errors import BadModel
from tests.protocol.mock_session import MockSession, make_noise


def load(config: EngineConfig) -> MockSession:
    match os.environ.get("MOCK_LOAD"):
        case "bad":
            raise BadModel("tiny.gguf: offset 24: 99 tensors were announced")
        case "bug":
            raise KeyError("blk.0.nothing")
        case "memory":
            raise MemoryError
        case "slow":
            time.sleep(1.0)
        case "noisy":
            make_noise()
    return MockSession(
        max_context=config.max_context or 4096,
        chunk_size=config.prefill,
        stop_ids=(1, 2) if config.eos_ids is None else config.eos_ids,
    )


if __name__ == "__main__":
    main(load)
