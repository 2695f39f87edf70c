"""The command line as its users have it: output, exit codes, and how it ends."""

import errno
import json
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from cdfd.deliver.resuming import IGNORED_CHANGE_DATA
from cdfd.delta.commit import serialize
from cdfd.demo.writer import TableWriter
from cdfd.runtime.clock import SystemClock
from cdfd.storage.local import LocalStorage
from tests.support.commands import ALL, CDFD, WITHIN, Ended, Running, brief, cdfd, history, one_line, started
from tests.support.lake import entry_path, rows, run, table
from tests.support.sampling import sample


def config(folder: Path, uri: str, sections: dict[str, object] | None = None, **more: object) -> Path:
    path = folder / "cdfd.yaml"
    settings = {
        "pipeline": "p",
        "tables": [{"uri": uri, **more}],
        "sink": {"kind": "files", "path": str(folder / "out")},
    } | (sections or {})
    path.write_text(json.dumps(settings))  # JSON is YAML
    return path


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder], capture_output=True)
    if mounted.returncode:
        pytest.skip("file systems cannot be mounted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def fill(path: Path) -> None:
    """Write until there is no space left."""
    with path.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(1 << 16))
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise


class TestRun:
    def test_delivers_until_it_is_told_to_stop_and_goes_on_from_there(
        self, writer: TableWriter, tmp_path: Path
    ) -> None:
        path = config(tmp_path, writer.storage.uri, start="earliest")
        out = tmp_path / "out" / "orders"
        for number, (code, how) in enumerate([(0, signal.SIGTERM), (130, signal.SIGINT), (0, signal.SIGTERM)]):
            with started("run", "-c", path) as daemon:
                daemon.log_line("starting at version 0" if number == 0 else f"resuming at version {5 + number}")
                if number:
                    run(writer.insert(rows(10 + number)))
                wait_for(out / f"{5 + number:020d}.jsonl")
                ended = daemon.end(how)
            assert (ended.code, ended.out) == (code, "")
            assert "stopped" in ended.err
        files = sorted(out.glob("*.jsonl"))
        assert [int(file.stem) for file in files] == [1, 2, 3, 4, 5, 6, 7]
        actual = "".join(file.read_text() for file in files)
        assert brief(Ended(0, actual, "")) == [*ALL, (6, "insert", 11), (7, "insert", 12)]

    @pytest.mark.parametrize("command", [("run", "-c"), ("tail", "no table", "--mask")])
    def test_sigterm_before_the_start_is_complete(self, command: tuple[str, ...], tmp_path: Path) -> None:
        fifo = tmp_path / "fifo"
        os.mkfifo(fifo)
        path = fifo if command[0] == "run" else f"v=hmac_sha256:{fifo}"
        with started(*command, path) as starting, fifo.open("wb"):  # opens once the command reads it
            assert starting.end(signal.SIGTERM) == Ended(0, "", "")

    @pytest.mark.parametrize("before", [(), ("--debug", "--log-level", "info")])
    def test_signals_while_modules_are_imported(self, before: tuple[str, ...], tmp_path: Path) -> None:
        """A supervisor sends SIGHUP after it has written a file, and SIGTERM whenever it likes."""
        # The module of the commands tells that it is imported, and waits.
        script = (
            "import sys, time, types; from importlib.machinery import ModuleSpec\n"
            "class Slow:\n"
            "    def find_spec(self, name, *_): return ModuleSpec(name, self) if name == 'typer' else None\n"
            "    def create_module(self, _): print('imports', flush=True); time.sleep(60)\n"
            "    def exec_module(self, _): pass\n"
            "sys.meta_path.insert(0, Slow())\n"
            f"sys.argv[1:] = {[*before, 'run', '-c', str(tmp_path / 'cdfd.yaml')]!r}\n"
            "from importlib.metadata import entry_points\n"
            "entry_points(group='console_scripts', name='cdfd')['cdfd'].load()()"
        )
        command = [sys.executable, "-c", script]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            running = Running(process)
            assert running.line() == "imports"
            process.send_signal(signal.SIGHUP)
            assert running.end(signal.SIGTERM) == Ended(0, "", "")

    def test_a_second_one_is_fenced_off(self, writer: TableWriter, tmp_path: Path) -> None:
        path = config(tmp_path, writer.storage.uri)
        with started("run", "-c", path) as daemon:
            daemon.log_line("completed")
            second = cdfd("run", "-c", path)
            assert second.code == 3
            last = json.loads(second.err.splitlines()[-1])
            assert last["message"].startswith("another daemon delivers into this folder (table ")
            assert "Stop it" in last["message"]
            assert (last["level"], last["family"], last["exit_code"]) == ("error", "fenced", 3)
            # The first one does not mind.
            run(writer.insert(rows(9)))
            wait_for(tmp_path / "out" / "orders" / f"{6:020d}.jsonl")
            assert daemon.end(signal.SIGTERM).code == 0

    def test_waiting_for_a_table(self, tmp_path: Path) -> None:
        with started("run", "-c", config(tmp_path, str(tmp_path / "orders"))) as daemon:
            daemon.log_line("waiting for the table to appear")
            assert daemon.end(signal.SIGTERM).code == 0

    def test_an_error_ends_it(self, writer: TableWriter, tmp_path: Path) -> None:
        gone = next(path for path in Path(writer.storage.uri).glob("part-*") if path.name not in writer._files)
        gone.unlink()
        for _ in range(2):
            ended = cdfd("run", "-c", config(tmp_path, writer.storage.uri, start="earliest"))
            assert ended.code == 1
            last = json.loads(ended.err.splitlines()[-1])
            assert f"(table {writer.storage.uri}, version 1, file {gone.name})" in last["message"]
            assert (last["version"], last["path"], last["exit_code"]) == (1, gone.name, 1)
            assert "Traceback" not in ended.err
        for line in ended.err.splitlines():
            assert {"ts", "level", "logger", "message"} <= set(json.loads(line))

    def test_a_writer_that_drops_a_column_stops_its_own_table_only(self, writer: TableWriter, tmp_path: Path) -> None:
        other = run(history(tmp_path / "others"))
        tables = [{"uri": writer.storage.uri, "columns": ["v"]}, {"uri": other.storage.uri}]
        path = config(tmp_path, "", {"tables": tables, "http": {"listen": "127.0.0.1:0"}})
        with started("run", "-c", path) as daemon:
            address = re.search(r"http://[0-9.:]+", daemon.log_line("metrics, health and status"))[0]
            daemon.log_line("completed")
            daemon.log_line("completed")
            drop_column(writer, "v")
            failed = json.loads(daemon.log_line("retrying"))
            assert (failed["table"], failed["level"]) == ("orders", "error")
            assert "none of the columns v" in failed["message"]
            run(other.insert(rows(9)))
            wait_for(tmp_path / "out" / "others" / f"{6:020d}.jsonl")
            with pytest.raises(HTTPError) as not_ready:
                urlopen(f"{address}/readyz", timeout=WITHIN)
            assert list(json.loads(not_ready.value.read())["not_ready"]) == ["orders"]
            not_ready.value.close()
            assert daemon.end(signal.SIGTERM).code == 0
        # The only table of a daemon ends it, with a code that lets it be restarted: a writer may bring the column back.
        alone = config(tmp_path, "", {"tables": tables[:1], "http": {"listen": None}})
        ended = cdfd("run", "-c", alone)
        assert ended.code == 1
        assert json.loads(ended.err.splitlines()[-1])["exit_code"] == 1

    def test_a_full_disk_is_waited_for(self, writer: TableWriter, tmp_path: Path, small_disk: Path) -> None:
        """It is the only table: what would have to be fixed would end the process."""
        ballast = small_disk / "ballast"
        fill(ballast)
        path = config(tmp_path, writer.storage.uri, {"sink": {"kind": "files", "path": str(small_disk / "out")}})
        with started("run", "-c", path) as daemon:
            for _ in range(3):
                line = json.loads(daemon.log_line("retrying"))
                assert "No space left on device" in line["message"]
                assert line["retry_in"] < 10
            ballast.unlink()
            daemon.log_line("completed")
            assert daemon.end(signal.SIGTERM).code == 0
        [snapshot] = (small_disk / "out" / "orders").glob("*.jsonl")
        assert len(snapshot.read_text().splitlines()) == 2

    def test_an_address_that_is_taken(self, writer: TableWriter, tmp_path: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            listen = f"127.0.0.1:{taken.getsockname()[1]}"
            ended = cdfd("run", "-c", config(tmp_path, writer.storage.uri, {"http": {"listen": listen}}))
        last = json.loads(ended.err.splitlines()[-1])
        assert (ended.code, last["exit_code"]) == (1, 1)
        assert f"cannot listen at {listen}" in last["message"]
        assert not (tmp_path / "out").exists()

    def test_too_many_open_files_are_waited_for(self, writer: TableWriter, tmp_path: Path) -> None:
        with started("run", "-c", config(tmp_path, writer.storage.uri)) as daemon:
            daemon.log_line("completed")
            wait_for(tmp_path / "out" / "orders" / "_position.json")
            pid = daemon.process.pid
            soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, hard))
            run(writer.insert(rows(9)))
            line = json.loads(daemon.log_line("retrying"))
            assert "Too many open files" in line["message"]
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))
            wait_for(tmp_path / "out" / "orders" / f"{6:020d}.jsonl")
            assert daemon.end(signal.SIGTERM).code == 0

    def test_its_last_line_on_a_terminal_is_for_people(self, tmp_path: Path) -> None:
        path = config(tmp_path, str(tmp_path / "orders"), {"engine": {"kind": "auto"}})
        ended = cdfd("run", "-c", path, "--log-format", "text")
        assert ended.code == 2
        assert ended.err.splitlines()[-1].startswith("cdfd: `engine.kind: auto` needs a Delta sink, or a Kafka sink")
        in_debug = cdfd("run", "-c", path, "--debug")
        assert "Traceback" in json.loads(in_debug.err.splitlines()[-1])["traceback"]

    def test_a_bug_outside_of_the_tables_is_a_line_of_the_log(self, tmp_path: Path) -> None:
        buggy = (
            "from cdfd.daemon.supervision import process; process.preflight = None; from cdfd.cli import main; main()"
        )
        command = [sys.executable, "-c", buggy, "run", "-c", config(tmp_path, str(tmp_path / "orders"))]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=WITHIN)
        assert ended.returncode == 1
        [line] = [json.loads(line) for line in ended.stderr.splitlines()]
        assert (line["level"], line["family"], line["exit_code"]) == ("error", "internal", 1)
        assert "TypeError" in line["traceback"]

    def test_what_is_wrong_with_a_configuration(self, tmp_path: Path) -> None:
        path = tmp_path / "cdfd.yaml"
        path.write_text("pipeline: P\ntables: [{url: /x, start: never}]\nsink: {kind: files}\n")
        for command in ("run", "check"):
            ended = cdfd(command, "-c", path)
            assert (ended.code, ended.out) == (2, "")
            assert "Traceback" not in ended.err
            lines = ended.err.splitlines()
            if command == "run":
                actual = [json.loads(line) for line in lines]
                assert actual.pop()["exit_code"] == 2
                lines = [f"  {line['message']}" for line in actual]
            else:
                assert lines.pop(0) == f"cdfd: 5 problems (file {path})"
            for place in ("pipeline", "tables[0].uri", "tables[0].url", "tables[0].start", "sink.path"):
                assert sum(line.startswith(f"  {place}: ") for line in lines) == 1
            assert len(lines) == 5
        assert "nowhere.yaml" in one_line(cdfd("check", "-c", tmp_path / "nowhere.yaml"), 2)


