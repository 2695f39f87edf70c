"""A group of files as a DataFrame: a scan of Spark. A file's size or name says what is constant in it, or a join on its path does."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final
from urllib.parse import unquote

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, StructField, StructType

from cdfd.delta.roaring import RowSet
from cdfd.delta.types import values
from cdfd.delta.types.arrow_types import arrow_type
from cdfd.errors import ConfigError, DataError, MissingFileError, Within
from cdfd.model.columns import CHANGE_ORDINAL, CHANGE_TYPE, COMMIT_TIMESTAMP, COMMIT_VERSION
from cdfd.runtime.ordered_pool import map_in_order
from cdfd.scan.table_files import MISSING_HINT, TableFiles
from cdfd.spark.frames.columns import read_schema, select_columns, sql_literal, sql_type
from cdfd.spark.frames.groups import OWN, FileRows, ReadByCdfd, are_named, name_of
from cdfd.spark.frames.paths import SparkFile, escape
from cdfd.spark.records.records import check_sql, quoted
from cdfd.spark.source.columns import spark_schema

MOST_WORDS: Final = 8 << 20
"""Words of deletion vectors of one scan, at most: each task holds them."""

UNKNOWN_ROWS: Final = 1 << 48
"""Rows of a file, at most, if the log does not say how many it has."""

_OPTIONS: Final = {
    "recursiveFileLookup": "true",  # no column comes from the name of a folder
    "mergeSchema": "false",
    "ignoreMissingFiles": "false",
    "ignoreCorruptFiles": "false",
    # As cdfd reads times before 1582, and 96-bit ones before 1900, of files that do not say which calendar they have.
    "datetimeRebaseMode": "CORRECTED",
    "int96RebaseMode": "CORRECTED",
}
"""Options of Spark's reader, whatever the session says."""

_METADATA: Final = "_metadata"
"""Spark's column of what it knows of a row's file."""
_FILE, _ROW, _PATH, _FIRST, _WORDS, _BEFORE, _TOTAL, _KEEPS, _BASE = (
    f"{OWN}{name}" for name in ("file", "row", "path", "first", "words", "before", "total", "keeps", "base")
)
_VALUE_OF: Final = f"{OWN}of_"
"""The names of joined columns begin so; the rest is that of the column whose value differs between files."""
_VECTORS: Final = {
    _FIRST: pa.int64(),
    _WORDS: pa.list_(pa.int64()),
    _BEFORE: pa.list_(pa.int64()),
    _TOTAL: pa.int64(),
    _KEEPS: pa.bool_(),
}

# SQL over a joined frame: the number of a row's word among those of the vector, and whether the row is selected. Its ordinal is that of its
# file's first row, and the number of selected rows before it.
_WORD: Final = f"CAST(shiftright({_ROW}, 6) - {_FIRST} AS INT)"
_BIT: Final = f"CAST({_ROW} & 63 AS INT)"
_IS_SELECTED: Final = f"coalesce(getbit(get({_WORDS}, {_WORD}), {_BIT}) = 1, false) = {_KEEPS}"
_INSIDE: Final = f"get({_BEFORE}, {_WORD}) + bit_count(get({_WORDS}, {_WORD}) & ~shiftleft(-1L, {_BIT}))"
_RANK: Final = f"coalesce(CAST({_INSIDE} AS BIGINT), CASE WHEN {_WORD} < 0 THEN 0L ELSE {_TOTAL} END)"
_RANK_OF_SELECTED: Final = f"CASE WHEN {_KEEPS} THEN {_RANK} ELSE {_ROW} - {_RANK} END"


@dataclass(frozen=True, slots=True)
class Constant:
    """How a value that all rows of a file share passes to Spark. Neither a zone of Python or the session nor a calendar changes it.

    Attributes:
        kind: its type on the way.
        encode: the value on the way, from a scalar.
        decode: an SQL expression of the value, from one of what passes.
    """

    kind: pa.DataType
    encode: Callable[[Any], Any]
    decode: Callable[[str], str]


