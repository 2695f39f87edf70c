"""The tables that the patterns of a configuration find."""

from cdfd.config.settings import Settings
from cdfd.daemon.membership.discovery import FolderSearch, Tables, merge_tables


async def search(config: Settings) -> Tables:
    """Those that the configuration lists, too."""
    return merge_tables(config, [(each, await FolderSearch(config, each).search()) for each in config.discoveries])
