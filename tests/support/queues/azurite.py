"""Azurite, Microsoft's emulator of Azure Storage, from npm: its queues, in memory."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.cache import CACHE, locked
from tests.support.installation import run
from tests.support.s3.server import free_port, run_server

VERSION = "3.35.0"
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""The account and the key that Azurite documents for everybody."""
_PLACE = CACHE / f"azurite-{VERSION}"


def missing() -> str | None:
    """Why Azurite cannot run here, or None."""
    return None if shutil.which("npm") else "Azurite needs `npm`, which is not on the PATH"


def install() -> Path:
    """The program of its queues, fetched first where it is not there."""
    with locked(_PLACE):
        if not (_PLACE / "complete").exists():
            options = ["--ignore-scripts", "--no-audit", "--no-fund", "--prefix", str(_PLACE)]
            run(["npm", "install", *options, f"azurite@{VERSION}"])
            (_PLACE / "complete").touch()
    return _PLACE / "node_modules" / "azurite" / "dist" / "src" / "queue" / "main.js"


@contextmanager
def azurite(folder: Path) -> Iterator[str]:
    """The connection string of the emulator's account."""
    port = free_port()
    options = ["--queueHost", "127.0.0.1", "--queuePort", str(port), "--inMemoryPersistence", "--disableTelemetry"]
    command = ["node", str(install()), *options, "--skipApiVersionCheck", "--silent"]
    with run_server(command, port, folder / "azurite.log", dict(os.environ)) as server:
        yield (
            f"DefaultEndpointsProtocol=http;AccountName={ACCOUNT};AccountKey={KEY};"
            f"QueueEndpoint={server.url}/{ACCOUNT};"
        )