def constant_of(arrow: Any, spark: DataType) -> Constant:
    """How partition values of a type pass. `spark` is the type of the column."""
    if pa.types.is_date32(arrow):
        return Constant(pa.int32(), lambda scalar: scalar.value, "date_from_unix_date(CAST({} AS INT))".format)
    if pa.types.is_timestamp(arrow) and arrow.tz is not None:
        return Constant(pa.int64(), lambda scalar: scalar.value, "timestamp_micros({})".format)
    cast = f"CAST({{}} AS {sql_type(spark)})".format
    if pa.types.is_timestamp(arrow):
        # The text of an instant in UTC, without its zone.
        return Constant(pa.string(), lambda scalar: str(scalar.cast(pa.string())), cast)
    if pa.types.is_decimal(arrow):
        return Constant(pa.string(), lambda scalar: format(scalar.as_py(), "f"), cast)
    return Constant(arrow, lambda scalar: scalar.as_py(), cast)


CHANGE_CONSTANTS: Final = {
    CHANGE_TYPE: Constant(pa.string(), str, str),
    COMMIT_VERSION: Constant(pa.int64(), int, str),
    COMMIT_TIMESTAMP: Constant(pa.int64(), int, "timestamp_millis({})".format),
    _BASE: Constant(pa.int64(), int, str),
}
"""How the change columns pass: the time in ms, and of the ordinals that of a file's first row."""


@dataclass(frozen=True, slots=True)
class RowWords:
    """A set of rows of a file.

    Attributes:
        first: number of the first word.
        words: bits of rows, the lowest of a word first.
        keeps: whether the rows of the set are read, or all others.
    """

    first: int
    words: npt.NDArray[np.int64]
    keeps: bool

    @classmethod
    def of(cls, rows: RowSet, *, keeps: bool) -> RowWords:
        """Those of a set."""
        low, high = rows.min(), rows.max()
        if low is None or high is None:
            return cls(0, np.zeros(0, np.int64), keeps)
        first = low >> 6
        mask = rows.mask(first << 6, ((high >> 6) - first + 1) << 6)
        return cls(first, np.packbits(mask, bitorder="little").view(np.int64), keeps)


def row_words(each: FileRows, files: TableFiles) -> RowWords:
    """The rows of a file that its deletion vectors select.

    Raises:
        DataError: a vector is missing or damaged, or names rows that the file does not have; it names table, version and file.
    """
    rows = UNKNOWN_ROWS if each.scan.num_records is None else each.scan.num_records
    with Within(files.storage.uri, each.version, each.scan.path):
        only, without = (files.vector_rows(vector, rows) for vector in (each.scan.only, each.scan.without))
        for vector in (only, without):
            last = None if vector is None else vector.max()
            if last is not None and last >= rows:
                raise DataError(f"the deletion vector hides row {last} of a file of {rows} rows")
        if only is not None:
            return RowWords.of(only if without is None else only.difference(without), keeps=True)
        assert without is not None
        return RowWords.of(without, keeps=False)


