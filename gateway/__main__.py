"""`python -m gateway`: settings, one clear line when something is wrong, the server."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence

from engine.errors import EngineError
from gateway import logs
from gateway.config import ConfigError, parse_arguments, usage


def main(arguments: Sequence[str] | None = None) -> int:
    """Run until a signal; the exit code."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    if any(word in ("-h", "--help") for word in words):
        print(usage())
        return 0
    try:
        config = parse_arguments(words)
    except ConfigError as error:
        return _fail(str(error), code=2)
    logs.configure(with_text=config.log_text)
    # Here, after the flags: a wrong flag is answered at once.
    from gateway.app import serve
    from gateway.model import check_vocabulary
    from gateway.text.vocabulary import VocabularyError
    from packs.manifest import resolve_model

    try:
        source = resolve_model(config.model)
        check_vocabulary(source)
    except (EngineError, VocabularyError) as error:
        return _fail(str(error), code=1)
    try:
        asyncio.run(serve(config, source))
    except OSError as error:
        return _fail(f"cannot listen on {config.host}:{config.port}: {error.strerror or error}", code=1)
    return 0


def _fail(text: str, *, code: int) -> int:
    print(f"terrace-gateway: {text}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
