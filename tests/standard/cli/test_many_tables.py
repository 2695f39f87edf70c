"""Tables of a running daemon: those that it finds, those that a changed configuration adds and removes, and those of a shard."""

import json
import os
import shutil
import signal
from contextlib import suppress
from pathlib import Path

from cdfd.daemon.membership.shard import owner
from tests.support.cli.many_tables import configure, create, delivered, message, wait_until
from tests.support.commands import cdfd, started
from tests.support.lake import rows, run


def test_tables_that_appear_are_taken_up_and_those_that_vanish_are_reported(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    run(create(lake / "orders", 1, key="id"))
    run(create(lake / "tmp_1", 1))
    path = configure(tmp_path, {"discover": str(lake / "*"), "exclude": ["tmp_*"], "topic": "sales.{table}"})
    with started("run", "-c", path) as daemon:
        assert message(daemon, "added") == f"tables of {lake}/*: added: orders"
        wait_until(lambda: delivered(tmp_path, "sales.orders") == [1])
        items = run(create(lake / "items", 2))
        daemon.log_line("added: items")
        wait_until(lambda: delivered(tmp_path, "sales.items") == [2])
        shutil.rmtree(lake / "orders")
        line = json.loads(daemon.log_line("has vanished"))
        assert (line["level"], line["table"]) == ("warning", str(lake / "orders"))
        daemon.log_line("removed: orders")
        run(items.insert(rows(3)))
        wait_until(lambda: delivered(tmp_path, "sales.items") == [2, 3])
        assert daemon.end(signal.SIGTERM).code == 0
    assert sorted(each.name for each in (tmp_path / "out").iterdir()) == ["sales.items", "sales.orders"]


def test_a_changed_file_adds_changes_and_removes_tables_without_touching_the_others(tmp_path: Path) -> None:
    writers = {name: run(create(tmp_path / name, 1)) for name in ("stays", "changes", "leaves", "joins")}
    stays: dict[str, object] = {"uri": str(tmp_path / "stays")}
    changes: dict[str, object] = {"uri": str(tmp_path / "changes")}
    path = configure(tmp_path, stays, changes, {"uri": str(tmp_path / "leaves")})
    with started("run", "-c", path) as daemon:
        wait_until(lambda: all(delivered(tmp_path, name) == [1] for name in ("stays", "changes", "leaves")))
        configure(tmp_path, stays, changes | {"columns": ["id"]}, {"uri": str(tmp_path / "joins")})
        assert message(daemon, "read again").endswith("added: joins; removed: leaves; changed: changes")
        wait_until(lambda: delivered(tmp_path, "joins") == [1])
        for writer in writers.values():
            run(writer.insert(rows(2)))
        wait_until(lambda: all(delivered(tmp_path, name) == [1, 2] for name in ("stays", "changes", "joins")))
        ended = daemon.end(signal.SIGTERM)
        assert ended.code == 0
    assert delivered(tmp_path, "leaves") == [1]
    assert all("v" not in json.loads(line) for line in newest(tmp_path, "changes").splitlines())
    # The loop of the table that stays was opened once.
    assert not [line for line in ended.err.splitlines() if json.loads(line).get("table") == str(tmp_path / "stays")]


def newest(folder: Path, topic: str) -> str:
    return max((folder / "out" / topic).glob("*.jsonl")).read_text()


def test_an_invalid_file_leaves_the_old_configuration_running(tmp_path: Path) -> None:
    writer = run(create(tmp_path / "orders", 1))
    path = configure(tmp_path, {"uri": str(tmp_path / "orders")})
    with started("run", "-c", path) as daemon:
        wait_until(lambda: delivered(tmp_path, "orders") == [1])
        configure(tmp_path, {"uri": str(tmp_path / "orders"), "strat": "latest"})
        line = json.loads(daemon.log_line("cannot apply"))
        assert (line["level"], 'did you mean "start"' in line["message"]) == ("error", True)
        path.unlink()
        assert "cannot read the configuration" in message(daemon, "cannot apply")
        run(writer.insert(rows(2)))
        wait_until(lambda: delivered(tmp_path, "orders") == [1, 2])
        configure(tmp_path, {"uri": str(tmp_path / "orders")})
        assert message(daemon, "read again").endswith("no table changes")
        assert daemon.end(signal.SIGTERM).code == 0


def test_a_hangup_reads_the_file_again(tmp_path: Path) -> None:
    run(create(tmp_path / "orders", 1))
    with started("run", "-c", configure(tmp_path, {"uri": str(tmp_path / "orders")})) as daemon:
        daemon.log_line("completed")
        for _ in range(2):
            daemon.process.send_signal(signal.SIGHUP)
            assert message(daemon, "read again").endswith("no table changes")
        assert daemon.end(signal.SIGTERM).code == 0


def test_shards_deliver_all_tables_together_and_none_twice(tmp_path: Path) -> None:
    names = [f"t{number}" for number in range(8)]
    for name in names:
        run(create(tmp_path / "lake" / name, 1))
    path = configure(tmp_path, {"discover": str(tmp_path / "lake" / "*")})
    with (
        started("run", "-c", path, "--shard", "0/2") as first,
        started("run", "-c", path, "--shard", "cdfd-1/2") as second,
    ):
        for index, daemon in enumerate((first, second)):
            own = [name for name in names if owner(name, 2) == index]
            assert message(daemon, "added:").endswith(f"added: {', '.join(own)}")
        wait_until(lambda: all(delivered(tmp_path, name) == [1] for name in names))
        assert (first.end(signal.SIGTERM).code, second.end(signal.SIGTERM).code) == (0, 0)
    listed = [cdfd("check", "-c", path, "--shard", f"{index}/2").lines()[1:] for index in (0, 1)]
    assert sorted(line.split()[0] for lines in listed for line in lines) == names


def test_hangup_during_the_start_does_not_end_the_daemon(tmp_path: Path) -> None:
    run(create(tmp_path / "orders", 1))
    text = configure(tmp_path, {"uri": str(tmp_path / "orders")}).read_text()
    # The daemon waits for the content of a pipe.
    pipe, writers = tmp_path / "pipe.yaml", list[int]()
    os.mkfifo(pipe)

    def is_read() -> bool:
        with suppress(OSError):  # the daemon has not opened it yet
            writers.append(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK))
        return bool(writers)

    with started("run", "-c", pipe) as daemon:
        wait_until(is_read)
        daemon.process.send_signal(signal.SIGHUP)
        with open(writers[0], "w") as stream:
            stream.write(text)
        daemon.log_line("1 table")
        wait_until(lambda: delivered(tmp_path, "orders") == [1])
        assert daemon.end(signal.SIGTERM).code == 0