@dataclass(slots=True)
class ScanFrames:
    """Makes DataFrames of groups of files.

    Attributes:
        spark: the session.
        files: of the table.
        spark_files: where Spark finds each file.
        wanted: the columns of change rows: of each, the name in the table or that of a change column, and the field.
    """

    spark: SparkSession
    files: TableFiles
    spark_files: Mapping[str, SparkFile]
    wanted: Sequence[tuple[str, StructField]]
    _readers: dict[tuple[int, bool], tuple[StructType, DataFrameReader]] = field(init=False, default_factory=dict)

    def frame(self, group: Sequence[FileRows]) -> DataFrame:
        """The rows of a group; see `groups_of`.

        Raises:
            ReadByCdfd: its deletion vectors are too large for a broadcast, Spark does not list a file, or it would replace names in SQL.
            CdfdError: a file is gone, or a deletion vector or partition value is damaged; it names table, version and file.
        """
        first = group[0]
        key = id(first.schema), first.is_cdc
        if key not in self._readers:  # a reader takes a dozen calls of the JVM
            read = read_schema(first.schema, {name for name, _ in self.wanted}, is_cdc=first.is_cdc)
            self._readers[key] = read, self.spark.read.options(**_OPTIONS).schema(read)
        read, reader = self._readers[key]
        frame = self._scan(group, reader)
        # A version may add a file that another one removes: then these two columns tell its rows apart, whatever is wanted.
        paths = {each.scan.path: None for each in group}
        repeats = len(paths) < len(group)
        names = [*(name for name, _ in self.wanted), *((CHANGE_TYPE, COMMIT_VERSION) if repeats else ())]
        constants = _constants(group, names, self.files.storage.uri)
        different = {name: each for name, each in constants.items() if any(value != each[1][0] for value in each[1])}
        ordered = first.ordinal is not None
        types = {child.name: child.dataType for child in read}
        # A column of the table with this name hides that of Spark in SQL.
        is_hidden = _METADATA in map(str.lower, types)
        joins = first.selects or (ordered and is_hidden) or (bool(different) and (is_hidden or not are_named(group)))
        columns = {name: constant.decode(sql_literal(of_files[0])) for name, (constant, of_files) in constants.items()}
        extends = joins or repeats
        if extends:
            frame = (
                self._join(frame, group, different, ordered=ordered) if joins else self._repeat(frame, group, different)
            )
            columns |= {name: constant.decode(quoted(_VALUE_OF + name)) for name, (constant, _) in different.items()}
        elif different:
            number = self._number(paths)
            for name, (constant, of_files) in different.items():
                literals = (constant.decode(sql_literal(value)) for value in of_files)
                columns[name] = f"get(array({', '.join(literals)}), {number})"
        if ordered:
            inside = _RANK_OF_SELECTED if first.selects else _ROW if extends else f"{_METADATA}.row_index"
            columns[CHANGE_ORDINAL] = f"{columns.pop(_BASE)} + {inside}"
        texts = select_columns(types, first.schema, self.wanted, columns)
        try:
            check_sql(self.spark, texts)
        except ConfigError as error:
            raise ReadByCdfd(error.what) from None
        stored = [f"{quoted(name)} AS {quoted(name)}" for name in types]
        if not extends and texts[: len(stored)] == stored:
            texts[: len(stored)] = ["*"]  # each expression takes a call of the JVM, which parses it
        return frame.selectExpr(*texts)

    def _scan(self, group: Sequence[FileRows], reader: DataFrameReader) -> DataFrame:
        # The same file may have rows in several versions. Spark would read a path twice that is given twice.
        paths = list(dict.fromkeys(self.spark_files[each.scan.path].path for each in group))
        try:
            return reader.parquet(*map(escape, paths))
        except AnalysisException as error:
            if error.getCondition() != "PATH_NOT_FOUND":
                raise
            path = (error.getMessageParameters() or {}).get("path")
            raise MissingFileError(
                "a file is gone", table=self.files.storage.uri, path=path, hint=MISSING_HINT
            ) from None

    def _repeat(
        self, frame: DataFrame, group: Sequence[FileRows], different: Mapping[str, tuple[Constant, Sequence[Any]]]
    ) -> DataFrame:
        """Each row as often as its file is in the group, with the constants of that time. So Spark decodes the file once."""
        times = defaultdict[str, list[str]](list)
        for number, each in enumerate(group):
            values_ = (
                f"{sql_literal(of_files[number])} AS {quoted(_VALUE_OF + name)}"
                for name, (_, of_files) in different.items()
            )
            times[each.scan.path].append(f"struct({', '.join(values_)})")
        rows = ", ".join(f"array({', '.join(structs)})" for structs in times.values())
        row = [f"{_METADATA}.row_index AS {_ROW}"] if group[0].ordinal is not None else []
        return frame.selectExpr("*", *row, f"inline(get(array({rows}), {self._number(times)}))")

    def _number(self, paths: Collection[str]) -> str:
        """SQL of the number of a row's file among paths.

        The size of a file says which it is if it can: Spark compares names in several times the time. A map takes little code, whatever the
        number of files. The JVM does not compile a method that is long.
        """
        sizes = [self.spark_files[path].size for path in paths]
        by_name = _number_by("file_name", [sql_literal(name_of(path)) for path in paths])
        if None in sizes or len({*sizes}) < len(sizes):
            return by_name
        # A file that has been replaced since has another size.
        return f"coalesce({_number_by('file_size', [f'{size}L' for size in sizes])}, {by_name})"

    def _join(
        self,
        frame: DataFrame,
        group: Sequence[FileRows],
        different: Mapping[str, tuple[Constant, Sequence[Any]]],
        *,
        ordered: bool,
    ) -> DataFrame:
        """The rows with the constants of their files, and of these the rows that deletion vectors leave."""
        spelled = {unquote(_short(uri)): _short(uri) for uri in frame.inputFiles()}
        columns: dict[str, pa.Array[Any]] = {}
        try:
            paths = [spelled[_short(self.spark_files[each.scan.path].path)] for each in group]
        except KeyError as error:
            raise ReadByCdfd(f"Spark does not list the file {error.args[0]!r:.300}") from None
        columns[_PATH] = pa.array(paths, pa.string())
        for name, (constant, column) in different.items():
            columns[_VALUE_OF + name] = pa.array(column, constant.kind)
        if group[0].selects:
            columns |= self._vectors(group)
        beside = self.spark.createDataFrame(pa.table(columns))
        metadata = frame.metadataColumn(_METADATA)
        frame = frame.withColumn(_FILE, metadata["file_path"])
        if group[0].selects or ordered:
            frame = frame.withColumn(_ROW, metadata["row_index"])
        frame = frame.join(F.broadcast(beside), frame[_FILE] == beside[_PATH])
        return frame.where(_IS_SELECTED) if group[0].selects else frame

    def _vectors(self, group: Sequence[FileRows]) -> dict[str, pa.Array[Any]]:
        workers = 16 if self.files.storage.remote else 1
        vectors, total = list[dict[str, Any]](), 0
        for words in map_in_order(partial(row_words, files=self.files), group, workers=workers):
            total += len(words.words)
            if total > MOST_WORDS:
                raise ReadByCdfd("the deletion vectors are too large for a broadcast")
            counts = np.bitwise_count(words.words.view(np.uint64)).astype(np.int64)
            ends = np.cumsum(counts)
            values_ = (words.first, words.words, ends - counts, int(ends[-1]) if len(ends) else 0, words.keeps)
            vectors.append(dict(zip(_VECTORS, values_, strict=True)))
        return {name: pa.array([each[name] for each in vectors], kind) for name, kind in _VECTORS.items()}


