"""The sink that a configuration names."""

from cdfd.config.settings import Settings
from cdfd.sinks.base import Connector


def connector(config: Settings) -> Connector:
    """The configured sink of a pipeline."""
    connector: Connector = config.sink.connector(config)
    return connector
