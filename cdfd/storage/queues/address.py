"""Addresses of queues."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Literal
from urllib.parse import urlsplit

from cdfd.errors import ConfigError

Kind = Literal["sqs", "pubsub", "azure-queue"]

_EXTRAS: Mapping[Kind, str] = {"pubsub": "google.auth", "azure-queue": "azure.storage.queue"}
"""Kinds that need an extra of the same name, and the package by which it is known to be there."""
_NAMED = re.compile(r"sqs://([a-z0-9-]+)/([A-Za-z0-9_-]{1,80}(?:\.fifo)?)")
_REGION = re.compile(r"(?:sqs\.|queue\.)?([a-z]{2}(?:-[a-z]+)+-[0-9])\.")
_SUBSCRIPTION = re.compile(r"pubsub://([a-z0-9.:-]{1,100})/([A-Za-z][A-Za-z0-9._~+%-]{2,254})")
_AZURE = re.compile(r"azure-queue://([a-z0-9]{3,24})/([a-z0-9-]{3,63})")
_AZURE_URL = re.compile(r"https://([a-z0-9]{3,24})\.queue\.core\.windows\.net/([a-z0-9-]{3,63})/?")
_EXAMPLES = "sqs://REGION/NAME, the URL of an SQS queue, pubsub://PROJECT/SUBSCRIPTION or azure-queue://ACCOUNT/NAME"


@dataclass(frozen=True, slots=True)
class QueueAddress:
    """Identifies a queue.

    Attributes:
        kind: of the service.
        owner: the region of SQS (None: that of the credentials), a project of Google, or an account of Azure.
        name: of the queue or subscription.
        url: of a queue of SQS; None if it is known by name in this account.
    """

    kind: Kind
    owner: str | None
    name: str
    url: str | None = None

    @classmethod
    def parse(cls, text: str) -> QueueAddress:
        """The address that a text is.

        Args:
            text: `sqs://region/name`; a queue's URL, `https://sqs.region.amazonaws.com/account/name`, also with `sqs` for `https`;
                `pubsub://project/subscription`; `azure-queue://account/name`, or that queue's URL.

        Raises:
            ConfigError: the text is none of these.
        """
        for kind, pattern in (
            ("sqs", _NAMED),
            ("pubsub", _SUBSCRIPTION),
            ("azure-queue", _AZURE),
            ("azure-queue", _AZURE_URL),
        ):
            if matched := pattern.fullmatch(text):
                return cls(kind, matched[1], matched[2])  # type: ignore[arg-type]
        url = re.sub(r"^sqs://", "https://", text)
        try:
            parts = urlsplit(url)
        except ValueError:
            parts = urlsplit("")
        if not re.fullmatch(r"https?://[^\s/?#@]+(/[^\s/?#@]+){2}", url) or not parts.hostname:
            raise ConfigError("the address of the queue is not valid", hint=f"Write {_EXAMPLES}")
        region = _REGION.match(parts.hostname)
        return cls("sqs", None if region is None else region[1], parts.path.rpartition("/")[2], url)

    def check_installed(self) -> None:
        """Check that the packages are there which the service needs.

        Raises:
            ConfigError: one is missing.
        """
        package = _EXTRAS.get(self.kind)
        try:
            installed = package is None or find_spec(package) is not None
        except ModuleNotFoundError:  # nor is the package that it is in
            installed = False
        if package is not None and not installed:
            raise ConfigError(
                f"{self.kind}:// queues need {package.replace('.', '-')}, which is not installed",
                hint=f"Run pip install 'cdfd[{self.kind}]'",
            )
