"""VACUUM and the names of files: however a log spells the name of a file, and by whatever link it reaches it, the file stays."""

import json
import os
import time
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import quote
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdfd.cli.commands.vacuum import run
from cdfd.delta import z85
from cdfd.delta.write import vacuum
from cdfd.errors import CdfdError, DataError, PathError
from cdfd.log.log import DeltaLog
from cdfd.log.vacuum import removable
from tests.support.fuzz.lakes import metadata, protocol
from tests.support.lake import run as complete
from tests.support.memory_storage import MemoryStorage
from tests.support.sampling import ALL, sample

NOW = time.time()
LONG_AGO = NOW - 30 * 24 * 3600
START: list[dict[str, Any]] = [protocol(), metadata(pa.schema({"n": pa.int64()}))]


def add(path: str, vector: dict[str, Any] | None = None) -> dict[str, Any]:
    action = {"path": path, "partitionValues": {}, "size": 1, "modificationTime": 0, "dataChange": True}
    return {"add": action if vector is None else action | {"deletionVector": vector}}


def remove(path: str, ms: float | None) -> dict[str, Any]:
    return {
        "remove": {"path": path, "dataChange": True} | ({} if ms is None else {"deletionTimestamp": int(ms * 1000)})
    }


def cdc(path: str) -> dict[str, Any]:
    return {"cdc": {"path": path, "partitionValues": {}, "size": 1, "dataChange": False}}


def vector(kind: str, text: str) -> dict[str, Any]:
    return {"storageType": kind, "pathOrInlineDv": text, "offset": 1, "sizeInBytes": 40, "cardinality": 1}


class Folder:
    """A table whose folder `top/real/t` is also reached as `top/link/t` and `top/table`. All of its files are old."""

    def __init__(self, top: Path) -> None:
        self.top, self.real = top, top / "re al%20" / "t"
        self.real.mkdir(parents=True)
        (top / "link").symlink_to(self.real.parent)
        (top / "table").symlink_to("link/t")
        (top / "outside").mkdir()
        (self.real / "_delta_log").mkdir()
        self.version = 0

    def file(self, name: str) -> Path:
        path = self.real / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"1")
        os.utime(path, (LONG_AGO, LONG_AGO))
        return path

    def commit(self, *actions: dict[str, Any], at: float = LONG_AGO) -> None:
        entry = self.real / "_delta_log" / f"{self.version:020}.json"
        entry.write_text("".join(json.dumps(action) + "\n" for action in [*actions, {"commitInfo": {}}]))
        os.utime(entry, (at, at))
        self.version += 1

    def files(self) -> set[str]:
        return {str(path.relative_to(self.top)) for path in self.top.rglob("*") if not path.is_dir()}

    def vacuum(self, root: str = "table") -> str:
        return run(str(self.top / root), delete=True)


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def absolute(root: str, scheme: str = "") -> Callable[[Folder, str], str]:
    """Names below one of the names of the table's folder."""
    return lambda folder, name: scheme + quote(f"{folder.top / root / name}")


def hard_link(folder: Folder, name: str) -> str:
    other = folder.top / "outside" / str(len(os.listdir(folder.top / "outside")))
    os.link(folder.real / name, other)
    return quote(str(other))


def link(folder: Folder, name: str) -> str:
    (folder.real / "links").mkdir(exist_ok=True)
    other = folder.real / "links" / f"{len(os.listdir(folder.real / 'links'))}.parquet"
    other.symlink_to(folder.real / name)
    return str(other.relative_to(folder.real))


def link_from_outside(folder: Folder, name: str) -> str:
    other = folder.top / "outside" / str(len(os.listdir(folder.top / "outside")))
    other.symlink_to(folder.real / name)
    return other.as_uri()


def linked_folder(folder: Folder, name: str) -> str:
    """A link to the folder of the file, in a folder that is not listed."""
    (folder.real / "_hidden").mkdir(exist_ok=True)
    other = folder.real / "_hidden" / str(len(os.listdir(folder.real / "_hidden")))
    other.symlink_to((folder.real / name).parent)
    return quote(f"_hidden/{other.name}/{Path(name).name}")


