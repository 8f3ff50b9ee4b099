"""Fixtures: vocabularies as files, and gateways that drive the fake engine."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from gateway.text.tokenizer import Tokenizer
from tests.gateway.harness import GatewayProcess, running_gateway
from tests.gateway.model_file import vocabulary, write_model_file


@pytest.fixture(scope="session")
def model_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose vocabulary has thinking tags."""
    return write_model_file(tmp_path_factory.mktemp("model") / "tiny.gguf", vocabulary(thinking=True))


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_metadata(vocabulary(thinking=True))


@pytest.fixture(scope="session")
def shared_gateway(tmp_path_factory: pytest.TempPathFactory, model_file: Path) -> Iterator[GatewayProcess]:
    with running_gateway(tmp_path_factory.mktemp("gateway"), model=model_file) as gateway:
        gateway.wait_ready()
        yield gateway


@pytest.fixture
def gateway(shared_gateway: GatewayProcess) -> GatewayProcess:
    """A gateway for tests that leave it as it was. The script and the record of lines are fresh."""
    for name in ("script.json", "received"):
        (shared_gateway.directory / name).unlink(missing_ok=True)
    return shared_gateway


@pytest.fixture
def start_gateway(tmp_path: Path, model_file: Path) -> Iterator[Callable[..., GatewayProcess]]:
    """Starts gateways of a test's own: `start_gateway("--flag", "value", start=[...])`."""
    with ExitStack() as stack:

        def start(*flags: str, model: Path = model_file, script: str | None = None) -> GatewayProcess:
            if script is not None:
                (tmp_path / "script.json").write_text(script)
            return stack.enter_context(running_gateway(tmp_path, *flags, model=model))

        yield start
