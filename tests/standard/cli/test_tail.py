"""`cdfd tail` as its users have it."""

import json
import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

from cdfd.demo.writer import TableWriter
from cdfd.runtime.clock import SystemClock
from cdfd.storage.local import LocalStorage
from tests.support.commands import ALL, CDFD, WITHIN, Ended, brief, cdfd, history, one_line, started
from tests.support.lake import rows, run, table
from tests.support.renamed_column import renamed_table
from tests.support.sampling import sample


class TestTail:
    def test_everything_so_far(self, orders: str) -> None:
        ended = cdfd("tail", orders, "--from", "earliest", "--until", "now")
        assert (ended.code, ended.err) == (0, "")
        assert brief(ended) == ALL
        assert list(json.loads(ended.lines()[0])) == [
            "id",
            "v",
            "_change_type",
            "_commit_version",
            "_commit_timestamp",
            "_change_ordinal",
        ]

    def test_a_mask_needs_the_name_that_a_column_has_at_the_start(self, tmp_path: Path) -> None:
        run(renamed_table(LocalStorage(tmp_path), SystemClock()))
        for options in (["--until", "now"], ["--from", "1", "--until", "now", "--snapshot"]):
            told = one_line(cdfd("tail", str(tmp_path), "--mask", "tax_id=nullify", *options), 1)
            assert "column 'tax_id' has the name 'ssn'" in told
        ended = cdfd("tail", str(tmp_path), "--until", "1", "--mask", "ssn=nullify")
        assert (ended.code, [json.loads(line)["ssn"] for line in ended.lines()]) == (0, [None])

    @pytest.mark.parametrize(
        "options",
        [["--columns", "ssn"], ["--key", "id,ssn"], ["--snapshot", "--columns", "ssn"], ["--where", "ssn IS NOT NULL"]],
    )
    def test_columns_of_an_old_range_need_not_exist_any_more(self, options: list[str], tmp_path: Path) -> None:
        run(renamed_table(LocalStorage(tmp_path), SystemClock()))
        ended = cdfd("tail", str(tmp_path), "--until", "1", *options)
        assert (ended.code, ended.err, len(ended.lines())) == (0, "", 1)
        assert "ssn" in json.loads(ended.out)
        assert "no column 'tax_id'" in one_line(cdfd("tail", str(tmp_path), "--until", "1", "--columns", "tax_id"), 2)

    @pytest.mark.parametrize("form", ["trevni", "flat"])
    def test_an_error_leaves_no_empty_file(self, form: str, tmp_path: Path) -> None:
        for name, there in (("new", False), ("there", True)):
            place = tmp_path / name
            if there:
                place.touch()
            one_line(cdfd("tail", tmp_path / "none", "--until", "now", "--format", form, "-o", place), 1)
            assert place.exists() is there

    def test_an_empty_trevni_file_has_the_columns_of_its_range(self, tmp_path: Path) -> None:
        run(renamed_table(LocalStorage(tmp_path), SystemClock()))
        place = tmp_path / "empty.trv"
        options = ("--until", "0", "--columns", "ssn", "--format", "trevni", "-o", place)
        assert cdfd("tail", str(tmp_path), *options) == Ended(0, "", "")
        assert "ssn" in cdfd("trevni", "schema", place).out

    @pytest.mark.parametrize(
        ("options", "expected"),
        sample(
            [
                (["--from", "2", "--until", "3"], ALL[1:3]),
                (["--from", "2000-01-01", "--until", "2"], ALL[:2]),
                (["--from", "6", "--until", "now"], []),
                (["--from", "latest", "--until", "now"], []),
                (["--until", "now"], ALL),
                (["--until", "3"], ALL[:3]),
                (["--from", "-1", "--until", "now"], ALL[5:]),
                (["--from=-3", "--until=-2"], ALL[2:5]),
                (["--from", "1 hour ago", "--until", "now"], ALL),
                (["--until", "1 hour ago"], []),
                (["--from", "4", "--until", "4", "--changes", "files"], [(4, "delete", 1), (4, "insert", 1)]),
                (["--from", "2", "--until", "3", "--snapshot"], [(2, "insert", 1), (2, "insert", 2), (3, "insert", 3)]),
                (["--until", "now", "--snapshot"], [(5, "insert", 1), (5, "insert", 3)]),
                (["--from", "latest", "--until", "now", "--snapshot"], [(5, "insert", 1), (5, "insert", 3)]),
                (["--until", "2", "--snapshot"], [(2, "insert", 1), (2, "insert", 2)]),
            ],
            5,
        ),
    )
    def test_bounds_choose_the_rows(
        self, orders: str, options: list[str], expected: list[tuple[int, str, int]]
    ) -> None:
        ended = cdfd("tail", orders, *options)
        assert (ended.code, ended.err) == (0, "")
        assert sorted(brief(ended)) == sorted(expected)
        assert [row[0] for row in brief(ended)] == sorted(row[0] for row in expected)

    def test_columns_are_chosen_in_any_case(self, orders: str) -> None:
        ended = cdfd("tail", orders, "--from", "0", "--until", "1", "--columns", "V")
        assert list(json.loads(ended.lines()[0]))[:2] == ["v", "_change_type"]

    def test_debezium_events_have_both_images(self, orders: str) -> None:
        ended = cdfd("tail", orders, "--from", "0", "--until", "now", "--format", "debezium")
        assert ended.code == 0
        events = [json.loads(line) for line in ended.lines()]
        assert [event["op"] for event in events] == ["c", "c", "c", "u", "d"]
        assert (events[3]["before"]["v"], events[3]["after"]["v"]) == ("a", "b")

    def test_into_a_file(self, orders: str, tmp_path: Path) -> None:
        place = tmp_path / "changes.jsonl"
        ended = cdfd("tail", orders, "--from", "0", "--until", "now", "-o", place)
        assert place.stat().st_mode & 0o777 == 0o600
        assert (ended.code, ended.out, ended.err) == (0, "", "")
        assert brief(Ended(0, place.read_text(), "")) == ALL

    def test_a_file_that_holds_something(self, orders: str, tmp_path: Path) -> None:
        place = tmp_path / "changes.jsonl"
        place.touch()
        last = ("tail", orders, "--from", "-1", "--until", "now", "-o", place)
        assert cdfd(*last) == Ended(0, "", "")
        once = place.read_text()
        told = one_line(cdfd(*last), 2)
        assert f"the output file already exists (file {place}). Give --append or --overwrite" in told
        assert place.read_text() == once
        assert cdfd(*last, "--append") == Ended(0, "", "")
        assert place.read_text() == 2 * once
        assert cdfd(*last, "--overwrite") == Ended(0, "", "")
        assert place.read_text() == once

    def test_a_command_that_fails_drops_nothing(self, orders: str, tmp_path: Path) -> None:
        place = tmp_path / "changes.jsonl"
        place.write_text("precious\n")
        for code, wrong in (1, ["--from", "9"]), (2, ["--columns", "nope"]), (2, ["--until", "soon"]):
            one_line(cdfd("tail", orders, "--until", "now", "-o", place, "--overwrite", *wrong), code)
        assert place.read_text() == "precious\n"

    def test_into_a_pipe(self, orders: str, tmp_path: Path) -> None:
        command = " ".join([*CDFD, "tail", orders, "--until", "now", "-o", "/dev/stdout"])
        done = subprocess.run(["bash", "-c", f"{command} | cat"], capture_output=True, text=True, timeout=WITHIN)
        assert (brief(Ended(0, done.stdout, "")), done.stderr) == (ALL, "")

    def test_a_reader_that_has_seen_enough(self, orders: str) -> None:
        command = " ".join([*CDFD, "tail", orders, "--from", "0", "--until", "now"])
        script = f"{command} | head -1; echo ${{PIPESTATUS[0]}}; {command} | true; echo ${{PIPESTATUS[0]}}"
        done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=WITHIN)
        assert (done.stdout.splitlines()[1:], done.stderr) == (["0", "0"], "")

    def test_a_reader_that_goes_while_it_follows(self, writer: TableWriter) -> None:
        with started("tail", writer.storage.uri, "--from", "5") as tail:
            tail.line()
            tail.process.stdout.close()
            run(writer.insert(rows(9)))
            assert tail.process.wait(WITHIN) == 0
            assert tail.process.stderr.read() == b""

    def test_rows_as_they_are_committed(self, writer: TableWriter) -> None:
        with started("tail", writer.storage.uri, "--from", "5") as tail:
            assert json.loads(tail.line())["_change_type"] == "delete"
            for number in (7, 8, 9):
                run(writer.insert(rows(number)))
                assert json.loads(tail.line())["id"] == number
            ended = tail.end(signal.SIGTERM)
        assert ended == Ended(0, "", "")

    def test_interrupt_ends_it_with_130(self, orders: str) -> None:
        with started("tail", orders, "--from", "5") as tail:
            tail.line()
            assert tail.end(signal.SIGINT) == Ended(130, "", "")

    def test_a_table_that_is_not_there_yet(self, tmp_path: Path) -> None:
        for number, (code, how) in enumerate([(0, signal.SIGTERM), (130, signal.SIGINT)]):
            place = tmp_path / f"late-{number}"
            with started("tail", place) as tail:
                tail.log_line("waiting for the table to appear")
                run(history(place))
                assert [json.loads(tail.line())["id"] for _ in ALL] == [row[2] for row in ALL]
                assert tail.end(how).code == code

    def test_place_that_is_not_a_table_is_waited_for(self, writer: TableWriter, tmp_path: Path) -> None:
        """The place may become a table, so the command waits. It logs the reason, in case the user named a wrong place."""
        (tmp_path / "files").mkdir()
        (tmp_path / "files" / "a.parquet").touch()
        for place, said in (
            (tmp_path / "files", "the folder has no log entry in _delta_log;"),
            (tmp_path / "files" / "a.parquet", "it is a file, and a Delta table is a folder;"),
            (tmp_path, "the folder has no log entry in _delta_log, but its folder 'orders' has one;"),
        ):
            with started("tail", place) as tail:
                line = json.loads(tail.log_line("waiting for the table to appear"))
                assert (line["level"], line["table"]) == ("warning", str(place))
                assert said in line["message"]
                assert tail.end(signal.SIGTERM) == Ended(0, "", "")

    def test_a_start_after_the_version_that_comes_next(self, orders: str) -> None:
        assert "there is no version 9 yet; the newest is 5, of 20" in one_line(cdfd("tail", orders, "--from", "9"), 1)
        assert "is in the future" in one_line(cdfd("tail", orders, "--from", "2999-01-01"), 1)

    @pytest.mark.parametrize(("code", "how"), [(0, signal.SIGTERM), (130, signal.SIGINT)])
    def test_ended_while_there_is_nothing(self, tmp_path: Path, code: int, how: int) -> None:
        with started("tail", tmp_path / "never") as tail:
            tail.log_line("waiting for the table to appear")
            assert tail.end(how) == Ended(code, "", "")

    async def test_ended_in_the_middle_of_much_work(self, tmp_path: Path) -> None:
        """The output is blocked in the middle of a long read, as the reader is slow. A signal ends the command once the reader reads on."""

        writer = await table(LocalStorage(tmp_path), 1, SystemClock())
        for _ in range(20):
            await writer.insert(rows(*range(20_000)))
        with started("tail", tmp_path, "--from", "0", "--until", "now") as tail:
            tail.line()
            ended = tail.end(signal.SIGTERM)
        assert (ended.code, ended.err) == (0, "")
        assert ended.out.endswith("}\n")
        assert len(ended.lines()) < 20 * 20_000

    def test_whole_versions_come_out_before_an_error(self, writer: TableWriter) -> None:
        change_data = next(Path(writer.storage.uri).glob("_change_data/*"))
        change_data.write_bytes(b"PAR1")
        ended = cdfd("tail", writer.storage.uri, "--from", "0", "--until", "now")
        assert brief(ended) == ALL[:3]
        assert re.fullmatch(
            rf"cdfd: .+ \(table {writer.storage.uri}, version 4, file _change_data/{change_data.name}\)\. .+\n",
            ended.err,
        )
        assert ended.code == 1

    @pytest.mark.parametrize(
        ("options", "code", "told"),
        sample(
            [
                (["--from", "soon"], 2, "'soon' is neither a version, nor a timestamp"),
                (["--until", "-7"], 1, "there is no version -7: the newest is 5, of 20"),
                (
                    ["--until", "2000-01-01", "--snapshot"],
                    1,
                    "no version from 2000-01-01 or before; the oldest is 0, of 20",
                ),
                (["--until", "9", "--snapshot"], 1, "there is no version 9 yet; the newest is 5, of 20"),
                (["--from", "6", "--until", "now", "--snapshot"], 1, "at a version up to 5"),
                (["--from", "after 5", "--snapshot"], 1, "there is no version 6 yet; the newest is 5, of 20"),
                (["--from", "2999-01-01"], 1, "2999-01-01T00:00:00.000Z is in the future; the newest is 5, of 20"),
                (["--append"], 2, "--append and --overwrite need -o, and exclude each other"),
                (["--append", "--overwrite", "-o", "x"], 2, "--append and --overwrite"),
                (["--columns", "id,nope"], 2, "there is no column 'nope'"),
                (["--columns", ""], 2, "there is no column ''"),
                (["--from", "9"], 1, "there is no version 9 yet; the newest is 5, of 20"),
                (["--from", "4", "--until", "2"], 2, "the range from version 4 to 2 goes backwards"),
                (["--from", "3", "--until", "2", "--snapshot"], 2, "the range from version 3 to 2 goes backwards"),
                (["-o", "/nowhere/at/all"], 1, "cannot write: No such file or directory (file /nowhere/at/all)"),
                (["--from", "0", "-o", "/dev/full"], 1, "cannot write: No space left on device (file /dev/full)"),
            ],
            4,
        ),
    )
    def test_impossible_options_are_an_error(self, orders: str, options: list[str], code: int, told: str) -> None:
        until = [] if "--until" in options else ["--until", "now"]
        assert told in one_line(cdfd("tail", orders, *options, *until), code)

    @pytest.mark.skipif(not os.path.exists("/dev/full"), reason="a device of Linux")
    @pytest.mark.parametrize(
        "arguments", [["tail", "--from", "0", "--until", "now"], ["inspect"], ["tail", "--help"], ["--help"]]
    )
    def test_output_that_cannot_be_written(self, orders: str, arguments: list[str]) -> None:
        for target, told in ((">/dev/full", "No space left on device"), (">&-", "standard output is closed")):
            script = " ".join([*CDFD, *arguments, orders, target])
            done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=WITHIN)
            assert told in one_line(Ended(done.returncode, done.stdout, done.stderr), 1)

    def test_folder_without_a_log_is_an_error(self, tmp_path: Path) -> None:
        told = one_line(cdfd("tail", tmp_path, "--until", "now"), 1)
        assert f"not a Delta table: it has no log (table {tmp_path})" in told
        assert "Expected files such as _delta_log/00000000000000000000.json" in told

    def test_a_folder_above_the_table(self, orders: str) -> None:
        for command in (["tail", "--until", "now"], ["inspect"]):
            told = one_line(cdfd(*command, Path(orders).parent), 1)
            assert "The folder has no log entry in _delta_log, but its folder 'orders' has one" in told
        assert "It is a file" in one_line(cdfd("inspect", next(Path(orders).glob("*.parquet"))), 1)

    def test_a_scheme_that_is_not_known(self) -> None:
        assert "no storage for gopher:// locations" in one_line(cdfd("tail", "gopher://x/y"), 1)
