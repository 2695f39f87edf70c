"""The contract of every `Catalog`."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import boto3
import pytest

from cdfd.catalogs.base import Catalog, CatalogTable, RatifiedCommit
from cdfd.catalogs.glue import GlueCatalog
from cdfd.catalogs.uc.catalog import UnityCatalog
from cdfd.errors import ConfigError, NotATableError
from cdfd.storage.s3.loop import request_loop
from tests.support.catalogs.memory import MemoryCatalog
from tests.support.catalogs.unity_server import unity_server
from tests.support.s3.fixtures import moto_server
from tests.support.s3.server import KEY_ID, SECRET, Server

__all__ = ["moto_server"]

T = TypeVar("T")
KINDS = ("memory", "uc", "uc, older API", "glue")


@dataclass
class Subject:
    """A catalog, and its ways to change.

    Attributes:
        catalog: under test.
        schema: of its tables.
        add: makes a table of a name, at a location; it is managed if there are commits.
        drop: removes one.
        manages: whether it decides commits.
    """

    catalog: Catalog
    schema: str
    add: Callable[[str, str, tuple[RatifiedCommit, ...]], None]
    drop: Callable[[str], None]
    manages: bool = True

    def name(self, table: str) -> str:
        return f"{self.schema}.{table}"


@pytest.fixture(params=KINDS)
def subject(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Subject]:
    if request.param == "memory":
        yield memory()
    elif request.param == "glue":
        with glue(request.getfixturevalue("moto_server")) as client:
            yield client
    else:
        with unity_server(tmp_path) as server:
            server.delta_api = request.param == "uc"
            server.page = 2

            def add(name: str, location: str, commits: tuple[RatifiedCommit, ...]) -> None:
                server.add_table(f"main.sales.{name}", location, managed=bool(commits))
                for each in commits:
                    assert each.file_name is not None
                    server.ratify(f"main.sales.{name}", each.version, each.file_name, size=each.size)

            yield Subject(
                UnityCatalog({"endpoint": server.url}),
                "main.sales",
                add,
                lambda name: server.tables.pop(f"main.sales.{name}") and None,
            )


def memory() -> Subject:
    catalog = MemoryCatalog()

    def add(name: str, location: str, commits: tuple[RatifiedCommit, ...]) -> None:
        latest = commits[-1].version if commits else None
        catalog.known[f"main.sales.{name}"] = CatalogTable(str(uuid.uuid4()), location, bool(commits), latest, commits)

    return Subject(catalog, "main.sales", add, lambda name: catalog.known.pop(f"main.sales.{name}") and None)


@contextmanager
def glue(moto: Server) -> Iterator[Subject]:
    """Glue of moto, with a database of its own."""
    client: Any = boto3.client(
        "glue", endpoint_url=moto.url, aws_access_key_id=KEY_ID, aws_secret_access_key=SECRET, region_name="us-east-1"
    )
    database = f"d{uuid.uuid4().hex[:8]}"
    client.create_database(DatabaseInput={"Name": database})

    def add(name: str, location: str, commits: tuple[RatifiedCommit, ...]) -> None:
        table = {
            "Name": name,
            "StorageDescriptor": {"Location": location},
            "Parameters": {"spark.sql.sources.provider": "delta"},
        }
        client.create_table(DatabaseName=database, TableInput=table)

    def drop(name: str) -> None:
        client.delete_table(DatabaseName=database, Name=name)

    own = {"access_key_id": KEY_ID, "secret_access_key": SECRET}
    try:
        catalog = GlueCatalog({"endpoint_url": moto.url, "region": "us-east-1", **own})
        yield Subject(catalog, database, add, drop, manages=False)
    finally:
        client.close()


def ask(work: Awaitable[T]) -> T:
    async def awaited() -> T:
        return await work

    return request_loop().submit(awaited()).result(60)


def commits(*versions: int) -> tuple[RatifiedCommit, ...]:
    return tuple(RatifiedCommit(version, f"{version:020d}.{uuid.uuid4()}.json", None, 7) for version in versions)


def test_table_has_its_location_and_one_id(subject: Subject) -> None:
    subject.add("orders", "s3://lake/orders/", ())
    one, again = (ask(subject.catalog.load(subject.name("orders"))) for _ in range(2))
    assert one.location.rstrip("/") == "s3://lake/orders"
    assert one.table_id
    assert (one.table_id, one.managed, one.commits) == (again.table_id, False, ())


def test_tables_have_different_ids(subject: Subject) -> None:
    for name in ("orders", "items"):
        subject.add(name, f"s3://lake/{name}", ())
    one, other = (ask(subject.catalog.load(subject.name(name))) for name in ("orders", "items"))
    assert one.table_id != other.table_id


def test_commits_are_ascending_and_complete(subject: Subject) -> None:
    known = commits(1, 2, 3, 4, 5)
    subject.add("orders", "s3://lake/orders", known)
    actual = ask(subject.catalog.load(subject.name("orders")))
    if not subject.manages:
        assert (actual.managed, actual.latest, actual.commits) == (False, None, ())
        return
    assert (actual.managed, actual.latest) == (True, 5)
    assert [(each.version, each.file_name, each.size) for each in actual.commits] == [
        (each.version, each.file_name, each.size) for each in known
    ]


def test_unknown_table_is_no_table(subject: Subject) -> None:
    with pytest.raises(NotATableError):
        ask(subject.catalog.load(subject.name("nothing")))


def test_dropped_table_is_no_table(subject: Subject) -> None:
    subject.add("orders", "s3://lake/orders", ())
    ask(subject.catalog.load(subject.name("orders")))
    subject.drop("orders")
    with pytest.raises(NotATableError):
        ask(subject.catalog.load(subject.name("orders")))


def test_tables_of_a_schema_are_sorted(subject: Subject) -> None:
    names = ["d", "a", "c", "b", "e"]
    for name in names:
        subject.add(name, f"s3://lake/{name}", ())
    assert ask(subject.catalog.tables(subject.schema)) == sorted(names)


def test_credentials_are_for_a_prefix_or_there_are_none(subject: Subject) -> None:
    subject.add("orders", "s3://lake/orders", ())
    actual = ask(subject.catalog.credentials(subject.name("orders"), None))
    assert all(each.prefix.startswith("s3://lake") for each in actual)


def test_names_have_a_fixed_depth(subject: Subject) -> None:
    depth = subject.catalog.depth
    assert len(subject.catalog.parts(subject.name("orders"))) == depth
    assert len(subject.catalog.parts(subject.schema)) == depth - 1


@pytest.mark.parametrize("name", ["", ".", "a..b", "a/b.c.d", "a.b\n.c"])
def test_malformed_name_is_an_error(subject: Subject, name: str) -> None:
    with pytest.raises(ConfigError):
        subject.catalog.parts(name)
