"""The server's status as JSON values: what it runs, what it is doing, how it is doing. null = not known.

No text of a prompt or a reply is in it. It is what /v1/status says and what the Monitor page shows.
"""

from __future__ import annotations

import time
from importlib import metadata
from typing import Any

import msgspec

from gateway.config import GatewayConfig
from gateway.errors import Unavailable
from gateway.monitor.ledger import Totals
from gateway.monitor.sampler import share
from gateway.service import Service
from packs.manifest import ModelSource

Json = dict[str, Any]

_CARD = "MODEL_CARD.md"
_CARD_BYTES = 1 << 16


def status(service: Service) -> Json:
    """Everything that fits one screen and changes from moment to moment."""
    totals = service.ledger.totals
    return {
        "service": "terrace",
        "version": version(),
        "time_unix_s": round(time.time(), 3),
        "uptime_s": round(time.time() - service.started_unix_s, 1),
        "model": _model(service),
        "engine": _engine(service),
        "queue": {"waiting": service.client.waiting, "limit": service.config.max_queue},
        "activity": msgspec.to_builtins(service.ledger.running()),
        "totals": msgspec.to_builtins(totals) | _shares(totals),
        "machine": msgspec.to_builtins(service.sampler.machine),
    }


def recent(service: Service, *, after_request: int = 0, after_line: int = 0) -> Json:
    """The last requests and the engine's last log lines, or what is new of them."""
    return {
        "requests": msgspec.to_builtins(service.ledger.recent(after_request)),
        "log": msgspec.to_builtins(service.log_tail.since(after_line)),
    }


def about(service: Service) -> Json:
    """What does not change while the server runs: model card, licence, settings. The key is not told."""
    source = service.source
    return {
        "version": version(),
        "model": {
            "name": service.name,
            "file": source.model.name,
            "file_bytes": source.model.stat().st_size if source.model.is_file() else None,
            "family": source.family,
            "card": _card(source),
        },
        "settings": settings(service.config),
        "engine_info": _engine(service)["info"],
    }


def settings(config: GatewayConfig) -> Json:
    """The settings as they are in force; of a path its last part, for whoever looks need not know this machine's folders."""
    values: Json = msgspec.to_builtins(config, enc_hook=lambda path: path.name)
    values["api_key"] = "set" if config.api_key is not None else None
    return values


def version() -> str | None:
    """Of the installed package; a source tree that was never installed has none."""
    try:
        return metadata.version("terrace")
    except metadata.PackageNotFoundError:
        return None


def _model(service: Service) -> Json:
    facts: Json = {"name": service.name, "context": None, "vocab": None, "thinking": None}
    try:
        model = service.model()
    except Unavailable:
        return facts
    process = service.supervisor.process
    facts["context"] = process.max_context or None if process is not None else None
    facts["vocab"] = len(model.vocabulary.tokens)
    facts["thinking"] = model.tags is not None
    return facts


def _engine(service: Service) -> Json:
    supervisor = service.supervisor
    process = supervisor.process
    return {
        "state": supervisor.state.value,
        "reason": supervisor.reason,
        "since_unix_s": round(supervisor.since_unix_s, 3),
        "pid": None if process is None else process.pid,
        "restarts": supervisor.restarts,
        "last_error": msgspec.to_builtins(supervisor.last_failure),
        "info": dict(process.info) if process is not None and process.info else None,
    }


def _shares(totals: Totals) -> Json:
    return {
        "hit_rate": share(totals.hits, totals.lookups),
        "accepted_rate": share(totals.accepted, totals.offered),
        "reused_rate": share(totals.reused, totals.prompt_queries),
    }


def _card(source: ModelSource) -> str | None:
    file = None if source.directory is None else source.directory / _CARD
    if file is None or not file.is_file():
        return None
    with file.open("rb") as opened:
        return opened.read(_CARD_BYTES).decode("utf-8", "replace")
