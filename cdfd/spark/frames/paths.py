"""Where Spark finds the files of a table."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from pyspark.sql import SparkSession

from cdfd.errors import CdfdError, MissingFileError, NotFoundError
from cdfd.runtime.tasks import LoopThread
from cdfd.scan.table_files import MISSING_HINT, TableFiles
from cdfd.spark.frames.groups import FileRows, ReadByCdfd
from cdfd.storage.base import NamedTable, root_of
from cdfd.storage.local import LocalStorage

_GLOB: Final = re.compile(r"[{}\[\]*?\\]")
_KEYS: Final = ("access.key", "aws.credentials.provider")
"""Settings of Hadoop's file system that say where its keys come from."""
_SCHEMES: Final = ("s3", "gs", "abfss", "abfs")


def check_store(files: TableFiles, *, has_options: bool) -> None:
    """Check that Spark can read a table's files by itself.

    Args:
        files: of the table.
        has_options: whether cdfd reaches the store by options that Spark does not have.

    Raises:
        ReadByCdfd: they are in a store that only cdfd has the keys of, or knows.
    """
    storage = files.storage
    if isinstance(storage, LocalStorage):
        return
    if has_options:
        raise ReadByCdfd("options of the store are those of cdfd, and the session has no settings spark.hadoop.fs.s3a")
    if isinstance(storage, NamedTable):
        raise ReadByCdfd("a catalog has the keys of the table")
    if root_of(storage).partition("://")[0] not in _SCHEMES:
        raise ReadByCdfd("Spark may not know the table's store")


def has_own_keys(spark: SparkSession, uri: str) -> bool:
    """Whether the session says how Spark gets keys of a bucket in S3: for all buckets, or for this one."""
    bucket = uri.partition("://")[2].partition("/")[0]
    prefixes = ("spark.hadoop.fs.s3a.", f"spark.hadoop.fs.s3a.bucket.{bucket}.")
    return any(spark.conf.get(prefix + name, None) is not None for prefix in prefixes for name in _KEYS)


@dataclass(frozen=True, slots=True)
class SparkFile:
    """A file as Spark finds it.

    Attributes:
        path: a URI.
        size: in bytes; None for a store's file, which only Spark looks at.
    """

    path: str
    size: int | None


def spark_files(rows: Iterable[FileRows], files: TableFiles, s3: str) -> dict[str, SparkFile]:
    """Where Spark finds each file, by its path in the log. Local files are looked at: Spark would follow any link.

    Args:
        rows: the files.
        files: of the table.
        s3: the scheme by which Spark knows S3.

    Raises:
        MissingFileError: a local file is gone; it names table, version and file.
        PathError: a file lies outside the table.
    """
    of_path = dict[str, SparkFile]()
    with LoopThread(local=True) as loop:
        for each in rows:
            path = each.scan.path
            if path in of_path:
                continue
            try:
                storage, inside = files.locate(path)
                if isinstance(storage, LocalStorage):
                    size = loop.run(storage.stat(inside)).size
                    of_path[path] = SparkFile(f"file://{os.path.join(storage.root, inside)}", size)
                else:
                    root = re.sub(r"^s3://", f"{s3}://", root_of(storage))
                    of_path[path] = SparkFile(f"{root.rstrip('/')}/{inside}", None)
            except NotFoundError:
                error = MissingFileError("the file is gone", path=path, hint=MISSING_HINT)
                raise error.within(table=files.storage.uri, version=each.version) from None
            except CdfdError as error:
                raise error.within(table=files.storage.uri, version=each.version, path=path) from None
    return of_path


def escape(path: str) -> str:
    """A path that Spark does not take for a pattern. ReadByCdfd: Spark fails at every pattern that has a colon."""
    if _GLOB.search(path) and ":" in path.partition("://")[2]:
        raise ReadByCdfd(f"Spark does not read the path {path!r:.300}")
    return _GLOB.sub(r"\\\g<0>", path)
