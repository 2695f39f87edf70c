"""`cdfd vacuum`: lists, or removes, the files of a table that no version in the retention has."""

from __future__ import annotations

import asyncio

from cdfd import escaping as plain
from cdfd.cli.commands.counts import quantity
from cdfd.config.values import seconds
from cdfd.errors import ConfigError
from cdfd.log.table import Table
from cdfd.log.vacuum import Removable, removable, remove
from cdfd.runtime.clock import SystemClock


def run(
    uri: str, retention: str | None = None, *, delete: bool = False, unsafe: bool = False, as_json: bool = False
) -> str:
    """The report, with a final line feed.

    Args:
        uri: of the table.
        retention: such as `7d`; None: the table's.
        delete: whether to remove the files.
        unsafe: whether the retention may be shorter than the table's.
        as_json: whether to return JSON.

    Raises:
        CdfdError: there is no table, the retention is too short, or a file cannot be removed.
    """
    files = asyncio.run(_run(uri, retention, delete=delete, unsafe=unsafe))
    if as_json:
        facts = {
            "table": uri,
            "version": files.version,
            "retention_hours": files.retention_ms / 3_600_000,
            "deleted": delete,
            "bytes": files.bytes,
            "files": [file.path for file in files.files],
        }
        return f"{plain.as_json(facts, indent=2)}\n"
    lines = [plain.one_line(file.path) for file in files.files]
    number, duration = len(files.files), files.retention_ms / 3_600_000
    hours = f"{duration:g} hour{'' if duration == 1 else 's'}"
    if not number:
        summary = f"nothing to remove, with a retention of {hours}"
    else:
        count = f"{quantity(number, 'file')} of {quantity(files.bytes, 'byte')}"
        if delete:
            summary = f"removed {count}"
        else:
            them = "it" if number == 1 else "them"
            summary = f"{count}: no version of the last {hours} needs {them}. To remove {them}, use --delete"
    return "".join(f"{line}\n" for line in [*lines, summary])


async def _run(uri: str, retention: str | None, *, delete: bool, unsafe: bool) -> Removable:
    table = Table.open(uri)
    try:
        retention_ms = None if retention is None else int(seconds(retention) * 1000)
    except ValueError:
        raise ConfigError(
            f"--retention {retention!r:.80} is not a duration", hint="Write one such as 7d or 12h"
        ) from None
    files = await removable(table.log, SystemClock().now_ms(), retention_ms, unsafe=unsafe)
    if delete:
        await remove(table.log.storage, files.files)
    return files
