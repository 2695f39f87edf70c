"""A Spark application that keeps a copy in step until it is killed: `python -m tests.support.spark.copier`, with five arguments."""

import sys

from cdfd.spark.topics import apply_changes, read_changes
from tests.support.spark.session import session


def main(servers: str, topic: str, table: str, copy: str, checkpoint: str) -> None:
    """For ever. A few records at a time, so that there is always a batch under way."""
    with session() as spark:
        few = {"maxOffsetsPerTrigger": "8"}
        changes = read_changes(
            spark, topic, bootstrap_servers=servers, table=table, streaming=True, unknown_columns="fail", options=few
        )
        query = apply_changes(changes, copy, ["id"], checkpoint=checkpoint, evolve_schema=True)
        assert query is not None
        query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
