"""What every API needs, in one place: the engine's supervisor, the client that queues for it, the loaded model."""

from __future__ import annotations

import asyncio
import logging
import sys
from typing import Any

from gateway.config import GatewayConfig
from gateway.engine_client import EngineClient
from gateway.errors import Unavailable
from gateway.model import ServedModel, load_model
from gateway.supervisor import EngineState, Supervisor
from packs.manifest import ModelSource

log = logging.getLogger("gateway.service")


class Service:
    """Starts the engine and loads the vocabulary at the same time."""

    def __init__(self, config: GatewayConfig, source: ModelSource) -> None:
        self._config = config
        self._source = source
        self.supervisor = Supervisor(engine_command(config, source), config)
        self.client = EngineClient(self.supervisor, silence_timeout_s=config.silence_timeout)
        self._loading: asyncio.Task[ServedModel] | None = None

    @property
    def name(self) -> str:
        """The model's name for clients."""
        return self._config.name or self._source.name

    def start(self) -> None:
        """Begin to load everything; returns at once."""
        self.supervisor.start()
        self._loading = asyncio.create_task(asyncio.to_thread(load_model, self._source, self._config.name))
        self._loading.add_done_callback(_report)

    def model(self) -> ServedModel:
        """The loaded model; raises Unavailable until it is there."""
        if self._loading is None or not self._loading.done():
            raise Unavailable("Loading model", state=EngineState.LOADING.value)
        if (error := self._loading.exception()) is not None:
            raise Unavailable(f"the model cannot be served: {error}", state=EngineState.FAILED.value)
        return self._loading.result()

    async def stop(self, *, quit_s: float, terminate_s: float) -> None:
        """End the engine."""
        await self.supervisor.stop(quit_s=quit_s, terminate_s=terminate_s)

    def health(self) -> dict[str, Any]:
        """What is there; raises Unavailable when a request could not be served."""
        self.model()
        process = self.supervisor.ready_engine()
        return {
            "status": "ok",
            "model": self.name,
            "context": process.max_context,
            "busy": not self.supervisor.idle,
            "queued": self.client.waiting,
        }


def engine_command(config: GatewayConfig, source: ModelSource) -> list[str]:
    """The engine's command line: our own module, or the program that the configuration names."""
    command = config.engine_words or [sys.executable, "-m", "engine"]
    model = source.directory or source.model
    return [*command, "--model", str(model.resolve()), *config.engine_arg]


def _report(loading: asyncio.Task[ServedModel]) -> None:
    if not loading.cancelled() and (error := loading.exception()) is not None:
        log.error("the model cannot be served: %s", error)
