"""One error root, few families. Every error names the problem, the place and a remedy.

An error is raised where the problem is found, and callers add the places that they know (`within`): a decoder knows the wrong byte, its
caller the file, and that one's caller the table.
"""

from types import TracebackType
from typing import ClassVar, Self

from cdfd.escaping import one_line, shorten

# Characters of an error's parts that are shown; all of them fit into one line.
_WHAT, _PLACE, _HINT = 1000, 300, 340


class CdfdError(Exception):
    """Root of every error that cdfd raises.

    Attributes:
        what: the problem, as a clause without a final full stop.
        table: URI of the table, if known.
        version: version of the table, if known.
        path: the faulty file, if known.
        hint: a remedy for the user.
        retriable: whether the error is transient: the same call may succeed later.
    """

    family: ClassVar[str] = "cdfd"
    exit_code: ClassVar[int] = 1

    def __init__(
        self,
        what: str,
        *,
        table: str | None = None,
        version: int | None = None,
        path: str | None = None,
        hint: str | None = None,
        retriable: bool = False,
    ) -> None:
        super().__init__(what)
        self.what = what
        self.table = table
        self.version = version
        self.path = path
        self.hint = hint
        self.retriable = retriable

    def within(self, *, table: str | None = None, version: int | None = None, path: str | None = None) -> Self:
        """The same error, with the places filled in that it does not name yet."""
        self.table = table if self.table is None else self.table
        self.version = version if self.version is None else self.version
        self.path = path if self.path is None else self.path
        return self

    def __str__(self) -> str:
        where = ", ".join(self.places())
        hint = f". {_short(self.hint, _HINT)}" if self.hint else ""
        return one_line(_short(self.what, _WHAT) + (f" ({where})" if where else "") + hint)

    def places(self) -> list[str]:
        """The known places, from the table inwards."""
        places = [
            f"table {one_line(self.table, _PLACE)}" if self.table is not None else "",
            f"version {self.version}" if self.version is not None else "",
            f"file {one_line(self.path, _PLACE)}" if self.path is not None else "",
        ]
        return [place for place in places if place]

    def lines(self) -> list[str]:
        """The error for users: one line, or one for each of its problems."""
        return [str(self)]


def _short(text: str, longest: int) -> str:
    """Prose on one line without runs of spaces, which places keep. A part may have any length, so it is cut first."""
    return one_line(" ".join(shorten(text, longest).split()), longest)


class Within:
    """`with Within(table):` errors raised inside name the places that they did not know. A class: it is entered with every request.

    Args:
        table: as for `CdfdError.within`.
        version: as for `CdfdError.within`.
        path: as for `CdfdError.within`.
    """

    __slots__ = ("_path", "_table", "_version")

    def __init__(self, table: str, version: int | None = None, path: str | None = None) -> None:
        self._table = table
        self._version = version
        self._path = path

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if isinstance(error, CdfdError):
            raise error.within(table=self._table, version=self._version, path=self._path) from None


class LogError(CdfdError):
    """The transaction log is broken: a hole, invalid JSON, a truncated checkpoint, actions that contradict each other."""

    family = "log"


class NotATableError(LogError):
    """The location has no Delta log."""


class CheckpointError(LogError):
    """A checkpoint is damaged, and older files do not give the state."""


class UnsupportedError(CdfdError):
    """The table requires a protocol version, a table feature or a file format that cdfd does not implement."""

    family = "unsupported"


class DataError(CdfdError):
    """A data file, change data file or deletion vector is missing, truncated, corrupt, or does not match the schema."""

    family = "data"


class TrevniError(DataError):
    """A Trevni file is truncated, corrupt, or not a Trevni file.

    Attributes:
        column: name of the column, if known.
        block: number of its block, from 0, if known.
        offset: position in the file in bytes, if known.
    """

    column: str | None = None
    block: int | None = None
    offset: int | None = None

    def at(self, *, column: str | None = None, block: int | None = None, offset: int | None = None) -> Self:
        """The same error, with the places inside the file filled in that it does not name yet."""
        self.column = column if self.column is None else self.column
        self.block = block if self.block is None else self.block
        self.offset = offset if self.offset is None else self.offset
        return self

    def places(self) -> list[str]:
        """The known places, from the table inwards."""
        inside = [
            f"column {one_line(self.column, _PLACE)}" if self.column is not None else "",
            f"block {self.block}" if self.block is not None else "",
            f"byte {self.offset}" if self.offset is not None else "",
        ]
        return [*super().places(), *(place for place in inside if place)]


class MissingFileError(DataError):
    """A file that the log names is gone, usually because VACUUM removed it."""


class PathError(CdfdError):
    """A path in the log leads out of the table, and the configuration does not allow it."""

    family = "path"


class StorageError(CdfdError):
    """The store failed a request: unreachable, denied, timed out."""

    family = "storage"


class NotFoundError(StorageError):
    """The path does not exist. For the next log entry, this is a normal answer."""


class ExistsError(StorageError):
    """`put_if_absent` found an object at that path: another writer was first."""


class TableChangedError(CdfdError):
    """The table is not the one that was read: it was deleted, or replaced by another table.

    That table has another id, or the same id and another history, as a copy or an older backup has.

    Attributes:
        truncated: whether the log ends before a version that was read, as it does in an older backup, or while it is removed file by file.
    """

    family = "table_changed"
    truncated = False


class GapError(LogError):
    """The next versions are no longer in the log: log clean-up was faster than the reader."""

    family = "gap"


class SchemaChangedError(CdfdError):
    """The schema changed, and the configuration says to stop."""

    family = "schema_changed"


class MissingColumnError(SchemaChangedError):
    """The version does not have a column in `columns` or `key`: a writer renamed or dropped it."""


class SinkError(CdfdError):
    """The sink did not accept the rows. The current delivery is aborted."""

    family = "sink"


class FencedError(SinkError):
    """Another daemon with the same name has taken over."""

    family = "fenced"
    exit_code = 3


class ConfigError(CdfdError):
    """The configuration or the command line is wrong."""

    family = "config"
    exit_code = 2


class TableConfigError(CdfdError):
    """The configuration turned out not to fit a table that the daemon already reads. Other tables continue."""

    family = "config"


class InternalError(CdfdError):
    """An unexpected error in a table's task: a bug, or a machine without memory."""

    family = "internal"


class ListenError(ConfigError):
    """Another process listens on the address for metrics, health and status. A restart may find it free."""

    exit_code = 1