class TestOptionsOfAllCommands:
    @pytest.mark.parametrize(
        "args",
        sample(
            [
                ("--log-format", "json", "--log-level", "error", "check"),
                ("check", "--log-format", "json", "--log-level=error"),
                (
                    "--log-level",
                    "debug",
                    "--log-format",
                    "text",
                    "check",
                    "--log-format",
                    "json",
                    "--log-level",
                    "error",
                ),
                ("progress", "--log-format", "json", "show", "--log-level", "error"),
            ],
            2,
        ),
    )
    def test_before_and_after_the_command(self, args: tuple[str, ...], orders: str, tmp_path: Path) -> None:
        ended = cdfd(*args, "-c", config(tmp_path, orders))
        assert (ended.code, ended.err) == (0, "")

    def test_after_the_command_they_take_effect(self, orders: str, tmp_path: Path) -> None:
        path = config(tmp_path, orders, key=["id"])
        assert "Traceback" not in cdfd("progress", "set", "-c", path, "customers", "1").err
        assert "Traceback" in cdfd("progress", "set", "-c", path, "customers", "1", "--debug").err
        unknown = one_line(cdfd("check", "-c", path, "--log-level", "loud"), 2)
        assert "unknown log level 'loud'" in unknown

    @pytest.mark.parametrize("command", sample([["run"], ["tail"], ["progress", "show"]], 1))
    def test_help_tells_of_them_once(self, command: list[str]) -> None:
        told = cdfd(*command, "--help").out
        assert [told.count(f" {name} ") for name in ("--debug", "--log-format", "--log-level")] == [1, 1, 1]


