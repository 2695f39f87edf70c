"""Plans the refinement of a version: which of its scans are matched, and by what. Pure; the log decides, no file is read.

A version is refined if its rows come from data files and it removes rows and adds some, or if they come from change data files and there is a
key. All other versions are what they were, so that appends cost nothing.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from cdfd.delta.actions import Add, Remove
from cdfd.delta.commit import Commit
from cdfd.delta.header import Header
from cdfd.delta.protocol import row_tracking_enabled
from cdfd.delta.types.column_mapping import MAX_ID
from cdfd.delta.types.datatypes import fields_in
from cdfd.delta.types.schema import ColumnMappingMode, column_id
from cdfd.delta.types.schema_change import compare
from cdfd.errors import LogError
from cdfd.model.file_scan import Bucket, FileScan, ImagePhase, RowIds
from cdfd.model.plan import ChangePlan, LiveScans
from cdfd.model.position import ORDINAL_SPAN
from cdfd.model.refinement import BUCKET_BYTES, MOST_BUCKETS, Refine, Refinement, RowTracking
from cdfd.plan.row_options import RowOptions


class _Fallback(Exception):
    """Why a version cannot be refined."""


def refine(
    plan: ChangePlan,
    commit: Commit,
    header: Header,
    previous: Header,
    rows: RowOptions,
    *,
    begun: bool = False,
) -> ChangePlan:
    """The plan with its true changes instead of the rows of its files. Versions without such changes keep their plan.

    The images of change data files are paired by the key, if there is one. If the files are large, only neighbours are pairs.

    Args:
        plan: of the commit.
        commit: the version's actions.
        header: after the commit.
        previous: before the commit.
        rows: `refine` says how to match them. The key pairs them, or orders those that are paired by row ids.
        begun: whether parts of the version are delivered that are not refined. It stays so then.

    Raises:
        LogError: an added file has no row ids, although the table promises them.
    """
    key = rows.key
    if plan.origin == "cdc" and key and all(header.schema.find((name,)) is not None for name in key):
        keyed = replace(plan, key=key)
        return keyed if begun or plan.size > BUCKET_BYTES else with_images_paired(keyed)
    # Deletes come first, so the ends say whether there are both.
    scans = plan.scans
    replaces = scans and not isinstance(scans, LiveScans) and scans[0].change_type != scans[-1].change_type
    if begun or rows.refine == "off" or plan.origin != "files" or not replaces:
        return plan
    try:
        return _refine(plan, commit, header, previous, rows.refine, key)
    except _Fallback as fallback:
        return replace(plan, unrefined=str(fallback))


def with_images_paired(plan: ChangePlan) -> ChangePlan:
    """The plan of change data files whose images are paired by the plan's key."""
    sources = tuple(replace(scan, image_phase=None) for scan in plan.scans if scan.image_phase != "late")
    refinement = Refinement(sources, plan.key, images=True)
    return replace(plan, scans=_buckets(sources, phases=False), cross_partition=(), refinement=refinement)


def _refine(
    plan: ChangePlan, commit: Commit, header: Header, previous: Header, refine: Refine, key: tuple[str, ...]
) -> ChangePlan:
    by_rows = refine == "rows" or (refine == "auto" and row_tracking_enabled(header.metadata))
    if not by_rows and not key:
        return plan
    try:
        tracking = RowTracking.of(header.metadata.configuration) if by_rows else None
        scans = tuple(_with_ids(plan.scans, commit, header, previous)) if by_rows else plan.scans
    except (_Fallback, LogError) as error:
        if refine != "auto":
            raise
        if not key:
            # The default must not refuse a table whose deletes and inserts can be read.
            raise error if isinstance(error, _Fallback) else _Fallback(error.what) from None
        tracking, scans = None, plan.scans
    columns = tuple(name for name in key if header.schema.find((name,)) is not None)
    if tracking is None and columns != key:
        missing = next(name for name in key if name not in columns)
        raise _Fallback(f"it has no column {missing!r:.100} of the key")
    schema, before = header.schema, previous.schema
    if schema != before:
        # Removed rows take part in the schema of the version if no value of theirs is lost.
        change = compare(before, schema)
        narrower = any(not each.widening for each in change.type_changed)
        differs = change.dropped or change.renamed or change.repartitioned or change.replaced
        if differs or narrower or schema.mapping != before.mapping:
            raise _Fallback("it replaces the schema")
        if _brings_back(header, previous):
            raise _Fallback("it brings columns back, which files may have in another type")
    sources = tuple(replace(scan, schema=None) if scan.schema is not None else scan for scan in scans)
    refinement = Refinement(sources, columns if columns == key else (), tracking)
    return replace(plan, scans=_buckets(sources, phases=tracking is not None), refinement=refinement)


