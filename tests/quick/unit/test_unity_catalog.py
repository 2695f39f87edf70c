"""Unity Catalog through a stand-in server: requests, faults, answers of any shape, tokens, and what errors say."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import cdfd
from cdfd.catalogs.base import CatalogTable
from cdfd.catalogs.opening import vendor_for
from cdfd.catalogs.uc import answers
from cdfd.catalogs.uc.catalog import UnityCatalog
from cdfd.catalogs.uc.client import tls_context
from cdfd.catalogs.uc.options import parse
from cdfd.errors import CdfdError, ConfigError, NotATableError, NotFoundError, StorageError, UnsupportedError
from cdfd.storage.location import open_table
from cdfd.storage.s3.loop import request_loop
from tests.support.catalogs.memory import NAME, ManagedTable, MemoryCatalog
from tests.support.catalogs.unity_server import API, Fault, UnityServer, commit, unity_server
from tests.support.kafka.certificates import Certificates

TOKEN = "dapi-0123456789-secret"
LOAD = "tables/orders$"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[UnityServer]:
    with unity_server(tmp_path) as server:
        yield server


@pytest.fixture
def table(server: UnityServer, tmp_path: Path) -> ManagedTable:
    """A table with two versions, the second one ratified only."""
    table = ManagedTable(tmp_path / "orders", MemoryCatalog())
    server.add_table(NAME, table.folder.as_uri())
    add_version(server, table)
    return table


@pytest.fixture(autouse=True)
def _one_answer_for_a_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests are counted, however long a busy machine takes for a read."""
    monkeypatch.setattr("cdfd.catalogs.storage.SHARED_SECONDS", 20.0)


def add_version(server: UnityServer, table: ManagedTable) -> None:
    made = table.commit()
    assert made.file_name is not None
    server.ratify(NAME, made.version, made.file_name, size=made.size, modified_ms=made.modified_ms)


def open_catalog(server: UnityServer, **options: object) -> UnityCatalog:
    return UnityCatalog({"endpoint": server.url, "deadline": 5, **options})


def ask(work: Awaitable[Any]) -> Any:
    async def awaited() -> Any:
        return await work

    return request_loop().submit(awaited()).result(60)


def rows(server: UnityServer, **options: object) -> list[int]:
    arguments = {"endpoint": server.url, "deadline": 5, **options}
    return cdfd.changes(f"uc://{NAME}", storage_options=arguments).read_all()["id"].to_pylist()  # type: ignore[no-any-return]


class TestRequests:
    def test_first_read_asks_for_the_api_and_the_table(self, server: UnityServer, table: ManagedTable) -> None:
        assert rows(server) == [1]
        assert server.requests == [
            f"GET {API}/delta/v1/config?catalog=main&protocol-versions=1.0",
            f"GET {API}/delta/v1/catalogs/main/schemas/sales/tables/orders",
        ]

    def test_names_are_escaped(self, server: UnityServer, tmp_path: Path) -> None:
        table = ManagedTable(tmp_path / "odd", MemoryCatalog(), "main.sales.o?r#d%20 é")
        server.add_table(table.name, table.folder.as_uri())
        assert ask(open_catalog(server).load(table.name)).latest == 0
        assert server.requests[-1].endswith("/tables/o%3Fr%23d%2520%20%C3%A9")

    @pytest.mark.parametrize("name", ["orders", "a..b", "a.b.c.d", "a.b/c.d", "", "a.b.c\n"])
    def test_name_of_no_table_is_refused(self, server: UnityServer, name: str) -> None:
        with pytest.raises(ConfigError, match="names no table of Unity Catalog"):
            cdfd.changes(f"uc://{name}", storage_options={"endpoint": server.url})

    def test_tables_of_a_schema_are_listed_page_by_page(self, server: UnityServer, tmp_path: Path) -> None:
        server.page = 2
        for number in range(5):
            server.add_table(f"main.sales.t{number}", (tmp_path / str(number)).as_uri())
        server.add_table("main.sales.csv", "file:///csv", format="CSV")
        server.add_table("main.other.x", "file:///x")
        assert ask(open_catalog(server).tables("main.sales")) == ["t0", "t1", "t2", "t3", "t4"]
        assert server.count("/tables[?]") == 3

    def test_pages_that_come_again_end_a_listing(self, server: UnityServer, monkeypatch: pytest.MonkeyPatch) -> None:
        following = {"": "a", "a": "b", "b": "a"}

        async def pages(client: object, method: str, path: str, query: dict[str, str]) -> object:
            return {"tables": [], "next_page_token": following[query.get("page_token", "")]}

        monkeypatch.setattr("cdfd.catalogs.uc.client.UnityClient.ask", pages)
        assert ask(open_catalog(server).tables("main.sales")) == []

    def test_requests_keep_to_the_rate(self, server: UnityServer, table: ManagedTable) -> None:
        async def many(catalog: UnityCatalog) -> float:
            await catalog.load(NAME)
            begun = time.monotonic()
            await asyncio.gather(*(catalog.load(NAME) for _ in range(11)))
            return time.monotonic() - begun

        assert ask(many(open_catalog(server, requests_per_second=50))) >= 0.2

    def test_equal_options_share_a_connection(self, server: UnityServer) -> None:
        one, same = (vendor_for("uc", {"endpoint": server.url, "scope": "x"}) for _ in range(2))
        assert one is same
        assert vendor_for("uc", {"endpoint": server.url, "scope": "y"}) is not one


