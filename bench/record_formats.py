"""CPU seconds for a million rows, from Arrow to Kafka's record batches: each record format against flat JSON, batch by batch in one process.

`python -m bench.record_formats` encodes the change rows of a table of the set, in batches of the daemon's size, in one
thread, with keys, into four partitions, with lz4. With `ARROW_DEFAULT_MEMORY_POOL=system`, it has the daemon's allocator.
"""

from __future__ import annotations

import argparse
import os
import time
from statistics import median
from typing import get_args

import pyarrow as pa

import cdfd
from bench.table_set import TABLES
from cdfd.deliver.configured import BATCH_ROWS
from cdfd.encode.formats import CHOICES, EncoderOptions, FormatChoice, record_format
from cdfd.encode.records import Origin, RecordEncoder
from cdfd.encode.registered import Kind, Registration
from cdfd.sinks.kafka.records.batches import BatchBuilder, Batching, Compression, Partitions, RecordBatch
from cdfd.sinks.kafka.records.murmur2 import partitions

FORMATS: dict[str, FormatChoice] = {
    **CHOICES,
    "connect_json": FormatChoice("flat", "connect_json"),
    "json_schema": FormatChoice("flat", "json_schema"),
    "protobuf": FormatChoice("flat", "protobuf"),
    "debezium connect_json": FormatChoice("debezium", "connect_json"),
    "debezium avro": FormatChoice("debezium", "avro"),
    "debezium protobuf": FormatChoice("debezium", "protobuf"),
}
TARGETS = {
    "avro": 0.9,
    "debezium": 0.75,
    "arrow": 2,
    "cloudevents": 0.9,
    "connect_json": 0.5,
    "json_schema": 0.95,
    "protobuf": 0.8,
    "debezium avro": 0.7,
}
PARTITIONS = 4


class KnownSchemas:
    """A registry that knows every schema."""

    def register(self, subject: str, schema: str, kind: Kind) -> int:
        return 1

    def history(self, subject: str) -> list[str]:
        return []

    def check(self, kind: Kind) -> None:
        """It has every kind."""


def encoder(name: str) -> RecordEncoder:
    """Of a format, with the key `id`, and a registry that knows every schema."""
    options = EncoderOptions(
        Origin("bench", "orders", "table-id", "orders"),
        ("id",),
        registration=Registration(KnownSchemas()),
        partitioner=lambda keys: partitions(keys, PARTITIONS),
    )
    return record_format(FORMATS[name]).encoder(options)


def seconds(encoding: RecordEncoder, batch: pa.RecordBatch, builder: BatchBuilder) -> tuple[float, float]:
    """CPU seconds for encoding these rows, and with making batches of them and letting all go."""
    start = time.process_time()
    lots = encoding.encode(batch)
    encoded = time.process_time() - start
    for records in lots:
        places: Partitions = records.partition or 0
        if records.keys is not None:
            places = partitions(records.keys, PARTITIONS, records.key_wrapping)
        for _, each in builder.batches(records, places, 1):
            assert isinstance(each, RecordBatch)
            each.stamp(1, 1, 1, transactional=True)
    del lots, records, each
    return encoded, time.process_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.record_formats", description=__doc__)
    parser.add_argument("--tables", nargs="+", default=["snappy", "spark-updates", "large-file"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--compression", choices=get_args(Compression), default="lz4")
    settings = parser.parse_args()
    print(
        "| table | format | CPU seconds for a million rows: encoding, and all | flat's by it (worst) | target |\n|---|---|---|---|---|"
    )
    for table in settings.tables:
        read = pa.Table.from_batches(list(cdfd.changes(TABLES[table].path(), 0))[:12])
        batches = read.to_batches(max_chunksize=BATCH_ROWS)
        rows = sum(map(len, batches)) / 1e6
        encoders = {name: encoder(name) for name in FORMATS}
        builders = {name: BatchBuilder(Batching(settings.compression)) for name in FORMATS}
        taken: dict[str, list[tuple[float, float]]] = {name: [] for name in FORMATS}
        for round_ in range(settings.rounds + 1):
            # By batches in turn, so that other work on the machine slows each format alike; another one is the first to read each batch.
            times = []
            for number, batch in enumerate(batches):
                first = number % len(FORMATS)
                turns = [*FORMATS][first:] + [*FORMATS][:first]
                times.append({name: seconds(encoders[name], batch, builders[name]) for name in turns})
            for name in FORMATS if round_ else ():
                encoded, made = (sum(part) for part in zip(*(costs[name] for costs in times), strict=True))
                taken[name].append((encoded, made))
        for name, rounds in taken.items():
            ratios = [flat / own for (_, flat), (_, own) in zip(taken["flat"], rounds, strict=True)]
            cells = [table, name, ", ".join(f"{median(part) / rows:.2f}" for part in zip(*rounds, strict=True))]
            cells += [f"{median(ratios):.2f} ({min(ratios):.2f})", str(TARGETS.get(name, ""))]
            print(f"| {' | '.join(cells)} |", flush=True)
    print(f"\nLoad: {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
