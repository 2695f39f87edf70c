"""What is wrong with a configuration itself, found before any loop starts: nobody is asked for it, and nothing is written.

What is wrong here ends the process with exit code 2, and a restart does not help. What shows later is a table's error.
"""

from __future__ import annotations

from contextlib import suppress

from cdfd.config.settings import KafkaSink as KafkaSettings
from cdfd.config.settings import Settings
from cdfd.daemon.engines import check_engine
from cdfd.errors import UnsupportedError
from cdfd.sinks.kafka.client.connection import check_files
from cdfd.sinks.kafka.configured import client
from cdfd.storage.location import open_storage
from cdfd.tables.configured import open_table


def preflight(config: Settings) -> None:
    """Make everything that only depends on the configuration, the packages that are installed and the files it names.

    Raises:
        ConfigError: a place, an option, a package or a certificate that cannot be used.
        UnsupportedError: an engine that cannot work with the sink.
    """
    for table in config.tables:
        with suppress(UnsupportedError):  # that table's own error: others go on
            open_table(config, table)
    if config.progress.ledger.kind == "table":
        open_storage(config.progress.ledger.uri, config.storage.options(config.progress.ledger.uri))
    if isinstance(config.sink, KafkaSettings):
        client(config.sink)
        check_files(config.sink.security)
    if config.poll.notifications is not None:
        from cdfd.storage.s3.sqs import QueueName  # with S3's own client, which takes a while to import

        QueueName.parse(config.poll.notifications)
    check_engine(config)
