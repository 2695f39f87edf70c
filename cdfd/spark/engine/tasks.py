"""Runs work on Spark, with one task for each item. Works with Spark Connect, and without pandas.

Each job is a data source with one partition per item. The items are not in its options, so that plans, the web page and event logs show
only its name.
"""

import base64
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from cdfd.errors import CdfdError, SinkError
from cdfd.spark.engine.sessions import first_line

Work = Callable[[bytes], bytes]
"""Computes the result of an item in an executor. It must be picklable."""

_WAVE_ITEMS = 1000
_WAVE_BYTES = 16 << 20
_SCHEMA = pa.schema([("item", pa.int64()), ("result", pa.binary())])
_MARK = re.compile(r"\[cdfd-error:([A-Za-z0-9+/=]+)\]")
# The first line after a traceback of Python.
_RAISED = re.compile(r"Traceback .*\n(?: .*\n)*(\S.*)", re.MULTILINE)
_MISSING_HINT = (
    "Install this version of cdfd in the Python of Spark's driver and executors; the page on Spark shows how"
)
_FIELDS = ("what", "table", "version", "path", "hint", "retriable")


class TaskError(Exception):
    """An error of ours from an executor. Spark passes only its text, so the text has all fields."""

    def __init__(self, error: CdfdError) -> None:
        document = {"kind": type(error).__name__} | {name: getattr(error, name) for name in _FIELDS}
        super().__init__(f"{error} [cdfd-error:{base64.b64encode(json.dumps(document).encode()).decode()}]")


@dataclass(frozen=True)
class _Item(InputPartition):
    number: int
    content: bytes


@dataclass(eq=False, repr=False)
class _Tasks(DataSourceReader):
    """The reader. Spark pickles it for each partition, so it drops the items once the partitions are known."""

    items: Sequence[bytes]
    work: Work

    def partitions(self) -> Sequence[InputPartition]:
        items, self.items = self.items, ()
        return [_Item(number, content) for number, content in enumerate(items)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, _Item)
        try:
            result = self.work(partition.content)
        except CdfdError as error:
            raise TaskError(error) from error
        yield pa.RecordBatch.from_pydict({"item": [partition.number], "result": [result]}, schema=_SCHEMA)


def job_of(name: str, items: Sequence[bytes], work: Work) -> type[DataSource]:
    """The data source of a job; see `run`. A local class is pickled by value."""

    class Job(DataSource):
        @classmethod
        def name(cls) -> str:
            return name

        def schema(self) -> str:
            return "item bigint, result binary"

        def reader(self, schema: Any) -> DataSourceReader:
            return _Tasks(items, work)

    return Job


def waves(items: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    """Split items into runs that are small compared to a driver's memory."""
    start, size = 0, 0
    for number, item in enumerate(items):
        if number > start and (number - start == _WAVE_ITEMS or size + len(item) > _WAVE_BYTES):
            yield items[start:number]
            start, size = number, 0
        size += len(item)
    if start < len(items):
        yield items[start:]


def run(spark: SparkSession, name: str, items: Sequence[bytes], work: Work) -> list[bytes]:
    """The results of `work` for each item, in order. Blocks until all tasks are done, or one has used up its retries.

    Args:
        spark: the session.
        name: of the data source; concurrent jobs need different names.
        items: a limited number; see `waves`.
        work: runs in executors, where cdfd is installed.

    Raises:
        PySparkException, Py4JError, OSError: `work` failed, or Spark did not finish the job; see `translate`.
    """
    spark.dataSource.register(job_of(name, items, work))
    # With `toArrow`, the error of a task would become an error of the JVM.
    rows = spark.read.format(name).load().collect()
    results = {row.item: bytes(row.result) for row in rows}
    return [results[number] for number in range(len(items))]


def translate(error: Exception) -> CdfdError:
    """Translate Spark's error of a job: the error of ours from a task, or otherwise an error about Spark."""
    text = str(error)
    marked = _MARK.search(text)
    if marked is not None:
        document = json.loads(base64.b64decode(marked[1]))
        kinds = {kind.__name__: kind for kind in _families(CdfdError)}
        rebuilt = kinds.get(document["kind"], CdfdError)(document["what"])
        for name in _FIELDS:
            setattr(rebuilt, name, document[name])
        return rebuilt
    line = first_line(error)
    raised = _RAISED.search(text)
    if raised is not None and "Traceback" in line:
        line = raised[1]
    hint = _MISSING_HINT if line.startswith("ModuleNotFoundError") else "See also Spark's own log"
    return SinkError(f"Spark did not finish the job: {line[:500]}", hint=hint, retriable=True)


def _families(kind: type[CdfdError]) -> Iterator[type[CdfdError]]:
    yield kind
    for each in kind.__subclasses__():
        yield from _families(each)