SPELLINGS: dict[str, Callable[[Folder, str], str]] = {
    "encoded": lambda folder, name: quote(name),
    "encoded throughout": lambda folder, name: "".join(f"%{byte:02x}" for byte in name.encode()),
    "not encoded": lambda folder, name: name,
    "encoded twice": lambda folder, name: quote(quote(name)),
    "with ./": lambda folder, name: f"./{quote(name)}",
    "with ../": lambda folder, name: f"x/y/../../{quote(name)}",
    "with //": lambda folder, name: quote(name).replace("/", "//"),
    "decomposed": lambda folder, name: quote(unicodedata.normalize("NFD", name)),
    "in capitals": lambda folder, name: quote(name.upper()),
    "below the root": absolute("table"),
    "below the real root": absolute("re al%20/t"),
    "below another link": absolute("link/t"),
    "file:": absolute("re al%20/t", "file:"),
    "file://": absolute("link/t", "file://"),
    "FILE://localhost": absolute("re al%20/t", "FILE://localhost"),
    "with ../ in an absolute path": lambda folder, name: quote(f"{folder.top}/x/../link/t/./{name}"),
    "a hard link elsewhere": hard_link,
    "a link": link,
    "a link elsewhere": link_from_outside,
    "a link to its folder": linked_folder,
}
DOUBTFUL: dict[str, Callable[[Folder, str], str]] = {
    "leaves the table": lambda folder, name: f"../t/{quote(name)}",
    "a mount": lambda folder, name: f"/mnt/t/{quote(name)}",
    "a mount as a URI": lambda folder, name: f"file:///mnt/t/{quote(name)}",
    "another host": lambda folder, name: f"file://host/t/{quote(name)}",
    "another host without a scheme": lambda folder, name: f"//host/t/{quote(name)}",
    "s3": lambda folder, name: f"s3://bucket/t/{quote(name)}",
    "s3a": lambda folder, name: f"s3a://bucket/t/{quote(name)}",
    "s3n": lambda folder, name: f"s3n://bucket/t/{quote(name)}",
    "dbfs": lambda folder, name: f"dbfs:/t/{quote(name)}",
    "hdfs": lambda folder, name: f"hdfs:/t/{quote(name)}",
    "a drive": lambda folder, name: f"C:/t/{quote(name)}",
    "a folder": lambda folder, name: f"{quote(name)}/",
}
NAMES = ("part.parquet", "a b/part.parquet", "p=%2F%20/part.parquet", "t=10:00/é ß/part.parquet", "_delta_index/x/part")
KINDS = ("live", "removed", "removed without a time", "change data", "vector", "orphan", "expired")


@dataclass
class File:
    """A file of a table: its name, what it is to the table, and how the log spells its name."""

    name: str
    kind: str
    spelling: str


@st.composite
def file_lists(draw: st.DrawFn) -> list[File]:
    files = []
    for number in range(draw(st.integers(1, 6))):
        kind = draw(st.sampled_from(KINDS))
        name = f"{'_change_data/' if kind == 'change data' else ''}{number}/{draw(st.sampled_from(NAMES))}"
        spellings = [*SPELLINGS, *DOUBTFUL] if draw(st.integers(0, 9)) == 0 else [*SPELLINGS]
        files.append(File(name, kind, draw(st.sampled_from(spellings))))
    return files


def write(folder: Folder, files: Sequence[File]) -> None:
    first, second, third = [*START], list[dict[str, Any]](), list[dict[str, Any]]()
    for number, file in enumerate(files):
        folder.file(file.name)
        if file.kind == "orphan":
            continue
        name = (SPELLINGS | DOUBTFUL)[file.spelling](folder, file.name)
        if file.kind == "change data":
            third.append(cdc(name))
        elif file.kind == "vector":
            folder.file(f"with-vector-{number}.parquet")
            first.append(add(f"with-vector-{number}.parquet", vector("p", name)))
        else:
            first.append(add(name))
        if file.kind == "expired":
            second.append(remove(name, LONG_AGO))
        elif file.kind.startswith("removed"):
            third.append(remove(name, NOW if file.kind == "removed" else None))
    folder.commit(*first)
    folder.commit(*second)
    folder.commit(*third, at=NOW)


