"""Text of others, wherever cdfd shows it: one line, of bounded length, that steers no terminal."""

import inspect
import json
import logging
import pickle
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cdfd import errors
from cdfd.cli.commands import inspect as inspection
from cdfd.cli.commands.columns import align_columns
from cdfd.config.problems import ConfigProblems, Problem
from cdfd.daemon.http.history import History
from cdfd.daemon.http.overview import details, overview
from cdfd.daemon.http.status import Status
from cdfd.errors import CdfdError, LogError, StorageError, TrevniError
from cdfd.escaping import LONGEST_LINE, as_json, for_terminal, one_line, quoted, shorten
from cdfd.runtime import logs
from tests.support.manual_time import ManualClock
from tests.support.statuses import NOW_MS, configuration, table_monitor

HOSTILE = "a\n2026-01-01T00:00:00.000Z INFO cdfd: forged\r\x1b[2J\x1b]0;title\x07\x00\x7f\x85\x9b31m\u2028\u202e\u2066\ud800\U000e0001"
texts = st.one_of(
    st.text(st.characters(exclude_categories=[]), max_size=80),
    st.text(st.sampled_from("\0\n\r\x1b\x7f\x85\x9b\u2028\u2029\u202e\u2066\u200f\ufeff\ud800é x"), max_size=80),
    st.just(HOSTILE),
)


def every_kind(kind: type[CdfdError]) -> list[type[CdfdError]]:
    return [kind, *(below for each in kind.__subclasses__() for below in every_kind(each))]


KINDS = [kind for kind in every_kind(CdfdError) if kind.__module__ == errors.__name__]


def check(line: str, most: int = LONGEST_LINE) -> None:
    assert line.isprintable(), ascii(line)
    assert len(line) <= most


def logged(formatter: logging.Formatter, text: str) -> str:
    error = ValueError(text)
    error.__cause__ = StorageError(text, path=text)
    information = (ValueError, error, None)
    record = logging.LogRecord("cdfd.x", logging.ERROR, "x.py", 1, "seen %s", (text,), information)
    record.table, record.error, record.names = text, StorageError(text, path=text), SimpleNamespace(name=text)
    return formatter.format(record)


@settings(deadline=None)
@given(text=texts, hint=texts, place=texts)
@example(text=HOSTILE, hint=HOSTILE, place=HOSTILE)
def test_errors_are_printed_as_plain_lines(text: str, hint: str, place: str) -> None:
    for kind in KINDS:
        error = kind(text, table=place, version=2**63 - 1, path=place, hint=hint)
        check(str(error))
        assert str(pickle.loads(pickle.dumps(error))) == str(error)
    for error in (StorageError(text), ConfigProblems([Problem((), text, 1), Problem((place,), hint)], text)):
        for line in error.lines():
            check(line)


@settings(deadline=None)
@given(text=texts)
@example(text=HOSTILE)
def test_logs_are_printed_as_plain_lines(text: str) -> None:
    first, *others = logged(logs.TextFormatter(), text).split("\n")
    check(first, 200_000)
    assert others
    for line in others:
        assert line.startswith("    ")
        check(line, 20_000)
    line = logged(logs.JsonFormatter(), text)
    assert line.isascii()
    check(line, 300_000)
    assert json.loads(line)["level"] == "error"


@settings(deadline=None)
@given(text=texts)
@example(text=HOSTILE)
def test_facts_of_a_table_are_printed_as_plain_lines(text: str) -> None:
    feature = {"name": text, "kind": "reader", "status": "refused", "enabled": True}
    facts: dict[str, Any] = {
        "table": text,
        "version": 3,
        "id": text,
        "name": text,
        "protocol": {"minReaderVersion": 3, "minWriterVersion": 7},
        "features": [feature, feature],
        "stopped_by": None,
        "partition_columns": [text],
        "configuration": {text: text},
        "changes": {"from": "cdc files", "change_data_feed": True, "timestamps": "in-commit"},
        "log": {"first_version": 0, "last_version": 3, "checkpoints": [2]},
        "live_files": 1,
        "live_bytes": 2,
        "files_with_deletion_vectors": 1,
        "schema": [{"name": text, "type": text, "nullable": False}],
    }
    for stopped_by in (None, text):
        shown = list(inspection._lines(facts | {"stopped_by": stopped_by}))
        for line in shown:
            check(line)
        assert shown[1].startswith("id ")
    told = as_json(facts, indent=2)
    assert json.loads(told) == json.loads(json.dumps(facts))
    assert told.isascii()
    assert all(line.isprintable() for line in told.split("\n"))


