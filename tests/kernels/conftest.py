"""Models by seed, and sessions on them."""

from contextlib import contextmanager
from pathlib import Path

import pytest

from engine.config import EngineConfig
from engine.session import Session, load_session
from packs.manifest import resolve_model


@contextmanager
def open_session(path: Path, **settings):
    """A session on a GGUF file, closed at the end."""
    session = load_session(resolve_model(path), EngineConfig(model=path, **settings))
    try:
        yield session
    finally:
        session.close()


@pytest.fixture
def sessions():
    """`sessions(path, **settings)` opens a session that the test need not close."""
    opened: list[Session] = []

    def open_one(path: Path, **settings) -> Session:
        opened.append(load_session(resolve_model(path), EngineConfig(model=path, **settings)))
        return opened[-1]

    yield open_one
    for session in opened:
        session.close()
