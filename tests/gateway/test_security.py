"""Host, Origin and key: pages in a browser are kept out, programs are not."""

import pytest

from gateway.config import GatewayConfig
from gateway.errors import Forbidden, Unauthorized
from gateway.security import Gatekeeper

OPEN = Gatekeeper(GatewayConfig(allow_host=("box.lan",), allow_origin=("https://app.example",)))
KEYED = Gatekeeper(GatewayConfig(api_key="sécret"))


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "localhost:8080",
        "127.0.0.1:8080",
        "[::1]:8080",
        "192.168.1.5",
        "chat.localhost:1",
        "box.lan:80",
        "BOX.LAN",
    ],
)
def test_own_hosts(host: str) -> None:
    OPEN.check("POST", "/v1/chat/completions", {"Host": host})


@pytest.mark.parametrize("host", ["evil.com", "evil.com:8080", "", "localhost.evil.com", "127.0.0.1.evil.com", "[evil.com]:1"])
def test_foreign_hosts(host: str) -> None:
    with pytest.raises(Forbidden, match="--allow-host"):
        OPEN.check("GET", "/health", {"Host": host})


@pytest.mark.parametrize(
    ("origin", "host"),
    [
        ("http://localhost:8080", "localhost:8080"),
        ("http://127.0.0.1:8080", "127.0.0.1:8080"),
        ("https://app.example", "localhost:8080"),
    ],
)
def test_own_origins(origin: str, host: str) -> None:
    OPEN.check("POST", "/v1/chat/completions", {"Host": host, "Origin": origin})


@pytest.mark.parametrize(
    "origin",
    [
        "https://evil.com",
        "null",
        "http://localhost:3000",
        "chrome-extension://abc",
        "http://evil.com:8080",
        "file://localhost:8080",
    ],
)
def test_foreign_origins(origin: str) -> None:
    with pytest.raises(Forbidden, match="--allow-origin"):
        OPEN.check("POST", "/v1/chat/completions", {"Host": "localhost:8080", "Origin": origin})


def test_any_origin_can_be_allowed() -> None:
    keeper = Gatekeeper(GatewayConfig(allow_origin=("*",)))
    keeper.check("POST", "/", {"Host": "localhost", "Origin": "https://anywhere.example"})
    assert keeper.cors_headers("https://anywhere.example")["Access-Control-Allow-Origin"] == "https://anywhere.example"
    assert OPEN.cors_headers("https://evil.com") == {}
    assert OPEN.cors_headers(None) == {}


@pytest.mark.parametrize(
    "headers", [{"Authorization": "Bearer sécret"}, {"Authorization": "bearer  sécret "}, {"X-Api-Key": "sécret"}]
)
def test_the_key_opens(headers: dict[str, str]) -> None:
    KEYED.check("POST", "/v1/chat/completions", {"Host": "evil.com", **headers})


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer wrong"},
        {"Authorization": "sécret"},
        {"X-Api-Key": ""},
        {"Authorization": "Basic sécret"},
    ],
)
def test_anything_else_does_not(headers: dict[str, str]) -> None:
    with pytest.raises(Unauthorized):
        KEYED.check("POST", "/v1/chat/completions", headers)


def test_the_page_and_the_health_need_no_key() -> None:
    for path in ("/", "/ui/app.js", "/health"):
        KEYED.check("GET", path, {})
    with pytest.raises(Unauthorized):
        KEYED.check("GET", "/v1/models", {})
