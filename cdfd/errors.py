"""One error root, few families. Every error says what, where, and what to do about it.

An error is built where the facts are, and completed on its way up with what the caller knows (`within`): a decoder knows the byte that is
wrong, its caller the file, the caller's caller the table.
"""

from __future__ import annotations

from typing import ClassVar, Self

from cdfd.console.escaping import one_line, shortened

# Characters of an error's parts that are shown; all of them fit into one line.
_WHAT, _PLACE, _HINT = 1000, 300, 340


class CdfdError(Exception):
    """Root of every error that cdfd raises.

    Attributes:
        what: what is wrong, a clause without a final full stop.
        table: URI of the table, where known.
        version: version of the table, where known.
        path: the file that is at fault, where known.
        hint: what the user can do about it.
        retriable: whether the same call may succeed later without anybody's doing.
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
        """The same error with the places filled in that were not known where it was raised."""
        self.table = table if self.table is None else self.table
        self.version = version if self.version is None else self.version
        self.path = path if self.path is None else self.path
        return self

    def __str__(self) -> str:
        places = [
            f"table {_short(self.table, _PLACE)}" if self.table is not None else "",
            f"version {self.version}" if self.version is not None else "",
            f"file {_short(self.path, _PLACE)}" if self.path is not None else "",
        ]
        where = ", ".join(place for place in places if place)
        hint = f". {_short(self.hint, _HINT)}" if self.hint else ""
        return one_line(_short(self.what, _WHAT) + (f" ({where})" if where else "") + hint)

    def lines(self) -> list[str]:
        """The error for people: one line, or one for each of its problems."""
        return [str(self)]

    def __reduce__(self) -> tuple[object, ...]:
        # Errors cross process boundaries (Spark executors): keyword arguments do not survive the default.
        return _rebuild, (type(self), self.__dict__.copy())


def _short(text: str, longest: int) -> str:
    """Text on one line without runs of spaces. A part may have any length, so it is cut before anything else is done with it."""
    return one_line(" ".join(shortened(text, longest).split()), longest)


def _rebuild(kind: type[CdfdError], fields: dict[str, object]) -> CdfdError:
    error = kind(str(fields["what"]))
    error.__dict__.update(fields)
    return error


class LogError(CdfdError):
    """The transaction log is broken: a hole, invalid JSON, a truncated checkpoint, actions that contradict each other."""

    family = "log"


class UnsupportedError(CdfdError):
    """The table asks for a protocol version, a table feature or a file format that cdfd does not implement."""

    family = "unsupported"


class DataError(CdfdError):
    """A data file, change data file or deletion vector is missing, truncated, corrupt, or does not match the schema."""

    family = "data"


class MissingFileError(DataError):
    """A file that the log names is gone, most often because VACUUM removed it."""


class PathError(CdfdError):
    """A path in the log leads out of the table, where the configuration does not allow it."""

    family = "path"


class StorageError(CdfdError):
    """The store failed a request: unreachable, denied, timed out."""

    family = "storage"


class NotFoundError(StorageError):
    """There is nothing at that path. For the next log entry that is an answer, not a failure."""


class ExistsError(StorageError):
    """`put_if_absent` found something at that path: another writer was first."""


class TableChangedError(CdfdError):
    """The table is not the one that was read: it was deleted, or another one is in its place.

    That one has another id; or the same id and another history, as a copy or an older backup that went another way.
    """

    family = "table_changed"


class GapError(LogError):
    """The versions that come next are no longer in the log: log clean-up was faster than the reader."""

    family = "gap"


class SchemaChangedError(CdfdError):
    """The schema changed and the configuration says to stop there."""

    family = "schema_changed"


class MissingColumnError(SchemaChangedError):
    """The table does not have a column that `columns` or `key` names at the version that is read: its writer renamed or dropped it."""


class SinkError(CdfdError):
    """The sink did not take the rows; nothing of the delivery under way counts."""

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
    """What the configuration says does not fit what was found while a table was read: other tables go on."""

    family = "config"


class InternalError(CdfdError):
    """A table's loop met what cdfd does not expect: a bug, or a machine without memory."""

    family = "internal"


class ListenError(ConfigError):
    """Another process listens at the address for metrics, health and status; a restart may find it free."""

    exit_code = 1
