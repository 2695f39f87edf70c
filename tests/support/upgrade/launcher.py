"""Runs `cdfd` from other folders than those of this interpreter: `python -P -S launcher.py FOLDER ... ARGUMENTS of cdfd`.

It delivers versions in parts of a few files, so that the daemon can die in the middle of one.
"""

import contextlib
import sys
from importlib import import_module

PART_BYTES = 2_000
"""Bytes of files of a part: about one small file."""


def run(folders: list[str], arguments: list[str]) -> None:
    """Run the command with the packages of some folders, first ones first."""
    sys.path[:0] = folders
    import cdfd
    from cdfd.cli import main

    assert str(cdfd.__file__).startswith(folders[1]), f"{cdfd.__file__} is not of the other release"

    with contextlib.suppress(ImportError, AttributeError):  # another release may have other modules
        assembly = import_module("cdfd.daemon.assembly")
        limits = import_module("cdfd.daemon.loop.deliverer").Limits
        assembly.PART_BYTES = PART_BYTES  # type: ignore[attr-defined]
        limits.__init__.__defaults__ = (PART_BYTES, *(limits.__init__.__defaults__ or ())[1:])
    sys.argv = ["cdfd", *arguments]
    main()


if __name__ == "__main__":
    run(sys.argv[1:4], sys.argv[4:])