def _brings_back(header: Header, previous: Header) -> bool:
    """Whether the version has columns again that were dropped before: their ids are not new ones."""
    newest = previous.metadata.configuration.get(MAX_ID, "")
    if header.schema.mapping is ColumnMappingMode.NONE or not re.fullmatch("[0-9]{1,10}", newest):
        return False
    ids, before = ({column_id(child) for child in fields_in(each.schema.struct)} for each in (header, previous))
    return any(number is not None and number <= int(newest) for number in ids - before)


def _with_ids(scans: Sequence[FileScan], commit: Commit, header: Header, previous: Header) -> Iterator[FileScan]:
    if not row_tracking_enabled(header.metadata):
        raise _Fallback("row tracking is not enabled")
    if not row_tracking_enabled(previous.metadata):
        raise _Fallback("row tracking was enabled by this version")
    if commit.info is not None and commit.info.rows_preserved is False:
        raise _Fallback("its writer did not preserve row ids")
    adds: Mapping[str, Add] = {add.path: add for add in commit.adds if add.data_change}
    removes: Mapping[str, Remove] = {remove.path: remove for remove in commit.removes if remove.data_change}
    for scan in scans:
        remove, add = removes.get(scan.path), adds.get(scan.path)
        # A file that only has another deletion vector is in both, and some writers leave the ids out of the remove.
        actions = (remove, add) if scan.change_type == "delete" else (add, remove)
        row_ids = next((ids for action in actions if action is not None and (ids := _ids(action)) is not None), None)
        if row_ids is None and add is None:
            raise _Fallback("it removes a file whose row ids the log does not repeat")
        if row_ids is None:
            raise LogError(
                "a file without row ids, although row tracking is enabled",
                path=scan.path,
                hint="Its writer does not support row tracking: set `refine: key` or `refine: off`",
            )
        yield replace(scan, row_ids=row_ids)


def _ids(action: Add | Remove) -> RowIds | None:
    base, version = action.base_row_id, action.default_row_commit_version
    if base is None or version is None:
        return None
    if base < 0 or version < 0:
        raise LogError(
            f"a file with the row id {base} and the commit version {version}, which no rows have",
            path=action.path,
            hint="Its writer is faulty: set `refine: key` or `refine: off`",
        )
    return RowIds(base, version)


def _buckets(sources: Sequence[FileScan], *, phases: bool) -> tuple[FileScan, ...]:
    """The scans of a refined version. If there are several buckets, all deletes come before all inserts, in two phases.

    Rows of one key are in the same bucket if rows are matched by the key. Then no phases are needed.
    """
    size = sum(max(0, scan.size) for scan in sources)
    count = min(max(1, -(-size // BUCKET_BYTES)), MOST_BUCKETS)
    pieces = [size * (number + 1) // count - size * number // count for number in range(count)]
    buckets = []
    phase_names: tuple[ImagePhase | None, ...] = ("early", "late") if phases and count > 1 else (None,)
    for place, phase in enumerate(phase_names):
        for number in range(count):
            bucket = Bucket(number, count, (place * count + number) * ORDINAL_SPAN)
            buckets.append(FileScan(sources[0].path, None, {}, pieces[number], image_phase=phase, bucket=bucket))
    return tuple(buckets)
