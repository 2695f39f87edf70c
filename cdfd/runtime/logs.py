"""Logs on standard error, as text for people and as JSON lines for machines.

Put the subject of a line into `extra`, not into the message:
`log.info("delivered", extra={"table": name, "version": 7})`.
"""

import io
import logging
import sys
import threading
import traceback
from contextvars import ContextVar
from types import TracebackType
from typing import Any, Literal, TextIO

from cdfd.errors import CdfdError, ConfigError
from cdfd.escaping import as_json, one_line, quoted, shorten
from cdfd.runtime.times import iso

LogFormat = Literal["auto", "text", "json"]
LEVELS = ("debug", "info", "warning", "error")

SINK: ContextVar[str] = ContextVar("sink", default="")
"""The name of the sink whose loop runs, which log lines then have as a field; empty if the pipeline has only one."""

_PACKAGE = "cdfd"
_libraries = logging.getLogger("stderr")
# Kafka's clients log every failed attempt to connect as an error, many times a second; cdfd reports the result itself. Below warnings they
# log requests, including passwords.
_CLIENTS = "kafka"
_LONGEST_TEXT, _LONGEST_TRACEBACK, _FRAMES = 8000, 16_000, 30
# The fields of every record, and those that `Formatter.format` adds. All others come from `extra`.
_OWN_FIELDS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def set_up(format: str = "auto", level: str = "info", stream: TextIO | None = None) -> None:
    """Send logs to `stream` (None: standard error). This replaces the stream of an earlier call.

    Args:
        format: `text`, `json`, or `auto`: text on a terminal, JSON elsewhere.
        level: the lowest level of our logs: `debug`, `info`, `warning` or `error`. Logs of libraries are written from `warning` on, and with
            `debug` from `info` on. Logs of Kafka's clients are written only with `debug`, from `warning` on.
        stream: the destination.

    Raises `ConfigError` for an unknown format or level. Python's own warnings are also logged.
    """
    if level.lower() not in LEVELS:
        raise ConfigError(f"unknown log level {level!r}", hint=f"Use one of {', '.join(LEVELS)}.")
    if format not in ("auto", "text", "json"):
        raise ConfigError(f"unknown log format {format!r}", hint="Use one of auto, text, json.")
    stream = sys.stderr if stream is None else stream
    stream = stream.stream if isinstance(stream, _LoggedStream) else stream
    as_text = stream.isatty() if format == "auto" else format == "text"
    handler = _Handler(stream)
    handler.setFormatter(TextFormatter() if as_text else JsonFormatter())

    root = logging.getLogger()
    for earlier in [each for each in root.handlers if isinstance(each, _Handler)]:
        root.removeHandler(earlier)
    root.addHandler(handler)
    set_level(level)
    logging.captureWarnings(True)


def set_level(level: str) -> None:
    """Change the lowest level of logs to one of `LEVELS`; see `set_up`."""
    root = logging.getLogger()
    ours = logging.getLevelNamesMapping()[level.upper()]
    root.setLevel(logging.INFO if ours == logging.DEBUG else max(ours, logging.WARNING))
    logging.getLogger(_PACKAGE).setLevel(ours)
    logging.getLogger(_CLIENTS).setLevel(logging.WARNING if ours == logging.DEBUG else logging.CRITICAL)


def writes_json() -> bool:
    """Whether logs are currently JSON lines."""
    handlers = (each for each in logging.getLogger().handlers if isinstance(each, _Handler))
    return any(isinstance(each.formatter, JsonFormatter) for each in handlers)


def fatal(error: CdfdError, *, with_traceback: bool) -> None:
    """Log the error that ends the process. Several problems have one line each, before the line of the error."""
    logger = logging.getLogger("cdfd.daemon")
    last, *problems = error.lines()
    for problem in problems:
        logger.error("%s", problem.strip(), extra={"path": error.path})
    about = {"family": error.family, "exit_code": error.exit_code, "version": error.version, "path": error.path}
    extra = {key: value for key, value in about.items() if value is not None}
    if error.table is not None:
        extra["table"] = error.table
    logger.error("%s", last, extra=extra, exc_info=error if with_traceback else None)


def take_standard_error() -> None:
    """Log whatever the process and its libraries would write to standard error, so that every line there is a line of the log."""
    sys.excepthook, threading.excepthook, sys.unraisablehook = _log_unexpected, _log_ended_thread, _log_ignored
    sys.stderr = _LoggedStream(sys.stderr)


