"""Answers of S3 servers, and of others: values, or what they lack."""

from datetime import UTC, datetime
from typing import Any

import pytest

from cdfd.storage.s3.answers import head_of, page_of, part_of, time_of
from cdfd.storage.s3.native import Listed, modified_ms

MOMENT = datetime(2024, 1, 1, tzinfo=UTC)
HEADERS = {"ContentLength": 10, "LastModified": MOMENT, "ETag": '"x"'}
ENTRY = {"Key": "t/a", "Size": 10, "LastModified": MOMENT, "ETag": "x"}
DATA = bytes(range(10))


@pytest.mark.parametrize(
    "text",
    [
        "2024-01-01T00:00:00.000Z",
        "2024-01-01T00:00:00",
        "Mon, 01 Jan 2024 00:00:00 GMT",
        "Mon, 01 Jan 2024 00:00:00 -0000",
        "20240101T000000Z",
    ],
)
def test_times(text: str) -> None:
    assert time_of(text) == MOMENT


@pytest.mark.parametrize(
    "text",
    [
        "",
        "yesterday",
        "1e300",
        "99999-01-01T00:00:00Z",
        "0000-00-00",
        "Mon, 01 Jan 2024 00:00:00 +99999999999999999999",
        "Mon, 01 Jan 99999999999999999999 00:00:00 GMT",
        "9" * 5000,
    ],
)
def test_text_that_is_no_time(text: str) -> None:
    assert time_of(text) is None


@pytest.mark.parametrize("text", ["0001-01-01T00:00:00", "0001-01-01T00:00:00+23:00", "9999-12-31T23:59:59-23:59"])
def test_first_and_last_times_of_python(text: str) -> None:
    moment = time_of(text)
    assert moment is not None
    assert modified_ms(moment) % 1000 == 0


@pytest.mark.parametrize("name", HEADERS)
def test_headers_without_one(name: str) -> None:
    for lacking in ({}, {name: None}):
        with pytest.raises(ValueError, match=f"it has no valid {name}"):
            head_of({key: value for key, value in HEADERS.items() if key != name} | lacking)


@pytest.mark.parametrize("size", [-1, 1 << 63])
def test_size_that_cannot_be(size: int) -> None:
    with pytest.raises(ValueError, match="it has a ContentLength of"):
        head_of(HEADERS | {"ContentLength": size})


@pytest.mark.parametrize(
    ("start", "length", "content_range", "data", "expected"),
    [
        (0, None, None, DATA, DATA),
        (2, 3, None, DATA, DATA[2:5]),
        (-3, None, None, DATA, DATA[7:]),
        (2, 3, "bytes 2-4/10", DATA[2:5], DATA[2:5]),
        (2, None, "bytes 2-9/10", DATA[2:], DATA[2:]),
        (8, 5, "bytes 8-9/10", DATA[8:], DATA[8:]),
        (-3, None, "bytes 7-9/10", DATA[7:], DATA[7:]),
        (-99, None, "bytes 0-9/10", DATA, DATA),
    ],
)
def test_range_that_was_asked_for(
    start: int, length: int | None, content_range: str | None, data: bytes, expected: bytes
) -> None:
    answer = HEADERS if content_range is None else HEADERS | {"ContentRange": content_range}
    actual = part_of(answer, data, start, length)
    assert (actual.data, actual.size) == (expected, 10)


@pytest.mark.parametrize(
    ("start", "length", "content_range", "data"),
    [
        (2, 3, "bytes 3-5/10", DATA[3:6]),
        (2, 3, "bytes 2-4/10", DATA[2:4]),
        (0, None, "bytes 0-4/10", DATA[:5]),
        (-3, None, "bytes 0-2/10", DATA[:3]),
        (2, 3, "bytes 2-4/*", DATA[2:5]),
        (2, 3, "bytes */10", DATA[2:5]),
        (2, 3, "bytes 2-4/9999999999999999999", DATA[2:5]),
        (2, 3, "x", DATA[2:5]),
    ],
)
def test_another_range(start: int, length: int | None, content_range: str, data: bytes) -> None:
    with pytest.raises(ValueError, match=r"Content-Range|not the one asked for"):
        part_of(HEADERS | {"ContentRange": content_range}, data, start, length)


def test_page_of_a_listing() -> None:
    folder = {"Prefix": "t/b/"}
    actual = page_of(
        {"IsTruncated": True, "NextContinuationToken": "next", "Contents": [ENTRY], "CommonPrefixes": [folder]}, "t/"
    )
    assert actual == ([Listed("t/a", 10, modified_ms(MOMENT), "x")], ["t/b/"], "next")
    assert page_of({"Name": "bucket"}, "t/") == ([], [], None)


@pytest.mark.parametrize(
    ("answer", "lacks"),
    [
        ({}, "it is no listing of a bucket"),
        ({"IsTruncated": True}, "no valid NextContinuationToken"),
        *(
            ({"Name": "b", "Contents": [ENTRY | {name: None}]}, f"no valid {name}")
            for name in ("Key", "Size", "LastModified")
        ),
        ({"Name": "b", "Contents": [ENTRY | {"Size": -1}]}, "a Size of -1"),
        ({"Name": "b", "Contents": [ENTRY | {"Key": "other/a"}]}, "does not begin with the prefix"),
        ({"Name": "b", "CommonPrefixes": [{}]}, "no valid Prefix"),
    ],
)
def test_page_that_lacks_something(answer: dict[str, Any], lacks: str) -> None:
    with pytest.raises(ValueError, match=lacks):
        page_of(answer, "t/")
