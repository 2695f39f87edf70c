"""`cdfd tail` for people: what it says on a terminal, and aligned rows."""

import json
import os
import pty
import re
import signal
import subprocess
import threading
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pytest

from cdfd import trevni
from cdfd.demo.writer import TableWriter
from cdfd.storage.local import LocalStorage
from cdfd.trevni.metadata import ColumnMetadata
from cdfd.trevni.values.value_types import ValueType
from tests.support import fork_server
from tests.support.commands import CDFD, WITHIN, cdfd, one_line
from tests.support.lake import run
from tests.support.sampling import sample
from tests.support.trevni.memory import file_writer

TIME = re.compile(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")
ALIGNED = """\
change            version  time                         id  v
insert                  1  <time>   1  a
insert                  2  <time>   2  a
insert                  3  <time>   3  a
update_preimage         4  <time>   1  a
update_postimage        4  <time>   1  b
delete                  5  <time>   2  a
"""


def on_terminal(
    *arguments: str, variables: Mapping[str, str] | None = None, rows: bool = False, ends: bool = True
) -> str:
    """The text on a terminal of 40 columns that is standard error of a command, and its standard output with `rows`.

    A command that does not end by itself is stopped after its first line.
    """
    ours, theirs = pty.openpty()
    environment = {name: text for name, text in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR")}
    environment |= {"TERM": "xterm-256color", "COLUMNS": "40", **(variables or {})}
    output = theirs if rows else subprocess.DEVNULL
    process = fork_server.start(CDFD, arguments, stdout=output, stderr=theirs, env=environment)
    deadline = threading.Timer(WITHIN, process.kill)
    deadline.start()
    os.close(theirs)
    text = b""
    try:
        while part := _read(ours):
            text += part
            if not ends and b"\n" in text:
                process.send_signal(signal.SIGTERM)
        assert process.wait(WITHIN) == 0, text
    finally:
        deadline.cancel()
        process.kill()
        process.wait()
        os.close(ours)
    return text.decode().replace("\r\n", "\n")


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # no process has the terminal any more
        return b""


class TestAnnouncement:
    @pytest.mark.parametrize(
        ("options", "text"),
        [
            ([], "table at version 5, waiting for commits"),
            (["--from", "3"], "reading versions 3 to 5, then waiting for commits"),
            (["--from", "5"], "reading version 5, then waiting for commits"),
            (["--snapshot"], "reading the rows of version 5, then waiting for commits"),
            (
                ["--snapshot", "--from", "2"],
                "reading the rows of version 2 and versions 3 to 5, then waiting for commits",
            ),
            (["--from", "5", "--until", "6"], "reading version 5, then waiting for version 6"),
            (["--until", "now"], "reading versions 0 to 5"),
            (["--from", "latest", "--until", "now"], "table at version 5, nothing to read"),
            (["--net", "--key", "id", "--until", "4"], "reading the net changes from earliest until 4"),
        ],
    )
    def test_terminal_shows_the_work_at_once(self, orders: str, options: list[str], text: str) -> None:
        assert on_terminal("tail", orders, *options, ends="wait" not in text) == f"{text}\n"


class TestControls:
    """Names and values that would steer a terminal, or forge a line."""

    TEXT = "a\u009b31m\u202e\u2066\x1b[2J\nERROR forged"
    ESCAPED = r"a\u009b31m\u202e\u2066\u001b[2J\nERROR forged"

    @pytest.mark.parametrize("format", ["flat", "debezium"])
    def test_rows_have_escapes_on_a_terminal_alone(self, tmp_path: Path, format: str) -> None:
        table = pa.table({self.TEXT: [self.TEXT]})
        writer = TableWriter(LocalStorage(tmp_path), table.schema)
        run(writer.create())
        run(writer.insert(table))
        command = ("tail", str(tmp_path), "--until", "now", "--format", format)
        shown = on_terminal(*command, rows=True).splitlines()
        assert len(shown) == 2
        assert f'"{self.ESCAPED}":"{self.ESCAPED}"' in shown[1]
        assert cdfd(*command).out.count("a\u009b31m\u202e\u2066\\u001b[2J\\nERROR forged") >= 2
        assert json.loads(shown[1]) == json.loads(cdfd(*command).out)

    @pytest.mark.parametrize("command", ["schema", "schema --avro", "head", "cat", "stats", "stats --json", "columns"])
    def test_trevni_files_are_shown_with_escapes(self, tmp_path: Path, command: str) -> None:
        nested = pa.array([{self.TEXT: self.TEXT}], pa.struct([(self.TEXT, pa.string())]))
        trevni.write_table(pa.table({self.TEXT: [self.TEXT], "nested": nested}), tmp_path / "rows.trv")
        shown = on_terminal("trevni", *command.split(), str(tmp_path / "rows.trv"), rows=True)
        assert "forged" in shown
        assert all(line.isprintable() for line in shown.splitlines())
        assert not any(line.startswith("ERROR") for line in shown.splitlines())

    @pytest.mark.parametrize("command", ["schema", "stats"])
    def test_trevni_files_are_described_with_escapes(self, tmp_path: Path, command: str) -> None:
        writer = file_writer([ColumnMetadata(self.TEXT, ValueType.INT)])
        (tmp_path / "rows.trv").write_bytes(b"".join(writer.finish()))
        told = cdfd("trevni", command, str(tmp_path / "rows.trv")).out
        assert r"a\x9b31m\u202e\u2066\x1b[2J\nERROR forged" in told
        assert all(line.isprintable() for line in told.splitlines())

    def test_types_are_not_cut(self, tmp_path: Path) -> None:
        wide = pa.struct([(f"column{number}", pa.string()) for number in range(300)])
        trevni.write_table(pa.table({"wide": pa.array([], wide)}), tmp_path / "rows.trv")
        assert cdfd("trevni", "schema", str(tmp_path / "rows.trv")).out == f"wide: {wide}\n"


class TestPretty:
    def test_rows_are_aligned_across_versions(self, orders: str) -> None:
        ended = cdfd("tail", orders, "--until", "now", "--pretty")
        assert (ended.code, TIME.sub("<time>", ended.out), ended.err) == (0, ALIGNED, "")

    def test_net_changes_are_aligned(self, orders: str) -> None:
        ended = cdfd("tail", orders, "--until", "now", "--pretty", "--net", "--key", "id")
        assert [line.split()[0] for line in ended.lines()] == ["change", "insert", "insert"]

    def test_colours_follow_the_change_type_on_a_terminal(self, orders: str) -> None:
        lines = on_terminal("tail", orders, "--until", "now", "--pretty", "--no-meta", rows=True).splitlines()
        assert lines[1:4] == ["\x1b[1mid  v\x1b[0m", "\x1b[32m 1  a\x1b[0m", "\x1b[32m 2  a\x1b[0m"]
        assert lines[-1] == "\x1b[31m 2  a\x1b[0m"

    def test_no_colours_with_no_color(self, orders: str) -> None:
        quiet = on_terminal("tail", orders, "--until", "now", "--pretty", variables={"NO_COLOR": "1"}, rows=True)
        assert not re.search(r"\x1b\[[\d;]*3\dm", quiet)

    def test_rows_fit_a_narrow_terminal(self, orders: str) -> None:
        text = on_terminal("tail", orders, "--until", "now", "--pretty", rows=True)
        lines = re.sub(r"\x1b\[[\d;]*m", "", text).splitlines()[1:]
        assert {len(line) for line in lines} == {40}
        assert "…" in lines[1]

    @pytest.mark.parametrize("option", ["--pretty", "--no-meta"])
    def test_other_formats_are_refused(self, orders: str, option: str) -> None:
        text = one_line(cdfd("tail", orders, "--until", "now", "--format", "debezium", option), 2)
        assert f"{option} excludes --format debezium" in text


class TestNoMeta:
    def test_rows_have_the_columns_of_the_table_alone(self, orders: str) -> None:
        ended = cdfd("tail", orders, "--until", "2", "--no-meta")
        assert ended.lines() == ['{"id":1,"v":"a"}', '{"id":2,"v":"a"}']

    def test_chosen_columns_alone(self, orders: str) -> None:
        ended = cdfd("tail", orders, "--from", "4", "--until", "4", "--columns", "v", "--no-meta")
        assert ended.lines() == ['{"v":"a"}', '{"v":"b"}']


@pytest.mark.parametrize("group", sample([[], ["ctl"], ["progress"], ["trevni"]], 2))
def test_help_has_whole_summaries_at_80_columns(group: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    commands = cdfd(*group, "--help").out.partition("Commands:\n")[2]
    assert commands.count("\n") > 2
    assert "..." not in commands


@pytest.mark.parametrize(
    ("command", "usage"),
    [(["init"], "TABLE..."), (["demo"], "[WHERE]"), (["progress", "set"], "NAME VERSION")],
)
def test_help_names_arguments_as_the_pages_do(command: list[str], usage: str) -> None:
    text = cdfd(*command, "--help").out
    assert text.startswith(f"Usage: cdfd {' '.join(command)} [OPTIONS] {usage}\n")
    assert not re.search(r"<(str|list|int|float)", text)
