"""Publishes checkpoints that this process writes, beside other writers of the same log. `_last_checkpoint` never stays behind theirs."""

from cdfd.delta import last_checkpoint, paths
from cdfd.delta.last_checkpoint import LastCheckpoint
from cdfd.log.log import DeltaLog
from cdfd.log.log_files import log_path


async def publish(log: DeltaLog, name: str, data: bytes, hint: LastCheckpoint) -> bool:
    """Write a checkpoint, and `_last_checkpoint` unless there is a newer one.

    Args:
        log: of the table.
        name: of the checkpoint's file in the log.
        data: its content.
        hint: that names it.

    Returns:
        Whether it is the newest. Then the log may be cleaned up.

    Raises:
        StorageError: the files cannot be written.
    """
    storage, place = log.storage, log_path(paths.LAST_CHECKPOINT)
    await storage.put(log_path(name), data)
    if await log.newest_checkpoint(hint.version) > hint.version:
        return False
    await storage.put(place, last_checkpoint.serialize(hint))
    newest = await log.listed_checkpoint(hint.version)
    if newest <= hint.version:
        return True
    if await log.hint() != newest:
        # The other writer's is replaced. Without one, readers list the log, and the next writer writes a checkpoint.
        await storage.delete(place)
    return False
