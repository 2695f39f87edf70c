"""Bad tables, links, names that two tables have, and shards beside the tables of a running daemon."""

import json
import signal
from pathlib import Path

from cdfd.daemon.membership.shard import owner
from tests.support.cli.many_tables import configure, create, delivered, message, wait_until
from tests.support.commands import cdfd, started
from tests.support.lake import rows, run


def test_a_bad_table_among_those_that_are_found_does_not_touch_the_others(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    (lake / "broken" / "_delta_log").mkdir(parents=True)
    (lake / "broken" / "_delta_log" / f"{0:020d}.json").write_text("this is no log entry\n")
    run(create(lake / "misfit", 1, key="nothing"))
    good = run(create(lake / "good", 1))
    (lake / "bad name").mkdir()
    run(create(lake / "bad name", 1))
    path = configure(tmp_path, {"discover": str(lake / "*")})
    with started("run", "-c", path) as daemon:
        assert "the name would be" in message(daemon, "bad name")
        wait_until(lambda: delivered(tmp_path, "good") == [1])
        run(good.insert(rows(2)))
        wait_until(lambda: delivered(tmp_path, "good") == [1, 2])
        assert daemon.end(signal.SIGTERM).code == 0
    ended = cdfd("check", "-c", path)
    assert ended.code == 1
    lines = {line.split()[0]: line for line in ended.lines()}
    assert lines["good"].endswith("ok")
    assert "nothing" in lines["misfit"]
    assert "broken" in ended.out
    assert 'not delivered: the name would be "bad name"' in ended.out


def test_links_out_of_a_lake_are_no_tables_and_are_warned_about_once(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    run(create(tmp_path / "outside" / "secret", 7))
    run(create(lake / "good", 1))
    (lake / "bad").symlink_to(tmp_path / "outside" / "secret")
    (lake / "half").mkdir()
    (lake / "half" / "_delta_log").symlink_to(tmp_path / "outside" / "secret" / "_delta_log")
    path = configure(tmp_path, {"discover": str(lake / "*"), "interval": "50ms"})
    with started("run", "-c", path) as daemon:
        warned = [json.loads(daemon.log_line("symbolic link leads out")) for _ in range(2)]
        assert [line["level"] for line in warned] == ["warning", "warning"]
        wait_until(lambda: delivered(tmp_path, "good") == [1])
        for name in ("later", "last"):  # each is found by a search of its own
            run(create(lake / name, 2))
            daemon.log_line(f"added: {name}")
        wait_until(lambda: delivered(tmp_path, "last") == [2])
        ended = daemon.end(signal.SIGTERM)
    assert (ended.code, "leads out" in ended.err) == (0, False)
    assert sorted(each.name for each in (tmp_path / "out").iterdir()) == ["good", "last", "later"]
    ended = cdfd("check", "-c", path)
    assert ended.code == 1
    assert [line.count("leads out") for line in ended.lines() if line.startswith("not delivered")] == [1, 1]


def test_a_process_whose_only_found_table_is_bad_waits_for_others(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    (lake / "broken" / "_delta_log").mkdir(parents=True)
    (lake / "broken" / "_delta_log" / f"{0:020d}.json").write_text('{"protocol": 7}\n')
    with started("run", "-c", configure(tmp_path, {"discover": str(lake / "*")})) as daemon:
        daemon.log_line("retrying in")
        run(create(lake / "good", 1))
        wait_until(lambda: delivered(tmp_path, "good") == [1])
        assert daemon.end(signal.SIGTERM).code == 0


def test_tables_of_two_patterns_with_one_name_are_an_error_that_names_both(tmp_path: Path) -> None:
    for place in ("eu", "us"):
        run(create(tmp_path / place / "orders", 1 if place == "eu" else 2))
    entries: list[dict[str, object]] = [{"discover": str(tmp_path / place / "*")} for place in ("eu", "us")]
    path = configure(tmp_path, *entries)
    with started("run", "-c", path) as daemon:
        actual = message(daemon, "two tables have the name")
        assert str(tmp_path / "eu" / "orders") in actual
        assert str(tmp_path / "us" / "orders") in actual
        wait_until(lambda: len(delivered(tmp_path, "orders")) == 1)
        assert daemon.end(signal.SIGTERM).code == 0
    ended = cdfd("check", "-c", path, "--json")
    assert ended.code == 1
    [refused] = json.loads(ended.out)["refused"]
    assert "two tables have the name" in refused
    assert cdfd("check", "-c", configure(tmp_path, entries[0], {**entries[1], "name": "us.{table}"})).code == 0


def test_settings_that_need_a_restart_are_named_and_never_shown(tmp_path: Path) -> None:
    writer = run(create(tmp_path / "orders", 1))
    entry: dict[str, object] = {"uri": str(tmp_path / "orders")}
    with started("run", "-c", configure(tmp_path, entry)) as daemon:
        wait_until(lambda: delivered(tmp_path, "orders") == [1])
        storage = {"s3": {"access_key_id": "id", "secret_access_key": "correct-horse"}}
        configure(tmp_path, entry, poll={"interval": "2s"}, storage=storage)
        line = json.loads(daemon.log_line("with a restart only"))
        assert line["level"] == "warning"
        named = line["message"].rpartition(": ")[2].split(", ")
        assert named == [
            "poll.interval",
            "poll.max_interval",
            "storage.s3.access_key_id",
            "storage.s3.secret_access_key",
        ]
        run(writer.insert(rows(2)))
        wait_until(lambda: delivered(tmp_path, "orders") == [1, 2])
        configure(tmp_path, entry, pipeline="other")
        assert "pipeline cannot change while the daemon runs" in message(daemon, "cannot apply")
        ended = daemon.end(signal.SIGTERM)
    assert "correct-horse" not in ended.err


def test_a_volume_of_kubernetes_is_read_again_when_its_link_moves(tmp_path: Path) -> None:
    for name in ("one", "two"):
        run(create(tmp_path / name, 1))
        (tmp_path / f"..{name}").mkdir()
    first = configure(tmp_path, {"uri": str(tmp_path / "one")})
    first.rename(tmp_path / "..one" / "cdfd.yaml")
    second = configure(tmp_path, {"uri": str(tmp_path / "one")}, {"uri": str(tmp_path / "two")})
    second.rename(tmp_path / "..two" / "cdfd.yaml")
    mount = tmp_path / "mount"
    mount.mkdir()
    (mount / "..data").symlink_to("../..one")
    (mount / "cdfd.yaml").symlink_to("..data/cdfd.yaml")
    with started("run", "-c", mount / "cdfd.yaml") as daemon:
        daemon.log_line("completed")
        (mount / "..data_tmp").symlink_to("../..two")
        (mount / "..data_tmp").rename(mount / "..data")
        assert message(daemon, "read again").endswith("added: two")
        assert daemon.end(signal.SIGTERM).code == 0


def test_a_table_moves_to_a_further_shard_once_the_old_one_lets_it_go(tmp_path: Path) -> None:
    """The sink of files has one lock for each folder. So here the old owner stays until it ends."""
    name = next(name for name in (f"t{number}" for number in range(99)) if (owner(name, 1), owner(name, 2)) == (0, 1))
    writer = run(create(tmp_path / name, 1))
    path = configure(tmp_path, {"uri": str(tmp_path / name)})
    with started("run", "-c", path, "--shard", "0/1") as old:
        wait_until(lambda: delivered(tmp_path, name) == [1])
        with started("run", "-c", path, "--shard", "1/2") as new:
            new.log_line("retrying in")
            assert old.end(signal.SIGTERM).code == 0
            run(writer.insert(rows(2)))
            wait_until(lambda: delivered(tmp_path, name) == [1, 2])
            assert new.end(signal.SIGTERM).code == 0


def test_what_is_no_shard_is_wrong_usage(tmp_path: Path) -> None:
    path = configure(tmp_path, {"uri": str(tmp_path / "orders")})
    for command in ("run", "check"):
        ended = cdfd(command, "-c", path, "--shard", "2/2")
        assert ended.code == 2
        assert "there is no shard 2 of 2" in ended.err