@given(file_lists(), st.sampled_from(["table", "link/t", "re al%20/t"]))
@settings(max_examples=150 if ALL else 20)
def test_no_name_costs_a_version_in_the_retention_a_file(files: list[File], root: str) -> None:
    """Either VACUUM refuses the table and removes nothing, or all files in the retention stay and all others go."""
    with TemporaryDirectory() as top:
        folder = Folder(Path(top))
        write(folder, files)
        before = folder.files()
        useless = {
            str((folder.real / each.name).relative_to(top)) for each in files if each.kind in ("orphan", "expired")
        }
        if any(each.spelling in DOUBTFUL and each.kind not in ("orphan", "expired") for each in files):
            with pytest.raises(PathError):
                folder.vacuum(root)
            assert folder.files() == before
        else:
            folder.vacuum(root)
            gone = before - folder.files()
            assert gone == useless


@pytest.mark.parametrize("spelling", sample(SPELLINGS, 3))
@pytest.mark.parametrize("name", NAMES)
def test_each_spelling_keeps_the_file(folder: Folder, spelling: str, name: str) -> None:
    write(folder, [File(name, "live", spelling), File("x/orphan", "orphan", "encoded")])
    folder.vacuum()
    assert (folder.real / name).exists()
    assert not (folder.real / "x/orphan").exists()


@pytest.mark.parametrize("spelling", DOUBTFUL)
def test_a_doubtful_name_stops_before_anything_is_removed(folder: Folder, spelling: str) -> None:
    write(folder, [File("part.parquet", "live", spelling), File("orphan", "orphan", "encoded")])
    before = folder.files()
    with pytest.raises(PathError, match="the log names a file") as raised:
        folder.vacuum()
    assert folder.files() == before
    assert (raised.value.table, raised.value.version) == (str(folder.top / "table"), 2)
    assert "part.parquet" in str(raised.value.path)
    assert "Nothing was removed" in str(raised.value.hint)


def test_a_doubtful_name_in_an_entry_of_the_retention_names_its_version(folder: Folder) -> None:
    folder.commit(*START)
    folder.commit(add("dbfs:/t/a.parquet"), at=NOW)
    folder.commit(remove("dbfs:/t/a.parquet", None), at=NOW)
    with pytest.raises(PathError) as raised:
        folder.vacuum()
    assert raised.value.version == 1


def test_files_of_a_shallow_clone_s_source_are_no_doubt(folder: Folder) -> None:
    source = folder.top / "outside/source.parquet"
    source.write_bytes(b"1")
    folder.commit(*START, add(source.as_uri()))
    folder.file("orphan")
    folder.vacuum()
    assert source.exists()
    assert not (folder.real / "orphan").exists()


class TestDeletionVectors:
    ID = UUID(int=7)

    @pytest.mark.parametrize("prefix", ["", "ab", "a b%"])
    def test_relative_ones_stay(self, folder: Folder, prefix: str) -> None:
        name = f"{prefix}{'/' if prefix else ''}deletion_vector_{self.ID}.bin"
        text = prefix + z85.encode(self.ID.bytes)
        folder.commit(*START, add("a", vector("u", text)))
        kept = [folder.file("a"), folder.file(name)]
        orphan = folder.file("deletion_vector_x.bin")
        folder.vacuum()
        assert [path.exists() for path in (*kept, orphan)] == [True, True, False]

    def test_one_without_a_readable_name_stops(self, folder: Folder) -> None:
        folder.commit(*START, add("a", vector("u", "short")))
        orphan = folder.file("orphan")
        with pytest.raises(DataError) as raised:
            folder.vacuum()
        assert orphan.exists()
        assert (raised.value.table, raised.value.version) == (str(folder.top / "table"), 0)


