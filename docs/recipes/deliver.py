"""Deliver the changes of a table to Kafka, exactly once: a Spark application for any scheduler.

    spark-submit deliver.py --uri s3://lake/orders --pipeline shop --checkpoint s3a://lake/_checkpoints/orders \
        --sink bootstrap_servers=kafka:9092 --sink key=order_id

Each run continues from the checkpoint. It ends when it has delivered all existing changes; with --follow it keeps delivering.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from pyspark.sql import SparkSession

import cdfd.spark


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(prog="deliver.py")
    made.add_argument("--uri", required=True, help="path or URI of the table")
    made.add_argument("--pipeline", required=True, help="name in the topics and transactions of the delivery")
    made.add_argument("--checkpoint", required=True, help="folder of the query, which no other query uses")
    made.add_argument("--source", metavar="NAME=VALUE", action="append", default=[], help='option of format("cdfd")')
    made.add_argument(
        "--sink", metavar="NAME=VALUE", action="append", default=[], help='option of format("cdfd-kafka")'
    )
    made.add_argument(
        "--secret",
        metavar="NAME=VARIABLE",
        action="append",
        default=[],
        help="as --sink, with a variable of the driver",
    )
    made.add_argument("--follow", action="store_true", help="keep delivering")
    return made


def source_options(given: argparse.Namespace) -> dict[str, str]:
    """The options of `format("cdfd")`. The rows go to the sink as they are, so they are packed."""
    return {"packed": "true"} | _pairs(given.source) | {"path": given.uri}


def sink_options(given: argparse.Namespace) -> dict[str, str]:
    """The options of `format("cdfd-kafka")`. Secrets are references, which the sink resolves, so that no plan has their values."""
    secrets = {name: f"${{{variable}}}" for name, variable in _pairs(given.secret).items()}
    return _pairs(given.sink) | secrets | {"pipeline": given.pipeline, "uri": given.uri}


def _pairs(given: Sequence[str]) -> dict[str, str]:
    wrong = [each for each in given if "=" not in each]
    if wrong:
        parser().error(f"{wrong[0]!r} is not NAME=VALUE")
    return dict(each.split("=", 1) for each in given)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the query."""
    given = parser().parse_args(arguments)
    source, sink = source_options(given), sink_options(given)
    spark = SparkSession.builder.appName(f"cdfd {given.uri}").getOrCreate()
    cdfd.spark.register(spark)
    changes = spark.readStream.format("cdfd").options(**source).load()
    written = changes.writeStream.format("cdfd-kafka").options(**sink).option("checkpointLocation", given.checkpoint)
    query = (written if given.follow else written.trigger(availableNow=True)).start()
    query.awaitTermination()


if __name__ == "__main__":
    main()
