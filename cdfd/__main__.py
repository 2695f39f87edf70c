"""The command `cdfd`, also as `python -m cdfd`. It handles signals before it imports the commands, which takes half a second."""

import os
import signal
import sys

_AT_SIGTERM = {"run": 0, "tail": 0, "backfill": 130}
"""Exit codes of commands that handle SIGTERM themselves, for one that comes before."""
_WITH_VALUE = ("--log-format", "--log-level")
"""Options before the name of the command that have a value."""


def main() -> None:
    """Entry point: runs a command."""
    arguments = sys.argv[1:]
    previous = ["", *arguments]
    words = [word for word, before in zip(arguments, previous, strict=False) if before not in _WITH_VALUE]
    command = next((word for word in words if not word.startswith("-")), "")
    # The kernel drops signals that process 1 does not handle, and a container must stop.
    code = _AT_SIGTERM.get(command, 128 + signal.SIGTERM if os.getpid() == 1 else None)
    if code is not None:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(code))
    if command == "run":
        # Its default would end the process. The start takes seconds, and reads the newest file anyway.
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    from cdfd.cli import main as run

    run()


if __name__ == "__main__":
    main()
