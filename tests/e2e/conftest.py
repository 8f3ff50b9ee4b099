"""The real gateway with the real engine: on a tiny random model, and on the fetched pack where it is."""

import json
import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from packs.manifest import fetched_pack
from tests.gateway.harness import GatewayProcess, running_gateway
from tools.make_tiny_gguf import write_tiny


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random mixture-of-experts model with a small vocabulary and a chat template."""
    return write_tiny(tmp_path_factory.mktemp("model") / "tiny.gguf", "qwen3moe", tokenizer="bpe", seed=3)[0]


@pytest.fixture(scope="session")
def pack() -> Path:
    directory = fetched_pack()
    if not (directory / "manifest.json").is_file():
        pytest.skip("the fetched pack is not there: python -m packs.default makes it")
    return directory


@pytest.fixture
def start_gateway(tmp_path: Path, tiny_model: Path) -> Iterator[Callable[..., GatewayProcess]]:
    """Starts gateways with the real engine and waits until they are ready."""
    with ExitStack() as stack:

        def start(*flags: str, model: Path = tiny_model) -> GatewayProcess:
            gateway = stack.enter_context(running_gateway(tmp_path, *flags, model=model, fake=False))
            gateway.wait_ready(60)
            return gateway

        yield start


@pytest.fixture
def rng() -> random.Random:
    return random.Random(20)


def greedy(gateway: GatewayProcess, text: str = "the river runs over the stones", **fields: object) -> str:
    """The reply to a fixed prompt, as JSON of its tokens' bytes: random models write bytes that are no characters."""
    reply = gateway.chat(text, temperature=0, max_tokens=24, logprobs=True, top_logprobs=0, **fields)
    assert reply.status_code == 200, reply.text
    return json.dumps([entry["bytes"] for entry in reply.json()["choices"][0]["logprobs"]["content"]])
