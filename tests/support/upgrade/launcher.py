"""Runs `cdfd` from other folders than those of this interpreter: `python -P -S launcher.py FOLDER ... ARGUMENTS of cdfd`.

It delivers versions in parts of a few files, so that the daemon can die in the middle of one.
"""

import contextlib
import sys
from importlib import import_module
from typing import Any

PART_BYTES = 2_000
"""Bytes of files of a part: about one small file."""


def run(folders: list[str], arguments: list[str]) -> None:
    """Run the command with the packages of some folders, first ones first."""
    sys.path[:0] = folders
    import cdfd
    from cdfd.cli import main

    assert str(cdfd.__file__).startswith(folders[1]), f"{cdfd.__file__} is not of the other release"

    # By the names of the commit that wrote the golden copies. Another one may have others.
    with contextlib.suppress(ImportError):
        assembly: Any = import_module("cdfd.daemon.assembly")
        create = import_module("cdfd.daemon.loop.deliverer").Limits.__init__
        assembly.PART_BYTES = PART_BYTES
        create.__defaults__ = (PART_BYTES, *create.__defaults__[1:])
    sys.argv = ["cdfd", *arguments]
    main()


if __name__ == "__main__":
    run(sys.argv[1:4], sys.argv[4:])