class TestLinks:
    def test_links_stay_and_are_not_followed(self, folder: Folder) -> None:
        outside = folder.top / "outside"
        for name in ("file", "d/file"):
            (outside / name).parent.mkdir(exist_ok=True)
            (outside / name).write_bytes(b"1")
            os.utime(outside / name, (LONG_AGO, LONG_AGO))
        links = {"f": outside / "file", "d": outside / "d", "up": "..", "loop": "loop", "nowhere": "x/nothing"}
        for name, target in links.items():
            (folder.real / name).symlink_to(target)
        folder.commit(*START)
        folder.file("x/orphan")
        before = folder.files()
        folder.vacuum()
        assert before - folder.files() == {str((folder.real / "x/orphan").relative_to(folder.top))}

    @pytest.mark.parametrize("target", ["../../outside", "nothing"])
    def test_a_table_inside_whose_log_is_a_link_is_left_alone(self, folder: Folder, target: str) -> None:
        folder.commit(*START)
        inside = folder.file("nested/part.parquet")
        (folder.real / "nested/_delta_log").symlink_to(target)
        folder.vacuum()
        assert inside.exists()

    def test_a_name_that_is_a_loop_stops(self, folder: Folder) -> None:
        (folder.real / "loop").symlink_to("loop")
        folder.commit(*START, add("loop/part.parquet"))
        orphan = folder.file("orphan")
        with pytest.raises(CdfdError, match="Too many levels of symbolic links"):
            folder.vacuum()
        assert orphan.exists()


class Bucket(MemoryStorage):
    """A store with folders, without links."""

    async def folders(self, folder: str = "") -> Sequence[str]:
        prefix = f"{folder}/" if folder else ""
        below = [path[len(prefix) :] for path in self._objects if path.startswith(prefix)]
        return sorted({path.partition("/")[0] for path in below if "/" in path})


def in_bucket(path: str, *objects: str) -> list[str]:
    """The objects of `s3://bucket/lake/t` that VACUUM removes, after a commit of one file."""
    storage = Bucket("s3://bucket/lake/t", now_ms=lambda: int(LONG_AGO * 1000))

    async def scenario() -> list[str]:
        log = "".join(json.dumps(action) + "\n" for action in [*START, add(path)])
        await storage.put(f"_delta_log/{0:020}.json", log.encode())
        for each in objects:
            await storage.put(each, b"1")
        return [stat.path for stat in (await removable(DeltaLog(storage), int(NOW * 1000))).files]

    return complete(scenario())


class TestBuckets:
    @pytest.mark.parametrize(
        "path",
        [
            "a/b%20c",
            "s3://bucket/lake/t/a/b%20c",
            "s3a://bucket/lake/t/a/b%20c",
            "S3N://bucket/lake//x/../t/a/b%20c",
            "s3://an-access-point-alias/lake/t/a/b%20c",
            "a//b c",
            "A/B c",
        ],
    )
    def test_the_key_counts(self, path: str) -> None:
        assert in_bucket(path, "a/b c", "orphan") == ["orphan"]

    @pytest.mark.parametrize("path", ["s3://bucket/lake/other/a", "s3a://bucket/lake/t2/a", "s3://source/t/a"])
    def test_objects_elsewhere_are_no_doubt(self, path: str) -> None:
        assert in_bucket(path, "a", "orphan") == ["a", "orphan"]

    @pytest.mark.parametrize("path", ["/lake/t/a", "file:/lake/t/a", "gs://bucket/lake/t/a", "dbfs:/mnt/a", "../t/a"])
    def test_other_stores_are_doubtful(self, path: str) -> None:
        with pytest.raises(PathError):
            in_bucket(path, "a")


def test_names_that_differ_in_a_letter_are_different() -> None:
    assert vacuum.are_unnamed(["a", "b", "ä"], pa.array(["b"], pa.large_string())) == [True, False, True]
