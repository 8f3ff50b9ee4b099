"""Runs a command that ends with its parent, whatever ends the parent: `python leash.py PARENT_PID COMMAND…`.

The kernel kills the command when the gateway is gone, even if neither can do anything any more: a gateway that was killed,
an engine that is stopped or stuck in a driver. It becomes the command, so process id and pipes are the command's own. On
systems without such a signal it is only the command. Imports nothing of this package, so that it costs milliseconds.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Tie this process to its parent, then become the command."""
    parent, command = int(sys.argv[1]), sys.argv[2:]
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died before we asked
            sys.exit(1)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
