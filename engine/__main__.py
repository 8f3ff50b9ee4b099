"""`python -m engine`: starts the daemon and leaves with its exit code."""

import contextlib
import os
import signal
import sys
from collections.abc import Callable

from engine.config import EngineConfig
from engine.daemon import LoadedSession, load_model, run


def main(load: Callable[[EngineConfig], LoadedSession] = load_model) -> None:
    """The console script."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends the process at once, in the middle of a kernel too
    code = run(load=load)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):  # its reader may be gone; None if it was never open
            stream.flush()
    os._exit(code)  # everything is freed; interpreter teardown can only hang on a thread or a broken device


if __name__ == "__main__":
    main()
