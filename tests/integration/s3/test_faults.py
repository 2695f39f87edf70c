"""Failures between the daemon and a store. Requests are retried; if that does not help, the error is clear."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path

import pytest

from cdfd.errors import ExistsError, NotFoundError, StorageError
from cdfd.storage.base import Storage
from cdfd.storage.location import open_storage
from cdfd.storage.s3.storage import S3Storage
from tests.support.s3.proxy import Asked, Fault, Proxy
from tests.support.s3.server import SECRET, Server

DATA = bytes(range(256)) * 4000


def through(proxy: Proxy, bucket: str, **options: object) -> S3Storage:
    """A store behind the proxy that does not wait long."""
    quick = {"read_timeout": "300ms", "connect_timeout": "500ms", "deadline": 20} | options
    actual = open_storage(f"s3://{bucket}/t", Server(proxy.url).options(**quick))
    assert isinstance(actual, S3Storage)
    return actual


def of_profile(proxy: Proxy, bucket: str) -> Storage:
    """A store behind the proxy, with the credentials of a profile."""
    options = {"endpoint_url": proxy.url, "region": "us-east-1", "profile": "lake", "deadline": 20}
    return open_storage(f"s3://{bucket}/t", options)


def is_get(asked: Asked) -> bool:
    return asked.method == "GET" and bool(asked.path)


def is_put(asked: Asked) -> bool:
    return asked.method == "PUT"


class TestRepeated:
    @pytest.mark.parametrize(
        "fault",
        [
            Fault("answer", 2, 503, "SlowDown"),
            Fault("answer", 2, 500, "InternalError"),
            Fault("answer", 2, 502, "BadGateway"),
            Fault("answer", 7, 503, "ServiceUnavailable"),  # more often than botocore tries
            Fault("reset", 2),
            Fault("truncate", 2),
            Fault("stall", 1),
        ],
        ids=lambda fault: f"{fault.kind}-{fault.code}-{fault.times}",
    )
    async def test_a_read_comes_through(self, proxy: Proxy, bucket: str, fault: Fault) -> None:
        store = through(proxy, bucket)
        await store.put("x", DATA)
        proxy.faults = [replace(fault, concerns=is_get)]
        assert await store.read("x", 100, 500_000) == DATA[100:500_100]
        assert proxy.faults[0].times == 0
        assert await store.read("x") == DATA

    @pytest.mark.parametrize("fault", [Fault("answer", 2, 503), Fault("reset", 2), Fault("truncate", 2)])
    def test_a_file_comes_through(self, proxy: Proxy, bucket: str, fault: Fault) -> None:
        store = through(proxy, bucket)
        asyncio.run(store.put("x", DATA))
        proxy.faults = [replace(fault, concerns=is_get)]
        with store.open_input_file("x", len(DATA)) as file:
            assert file.read() == DATA

    @pytest.mark.parametrize("fault", [Fault("answer", 2, 503), Fault("reset", 2)])
    async def test_a_listing_comes_through(self, proxy: Proxy, bucket: str, fault: Fault) -> None:
        store = through(proxy, bucket)
        await store.put("log/0", b"x")
        proxy.faults = [replace(fault, concerns=lambda asked: "list-type" in asked.query)]
        assert [entry.path async for entry in store.list("log/")] == ["log/0"]

    async def test_a_conflict_of_two_writers_is_none_yet(self, proxy: Proxy, bucket: str) -> None:
        store = through(proxy, bucket)
        proxy.faults = [Fault("answer", 2, 409, "ConditionalRequestConflict", concerns=is_put)]
        await store.put_if_absent("log/0", b"ours")
        assert await store.read("log/0") == b"ours"

    async def test_a_writer_whose_answer_is_lost_recognises_its_own(self, proxy: Proxy, bucket: str) -> None:
        store = through(proxy, bucket)
        proxy.faults = [Fault("lost", concerns=is_put)]
        await store.put_if_absent("log/0", b"ours")
        assert proxy.faults[0].times == 0
        assert await store.read("log/0") == b"ours"

    async def test_a_writer_whose_answer_is_lost_does_not_take_another_one_s_for_its_own(
        self, proxy: Proxy, bucket: str
    ) -> None:
        store = through(proxy, bucket)
        await store.put_if_absent("log/0", b"the same")
        proxy.faults = [Fault("lost", concerns=is_put)]
        with pytest.raises(ExistsError):
            await store.put_if_absent("log/0", b"the same")

    async def test_a_throttled_prefix_keeps_no_other_request_waiting(self, proxy: Proxy, bucket: str) -> None:
        store = through(proxy, bucket)
        proxy.faults = [Fault("answer", 9999, 503, "SlowDown", concerns=lambda asked: "busy" in asked.path)]
        throttled = [asyncio.create_task(store.read(f"busy/{number}")) for number in range(4)]
        async with asyncio.timeout(20):
            while proxy.count(containing="busy") < 12:
                await asyncio.sleep(0.05)
        for number in range(20):
            await store.put(f"ledger/{number}", b"x")
        # Requests of one rate come through when those before them have given up.
        assert not any(read.done() for read in throttled)
        for read in throttled:
            read.cancel()
        await asyncio.gather(*throttled, return_exceptions=True)

    async def test_a_cancelled_call_ends_at_once(self, proxy: Proxy, bucket: str) -> None:
        store = through(proxy, bucket, read_timeout=60, deadline=60)
        await store.put("x", DATA)
        proxy.faults = [Fault("stall", concerns=is_get)]
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await store.read("x")
        assert await store.read("x", 0, 3) == DATA[:3]


class TestRefused:
    @pytest.mark.parametrize(
        ("fault", "said"),
        [
            (Fault("answer", 99, 503, "SlowDown"), "SlowDown: said the proxy; gave up after 4 seconds"),
            (Fault("reset", 99), "closes the connection; gave up after 4 seconds"),
            (Fault("stall", 99), "the response stalled; gave up after 4 seconds"),
            (Fault("truncate", 99), "; gave up after 4 seconds"),
        ],
        ids=lambda value: value.kind if isinstance(value, Fault) else "",
    )
    def test_the_deadline(self, proxy: Proxy, bucket: str, fault: Fault, said: str) -> None:
        asyncio.run(through(proxy, bucket).put("x", DATA))
        # Longer than the server needs for an answer while other tests run: without one, there is no fault to name.
        store = through(proxy, bucket, deadline=4)
        failure(lambda: store.read("none"))  # until there is a client
        proxy.faults = [replace(fault, concerns=is_get)]
        error = failure(lambda: store.read("x"))
        assert (error.retriable, error.path) == (True, "x")
        assert said in str(error)

    def test_nobody_is_there(self, bucket: str) -> None:
        store = open_storage(f"s3://{bucket}/t", Server("http://127.0.0.1:1").options(deadline=1))
        error = failure(lambda: store.read("x"))
        assert error.retriable
        assert "the endpoint cannot be reached, or" in str(error)

    @pytest.mark.parametrize(
        ("doing", "hint"),
        [
            (
                "read",
                "Allow s3:GetObject on arn:aws:s3:::{}/t/x, and s3:ListBucket on arn:aws:s3:::{}: without it, S3 denies access",
            ),
            ("stat", "Allow s3:GetObject on arn:aws:s3:::{}/t/x"),
            ("put", "Allow s3:PutObject on arn:aws:s3:::{}/t/x"),
            ("put_if_absent", "Allow s3:PutObject on arn:aws:s3:::{}/t/x"),
            ("delete", "Allow s3:DeleteObject on arn:aws:s3:::{}/t/x"),
            ("list", "Allow s3:ListBucket on arn:aws:s3:::{}"),
        ],
    )
    def test_what_is_not_allowed(self, proxy: Proxy, bucket: str, doing: str, hint: str) -> None:
        store = through(proxy, bucket)
        proxy.faults = [Fault("answer", 99, 403, "AccessDenied")]
        error = failure(lambda: done(store, doing))
        assert not error.retriable
        assert not isinstance(error, NotFoundError)
        assert hint.replace("{}", bucket) in str(error)
        # Reads and listings are tried by both clients. The answer to a HEAD does not say why it is denied, so a GET follows.
        assert len(proxy.asked) == {"read": 2, "list": 2, "stat": 3}.get(doing, 1)

    @pytest.mark.parametrize(
        ("doing", "lacks"),
        [
            ("read", "it has no valid LastModified"),
            ("stat", "it has no valid LastModified"),
            ("put", "it has no valid ETag"),
            ("put_if_absent", "it has no valid ETag"),
            ("list", "it is no listing of a bucket"),
            ("folders", "it is no listing of a bucket"),
        ],
    )
    def test_an_answer_of_another_server(self, proxy: Proxy, bucket: str, doing: str, lacks: str) -> None:
        """Such as that of a proxy which asks for a password."""
        store = through(proxy, bucket)
        proxy.faults = [Fault("answer", 99, 200, "")]
        error = failure(lambda: done(store, doing))
        assert f"the answer is not one of S3: {lacks}" in str(error)
        assert error.path in ("x", "x/")
        assert "Check that the endpoint is that of an S3 store, and that no proxy answers" in str(error)
        assert error.retriable

    @pytest.mark.parametrize(
        ("fault", "wrong"),
        [
            (Fault("answer", 99, 206, "", {"Content-Range": "bytes 0-9/*"}), "its Content-Range is 'bytes 0-9/*'"),
            (Fault("answer", 99, 206, "", {"Content-Range": "bytes 5-9/10"}), "which is not the one asked for"),
            (
                Fault("answer", 99, 200, "", {"Last-Modified": "Sun, 01 Jan 10000 00:00:00 GMT", "ETag": "x"}),
                "LastModified",
            ),
            (Fault("answer", 99, 200, "", {"x-amz-missing-meta": "many"}), "int() with base 10: 'many'"),
            (Fault("answer", 99, 200, "", {"x-amz-missing-meta": SECRET}), "int() with base 10: '***'"),
            (Fault("answer", 99, 400, "<a/>"), "its XML has another form"),
            (Fault("answer", 99, 400, f"{'<a>' * 3000}{'</a>' * 3000}"), "its XML has another form"),
        ],
        ids=lambda value: value if isinstance(value, str) else "",
    )
    def test_a_part_of_an_answer_that_is_wrong(self, proxy: Proxy, bucket: str, fault: Fault, wrong: str) -> None:
        store = through(proxy, bucket)
        proxy.faults = [fault]
        error = failure(lambda: store.read("x"))
        assert "the answer is not one of S3" in str(error)
        assert wrong in str(error)

    def test_an_error_that_is_not_one_of_s3(self, proxy: Proxy, bucket: str) -> None:
        store = through(proxy, bucket, deadline=0.5)
        proxy.faults = [Fault("answer", 99, 502, "")]
        assert "faulty. Check that the endpoint is that of an S3 store" in str(failure(lambda: store.read("x")))

    def test_another_region(self, proxy: Proxy, bucket: str) -> None:
        store = through(proxy, bucket)
        headers = {"x-amz-bucket-region": "eu-north-1"}
        proxy.faults = [Fault("answer", 99, 301, "PermanentRedirect", headers=headers)]
        error = failure(lambda: store.read("x"))
        assert "is in eu-north-1: set storage.s3.region" in str(error)

    def test_no_such_bucket(self, moto_server: Server) -> None:
        store = open_storage("s3://no-such-bucket/t", moto_server.options())
        for doing in ("read", "list", "put"):
            error = failure(lambda doing=doing: done(store, doing))  # type: ignore[misc]
            assert not isinstance(error, NotFoundError)
            assert "Check the name of the bucket 'no-such-bucket'" in str(error)

    def test_a_store_without_conditional_puts(self, proxy: Proxy, bucket: str) -> None:
        store = through(proxy, bucket)
        proxy.faults = [Fault("answer", 99, 501, "NotImplemented", concerns=is_put)]
        assert "conditional puts (If-None-Match)" in str(failure(lambda: store.put_if_absent("x", b"")))

    def test_a_store_that_takes_no_notice_of_the_condition(self, proxy: Proxy, bucket: str) -> None:
        store = through(proxy, bucket)
        proxy.faults = [Fault("answer", 99, 200, "", {"ETag": '"x"'}, concerns=is_put)]
        error = failure(lambda: store.put_if_absent("x", b""))
        assert "ignores If-None-Match" in str(error)
        assert not error.retriable

    def test_no_credentials(self, proxy: Proxy, bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
        without_credentials(monkeypatch)
        store = open_storage(f"s3://{bucket}/t", {"endpoint_url": proxy.url, "region": "us-east-1", "deadline": 5})
        error = failure(lambda: store.read("x"))
        assert not error.retriable
        assert "no credentials were found" in str(error)
        assert proxy.asked == []

    def test_an_object_that_is_replaced_while_it_is_read(self, proxy: Proxy, bucket: str) -> None:
        store = through(proxy, bucket)
        asyncio.run(store.put("x", DATA * 8))
        with store.open_input_file("x", len(DATA * 8)) as file:
            asyncio.run(store.put("x", b"y" * len(DATA * 8)))
            with pytest.raises(StorageError, match="the object was replaced while it was read"):
                file.read(100)


class TestCredentials:
    @pytest.fixture
    def profile(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
        """The only credentials are those of a file, with an old key."""
        without_credentials(monkeypatch)
        file = f"{tmp_path}/credentials"
        monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", file)
        write_profile(file, "OLDKEY")
        return file

    def test_given_ones_that_have_expired(self, proxy: Proxy, bucket: str) -> None:
        store = through(proxy, bucket)
        proxy.faults = [Fault("answer", 99, 400, "ExpiredToken")]
        error = failure(lambda: store.read("x"))
        assert "The credentials have expired: provide new ones" in str(error)
        assert len(proxy.asked) == 2

    async def test_those_of_a_profile_are_looked_up_anew(self, proxy: Proxy, bucket: str, profile: str) -> None:
        store = of_profile(proxy, bucket)
        await store.put("x", b"data")
        write_profile(profile, "NEWKEY")
        proxy.faults = [Fault("answer", 2, 400, "ExpiredToken", concerns=is_get)]
        assert await store.read("x") == b"data"
        assert [("OLDKEY" in key, "NEWKEY" in key) for key in (asked.key for asked in proxy.asked[-3:])] == [
            (True, False),
            (True, False),
            (False, True),
        ]

    @pytest.mark.parametrize("doing", ["stat", "put_if_absent"])
    async def test_an_answer_to_a_head_does_not_name_its_error(
        self, proxy: Proxy, bucket: str, profile: str, doing: str
    ) -> None:
        """A HEAD follows a conditional PUT that is refused, too."""
        store = of_profile(proxy, bucket)
        await store.put("x", b"data")
        write_profile(profile, "NEWKEY")
        proxy.faults = [
            Fault("answer", 99, 400, "ExpiredToken", concerns=lambda asked: "OLDKEY" in asked.key and not is_put(asked))
        ]
        if doing == "stat":
            assert (await store.stat("x")).size == 4
        else:
            with pytest.raises(ExistsError):
                await store.put_if_absent("x", b"data")
        assert "NEWKEY" in proxy.asked[-1].key

    def test_a_head_that_is_denied(self, proxy: Proxy, bucket: str) -> None:
        store = through(proxy, bucket)
        proxy.faults = [Fault("answer", 99, 403, "InvalidAccessKeyId")]
        error = failure(lambda: store.stat("x"))
        assert not error.retriable
        assert "InvalidAccessKeyId" in str(error)
        assert [asked.method for asked in proxy.asked] == ["HEAD", "HEAD", "GET"]

    def test_no_secret_is_said(
        self, proxy: Proxy, bucket: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        caplog.set_level(logging.DEBUG)
        store = through(proxy, bucket, session_token="a-session-token")
        proxy.faults = [Fault("answer", 2, 403, f"Said{SECRET}a-session-token")]
        error = failure(lambda: store.read("x"))
        said = f"{error} {error!r} {error.__dict__} {caplog.text} {store.__dict__} {store._client.options!r}"
        assert SECRET not in said
        assert "a-session-token" not in said


class TestClock:
    def test_a_wrong_clock_is_corrected(self, proxy: Proxy, bucket: str) -> None:
        store = through(proxy, bucket)
        asyncio.run(store.put("x", b"data"))
        theirs = datetime.now(UTC) + timedelta(hours=5)
        headers = {"Date": format_datetime(theirs, usegmt=True)}
        proxy.faults = [Fault("answer", 2, 403, "RequestTimeTooSkewed", headers, concerns=is_get)]
        assert asyncio.run(store.read("x")) == b"data"
        assert abs(proxy.asked[-1].time - theirs) < timedelta(minutes=2)
        assert abs(proxy.asked[-2].time - datetime.now(UTC)) < timedelta(minutes=2)

    def test_requests_that_run_while_the_clock_is_corrected(self, proxy: Proxy, bucket: str) -> None:
        store = through(proxy, bucket, read_timeout="5s")
        asyncio.run(store.put("x", b"data"))
        theirs = datetime.now(UTC) + timedelta(hours=5)
        headers = {"Date": format_datetime(theirs, usegmt=True)}
        # Each is refused to the native client, and then to botocore.
        proxy.faults = [Fault("answer", 6, 403, "RequestTimeTooSkewed", headers, concerns=is_get)]
        proxy.delay = 0.1

        async def read_all() -> list[bytes]:
            return await asyncio.gather(*(store.read("x") for _ in range(3)))

        assert asyncio.run(read_all()) == [b"data"] * 3

    def test_a_head_does_not_say_that_the_clock_is_wrong(self, proxy: Proxy, bucket: str) -> None:
        store = through(proxy, bucket)
        asyncio.run(store.put("x", b"data"))
        theirs = datetime.now(UTC) + timedelta(hours=5)
        proxy.faults = [Fault("answer", 3, 403, "RequestTimeTooSkewed", {"Date": format_datetime(theirs, usegmt=True)})]
        assert asyncio.run(store.stat("x")).size == 4
        assert [asked.method for asked in proxy.asked[-4:]] == ["HEAD", "HEAD", "GET", "HEAD"]

    @pytest.mark.parametrize(
        "said", [None, "soon", "Mon, 01 Jan 2024 00:00:00 +99999999999999999999", "Fri, 31 Dec 9999 23:59:59 GMT"]
    )
    def test_a_store_that_does_not_say_the_time(self, proxy: Proxy, bucket: str, said: str | None) -> None:
        store = through(proxy, bucket)
        proxy.faults = [Fault("answer", 99, 403, "RequestTimeTooSkewed", {} if said is None else {"Date": said})]
        error = failure(lambda: store.read("x"))
        assert "Set the clock of this machine" in str(error)
        assert not store._client._clock.offset


def failure(ask: Callable[[], Awaitable[object]]) -> StorageError:
    async def scenario() -> None:
        await ask()

    with pytest.raises(StorageError) as caught:
        asyncio.run(scenario())
    return caught.value


async def done(store: S3Storage, doing: str) -> None:
    if doing == "folders":
        await store.folders("x")
    elif doing == "list":
        assert [entry async for entry in store.list("x/")]
    elif doing.startswith("put"):
        await getattr(store, doing)("x", b"data")
    else:
        await getattr(store, doing)("x")


def write_profile(file: str, key: str) -> None:
    with open(file, "w") as out:
        out.write(f"[lake]\naws_access_key_id = {key}\naws_secret_access_key = {SECRET}\n")


def without_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/dev/null")
