"""Who may talk to the server: Host and Origin when there is no key, the key when there is one.

Without a key the danger is a web page in the owner's browser, by DNS rebinding (a foreign Host) or a cross-site request
(a foreign Origin). Programs send no Origin and are not affected. Pure checks, called by one middleware.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import socket
from collections.abc import Mapping
from urllib.parse import urlsplit

from gateway.config import GatewayConfig
from gateway.errors import Forbidden, Unauthorized

_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_OPEN_PATHS = frozenset({"/", "/health", "/v1/health"})  # and everything under /ui/


class Gatekeeper:
    """The checks for one server."""

    def __init__(self, config: GatewayConfig) -> None:
        self._key = config.api_key
        self._host = config.host
        self._origins = frozenset(origin.rstrip("/").lower() for origin in config.allow_origin)
        own = {config.host, socket.gethostname(), "host.docker.internal", *config.allow_host}
        self._hosts = frozenset(name.lower() for name in own)

    def check(self, method: str, path: str, headers: Mapping[str, str]) -> None:
        """Raise Forbidden or Unauthorized if this request must not be served."""
        if self._key is None:
            self._check_host(headers.get("Host", ""))
            if method not in _SAFE_METHODS:
                self._check_origin(headers.get("Origin"), headers.get("Host", ""))
        elif not (path in _OPEN_PATHS or path.startswith("/ui/") or method == "OPTIONS"):
            self._check_key(headers)

    def check_order(self, remote: str | None) -> None:
        """Raise Forbidden unless this client may load, unload and restart: it has shown the key, or it is on this machine."""
        if self._key is None and not (remote is not None and _is_loopback(remote)):
            raise Forbidden("orders from other machines need a key: start the server with --api-key")

    @property
    def is_open_to_others(self) -> bool:
        """Whether anybody in the network may use this server."""
        return self._key is None and not (self._host == "localhost" or _is_loopback(self._host))

    def cors_headers(self, origin: str | None) -> dict[str, str]:
        """Headers that let an allowed page read our answers; none for any other."""
        if origin is None or not self._origin_allowed(origin):
            return {}
        return {
            "Access-Control-Allow-Origin": origin,
            "Access-Control-Allow-Methods": "GET, POST, OPTIONS",
            "Access-Control-Allow-Headers": "Authorization, Content-Type, X-Api-Key",
            "Access-Control-Max-Age": "600",
            "Vary": "Origin",
        }

    def _origin_allowed(self, origin: str) -> bool:
        return "*" in self._origins or origin.lower() in self._origins

    def _check_host(self, host: str) -> None:
        name = _host_name(host)
        if name in self._hosts or name == "localhost" or name.endswith(".localhost") or _is_address(name):
            return
        raise Forbidden(f"Host {name!r} is not served: start the server with --allow-host or --api-key")

    def _check_origin(self, origin: str | None, host: str) -> None:
        if origin is None or self._origin_allowed(origin):
            return
        if urlsplit(origin).netloc.lower() != host.lower() or not origin.startswith(("http://", "https://")):
            raise Forbidden(f"Origin {origin!r} is another site: start the server with --allow-origin to let it in")

    def _check_key(self, headers: Mapping[str, str]) -> None:
        scheme, _, value = headers.get("Authorization", "").partition(" ")
        given = (value.strip() if scheme.lower() == "bearer" else "", headers.get("X-Api-Key", ""))
        wanted = _digest(self._key or "")
        # Some clients send both headers and mean one. Both are always compared, in constant time.
        if not any([hmac.compare_digest(_digest(key), wanted) for key in given]):
            raise Unauthorized("a valid API key is needed: send it as Authorization: Bearer KEY or as x-api-key")


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def _host_name(host: str) -> str:
    """The Host header without its port, in lower case."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.rpartition(":")[0].lower() if host.rpartition(":")[2].isdigit() and ":" in host else host.lower()


def _is_loopback(address: str) -> bool:
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    mapped = parsed.ipv4_mapped if isinstance(parsed, ipaddress.IPv6Address) else None
    return (mapped or parsed).is_loopback


def _is_address(name: str) -> bool:
    """An IP address cannot be rebound by DNS."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