def _log_unexpected(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """For `sys.excepthook`: log an exception that ends the process and is not a `CdfdError`."""
    extra = {"family": "internal", "exit_code": 1}
    logging.getLogger("cdfd.daemon").error("ended by an unexpected %s", kind.__name__, exc_info=error, extra=extra)


def _log_ended_thread(ended: threading.ExceptHookArgs) -> None:
    """For `threading.excepthook`: log an exception that ends a thread."""
    if ended.exc_value is not None and not isinstance(ended.exc_value, SystemExit):
        name = "" if ended.thread is None else ended.thread.name
        _libraries.error(
            "the thread %s ended by an unexpected %s", name, ended.exc_type.__name__, exc_info=ended.exc_value
        )


def _log_ignored(ignored: "sys.UnraisableHookArgs") -> None:
    """For `sys.unraisablehook`: log an exception that Python ignores, such as one in a destructor."""
    where = getattr(ignored.object, "__qualname__", type(ignored.object).__name__)
    _libraries.warning("%s in %s", ignored.err_msg or "ignored an exception", where, exc_info=ignored.exc_value)


def traceback_of(error: BaseException | None) -> str:
    """The innermost frames of an error and of its causes, of bounded length. The text is not escaped."""
    return shorten("".join(traceback.format_exception(error, limit=-_FRAMES)).rstrip("\n"), _LONGEST_TRACEBACK)


def indent(lines: str) -> str:
    """A traceback for people. It is indented, so that line ends in an error's text cannot forge other lines."""
    escaped = "\n".join(one_line(line, _LONGEST_TEXT) for line in lines.split("\n"))
    # Shortened first: the place of the cut may begin a line.
    return shorten(escaped, _LONGEST_TRACEBACK).replace("\n", "\n    ")


class _LoggedStream(io.TextIOBase):
    """Standard error whose lines are logged, for libraries that print.

    Args:
        stream: the real one. Logs are written to it, and what is printed while a line is logged, such as an error of logging itself.
    """

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self._lines = threading.local()

    def write(self, text: str) -> int:
        """Log the lines that are complete."""
        if getattr(self._lines, "busy", False):
            return self.stream.write(text)
        *lines, self._lines.pending = (getattr(self._lines, "pending", "") + text).split("\n")
        self._log(lines)
        return len(text)

    def flush(self) -> None:
        """Log the rest of a line, too."""
        self._log([getattr(self._lines, "pending", "")])
        self._lines.pending = ""

    def fileno(self) -> int:
        """That of the real one, for other processes."""
        return self.stream.fileno()

    def _log(self, lines: list[str]) -> None:
        self._lines.busy = True
        try:
            for line in filter(None, map(str.rstrip, lines)):
                _libraries.warning("%s", line)
        finally:
            self._lines.busy = False


class _Handler(logging.StreamHandler[TextIO]):
    """Our handler, to distinguish it from those of other libraries."""


class JsonFormatter(logging.Formatter):
    """One JSON object per line: ts (ISO 8601 UTC with milliseconds), level, logger, message, extras, traceback if any."""

    def format(self, record: logging.LogRecord) -> str:
        """The line, without its end."""
        line = {
            "ts": iso(1000 * record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": shorten(record.getMessage(), _LONGEST_TEXT),
        }
        line |= {key: _plain(value) for key, value in _extras(record).items() if key not in line}
        if record.exc_info:
            line["traceback"] = traceback_of(record.exc_info[1])
        return as_json(line)


class TextFormatter(logging.Formatter):
    """`2026-01-01T00:00:00.000Z INFO cdfd.deliver.feed: delivered table=orders version=7`, then a traceback if any, indented."""

    def format(self, record: logging.LogRecord) -> str:
        """The line, without its end."""
        extras = "".join(f" {key}={_word(value)}" for key, value in _extras(record).items())
        line = f"{iso(1000 * record.created)} {record.levelname} {record.name}: {one_line(record.getMessage(), _LONGEST_TEXT)}{extras}"
        if not record.exc_info:
            return line
        return f"{line}\n    {indent(traceback_of(record.exc_info[1]))}"


def _extras(record: logging.LogRecord) -> dict[str, Any]:
    extras = {key: value for key, value in vars(record).items() if key not in _OWN_FIELDS}
    return extras | {"sink": sink} if (sink := SINK.get()) else extras


def _plain(value: Any) -> Any:
    """A value for JSON, which has no NaN and no infinity."""
    if isinstance(value, float) and value - value != 0.0:
        return str(value)
    return shorten(value, _LONGEST_TEXT) if isinstance(value, str) else value


def _word(value: Any) -> str:
    text = shorten(str(value), _LONGEST_TEXT)
    return text if text.isprintable() and text and not set(text) & {" ", '"', "="} else quoted(text)
