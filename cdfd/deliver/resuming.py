"""Where a table resumes, and whether the configuration fits it there: the steps before the first delivery.

`Feed` takes these steps before it delivers, and `dry_run` predicts with them what a daemon would do. They do not write.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from cdfd.delta.header import Header
from cdfd.delta.protocol import cdf_enabled, row_tracking_enabled
from cdfd.delta.types.datatypes import ByName, Decimal, Primitive
from cdfd.delta.types.schema_change import SchemaChange, TypeChange
from cdfd.errors import (
    CdfdError,
    ConfigError,
    GapError,
    LogError,
    MissingColumnError,
    SchemaChangedError,
    StorageError,
    UnsupportedError,
)
from cdfd.log import bounds
from cdfd.plan.row_options import AS_STORED, RowOptions
from cdfd.sinks.ledger.ledger import Ledger, LedgerEntry

NO_CHANGE_DATA = (
    "`key` does not pair updates: the table has no change data feed, so an update arrives as a delete and an insert, "
    "and rows that a writer rewrites unchanged come again as both. Set `refine: auto`, or delta.enableChangeDataFeed to true on the table"
)
NO_ROW_TRACKING = (
    "`refine: rows` finds no updates: the table has no row tracking. Set delta.enableRowTracking to true on the table, "
    "or use `refine: key`"
)
IGNORED_CHANGE_DATA = (
    "`key` does not pair updates with `changes: files`: an update arrives as a delete and an insert, "
    "and rows that a writer rewrites unchanged come again as both. Set `refine: auto`"
)
NO_FEED = "Set delta.enableChangeDataFeed=true on it, or use `changes: auto` to derive changes from its files"


_WHOLE_NUMBERS, _FLOATS = {"byte", "short", "integer", "long"}, {"float", "double"}


@dataclass(frozen=True, slots=True)
class Policies:
    """The configured behaviour of one table.

    Attributes:
        start: where to start if the sink has no position; `snapshot` is the live rows, then the changes after them.
        rows: the options of the rows.
        on_missing_file: if a data file is missing: fail, skip its rows, or deliver the live rows of the newest version instead.
        on_schema_change: if a column is renamed, dropped or retyped: continue, or stop before that version.
        recover_from_ledger: if only the ledger has a position, resume there instead of failing.
        ledger_counts: the sink keeps no position, so the ledger's position is authoritative.
        headers: the columns whose values are record headers.
        keyed: whether the sink has records with the key, whose columns must keep their published names.
        typed_keys: names of types that the same number has another key with than with a smaller type.
    """

    start: bounds.Start = "snapshot"
    rows: RowOptions = AS_STORED
    on_missing_file: Literal["fail", "skip", "snapshot"] = "fail"
    on_schema_change: Literal["continue", "stop"] = "continue"
    recover_from_ledger: bool = False
    ledger_counts: bool = False
    headers: tuple[str, ...] = ()
    keyed: bool = False
    typed_keys: frozenset[str] = frozenset()


async def read_ledger(ledger: Ledger, app_id: str, *, needed: bool) -> tuple[LedgerEntry | None, CdfdError | None]:
    """The ledger's position, and the error if the ledger cannot be read and is not needed.

    Args:
        needed: whether the ledger has the only position.

    Raises:
        CdfdError: the ledger cannot be read and is needed, or is not a ledger.
    """
    try:
        return await ledger.position(app_id), None
    except (StorageError, LogError, UnsupportedError) as error:
        error.within(table=ledger.uri)
        if needed:
            raise
        return None, error


@contextmanager
def explain_gap() -> Iterator[None]:
    """Add a hint to a gap in the log after a stored position, where the setting `start` has no effect."""
    try:
        yield
    except GapError as error:
        if not error.retriable and "`cdfd progress reset`" not in (error.hint or ""):
            error.hint = (
                "Log clean-up or data loss removed log entries: restore them, or `cdfd progress reset` to start over"
            )
        raise


def check_fit(policies: Policies, header: Header, newest: Header, *others: Header) -> list[str]:
    """Check that a configuration fits a table as of one version; the warnings.

    A column for filter or masks that the version does not have, and the newest one has, is null until then. It must not have another name
    at the version.

    Args:
        header: of the table at that version.
        newest: of the table at its newest version. It matters only if the version lacks a column, or if there are masks.
        others: of further versions to read, whose columns masks may name too.

    Raises:
        MissingColumnError: the table has none of `columns`, or lacks one of `key`; or a column for filter or masks is renamed later.
        ConfigError: a column for filter, masks or record headers is missing, or a type does not fit.
        UnsupportedError: `changes: cdf` needs a change data feed, and the table has none; or cdfd cannot read the type of a column.
    """
    shape = policies.rows.shape
    warnings = _check_rows(policies.rows, header)
    missing = shape.missing(header.schema)
    checked = newest if missing else header
    try:
        shape.check_rows(checked.schema, policies.rows.key, *(each.schema for each in (header, newest, *others)))
        shape.check_names(header.schema, newest.schema)
        for name in policies.headers if header.schema.names else ():
            column = header.schema.find((name,))
            if column is None or not isinstance(column.type, Primitive | Decimal):
                what = "there is no column" if column is None else "there can be no header from column"
                raise ConfigError(
                    f"{what} {name!r:.200}, which `headers` names", hint="Name a column that is not nested"
                )
        _ = shape.published(shape.select(header.schema)).arrow  # all types can be read
    except MissingColumnError as error:
        raise error.within(version=header.version) from None
    except (ConfigError, UnsupportedError) as error:
        raise error.within(version=checked.version) from None
    return warnings + [
        f"there is no column {name!r:.200}, which `where` or `mask` names; it is null until a version adds it"
        for name in missing
        if name not in shape.missing(newest.schema)
    ]


def _check_rows(rows: RowOptions, header: Header) -> list[str]:
    feed = cdf_enabled(header.metadata)
    if rows.changes == "cdf" and not feed:
        raise UnsupportedError("the table does not record a change data feed", version=header.version, hint=NO_FEED)
    if not header.schema.names:
        return []  # a table may begin without columns, and so without rows
    find = ByName({name: name for name in header.schema.names})
    columns = rows.shape.names or ()
    missing = [name for name in columns if not find(name)]
    if missing and len(missing) == len(columns):
        raise _missing(missing, "columns", header)
    absent = [name for name in rows.key if not find(name)]
    if absent:
        raise _missing(absent, "key", header)
    warnings = [f"there is no column {name!r:.200}, which `columns` names" for name in missing]
    pairs = rows.refine in ("key", "auto") or (rows.refine == "rows" and row_tracking_enabled(header.metadata))
    if rows.refine == "rows" and not pairs:
        warnings.append(NO_ROW_TRACKING)
    if pairs:
        return warnings
    if rows.key and rows.changes == "files":
        warnings.append(IGNORED_CHANGE_DATA)
    elif rows.key and not feed:
        warnings.append(NO_CHANGE_DATA)
    return warnings


def check_schema_change(change: SchemaChange, policies: Policies) -> str:
    """The change of the schema by a version, in words, if the delivery may go on.

    Raises:
        SchemaChangedError: the same rows have other keys from now on, or the change is not additive and `on_schema_change` is `stop`.
    """
    if policies.keyed and (first := next(_changes_of_key(change, policies), None)) is not None:
        what, advice = first
        raise SchemaChangedError(
            f"the key column {what} from this version on, so all records would have other keys",
            hint=f"Everything before this version is delivered. Give the table a new topic that begins after it{advice}",
        )
    described = "; ".join(change.describe())
    if not change.additive and policies.on_schema_change == "stop":
        raise SchemaChangedError(
            f"the schema changes: {described}",
            hint="Everything before this version is delivered; set `on_schema_change: continue` to deliver it",
        )
    return described


def _changes_of_key(change: SchemaChange, policies: Policies) -> Iterator[tuple[str, str]]:
    """Changes of the columns of the key that give the same rows other keys, and more advice for each."""
    rows = policies.rows
    aliased = {each.name.lower() for each in rows.shape.columns or () if each.alias is not None}
    names = {name.lower() for name in rows.key}
    hashed = {name.lower() for name, _ in rows.shape.masks}
    for rename in change.renamed:
        old, new = ".".join(rename.old), ".".join(rename.new)
        if rename.old[0].lower() in names and not old.lower() == new.lower() in aliased:
            yield f"{old!r:.200} is {new!r:.200}", ", or keep the name with `columns` and `as`"
    for path in change.dropped:
        if path[0].lower() in names:
            # Another column may get its name.
            yield f"{'.'.join(path)!r:.200} is gone", ""
    for path in change.added:
        if len(path) > 1 and path[0].lower() in names:
            yield f"{path[0]!r:.200} has the field {'.'.join(path)!r:.200}", ""
    for path in change.reordered_structs:
        if path and path[0].lower() in names:
            yield f"{'.'.join(path)!r:.200} has its fields in another order", ""
    for each in change.type_changed:
        typed = not policies.typed_keys.isdisjoint(kind.partition("(")[0] for kind in (each.old, each.new))
        typed &= each.path[0].lower() not in hashed
        if each.path[0].lower() in names and (typed or not _has_same_text(each)):
            yield f"{'.'.join(each.path)!r:.200} is of type {each.new:.200}", ""


def _has_same_text(change: TypeChange) -> bool:
    """Whether JSON has the same text for the same value of both types."""
    kinds = {change.old, change.new}
    if all(kind.startswith("decimal(") for kind in kinds):
        return change.old.partition(",")[2] == change.new.partition(",")[2]
    return kinds <= _WHOLE_NUMBERS or kinds <= _FLOATS


def _missing(names: Sequence[str], setting: str, header: Header) -> MissingColumnError:
    listed = ", ".join(map(repr, names))
    return MissingColumnError(
        f"there is no column {listed:.500}, which `{setting}` names",
        version=header.version,
        hint=f"The columns are: {', '.join(header.schema.names[:50])}. Change `{setting}`, if no writer brings the column back",
    )
