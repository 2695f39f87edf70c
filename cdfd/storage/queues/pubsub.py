"""Receives messages from a subscription of Google Pub/Sub, over its REST interface.

Pulling takes two kinds of requests. Google's own client has a stream of gRPC instead, with threads and a native library.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
import google.auth
import orjson
from google.auth.exceptions import GoogleAuthError
from google.auth.transport.urllib3 import Request
from urllib3 import PoolManager

from cdfd.errors import StorageError
from cdfd.storage.queues.base import Message
from cdfd.storage.queues.events import parse_gcs_event

BATCH = 100
"""Messages of one response, at most."""
MAX_RESPONSE_BYTES = 32 << 20
"""Bytes of a response, at most. A notification has some 2 KiB, and any message up to 10 MiB."""
PULL_SECONDS = 120.0
"""Seconds until a pull counts as lost. Pub/Sub answers within 90, with messages or without."""

_ENDPOINT = "https://pubsub.googleapis.com"
_SCOPES = ["https://www.googleapis.com/auth/pubsub"]


class Tokens:
    """Access tokens of Google's application default credentials."""

    def __init__(self) -> None:
        self._credentials: Any = None

    async def headers(self) -> Mapping[str, str]:
        """The headers of a request.

        Raises:
            GoogleAuthError: there are no credentials, or they cannot be renewed.
        """
        # Credentials are files, or come from a server.
        return {"Authorization": f"Bearer {await asyncio.to_thread(self._token)}"}

    def _token(self) -> str:
        if self._credentials is None:
            self._credentials, _ = google.auth.default(scopes=_SCOPES)
        if not self._credentials.valid:
            with PoolManager() as pool:
                self._credentials.refresh(Request(pool))  # type: ignore[no-untyped-call]
        token: str = self._credentials.token
        return token

    def expire(self) -> None:
        """The last token was refused."""
        self._credentials = None


@dataclass(eq=False)
class Subscription:
    """An open subscription; see `Queue`.

    Attributes:
        session: for requests.
        endpoint: address of Pub/Sub.
        name: `projects/PROJECT/subscriptions/NAME`.
        tokens: None for an emulator.
    """

    session: aiohttp.ClientSession
    endpoint: str
    name: str
    tokens: Tokens | None

    async def receive(self) -> Sequence[Message]:
        """See `Queue`. Pub/Sub waits up to 90 seconds for messages."""
        return [
            Message(receipt, parse_gcs_event(attributes))
            for receipt, attributes in await self._pull({"maxMessages": BATCH})
        ]

    async def check(self) -> None:
        """See `Queue`."""
        # Google advises against `returnImmediately` for regular pulls, which this is not.
        pulled = await self._pull({"maxMessages": 1, "returnImmediately": True})
        if pulled:
            receipts = [receipt for receipt, _ in pulled]
            await self._post("modifyAckDeadline", {"ackIds": receipts, "ackDeadlineSeconds": 0})

    async def delete(self, receipts: Sequence[str]) -> None:
        """See `Queue`."""
        if receipts:
            await self._post("acknowledge", {"ackIds": list(receipts)})

    async def _pull(self, request: Mapping[str, Any]) -> list[tuple[str, Any]]:
        """Receipts, and the attributes of their messages."""
        answer = await self._post("pull", request)
        received = answer.get("receivedMessages", [])
        try:
            return [(each["ackId"], each["message"].get("attributes")) for each in received]
        except (TypeError, KeyError, AttributeError):
            raise self._error("the response has another form") from None

    async def _post(self, method: str, request: Mapping[str, Any]) -> dict[str, Any]:
        url = f"{self.endpoint}/v1/{self.name}:{method}"
        try:
            headers = {} if self.tokens is None else await self.tokens.headers()
            async with self.session.post(url, data=orjson.dumps(request), headers=headers) as response:
                status, body = response.status, bytearray()
                async for chunk in response.content.iter_chunked(1 << 16):
                    body += chunk
                    if len(body) > MAX_RESPONSE_BYTES:
                        hint = "Let only Cloud Storage publish to the topic"
                        raise self._error(f"the response has more than {MAX_RESPONSE_BYTES >> 20} MiB", hint)
        except GoogleAuthError as error:
            hint = "Provide Google's application default credentials"
            raise self._error(f"no access token: {type(error).__name__}", hint) from None
        except (aiohttp.ClientError, OSError) as error:
            raise self._error(type(error).__name__) from None
        try:
            answer = orjson.loads(body) if body else {}
        except orjson.JSONDecodeError:
            answer = None
        if status == 504 and method == "pull":
            return {}  # no message came in time
        if status != 200:
            if status == 401 and self.tokens is not None:
                self.tokens.expire()
            details = answer.get("error") if isinstance(answer, dict) else None
            reason = details.get("status") if isinstance(details, dict) else None
            raise self._error(f"{reason if isinstance(reason, str) else status}"[:100], _HINTS.get(status))
        if not isinstance(answer, dict):
            raise self._error("the response is not JSON")
        return answer

    def _error(self, reason: str, hint: str | None = None) -> StorageError:
        return StorageError(f"cannot read the queue: {reason}", path=self.name, hint=hint, retriable=True)


_HINTS = {
    403: "Allow pubsub.subscriptions.consume on it: the role Pub/Sub Subscriber",
    404: "Check the names of the project and of the subscription",
}


@asynccontextmanager
async def open_subscription(project: str, name: str) -> AsyncIterator[Subscription]:
    """Opens a subscription with Google's application default credentials, or that of an emulator at `PUBSUB_EMULATOR_HOST`."""
    emulator = os.environ.get("PUBSUB_EMULATOR_HOST")
    timeout = aiohttp.ClientTimeout(total=PULL_SECONDS, sock_connect=10)
    async with aiohttp.ClientSession(timeout=timeout, trust_env=True) as session:
        endpoint = f"http://{emulator}" if emulator else _ENDPOINT
        tokens = None if emulator else Tokens()
        yield Subscription(session, endpoint, f"projects/{project}/subscriptions/{name}", tokens)