class TestFaults:
    """A fault is a transient error that names the table, or passes unnoticed."""

    @pytest.mark.parametrize(
        "fault",
        [
            Fault(LOAD),
            Fault(LOAD, status=500, body="{}"),
            Fault(LOAD, status=503, headers={"Retry-After": "1"}),
            Fault(LOAD, status=429, body=json.dumps({"error": {"type": "TooManyRequestsException", "code": 429}})),
        ],
        ids=["hangs up", "500", "503", "429"],
    )
    def test_passing_fault_is_not_noticed(self, server: UnityServer, table: ManagedTable, fault: Fault) -> None:
        server.faults.append(fault)
        assert rows(server) == [1]
        assert server.count(LOAD) == 2

    @pytest.mark.parametrize(
        "delay",
        [
            "Mon, 01 Jan 2024 00:00:00 +99999999999999999999",
            "Fri, 31 Dec 9999 23:59:59 -2359",
            "Mon, 01 Jan 99999999999999999999 00:00:00 +0000",
            "Mon, 01 Jan 2024 00:00:00 -0000",
            "soon",
        ],
    )
    def test_delay_that_is_no_time_is_not_obeyed(self, server: UnityServer, table: ManagedTable, delay: str) -> None:
        server.faults.append(Fault(LOAD, status=503, headers={"Retry-After": delay}))
        assert rows(server) == [1]
        assert server.count(LOAD) == 2

    def test_delay_of_429_is_obeyed_by_all_tables(self, server: UnityServer, table: ManagedTable) -> None:
        async def two(catalog: UnityCatalog) -> float:
            await catalog.load(NAME)
            server.faults.append(Fault(LOAD, status=429, headers={"Retry-After": "1"}))
            begun = time.monotonic()
            await catalog.load(NAME)
            return time.monotonic() - begun

        assert ask(two(open_catalog(server))) >= 1
        server.faults.append(Fault(LOAD, status=429, headers={"Retry-After": "9000"}))
        catalog, before = open_catalog(server, deadline=1), server.count(LOAD)
        for _ in range(3):
            with pytest.raises(StorageError, match="429") as caught:
                ask(catalog.load(NAME))
            assert caught.value.retriable
        assert server.count(LOAD) == before + 1

    def test_slow_catalog_is_a_transient_error(self, server: UnityServer, table: ManagedTable) -> None:
        server.faults += [Fault(LOAD, seconds=3)] * 9
        with pytest.raises(StorageError, match="cannot be reached: no answer") as caught:
            rows(server, timeout=0.2, deadline=0.5)
        assert caught.value.retriable
        assert caught.value.table == f"uc://{NAME}"

    def test_catalog_that_is_down_is_a_transient_error(self, server: UnityServer, table: ManagedTable) -> None:
        options = {"endpoint": "http://127.0.0.1:9", "deadline": 0.3}
        with pytest.raises(StorageError, match="cannot be reached") as caught:
            cdfd.changes(f"uc://{NAME}", storage_options=options)
        assert caught.value.retriable
        assert caught.value.table == f"uc://{NAME}"

    @pytest.mark.parametrize(
        ("status", "kind", "hint"),
        [
            (
                403,
                "PermissionDeniedException",
                "USE CATALOG on main, USE SCHEMA on main.sales and SELECT on main.sales.orders",
            ),
            (401, "NotAuthorizedException", "Check the token"),
        ],
    )
    def test_refusal_says_what_is_missing(
        self, server: UnityServer, table: ManagedTable, status: int, kind: str, hint: str
    ) -> None:
        model = {"message": f"no {TOKEN}\n\x1b[31m", "type": kind, "code": status}
        server.token = TOKEN
        server.faults += [Fault(LOAD, status=status, body=json.dumps({"error": model}))] * 2
        with pytest.raises(StorageError) as caught:
            rows(server, token=TOKEN)
        assert f"{status} {kind}: no ***" in caught.value.what
        assert hint in str(caught.value)
        assert not caught.value.retriable
        assert TOKEN not in str(caught.value)
        assert "\x1b" not in str(caught.value)

    def test_type_of_an_error_is_not_the_token(self, server: UnityServer, table: ManagedTable) -> None:
        server.token = token = "dapi0123456789secret"
        server.faults.append(Fault(LOAD, status=400, body=json.dumps({"error": {"type": token, "message": "no"}})))
        with pytest.raises(StorageError, match=r"tables/orders: 400: no \(table"):
            rows(server, token=token)

    def test_unknown_table_is_no_table(self, server: UnityServer, table: ManagedTable) -> None:
        with pytest.raises(NotATableError, match=r"has no table main\.sales\.nothing: 404 NoSuchTableException"):
            cdfd.changes("uc://main.sales.nothing", storage_options={"endpoint": server.url})

    def test_page_of_a_proxy_is_no_older_server(self, server: UnityServer, table: ManagedTable) -> None:
        """The server has no commits of the older API. The page comes for the first request alone."""
        page = "default backend - 404"
        server.faults += [Fault("delta/v1/config", 404, page), *[Fault("delta/preview/commits", 404, page)] * 9]
        catalog = open_catalog(server)
        with pytest.raises(StorageError, match="not that of Unity Catalog") as caught:
            ask(catalog.load(NAME))
        assert caught.value.retriable
        assert ask(catalog.load(NAME)).latest == 1

    def test_page_of_a_proxy_is_no_dropped_table(self, server: UnityServer, table: ManagedTable) -> None:
        storage = open_table(f"uc://{NAME}", {"endpoint": server.url, "deadline": 5})
        path = "_delta_log/00000000000000000009.json"
        with pytest.raises(NotFoundError):
            ask(storage.stat(path))
        server.faults.append(Fault(LOAD, status=404, body="default backend - 404"))
        with pytest.raises(StorageError, match=r"404.*not that of Unity Catalog") as caught:
            ask(storage.stat(path))
        assert caught.value.retriable
        server.faults.clear()
        with pytest.raises(NotFoundError):
            ask(storage.stat(path))

    def test_redirect_does_not_get_the_token(self, server: UnityServer, table: ManagedTable) -> None:
        server.token = TOKEN
        server.faults.append(Fault(LOAD, status=302, headers={"Location": f"{server.url}/elsewhere"}))
        with pytest.raises(StorageError, match="302"):
            rows(server, token=TOKEN)
        assert not server.count("elsewhere")

    def test_location_on_this_machine_needs_trust(self, server: UnityServer, table: ManagedTable) -> None:
        with pytest.raises(StorageError, match="says that the table is on this machine"):
            rows(server, local_locations="false")

    @pytest.mark.parametrize("location", ["glue://private.salaries", "UC://main.private.salaries"])
    @pytest.mark.parametrize("credentials", ["vended", "own"])
    def test_location_in_another_catalog_is_refused(self, server: UnityServer, location: str, credentials: str) -> None:
        server.add_table(NAME, location)
        server.credentials = lambda table: [{"prefix": location, "config": {"s3.access-key-id": "a"}}]
        with pytest.raises(StorageError, match="is in another catalog, at") as caught:
            rows(server, credentials=credentials)
        assert caught.value.table == f"uc://{NAME}"

    @pytest.mark.parametrize(
        ("location", "config"),
        [
            ("gs://private/salaries", {}),
            ("gs://private/salaries", {"azure.sas-token": "sig"}),
            ("abfss://private@shop.dfs.core.windows.net/salaries", {"azure.sas-token": ""}),
            ("s3://private/salaries", {"s3.access-key-id": "a"}),
        ],
    )
    def test_location_without_vended_keys_is_refused(
        self, server: UnityServer, location: str, config: dict[str, str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A store without them would be opened with the keys of this machine."""
        monkeypatch.setattr(fsspec, "get_filesystem_class", lambda scheme: MemoryFileSystem)
        server.add_table(NAME, location)
        server.credentials = lambda table: [{"prefix": location, "config": config}]
        with pytest.raises(StorageError, match=f"vends no keys for {location}.*set `credentials: own`") as caught:
            rows(server)
        assert caught.value.table == f"uc://{NAME}"

    def test_location_in_no_store_is_refused(self, server: UnityServer) -> None:
        server.add_table(NAME, "wasbs://private/salaries")
        server.credentials = lambda table: [{"prefix": table.location, "config": {"azure.sas-token": "sig"}}]
        with pytest.raises(UnsupportedError, match="no storage for wasbs:// locations"):
            rows(server)

    @pytest.mark.parametrize("location", ["file:///tmp/../etc", "s3://b/../c", "", "s3://b\n/c", 7, None])
    def test_location_that_is_none_is_refused(self, server: UnityServer, table: ManagedTable, location: object) -> None:
        def altered(answer: dict[str, Any]) -> Any:
            answer["metadata"]["location"] = location
            return answer

        server.altered = altered
        with pytest.raises(StorageError, match=r"answer cannot be used: it.*about main\.sales\.orders to 127\.0\.0\.1"):
            rows(server)

    def test_answer_that_is_too_large_is_refused(
        self, server: UnityServer, table: ManagedTable, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("cdfd.catalogs.uc.client.MAX_ANSWER_BYTES", 1000)
        server.altered = lambda answer: answer | {"more": "x" * 2000}
        with pytest.raises(StorageError, match="answer has more than"):
            rows(server, deadline=0.3)

    @pytest.mark.parametrize(
        "body", ["", "[", "null", "[]", "{}", '"x"', '{"metadata": []}', '{"metadata": {}}', "\x00"]
    )
    def test_answer_that_is_no_table_is_a_transient_error(
        self, server: UnityServer, table: ManagedTable, body: str
    ) -> None:
        server.faults.append(Fault(LOAD, status=200, body=body))
        with pytest.raises(StorageError, match="answer cannot be used") as caught:
            rows(server)
        assert caught.value.table == f"uc://{NAME}"
        assert caught.value.retriable


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)


class TestAnswers:
    VALID: ClassVar[dict[str, Any]] = {
        "metadata": {"table-uuid": "u", "location": "s3://b/t", "properties": {}},
        "commits": [commit(1, f"{1:020d}.a.json")],
        "latest-table-version": 1,
    }

    @settings(suppress_health_check=[HealthCheck.too_slow])
    @given(st.data())
    def test_any_json_is_a_table_or_a_value_error(self, data: st.DataObject) -> None:
        answer = json.loads(json.dumps(self.VALID))
        place, key = data.draw(
            st.sampled_from(
                [
                    (answer, "metadata"),
                    (answer, "commits"),
                    (answer, "latest-table-version"),
                    (answer["metadata"], "location"),
                    (answer["metadata"], "table-uuid"),
                    (answer["metadata"], "properties"),
                    *((answer["commits"][0], key) for key in answer["commits"][0]),
                ]
            )
        )
        place[key] = data.draw(_JSON)
        with contextlib.suppress(ValueError):
            assert isinstance(answers.table_of(answer), CatalogTable)

    @given(_JSON)
    def test_other_answers_of_any_json_are_values_or_value_errors(self, answer: Any) -> None:
        for parsed in (
            answers.older_table_of,
            answers.older_commits_of,
            answers.credentials_of,
            lambda document: answers.older_credentials_of(document, "s3://b/t"),
            answers.page_of,
        ):
            with contextlib.suppress(ValueError):
                parsed(answer)

    def test_wrong_order_is_sorted(self) -> None:
        commits = [commit(version, f"{version:020d}.a.json") for version in (2, 3, 1)]
        actual = answers.table_of(self.VALID | {"commits": commits, "latest-table-version": 3})
        assert [each.version for each in actual.commits] == [1, 2, 3]

    @pytest.mark.parametrize(
        ("change", "what"),
        [
            ({"commits": [commit(1, f"{1:020d}.a.json")] * 2}, "two commits have one version"),
            ({"latest-table-version": 0}, "commit of version 1, but the newest version is 0"),
            ({"latest-table-version": "1"}, "not a whole number"),
            ({"latest-table-version": -7}, "newest version is -7"),
            ({"commits": [commit(-1, "x")]}, "has the version -1"),
            ({"commits": [commit(1, "../../x")]}, "is named"),
        ],
    )
    def test_answer_that_contradicts_itself(self, change: dict[str, Any], what: str) -> None:
        with pytest.raises(ValueError, match=what):
            answers.table_of(self.VALID | change)


class TestOlderApi:
    @pytest.fixture(autouse=True)
    def _older(self, server: UnityServer) -> None:
        server.delta_api = False

    def test_pages_of_commits_of_a_managed_table_are_read(self, server: UnityServer, table: ManagedTable) -> None:
        for _ in range(4):
            add_version(server, table)
        server.page = 2
        assert rows(server) == [1, 2, 3, 4, 5]
        assert server.count("GET .*/delta/preview/commits") == 3

    def test_table_is_looked_up_by_name_once_for_many_polls(self, server: UnityServer, table: ManagedTable) -> None:
        async def polls(catalog: UnityCatalog) -> None:
            for _ in range(5):
                await catalog.load(NAME)

        ask(polls(open_catalog(server)))
        assert server.count("/tables/main") == 1
        assert server.count("/delta/preview/commits") == 5

    def test_unknown_table_is_no_table(self, server: UnityServer) -> None:
        with pytest.raises(NotATableError, match="404 NOT_FOUND"):
            ask(open_catalog(server).load("main.sales.nothing"))

    def test_table_of_another_format_is_refused(self, server: UnityServer) -> None:
        server.add_table("main.sales.csv", "file:///csv", format="CSV")
        with pytest.raises(UnsupportedError, match="format is 'CSV'"):
            ask(open_catalog(server).load("main.sales.csv"))

    def test_credentials_have_prefix_settings_and_end(self, server: UnityServer, table: ManagedTable) -> None:
        config = {"s3.access-key-id": "A", "s3.secret-access-key": "S", "s3.session-token": "T"}
        server.credentials = lambda table: [{"prefix": "s3://b/t", "config": config, "expiration-time-ms": 5}]
        [actual] = ask(open_catalog(server).credentials(NAME, None))
        assert (actual.prefix, actual.config, actual.ends_ms) == ("s3://b/t", config, 5)


def test_table_that_only_the_older_api_knows(server: UnityServer, table: ManagedTable) -> None:
    server.unsupported.add(NAME)
    assert rows(server) == [1]
    assert server.count(LOAD) == 1
    assert server.count("/delta/preview/commits") == 1


class TestTokens:
    def test_token_in_the_settings_is_sent(self, server: UnityServer, table: ManagedTable) -> None:
        server.token = TOKEN
        assert rows(server, token=TOKEN) == [1]

    def test_file_that_is_replaced(self, server: UnityServer, table: ManagedTable, tmp_path: Path) -> None:
        server.token, file = TOKEN, tmp_path / "token"
        file.write_text(f"{TOKEN}\n")
        catalog = open_catalog(server, token_file=str(file))
        ask(catalog.load(NAME))
        server.token = "another"
        file.write_text("another")
        assert ask(catalog.load(NAME)).latest == 1

    @pytest.mark.parametrize(
        "damage", [lambda file: file.write_text("\n"), lambda file: file.unlink()], ids=["empty", "gone"]
    )
    def test_text_of_a_file_stays_in_use_until_there_is_another_one(
        self,
        server: UnityServer,
        table: ManagedTable,
        tmp_path: Path,
        damage: Callable[[Path], object],
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        monkeypatch.setattr("cdfd.catalogs.uc.tokens.FILE_SECONDS", 0.0)
        caplog.set_level("INFO", "cdfd.config")
        server.token, file = TOKEN, tmp_path / "token"
        file.write_text(TOKEN)
        # As the configuration has read it before.
        catalog = open_catalog(server, token=TOKEN, token_file=str(file))
        ask(catalog.load(NAME))
        server.token = "another"
        file.write_text("another")
        ask(catalog.load(NAME))
        damage(file)
        for _ in range(2):
            assert ask(catalog.load(NAME)).latest == 1
        changed, warning = caplog.messages
        assert changed == f"{file} has changed and is read again"
        assert warning.endswith("; its earlier text stays in use")

    def test_file_that_is_not_there_yields_to_the_text(self, server: UnityServer, table: ManagedTable) -> None:
        """As on an executor of a cluster."""
        server.token = TOKEN
        assert rows(server, token=TOKEN, token_file="/nowhere/token") == [1]

    def test_file_without_a_token_is_an_error_without_its_text(self, server: UnityServer, tmp_path: Path) -> None:
        (tmp_path / "token").write_bytes(b"\xff secret")
        with pytest.raises(StorageError, match="file of token_file cannot be read") as caught:
            ask(open_catalog(server, token_file=str(tmp_path / "token")).load(NAME))
        assert "secret" not in str(caught.value)

    def test_oauth_client_renews_its_token(self, server: UnityServer, table: ManagedTable) -> None:
        server.oauth, server.token_life = ("id", "s&cret"), 1
        catalog = open_catalog(server, client_id="id", client_secret="s&cret")

        async def twice() -> None:
            await catalog.load(NAME)
            await asyncio.sleep(1)
            await catalog.load(NAME)

        ask(twice())
        assert server.count("POST /oidc/v1/token") == 2

    def test_token_stays_in_use_while_the_server_for_tokens_is_down(
        self, server: UnityServer, table: ManagedTable
    ) -> None:
        server.oauth, server.token_life = ("id", "secret"), 3
        catalog = open_catalog(server, client_id="id", client_secret="secret")

        async def twice() -> int | None:
            await catalog.load(NAME)
            server.faults += [Fault("oidc", status=503)] * 9
            await asyncio.sleep(2.5)
            return (await catalog.load(NAME)).latest

        assert ask(twice()) == 1
        assert server.count("POST /oidc/v1/token") == 2

    def test_refused_token_is_renewed_once(self, server: UnityServer, table: ManagedTable) -> None:
        server.oauth = ("id", "secret")
        catalog = open_catalog(server, client_id="id", client_secret="secret")
        ask(catalog.load(NAME))
        server.token = "revoked"
        assert ask(catalog.load(NAME)).latest == 1
        assert server.count("POST /oidc/v1/token") == 2

    def test_wrong_secret_is_an_error_without_it(self, server: UnityServer) -> None:
        server.oauth = ("id", "secret")
        with pytest.raises(StorageError, match="server for tokens gives none: its status is 401") as caught:
            ask(open_catalog(server, client_id="id", client_secret="wr0ng").load(NAME))
        assert "wr0ng" not in str(caught.value)


def test_authorities_of_a_file_are_trusted_besides_those_of_the_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificates = Certificates.issue(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificates.ca))
    trusted = tls_context(str(certificates.other_ca)).get_ca_certs()
    assert {authority["subject"][0][0][1] for authority in trusted} == {"authority", "another"}


class TestOptions:
    def test_endpoint_gets_the_path_of_the_api(self) -> None:
        for written in ("http://h:1", "http://h:1/", f"http://h:1{API}"):
            assert parse({"endpoint": written}, {}).endpoint == f"http://h:1{API}"
        assert (
            parse({"endpoint": "adb-1.azuredatabricks.net"}, {}).endpoint == f"https://adb-1.azuredatabricks.net{API}"
        )

    def test_environment_gives_what_options_omit(self) -> None:
        environ = {"DATABRICKS_HOST": "https://h", "DATABRICKS_CLIENT_ID": "i", "DATABRICKS_CLIENT_SECRET": "s"}
        actual = parse({}, environ)
        assert (actual.endpoint, actual.client_id, actual.client_secret) == (f"https://h{API}", "i", "s")
        assert actual.token_url == "https://h/oidc/v1/token"
        assert parse({"token_file": "/t"}, environ).client_secret is None
        assert parse({}, environ | {"UC_ENDPOINT": "http://u"}).host == "u"

    @pytest.mark.parametrize(
        ("options", "what"),
        [
            ({}, "no endpoint"),
            ({"endpoint": "ftp://x"}, "not a URL"),
            ({"endpoint": "http://user:pw@h"}, "not a URL"),
            ({"endpoint": "http://[x"}, "not a URL"),
            ({"endpoint": "h:99999"}, "not a URL"),
            ({"endpoint": "http://h", "token_url": "http://h:port"}, "option token_url"),
            ({"endpoint": "http://h", "tokn": "x"}, "Did you mean token"),
            ({"endpoint": "http://h", "client_id": "x"}, "needs client_secret"),
            ({"endpoint": "http://h", "credentials": "mine"}, "vended or own"),
            ({"endpoint": "http://h", "timeout": "soon"}, "a number above 0"),
            ({"endpoint": "http://h", "local_locations": "maybe"}, "true or false"),
            ({"endpoint": "http://h", "token": 7}, "expected to be text"),
        ],
    )
    def test_wrong_option_is_named_without_secrets(self, options: dict[str, object], what: str) -> None:
        with pytest.raises(ConfigError) as caught:
            parse(options, {})
        assert what in str(caught.value)
        assert "pw" not in str(caught.value)

    def test_secrets_are_in_no_text(self) -> None:
        actual = parse(
            {"endpoint": "http://h", "token": TOKEN, "client_secret": "s3cret", "s3.secret_access_key": "k3y"}, {}
        )
        assert not any(secret in repr(actual) for secret in (TOKEN, "s3cret", "k3y"))

    def test_options_of_stores(self) -> None:
        catalog = UnityCatalog({"endpoint": "http://h", "s3.region": "eu-west-1", "az.account_name": "a"})
        assert catalog.store_options("s3a://b/t") == {"region": "eu-west-1"}
        assert catalog.store_options("abfss://c@a.dfs.core.windows.net/t") == {"account_name": "a"}


def test_errors_are_of_cdfd(server: UnityServer, table: ManagedTable) -> None:
    """Whatever status comes, with whatever body."""
    for status in (201, 204, 301, 400, 404, 409, 418, 501, 507):
        for body in ("", "x", "{}", '{"error": 7}', '{"error": {"type": [], "message": {}}}'):
            server.faults = [Fault(LOAD, status=status, body=body)]
            with pytest.raises(CdfdError):
                ask(open_catalog(server).load(NAME))