def _short(uri: str) -> str:
    """A URI as `_metadata.file_path` has it."""
    return f"file:/{uri.removeprefix('file:').lstrip('/')}" if uri.startswith("file:") else uri


def _number_by(field: str, keys: Sequence[str]) -> str:
    pairs = ", ".join(f"{key}, {number}" for number, key in enumerate(keys))
    return f"element_at(map({pairs}), {_METADATA}.{field})"


def _constants(group: Sequence[FileRows], wanted: Sequence[str], uri: str) -> dict[str, tuple[Constant, Sequence[Any]]]:
    """Wanted columns that are constant in each file, and the ordinal of its first row; with their values on the way."""
    constants: dict[str, tuple[Constant, Sequence[Any]]] = {}
    change: dict[str, list[Any]] = {
        COMMIT_VERSION: [each.version for each in group],
        COMMIT_TIMESTAMP: [each.timestamp_ms for each in group],
    }
    if not group[0].is_cdc:
        change[CHANGE_TYPE] = [each.scan.change_type for each in group]
    if group[0].ordinal is not None:
        change[_BASE] = [each.ordinal for each in group]
    for name, of_files in change.items():
        if name in (*wanted, _BASE):
            constants[name] = CHANGE_CONSTANTS[name], of_files
    schema = group[0].schema
    partitions = [child for child in schema.partition_fields if child.name in wanted]
    if partitions:
        parsed = list[Mapping[str, Any]]()
        for each in group:
            with Within(uri, each.version, each.scan.path):
                parsed.append(values.parse_partition(each.scan.partition_values, schema))
        for child in partitions:
            (spark,) = spark_schema(schema, [child.name])
            constant = constant_of(arrow_type(child.type), spark.dataType)
            scalars = [row.get(child.name) for row in parsed]
            encoded = [None if scalar is None or not scalar.is_valid else constant.encode(scalar) for scalar in scalars]
            constants[child.name] = constant, encoded
    return constants