@pytest.mark.parametrize("folder", sample(["elsewhere", ""], 1))
def test_relative_paths_mean_the_same_from_every_working_directory(
    writer: TableWriter, tmp_path: Path, folder: str
) -> None:
    (tmp_path / "elsewhere").mkdir()
    path = config(tmp_path, "orders", {"sink": {"kind": "files", "path": "out"}})
    with started("run", "-c", path, cwd=tmp_path / folder) as daemon:
        daemon.log_line("completed")
        assert daemon.end(signal.SIGTERM).code == 0
    shown = cdfd("progress", "show", "-c", path, cwd=tmp_path / "elsewhere")
    assert shown.lines()[1].split()[:4] == ["orders", "5", "-", "5"]
    assert cdfd("check", "-c", path, cwd=tmp_path / folder).code == 0


class TestCheck:
    def test_all_well(self, orders: str, tmp_path: Path) -> None:
        ended = cdfd("check", "-c", config(tmp_path, orders, columns=["id"]))
        assert (ended.code, ended.err) == (0, "")
        assert [re.split(r"\s{2,}", line) for line in ended.lines()] == [
            ["table", "version", "files", "changes", "topic", "state"],
            ["orders", "5", "3", "cdc files", "orders", "ok, the folder will be created"],
        ]
        assert not (tmp_path / "out").exists()

    @pytest.mark.parametrize(
        ("settings", "told"),
        [({"columns": ["nope"]}, "there is no column 'nope'"), ({"key": ["key"]}, "there is no column 'key'")],
    )
    def test_what_does_not_fit(self, orders: str, tmp_path: Path, settings: dict[str, object], told: str) -> None:
        ended = cdfd("check", "-c", config(tmp_path, orders, **settings))
        assert (ended.code, ended.err) == (1, "")
        assert told in ended.lines()[1]

    def test_no_table_and_no_folder(self, tmp_path: Path) -> None:
        ended = cdfd("check", "-c", config(tmp_path, str(tmp_path / "nowhere")))
        assert ended.code == 1
        assert "not a Delta table" in ended.lines()[1]

    def test_a_file_where_the_folder_is_to_be(self, orders: str, tmp_path: Path) -> None:
        (tmp_path / "out").write_text("")
        ended = cdfd("check", "-c", config(tmp_path, orders))
        assert ended.code == 1
        assert "the path is not a folder" in ended.lines()[1]

    def test_a_ledger_that_cannot_be_written_holds_up_nothing(self, orders: str, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        ended = cdfd("check", "-c", config(tmp_path, orders, {"progress": {"ledger": str(tmp_path / "file/ledger")}}))
        assert ended.code == 0
        assert "warning: the ledger cannot be written" in ended.lines()[1]

    def test_a_key_that_pairs_no_updates_is_warned_of(self, orders: str, tmp_path: Path) -> None:
        path = config(tmp_path, orders, key=["id"], changes="files", refine="off")
        ended = cdfd("check", "-c", path)
        assert ended.code == 0
        assert "warning: `key` does not pair updates" in ended.lines()[1]
        [actual] = json.loads(cdfd("check", "-c", path, "--json").out)["tables"]
        assert actual["usable"]
        assert actual["warnings"] == [IGNORED_CHANGE_DATA]
        with started("run", "-c", path) as daemon:
            line = json.loads(daemon.log_line("`key` does not pair updates"))
            assert (line["level"], line["message"]) == ("warning", IGNORED_CHANGE_DATA)
            assert daemon.end(signal.SIGTERM).err.count("does not pair updates") == 0

    def test_a_key_pairs_updates_by_default(self, orders: str, tmp_path: Path) -> None:
        ended = cdfd("check", "-c", config(tmp_path, orders, key=["id"], changes="files"))
        assert (ended.code, "warning" in ended.out + ended.err) == (0, False)

    def test_as_json(self, orders: str, tmp_path: Path) -> None:
        tables = [{"uri": orders}, {"uri": str(tmp_path / "nowhere")}]
        ended = cdfd("check", "-c", config(tmp_path, orders, {"tables": tables}), "--json")
        assert ended.code == 1
        document = json.loads(ended.out)
        good, bad = document["tables"]
        assert good == {
            "table": "orders",
            "topic": "orders",
            "usable": True,
            "state": "ok, the folder will be created",
            "version": 5,
            "files": 3,
            "changes": "cdc files",
            "next": "begins at snapshot",
            "warnings": [],
        }
        assert not bad["usable"]
        assert "`cdfd run` waits for it" in bad["state"]
        assert document["notifications"] is None

    def test_an_engine_that_does_not_fit(self, orders: str, tmp_path: Path) -> None:
        path = config(tmp_path, orders, {"engine": {"kind": "auto"}})
        for command in ("check", "run"):
            ended = cdfd(command, "-c", path)
            assert ended.code == 2
            assert "needs a Delta sink, or a Kafka sink" in ended.err


HOSTILE = "T\n2026-01-01T00:00:00.000Z INFO cdfd: forged \x1b[2J\x7f\u202e"


class TestHostileText:
    """A table whose log has line ends and escape sequences in its texts."""

    @pytest.fixture
    def hostile(self, tmp_path: Path) -> str:
        run(table(LocalStorage(tmp_path / "orders"), 3, SystemClock(), table_id=HOSTILE))
        add = {
            "path": "a\x1b[2J\n.parquet",
            "partitionValues": {},
            "size": 1,
            "modificationTime": 0,
            "dataChange": True,
        }
        (tmp_path / "orders/_delta_log" / f"{3:020}.json").write_text(json.dumps({"add": add}) + "\n")
        return str(tmp_path / "orders")

    def test_no_command_lets_it_through(self, hostile: str, tmp_path: Path) -> None:
        path = config(tmp_path, hostile, start="earliest")
        for command in (
            ["inspect", hostile],
            ["inspect", hostile, "--json"],
            ["tail", hostile, "--from", "0", "--until", "now", "--debug"],
            ["tail", hostile, "--from", "0", "--until", "now", "--log-format", "json"],
            ["check", "-c", path],
            ["progress", "show", "-c", path],
            ["progress", "set", "-c", path, "orders", "1", "--debug"],
        ):
            ended = cdfd(*command)
            shown = [*ended.out.split("\n"), *ended.err.split("\n")]
            assert all(line.isprintable() for line in shown), ended
            assert not any(line.startswith("2026-01-01T") for line in shown), ended

    def test_names_that_the_terminal_has_no_letters_for(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        run(table(LocalStorage(tmp_path / "orders"), 1, SystemClock(), table_id="Tä…😀"))
        monkeypatch.setenv("PYTHONIOENCODING", "ascii")
        ended = cdfd("inspect", tmp_path / "orders")
        assert (ended.code, ended.err) == (0, "")
        assert "T\\xe4\\u2026\\U0001f600" in ended.out


class TestInspect:
    def test_for_people(self, orders: str) -> None:
        ended = cdfd("inspect", orders)
        assert (ended.code, ended.err) == (0, "")
        told = {line[:16].strip(): line[16:] for line in ended.lines() if line[:16].strip()}
        assert told["version"] == "5 (log entries 0 to 5)"
        assert told["features"] == "deletionVectors, changeDataFeed"
        assert told["schema"] == "id: int64"
        assert told["live files"].startswith("3 of ")

    def test_for_programs(self, orders: str) -> None:
        ended = cdfd("inspect", orders, "--json")
        assert (ended.code, ended.err) == (0, "")
        facts = json.loads(ended.out)
        assert (facts["version"], facts["id"], facts["live_files"], facts["stopped_by"]) == (5, "T", 3, None)
        assert facts["schema"][1] == {"name": "v", "type": "string", "nullable": True}

    def test_an_older_version(self, orders: str) -> None:
        facts = json.loads(cdfd("inspect", orders, "--json", "--version", "2").out)
        assert (facts["version"], facts["live_files"]) == (2, 2)
        assert json.loads(cdfd("inspect", orders, "--json", "--version", "-4").out)["version"] == 2
        assert "version 6 is not in the log" in one_line(cdfd("inspect", orders, "--version", "6"), 1)
        assert "the oldest is 0, of 20" in one_line(cdfd("inspect", orders, "--version", "2000-01-01"), 1)

    def test_a_table_that_cannot_be_read(self, writer: TableWriter) -> None:
        features = {
            "readerFeatures": ["deletionVectors", "teleport"],
            "writerFeatures": ["deletionVectors", "teleport"],
        }
        entry = serialize([("protocol", {"minReaderVersion": 3, "minWriterVersion": 7, **features})])
        run(writer.storage.put(entry_path(6), entry))
        ended = cdfd("inspect", writer.storage.uri)
        assert ended.code == 0
        assert "teleport (NOT SUPPORTED)" in ended.out
        assert re.search(r"^cannot be read  .*teleport", ended.out, re.MULTILINE)
        facts = json.loads(cdfd("inspect", writer.storage.uri, "--json").out)
        assert "teleport" in facts["stopped_by"]
        refused = [feature["name"] for feature in facts["features"] if feature["status"] == "refused"]
        assert refused == ["teleport"]

    def test_no_table(self, tmp_path: Path) -> None:
        for place, why in ((tmp_path, "it has no log"), (tmp_path / "nowhere", "the path does not exist")):
            assert f"not a Delta table: {why} (table {place})" in one_line(cdfd("inspect", place), 1)


class TestDemo:
    def test_a_place_that_has_a_table(self, tmp_path: Path) -> None:
        run(history(tmp_path / "orders"))
        told = one_line(cdfd("demo", tmp_path), 1)
        assert f"(table {tmp_path / 'orders'}, file _delta_log/{0:020d}.json)" in told
        assert "give it another location" in told

    @pytest.mark.parametrize("options", [[], ["--kafka", "localhost:1"]])
    def test_a_place_that_is_no_folder(self, tmp_path: Path, options: list[str]) -> None:
        file = tmp_path / "file"
        file.touch()
        told = one_line(cdfd("demo", file, *options), 1)
        assert told == f"cdfd: cannot create the folder: File exists (file {file}). Give the demo another folder\n"


class TestAround:
    def test_version(self) -> None:
        ended = cdfd("version")
        assert (ended.code, ended.err) == (0, "")
        assert re.match(r"cdfd \d+\.\d+\.\d+ \(.+\)\npython 3\.\d+\.\d+ pyarrow ", ended.out)

        assert cdfd("--version") == Ended(0, ended.out.splitlines()[0] + "\n", "")

    def test_standard_error_may_be_closed(self, orders: str, tmp_path: Path) -> None:
        def run_without(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
            command = ["sh", "-c", '"$@" 2>&-', "sh", *CDFD, *map(str, arguments)]
            return subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=WITHIN)

        done = run_without("tail", orders, "--until", "now")
        assert (done.returncode, brief(Ended(0, done.stdout, ""))) == (0, ALL)
        done = run_without("run", "-c", tmp_path / "missing.yaml")
        assert (done.returncode, done.stdout) == (2, "")

    def test_standard_output_may_be_closed_where_rows_go_to_a_file(self, orders: str, tmp_path: Path) -> None:
        file = tmp_path / "rows"
        command = ["sh", "-c", '"$@" >&-', "sh", *CDFD, "tail", orders, "--until", "now", "-o", str(file)]
        done = subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=WITHIN)
        assert (done.returncode, done.stderr) == (0, "")
        assert brief(Ended(0, file.read_text(), "")) == ALL

    def test_no_command_is_wrong_usage_and_shows_the_help(self) -> None:
        ended = cdfd()
        assert (ended.code, ended.out, ended.err) == (2, "", cdfd("--help").out)
        assert ended.err.startswith("Usage: cdfd [OPTIONS] COMMAND")

    @pytest.mark.parametrize("shell", sample(["bash", "zsh", "fish"], 1))
    def test_completion(self, shell: str) -> None:
        # Else Typer takes the shell that the tests run in, where there is one.
        named = os.environ | {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
        command = [*CDFD, "--show-completion", shell]
        done = subprocess.run(command, capture_output=True, text=True, timeout=WITHIN, env=named)
        assert (done.returncode, done.stderr) == (0, "")
        assert f"_CDFD_COMPLETE=complete_{shell}" in done.stdout

    @pytest.mark.skipif(not os.path.exists("/dev/full"), reason="a device of Linux")
    @pytest.mark.parametrize("arguments", [["demo"], ["--version"], ["--show-completion", "bash"]])
    def test_output_without_space_or_reader(self, arguments: list[str]) -> None:
        named = os.environ | {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
        reader, writer = os.pipe()
        os.close(reader)
        told = "cdfd: cannot write: No space left on device (file standard output)\n"
        for out, expected in ((os.open("/dev/full", os.O_WRONLY), (1, told)), (writer, (0, ""))):
            command = [*CDFD, *arguments]
            done = subprocess.run(command, stdout=out, stderr=subprocess.PIPE, text=True, timeout=WITHIN, env=named)
            os.close(out)
            assert (done.returncode, done.stderr) == expected

    def test_a_value_that_is_none_of_the_choices(self) -> None:
        for option, arguments in (("--format", ["tail", "t"]), ("--log-format", [])):
            ended = cdfd(*arguments, option, "xml")
            assert ended.code == 2
            assert f"Invalid value for '{option}': 'xml' is not" in ended.err

    def test_what_is_completed(self) -> None:
        asked = {"_CDFD_COMPLETE": "complete_bash", "COMP_WORDS": "cdfd tail t --f", "COMP_CWORD": "3"}
        done = subprocess.run(CDFD, capture_output=True, text=True, timeout=WITHIN, env=os.environ | asked)
        assert done.stdout.split() == ["--from", "--format"]

    def test_help_does_not_wait_for_arrow(self) -> None:
        for arguments in (["--version"], ["--help"], ["tail", "--help"]):
            command = [sys.executable, "-X", "importtime", "-m", "cdfd", *arguments]
            done = subprocess.run(command, capture_output=True, text=True, timeout=WITHIN)
            assert done.returncode == 0
            assert done.stdout.startswith(("Usage: ", "cdfd "))
            assert "pyarrow" not in done.stderr

    def test_tail_imports_what_it_uses_alone(self, orders: str) -> None:
        """Settings, sinks and formats that it was not asked for would double the time until its first row."""
        command = [sys.executable, "-X", "importtime", "-m", "cdfd", "tail", orders, "--until", "now"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=WITHIN)
        assert (done.returncode, bool(done.stdout)) == (0, True)
        imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
        assert "cdfd.scan.execute" in imported
        not_needed = ["cdfd.api", "cdfd.config", "cdfd.daemon", "cdfd.demo", "cdfd.deliver.feed", "cdfd.sinks"]
        not_needed += [
            "cdfd.spark",
            "cdfd.trevni",
            "cdfd.storage.s3",
            "cdfd.storage.fsspec_storage",
        ]
        not_needed += [
            "cdfd.encode.avro.format",
            "cdfd.encode.debezium",
            "cdfd.encode.cloudevents",
            "cdfd.encode.formats",
        ]
        not_needed += ["cdfd.plan.shape.parser", "cdfd.scan.updates.net"]
        not_needed += ["aiobotocore", "aiohttp", "botocore", "cryptography", "deltalake", "fastavro", "fsspec", "kafka"]
        not_needed += [
            "lz4",
            "obstore",
            "opentelemetry",
            "prometheus_client",
            "pyarrow.dataset",
            "pyspark",
            "rich",
            "yaml",
        ]
        assert sorted(imported.intersection(not_needed)) == []

    def test_every_command_is_in_the_help(self) -> None:
        told = cdfd("--help").out
        for command in ("demo", "tail", "run", "check", "inspect", "version"):
            assert re.search(rf"^  {command} ", told, re.MULTILINE)

    @pytest.mark.parametrize(
        "arguments",
        sample(
            [
                ["nope"],
                ["tail"],
                ["run"],
                ["tail", "x", "--nope"],
                ["tail", "x", "--format", "xml"],
                ["inspect", "x", "--version"],
                ["tail", "x", "--from"],
            ],
            3,
        ),
    )
    def test_wrong_usage(self, arguments: list[str]) -> None:
        ended = cdfd(*arguments)
        assert (ended.code, ended.out) == (2, "")
        assert "Traceback" not in ended.err

    @pytest.mark.parametrize(
        ("arguments", "code"), [(["inspect", "/nowhere"], 1), (["tail", "/nowhere", "--from", "soon"], 2)]
    )
    def test_debug_shows_where_and_keeps_the_exit_code(self, arguments: list[str], code: int) -> None:
        ended = cdfd("--debug", *arguments)
        assert ended.code == code
        assert "Traceback (most recent call last)" in ended.err

    def test_log_format(self, tmp_path: Path) -> None:
        with started("--log-format", "text", "tail", tmp_path / "never") as tail:
            assert re.match(r"\S+Z INFO cdfd.tail: waiting for the table to appear table=", tail.log_line("waiting"))
        assert "unknown log level" in one_line(cdfd("--log-level", "loud", "version"), 2)


def wait_for(path: Path) -> None:
    """Return once there is a file, by polling: nothing tells another process of it."""
    deadline = time.monotonic() + WITHIN
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} did not appear"
        time.sleep(0.005)


def drop_column(writer: TableWriter, name: str) -> None:
    """Commit what a writer does that drops a column, and an insert after it. Its files keep the column."""
    first = (Path(writer.storage.uri) / entry_path(0)).read_text().splitlines()
    metadata = next(action["metaData"] for line in first if "metaData" in (action := json.loads(line)))
    schema = json.loads(metadata["schemaString"])
    schema["fields"] = [field for field in schema["fields"] if field["name"] != name]
    run(writer.commit("DROP COLUMNS", [("metaData", metadata | {"schemaString": json.dumps(schema)})]))
    run(writer.insert(rows(8)))


class TestProgress:
    def test_where_a_table_stands(self, writer: TableWriter, tmp_path: Path) -> None:
        path = config(tmp_path, writer.storage.uri, start="earliest")
        fresh = cdfd("progress", "show", "-c", path)
        assert fresh.code == 0
        assert fresh.out.splitlines()[1].split()[:2] == ["orders", "-"]
        with started("run", "-c", path) as daemon:
            wait_for(tmp_path / "out" / "orders" / f"{5:020d}.jsonl")
            assert daemon.end(signal.SIGTERM).code == 0
        delivered = cdfd("progress", "show", "-c", path)
        assert delivered.out.splitlines()[1].split()[:5] == ["orders", "5", "-", "5", "0"]
        [actual] = json.loads(cdfd("progress", "show", "-c", path, "--json").out)["tables"]
        assert re.fullmatch("[0-9a-f]{32}", actual["position"].pop("digest"))
        assert actual == {
            "table": "orders",
            "usable": True,
            "delivered_version": 5,
            "position": {"table_id": "T", "version": 6, "part": 0, "phase": "stream", "ordinal": 0},
            "ledger_version": None,
            "table_version": 5,
            "lag_versions": 0,
            "next": "resuming at version 6, the position in the folder",
            "error": None,
            "warnings": [],
        }
        back = cdfd("progress", "set", "-c", path, "orders", "2")
        assert back.code == 1
        assert "cannot go back" in back.err

    def test_a_table_that_is_not_configured(self, writer: TableWriter, tmp_path: Path) -> None:
        ended = cdfd("progress", "reset", "-c", config(tmp_path, writer.storage.uri), "customers")
        assert ended.code == 2
        assert "customers" in ended.err
