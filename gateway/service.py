"""What every API needs, in one place: the engine's supervisor, the client that queues for it, the loaded model.

Also what the server knows about itself: ledger, sampler, metrics. Runs on the event loop.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from typing import Any

from gateway.config import GatewayConfig
from gateway.engine_client import EngineClient
from gateway.errors import Unavailable
from gateway.metrics import Metrics
from gateway.model import ServedModel, load_model
from gateway.monitor.ledger import Ledger
from gateway.monitor.log_tail import LogTail
from gateway.monitor.sampler import Sampler
from gateway.supervisor import EngineState, Supervisor
from packs.manifest import ModelSource

log = logging.getLogger("gateway.service")


class Service:
    """Starts the engine and loads the vocabulary at the same time."""

    def __init__(self, config: GatewayConfig, source: ModelSource) -> None:
        self.config = config
        self.source = source
        self.started_unix_s = time.time()
        self.log_tail = LogTail()
        self.metrics = Metrics(self.name)
        self.ledger = Ledger(self.metrics.observe)
        self.sampler = Sampler(self.ledger, self._engine_pid, lambda: self.client.waiting)
        self.supervisor = Supervisor(
            engine_command(config, source), config, log_tail=self.log_tail, gpu_memory_of=self.sampler.gpu_mib_of
        )
        self.client = EngineClient(
            self.supervisor, self.ledger, silence_timeout_s=config.silence_timeout, max_queue=config.max_queue
        )
        self.metrics.watch(self.ledger, self.supervisor, self.sampler, lambda: self.client.waiting)
        self._loading: asyncio.Task[ServedModel] | None = None

    @property
    def name(self) -> str:
        """The model's name for clients."""
        return self.config.name or self.source.name

    def start(self) -> None:
        """Begin to load everything; returns at once."""
        self.sampler.start()
        self.supervisor.start()
        self._loading = asyncio.create_task(asyncio.to_thread(load_model, self.source, self.config.name))
        self._loading.add_done_callback(_report)

    def model(self) -> ServedModel:
        """The loaded model; raises Unavailable until it is there."""
        if self._loading is None or not self._loading.done():
            raise Unavailable("Loading model", state=EngineState.LOADING.value)
        if (error := self._loading.exception()) is not None:
            raise Unavailable(f"the model cannot be served: {error}", state=EngineState.FAILED.value)
        return self._loading.result()

    async def unload(self) -> None:
        """End the engine; the running request gets an error, those that wait too."""
        self.client.interrupt("the model was unloaded")
        await self.supervisor.unload()

    async def restart(self) -> None:
        """End the engine and start another; the running request gets an error, those that wait go to the next."""
        self.client.interrupt("the engine was restarted on request; the next request finds it ready")
        await self.supervisor.restart()

    async def refuse_all(self, reason: str) -> None:
        """The server is about to stop: every request that is here or comes gets an error, in its API's shape."""
        await self.supervisor.announce_stop()
        self.client.refuse_all(reason)

    async def stop(self, *, quit_s: float, terminate_s: float) -> None:
        """End the engine."""
        await self.supervisor.stop(quit_s=quit_s, terminate_s=terminate_s)
        await self.sampler.stop()

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

    def _engine_pid(self) -> int | None:
        process = self.supervisor.process
        return None if process is None else process.pid


def engine_command(config: GatewayConfig, source: ModelSource) -> list[str]:
    """The engine's command line: our own module, or the program that the configuration names."""
    command = config.engine_words or [sys.executable, "-m", "engine"]
    model = source.directory or source.model
    return [*command, "--model", str(model.resolve()), *config.engine_arg]


def _report(loading: asyncio.Task[ServedModel]) -> None:
    if not loading.cancelled() and (error := loading.exception()) is not None:
        log.error("the model cannot be served: %s", error)
