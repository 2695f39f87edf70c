"""Logs: their two forms, and what they do to the loggers of others."""

import io
import json
import logging
import sys
import threading
import traceback
import warnings

import pytest

from cdfd.errors import ConfigError
from cdfd.runtime.logs import set_up, take_standard_error

LOG = logging.getLogger("cdfd.deliver.feed")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_json_lines_with_extras() -> None:
    stream = io.StringIO()
    set_up(stream=stream)
    extra = {"table": "örders", "version": 7, "rows": float("nan"), "path": b"x", "level": "mine"}
    LOG.info("delivered %d", 3, extra=extra)
    line = json.loads(stream.getvalue(), parse_constant=pytest.fail)
    assert len(line.pop("ts")) == len("2026-01-01T00:00:00.000Z")
    assert line == {
        "level": "info",
        "logger": "cdfd.deliver.feed",
        "message": "delivered 3",
        "table": "örders",
        "version": 7,
        "rows": "nan",
        "path": "b'x'",
    }


def test_json_keeps_a_traceback_on_the_line() -> None:
    stream = io.StringIO()
    set_up("json", stream=stream)
    try:
        int("x")
    except ValueError:
        LOG.exception("failed")
    assert stream.getvalue().count("\n") == 1
    assert "ValueError" in json.loads(stream.getvalue())["traceback"]


def test_a_traceback_in_text_cannot_forge_lines_or_steer_a_screen() -> None:
    stream = Terminal()
    set_up(stream=stream)
    error = ValueError("a\n2026-01-01T00:00:00.000Z INFO cdfd: forged \x1b[2J")
    try:
        raise error
    except ValueError:
        LOG.exception("failed")
    first, *others = stream.getvalue().splitlines()
    assert "ERROR" in first
    assert all(line.startswith("    ") and line.isprintable() for line in others)
    assert any("forged \\x1b[2J" in line for line in others)


@pytest.mark.parametrize("format", ["text", "json"])
def test_what_others_say_is_bounded(format: str) -> None:
    stream = io.StringIO()
    set_up(format, stream=stream)

    def deeper(depth: int) -> None:
        if depth:
            deeper(depth - 1)
        raise ValueError("x" * 1_000_000)

    try:
        deeper(500)
    except ValueError:
        LOG.exception("failed: %s", "x" * 1_000_000, extra={"path": "y" * 1_000_000})
    assert "deeper" in stream.getvalue()
    assert len(stream.getvalue()) < 40_000


def test_text_on_a_terminal_on_one_line() -> None:
    stream = Terminal()
    set_up(stream=stream)
    LOG.warning("gone: %s", "a\nb\x1b[31m", extra={"table": "orders", "path": "a b\n"})
    line = stream.getvalue()
    assert line.endswith(' WARNING cdfd.deliver.feed: gone: a\\nb\\x1b[31m table=orders path="a b\\n"\n')
    assert line[10] == "T"


def test_levels_of_ours_and_of_libraries() -> None:
    stream = io.StringIO()
    set_up("json", "info", stream)
    LOG.debug("not this")
    LOG.info("this")
    logging.getLogger("aiohttp").info("nor this")
    logging.getLogger("aiohttp").warning("this, too")
    assert [json.loads(line)["message"] for line in stream.getvalue().splitlines()] == ["this", "this, too"]


def test_debug_lets_libraries_speak() -> None:
    stream = io.StringIO()
    set_up("text", "DEBUG", stream)
    LOG.debug("ours")
    logging.getLogger("aiohttp").info("theirs")
    assert len(stream.getvalue().splitlines()) == 2


def test_clients_of_kafka_are_heard_with_debug_only_and_never_tell_passwords() -> None:
    client = logging.getLogger("kafka.net.connection")
    stream = io.StringIO()
    for level in ("info", "debug"):
        set_up("text", level, stream=stream)
        client.error("cannot connect, at %s", level)
        client.info("SaslAuthenticateRequest")
        client.debug("SaslAuthenticateRequest")
    assert "cannot connect, at debug" in stream.getvalue()
    assert len(stream.getvalue().splitlines()) == 1


def test_a_second_call_replaces_the_first() -> None:
    first, second = io.StringIO(), io.StringIO()
    others = handlers_of_others()
    set_up("text", stream=first)
    set_up("text", "error", stream=second)
    LOG.error("once")
    assert (first.getvalue(), second.getvalue().count("once")) == ("", 1)
    assert handlers_of_others() == others


def handlers_of_others() -> list[logging.Handler]:
    """Earlier tests may have set logs up, too."""
    return [each for each in logging.getLogger().handlers if not type(each).__module__.startswith("cdfd.")]


def test_warnings_are_logged() -> None:
    stream = io.StringIO()
    set_up("json", stream=stream)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        logging.captureWarnings(False)
        logging.captureWarnings(True)
        warnings.warn("old", DeprecationWarning, stacklevel=1)
    assert json.loads(stream.getvalue())["logger"] == "py.warnings"


@pytest.mark.parametrize(("format", "level"), [("xml", "info"), ("json", "loud"), ("json", "notset")])
def test_unknown_format_or_level_is_refused(format: str, level: str) -> None:
    with pytest.raises(ConfigError, match="unknown log"):
        set_up(format, level)


class Destroyed:
    def __del__(self) -> None:
        raise ValueError("in a\ndestructor")


def test_whatever_a_library_prints_is_one_object_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    for module, name in ((sys, "stderr"), (sys, "excepthook"), (sys, "unraisablehook"), (threading, "excepthook")):
        monkeypatch.setattr(module, name, stream if name == "stderr" else getattr(module, name))
    logging.getLogger().handlers.clear()  # pytest's own raises errors of formats
    set_up("json")
    take_standard_error()

    def fail() -> None:
        raise KeyError("in a\nthread")

    print("one\ntwo", end=" ", file=sys.stderr)
    print("and the rest", file=sys.stderr)
    print("no end", end="", file=sys.stderr)
    sys.stderr.flush()
    try:
        fail()
    except KeyError as error:
        traceback.print_exc()
        sys.excepthook(KeyError, error, None)
    ended = threading.Thread(target=fail, name="worker")
    ended.start()
    ended.join()
    Destroyed()
    LOG.warning("%d", "no number")  # logging prints this itself
    set_up("json")  # not to itself
    LOG.warning("the last one")

    lines = stream.getvalue().splitlines()
    written = [json.loads(line) for line in lines if line.startswith("{")]
    messages = [line["message"] for line in written]
    assert messages[:3] == ["one", "two and the rest", "no end"]
    assert "the thread worker ended by an unexpected KeyError" in messages
    [ignored] = [line for line in written if "__del__" in line["message"]]
    assert "destructor" in ignored["traceback"]
    assert messages[-1] == "the last one"
    assert [line for line in lines if not line.startswith("{")] == []
