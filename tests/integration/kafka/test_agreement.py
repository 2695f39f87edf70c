"""`check` and `progress show` predict how the daemon handles a table, with a real broker."""

import json
from typing import Any

from kafka.admin import KafkaAdminClient

from cdfd.demo.writer import TableWriter
from tests.support.commands import cdfd
from tests.support.kafka.pipeline import Pipeline, do
from tests.support.lake import rows


def checked(pipeline: Pipeline) -> dict[str, Any]:
    ended = cdfd("check", "-c", pipeline.config, "--json")
    [table] = json.loads(ended.out)["tables"]
    assert ended.code == (0 if table["usable"] else 1)
    return table


def shown(pipeline: Pipeline) -> dict[str, Any]:
    ended = cdfd("progress", "show", "-c", pipeline.config, "--json")
    [table] = json.loads(ended.out)["tables"]
    assert ended.code == (0 if table["usable"] else 1)
    return table


def test_before_and_while_a_daemon_delivers_and_when_its_position_is_lost(
    pipeline: Pipeline, table: TableWriter, admin: KafkaAdminClient
) -> None:
    assert checked(pipeline)["usable"]
    with pipeline.daemon() as daemon:
        assert pipeline.check() == 3
        assert checked(pipeline)["usable"]
        assert shown(pipeline)["lag_versions"] == 0
        daemon.stop()
    admin.delete_topics([f"_cdfd_progress.{pipeline.name}"])
    for message in (checked(pipeline)["state"], shown(pipeline)["error"]):
        assert "--recover-from-ledger" in message
    with pipeline.daemon() as daemon:
        assert daemon.ended() == 1


def test_a_ledger_that_cannot_be_written(pipeline: Pipeline, table: TableWriter) -> None:
    pipeline.ledger.write_text("not a folder")
    actual = checked(pipeline)
    assert actual["usable"]
    assert "the ledger cannot be written" in actual["warnings"][0]
    do(table.insert(rows(3)))
    with pipeline.daemon() as daemon:
        assert pipeline.check() == 4
        daemon.stop()


def test_the_only_position_would_be_in_a_ledger_that_cannot_be_written(pipeline: Pipeline, table: TableWriter) -> None:
    pipeline.configure(sink={"delivery": "at_least_once"}, table={"start": "latest"})
    pipeline.ledger.write_text("not a folder")
    actual = checked(pipeline)
    assert not actual["usable"]
    assert "the ledger cannot be written" in actual["state"]
    with pipeline.daemon() as daemon:
        assert daemon.ended() == 1
