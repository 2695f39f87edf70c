import asyncio
from pathlib import Path

import pytest

import cdfd
from cdfd.config.parser import parse
from cdfd.config.problems import ConfigProblems
from cdfd.demo import show
from cdfd.errors import CdfdError, ConfigError, PathError, UnsupportedError
from cdfd.storage.local import LocalStorage
from cdfd.storage.location import open_storage


@pytest.mark.parametrize(
    ("uri", "root"),
    [
        ("/data/orders", "/data/orders"),
        ("/data/orders/", "/data/orders"),
        ("/data/a b%20c#d?e", "/data/a b%20c#d?e"),
        ("/data/12:30/orders", "/data/12:30/orders"),
        ("file:///data/orders", "/data/orders"),
        ("file://localhost/data/orders", "/data/orders"),
        ("FILE:///data/orders", "/data/orders"),
        ("file:/data/orders", "/data/orders"),
        ("file:///data/a%20b%2520c%C3%A4", "/data/a b%20cä"),
    ],
)
def test_local_path_or_uri_opens_its_folder(uri: str, root: str) -> None:
    storage = open_storage(uri)
    assert isinstance(storage, LocalStorage)
    assert storage.root == root


@pytest.mark.parametrize("path", ["orders", "./orders", "12:30/orders", "file", "file:orders", "a:b"])
def test_relative_path_is_below_the_working_folder(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    storage = open_storage(path)
    assert isinstance(storage, LocalStorage)
    assert storage.root == str(tmp_path / path)
    assert storage.uri == path
    asyncio.run(storage.put("x", b"1"))
    assert (tmp_path / path / "x").read_bytes() == b"1"


@pytest.mark.parametrize("uri", ["ftp://host/x", "hdfs://a/b", "C://x", "wasbs://lake@account.blob.core.windows.net/x"])
def test_schemes_that_are_not_known(uri: str) -> None:
    with pytest.raises(UnsupportedError, match="has no storage for") as caught:
        open_storage(uri)
    assert "file://" in (caught.value.hint or "")
    assert caught.value.path == uri


@pytest.mark.parametrize(
    "uri", ["ftp://u:hunter2@host/x", "gs://hunter2@bucket/x", "abfss://u:hunter2@host/x", "s3://u:hunter2@bucket/x"]
)
def test_credentials_are_refused_and_not_shown(uri: str) -> None:
    with pytest.raises(ConfigError) as caught:
        open_storage(uri)
    assert "hunter2" not in f"{caught.value} {caught.value!r} {caught.value.__dict__}"


@pytest.mark.parametrize("uri", ["", "file://", "file://host/x", "file:///%FF"])
def test_malformed_uri_is_refused(uri: str) -> None:
    with pytest.raises(ConfigError):
        open_storage(uri)


@pytest.mark.parametrize("path", ["~", "~/", "~/orders"])
def test_home_is_not_expanded(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for work in (open_storage, cdfd.changes, show.run):
        with pytest.raises(ConfigError, match="`~` is not expanded"):
            work(path)
    with pytest.raises(ConfigError, match="`~` is not expanded"):
        cdfd.changes(tmp_path, allowed_roots=[path])
    for setting in (
        f"tables: [{{uri: '{path}'}}]\nsink: {{kind: files, path: o}}",
        f"sink: {{kind: files, path: '{path}'}}",
    ):
        with pytest.raises(ConfigProblems, match="`~` is not expanded"):
            parse(f"pipeline: p\n{setting}", {}, "c.yaml", str(tmp_path))
    assert not list(tmp_path.iterdir())


def test_a_store_without_a_bucket_is_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CdfdError):
        show.run("s3://")
    assert not list(tmp_path.iterdir())


def test_a_folder_with_the_name_of_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert open_storage("./~/orders").root == str(tmp_path / "~" / "orders")  # type: ignore[attr-defined]


def test_path_with_a_zero_byte_is_refused() -> None:
    with pytest.raises(PathError):
        open_storage("file:///a%00b")


@pytest.mark.parametrize("endpoint", ["http://[x", "http://host:99999", "http://host:port", "https://user@host"])
def test_endpoint_that_is_no_url_is_refused(endpoint: str) -> None:
    with pytest.raises(ConfigError, match="endpoint_url is not a URL"):
        open_storage("s3://bucket/orders", {"endpoint_url": endpoint})


@pytest.mark.parametrize(
    "uri", ["s3://bucket/orders", "gs://bucket/orders", "uc://main.sales.orders", "glue://sales.orders"]
)
def test_names_of_options_are_text(uri: str) -> None:
    with pytest.raises(ConfigError, match="the storage options have the name 1"):
        open_storage(uri, {1: 2})  # type: ignore[dict-item]
