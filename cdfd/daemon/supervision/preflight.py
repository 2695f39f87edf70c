"""Checks of the configuration before any loop starts, without network access and without writes.

An error here ends the process, because a restart does not help. Later errors belong to a table.
"""

from contextlib import suppress
from importlib.util import find_spec

from cdfd.config.settings import Settings
from cdfd.daemon.engines import engine_of
from cdfd.daemon.http.tls import ServerTls
from cdfd.daemon.membership.shard import Shard
from cdfd.deliver.configured import open_table
from cdfd.errors import ConfigError, UnsupportedError
from cdfd.sinks.base import connector
from cdfd.storage.location import open_storage
from cdfd.storage.queues.address import QueueAddress


def preflight(config: Settings, shard: Shard | None = None, *, standby: bool = False) -> None:
    """Check everything that depends only on the configuration, the installed packages and the files it names.

    Args:
        shard: of this process, if there are several.
        standby: whether it takes part in an election.

    Raises:
        ConfigError: a location, an option, a package or a certificate is invalid or missing, or the engine does not support the sink,
            shards, or standby.
    """
    if standby and shard is not None:
        raise ConfigError("--standby does not support shards", hint="Run one process for each shard")
    if standby and config.engine.kind == "spark":
        raise ConfigError("`engine.kind: spark` does not support --standby", hint="Use `engine.kind: auto`")
    if shard is not None and config.engine.kind == "spark":
        raise ConfigError("`engine.kind: spark` does not support shards", hint="Use `engine.kind: auto`")
    for of_sink in config.by_sink.values():
        for table in of_sink.listed:
            with suppress(UnsupportedError):  # an error of this table, while the others continue
                open_table(of_sink, table)
        roots = [discovery.pattern.root for discovery in of_sink.discoveries]
        for place in (*roots, *([of_sink.progress.ledger.uri] if of_sink.progress.ledger.kind == "table" else ())):
            open_storage(place, of_sink.options(place))
        connector(of_sink).preflight()
        engine_of(of_sink).check()
    if config.poll.notifications is not None:
        QueueAddress.parse(config.poll.notifications).check_installed()
    if config.http.tls is not None:
        ServerTls(config.http.tls).warn_of_expiry()
    if config.controls.socket is not None:
        from cdfd.daemon.http.connections import check_socket_path  # imports aiohttp

        check_socket_path(config.controls.socket)
    if config.telemetry.otel.endpoint is not None and find_spec("opentelemetry") is None:
        raise ConfigError(
            "telemetry.otel is set, but OpenTelemetry is not installed", hint="Run pip install 'cdfd[otel]'"
        )