@settings(deadline=None)
@given(text=texts)
@example(text=HOSTILE)
def test_tables_of_reports(text: str) -> None:
    lines = align_columns([("name", "told"), (text, text)]).split("\n")
    assert len(lines) == 3
    for line in lines:
        check(line, 2 * LONGEST_LINE + 2)


def strings(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [text for key, each in value.items() for text in (key, *strings(each))]
    if isinstance(value, list):
        return [text for each in value for text in strings(each)]
    return [value] if isinstance(value, str) else []


@settings(deadline=None)
@given(text=texts)
@example(text=HOSTILE)
def test_the_page_and_the_status(text: str) -> None:
    status = Status(configuration(), ManualClock(NOW_MS))
    table_monitor(status, "orders").failed(LogError(text, path=text, hint=text), 5.0)
    document = status.document()
    told = as_json(document, indent=2)
    assert told.isascii()
    for shown in (told, as_json(status.not_ready())):
        assert all(line.isprintable() for line in shown.split("\n"))
        assert len(shown) < 100_000
    history = History(status)
    for shown_by_page in (overview(status, history), details(table_monitor(status, "orders"), history)):
        assert all(each.isprintable() for each in strings(shown_by_page))
        assert len(as_json(shown_by_page)) < 100_000


def test_errors_name_places_as_they_are() -> None:
    error = TrevniError("it  is\ndamaged", table="a  b", path="c\n d ", hint="mend\n it").at(column=" e\tf")
    assert str(error) == r"it is damaged (table a  b, file c\n d , column  e\tf). mend it"


@settings(deadline=None)
@given(text=texts, longest=st.integers(50, 3000))
def test_text_is_shortened_to_one_plain_line(text: str, longest: int) -> None:
    line = one_line(text, longest)
    check(line, longest)
    if text.isprintable() and len(text) <= longest:
        assert line == text
    assert len(shorten(text, longest)) <= longest
    assert json.loads(quoted(text)) == json.loads(json.dumps(text))


@settings(deadline=None)
@given(text=texts)
@example(text=HOSTILE)
def test_json_for_a_terminal_is_the_same_json(text: str) -> None:
    line = for_terminal(f"{json.dumps(text, ensure_ascii=False)}\n")
    check(line[:-1])
    assert line[-1] == "\n"
    # A pair of lone surrogates is the same JSON as the character.
    assert json.loads(line) == json.loads(json.dumps(text))


@pytest.mark.parametrize(
    "test",
    [
        test_errors_are_printed_as_plain_lines,
        test_logs_are_printed_as_plain_lines,
        test_facts_of_a_table_are_printed_as_plain_lines,
        test_tables_of_reports,
        test_the_page_and_the_status,
    ],
)
def test_megabytes_of_text_are_printed_as_plain_lines(test: Any) -> None:
    inner = test.hypothesis.inner_test
    inner(**dict.fromkeys(inspect.signature(inner).parameters, "x\x1b" * 1_000_000))


def test_what_is_left_out_is_said() -> None:
    assert shorten("a" * 500 + "b" * 500, 100) == f"{'a' * 40} … 921 characters … {'b' * 39}"
    assert one_line("é\n\x1b[2J\u202e") == "é\\n\\x1b[2J\\u202e"


@pytest.mark.parametrize("show", [str, repr], ids=["str", "repr"])
def test_an_error_says_what_where_and_what_to_do(show: Callable[[object], str]) -> None:
    error = LogError("it is broken", table="/lake/orders", version=7, path="x.json", hint="Restore it")
    assert "it is broken" in show(error)
    if show is str:
        assert show(error) == "it is broken (table /lake/orders, version 7, file x.json). Restore it"
