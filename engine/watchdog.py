"""Ends the process when its client is gone: no orphan keeps a graphics card busy.

A daemon thread that wakes once a second. It leaves with `os._exit`, because the main thread may be deep in a kernel
(kernels release the interpreter lock, so this thread runs beside them).
"""

import contextlib
import os
import select
import threading

PERIOD_S = 1.0
EXIT_CODE = 1


class Watchdog(threading.Thread):
    """Watches the parent process and the reading end of the protocol's pipe.

    `parent_pid` is what `os.getppid()` said when the process began: taken later, a parent that died during start-up
    would look like the right one.
    """

    def __init__(self, *, parent_pid: int, protocol_fd: int) -> None:
        super().__init__(name="watchdog", daemon=True)
        self._parent_pid = parent_pid
        self._poll = select.poll()
        self._poll.register(protocol_fd, 0)  # errors and hang-ups are reported without being asked for
        self._finished = threading.Event()

    def run(self) -> None:
        while not self._finished.wait(PERIOD_S):
            if os.getppid() != self._parent_pid:
                _leave("the parent process is gone")
            if self._poll.poll(0):
                _leave("nobody reads stdout any more")

    def finish(self) -> None:
        """Stop watching: the process is leaving by itself."""
        self._finished.set()


def _leave(reason: str) -> None:
    with contextlib.suppress(OSError):  # stderr may have gone with the parent
        os.write(2, f"terrace-engine: {reason}, leaving\n".encode())
    os._exit(EXIT_CODE)
