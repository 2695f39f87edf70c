"""The schema that the rows of a range of versions are brought into."""

from __future__ import annotations

from cdfd.delta.header import Header
from cdfd.delta.types.column_mapping import MAX_ID
from cdfd.delta.types.datatypes import fields_in
from cdfd.delta.types.schema import ColumnMappingMode, TableSchema
from cdfd.errors import GapError, NotFoundError
from cdfd.log.log import DeltaLog
from cdfd.plan.reconciliation import with_replaced


async def range_schema(log: DeltaLog, first: int, last: Header) -> TableSchema:
    """The schema of the version `last`, whose columns know those that they replaced from `first` on; see `with_replaced`.

    Raises:
        CdfdError: see `schemas_between`.
    """
    return with_replaced(await schemas_between(log, first, last))


async def schemas_between(log: DeltaLog, first: int, last: Header) -> list[TableSchema]:
    """The schemas from the version before `first` to `last`, in order; only the last one of a table that never dropped a column.

    Only metadata say which column replaced which one, also by RESTORE, which creates none. So the entries of the range are read.

    Raises:
        GapError: an entry is no longer in the log.
        CdfdError: see `DeltaLog.header` and `DeltaLog.entry`.
    """
    if not may_have_replaced(last):
        return [last.schema]
    before = await (log.header_before(first) if first > 0 else log.header(0))
    schemas = [before.schema]
    for version in range(first, last.version):
        try:
            metadata = (await log.entry(version)).commit.metadata
        except NotFoundError:
            raise GapError(
                f"version {version} is no longer in the log, so it is unknown which columns replaced others",
                table=log.storage.uri,
                version=version,
                hint=f"Log clean-up removed it: read from version {await log.earliest_version()} on",
            ) from None
        if metadata is not None and (schema := TableSchema.of(metadata)) != schemas[-1]:
            schemas.append(schema)
    return [*schemas, last.schema]


def may_have_replaced(header: Header) -> bool:
    """Whether columns of a table may have replaced others. If all ids that were ever used are those of its columns, none has."""
    schema = header.schema
    if schema.mapping is ColumnMappingMode.NONE:
        return False
    return header.metadata.configuration.get(MAX_ID) != str(sum(1 for _ in fields_in(schema.struct)))
