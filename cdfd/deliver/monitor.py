"""Events of a table's loop, for metrics, `/status` and `/readyz`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cdfd.delta.retention import Retention
from cdfd.errors import CdfdError
from cdfd.model.control import Pause
from cdfd.model.position import Position
from cdfd.model.version import Version


@dataclass(frozen=True, slots=True)
class ResnapshotProgress:
    """The progress of an incremental snapshot.

    Attributes:
        version: whose live files are published; -1 until the loop begins it.
        files: how many files are selected; None until the loop has counted them, which it does not while the table is paused.
        remaining: how many of them are not published yet; None as `files`.
        rows: rows so far.
        where: the condition; empty: all files.
    """

    id: str
    version: int
    files: int | None
    remaining: int | None
    rows: int
    where: str


class Monitor:
    """Receives the events of one table's loop, in the loop's thread except for `stage`. Methods must not block or raise.

    This one ignores all events: a class that derives from it overrides the events it needs.
    """

    def started(self, position: Position) -> None:
        """The loop delivers from `position` on. Called again after every restart."""

    def found_version(self, newest: int) -> None:
        """The table has this version. It may have newer ones."""

    def at_tip(self, listed: int = -1) -> None:
        """All readable versions are delivered, and the loop waits for the next one. The newest version in the last listing is `listed`."""

    def retained(self, retention: Retention) -> None:
        """The table keeps log entries and deleted files for these times. Called where they may have changed."""

    def undelivered_since(self, ms: int) -> None:
        """No undelivered commit is older than this time, in ms since the Unix epoch. Called after every restart, before the log is read."""

    def oldest_pending(self, version: Version) -> None:
        """This is the oldest version that is not delivered."""

    def waiting(self, waits: bool) -> None:
        """A large delivery waits for a slot, or no longer waits."""

    def stage(self, name: str, seconds: float) -> None:
        """Duration of one stage of a delivery: `limit`, `read`, `encode`, `send` or `commit`. Called from any thread."""

    def committed(
        self, following: Position, versions: Sequence[Version], rows: Mapping[str, int], bytes_read: int
    ) -> None:
        """A delivery is committed.

        Args:
            following: the position after it.
            versions: the versions that it completes, in order.
            rows: its rows, by change type.
            bytes_read: sizes of the files that were read for it.
        """

    def aborted(self) -> None:
        """A delivery is aborted."""

    def recorded(self, version: int) -> None:
        """The ledger records this version as delivered."""

    def found_record(self, version: int) -> None:
        """The ledger has this version as delivered when the loop begins; -1: it has none yet."""

    def error(self, error: CdfdError) -> None:
        """An error that does not stop the loop, such as a ledger that cannot be written."""

    def lost_position(self) -> None:
        """The table begins again, although the sink seems to have had a position."""

    def failed(self, error: CdfdError, retry_in: float | None) -> None:
        """An error stopped the loop. It restarts after `retry_in` seconds; None: it does not restart."""

    def tolerates(self) -> bool:
        """Whether the errors that stop the loop do not count yet, because they may end by themselves; see `cdfd.deliver.grace`.

        It answers, as `urgency` does.
        """
        return False

    def paused(self, pause: Pause | None) -> None:
        """A request paused the table; None: the table is not paused."""

    def resnapshot(self, progress: ResnapshotProgress | None) -> None:
        """An incremental snapshot began or went on; None: it ended."""

    def stopped(self) -> None:
        """The loop stopped on request."""

    def urgency(self) -> float | None:
        """Seconds until clean-up may remove what is not delivered, if the table is at risk; None if it is not.

        A table at risk is admitted first.
        """
        return None
