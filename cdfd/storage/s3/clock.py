"""The store's clock: requests are signed with a time, and the store refuses them if it is more than 15 minutes off.

Botocore signs with this machine's clock. If a store refuses the time, its response contains the store's time. From then on, requests are
signed with that.
"""

import logging
from collections import defaultdict
from datetime import MAXYEAR, UTC, datetime, timedelta
from typing import Any

from botocore.auth import AUTH_TYPE_MAPS, SIGV4_TIMESTAMP, S3SigV4Auth
from botocore.exceptions import ClientError

from cdfd.runtime import times

logger = logging.getLogger("cdfd.storage")

_SIGNATURE = "cdfd-s3v4"
_OFFSET = "cdfd-offset"
_TOLERANCE = timedelta(minutes=1)


class StoreClock:
    """The clock of an endpoint, which all its clients share.

    Attributes:
        offset: is added to this machine's time to sign a request. Zero if this machine's clock is right.
    """

    def __init__(self) -> None:
        self.offset = timedelta(0)

    def adjust(self, error: ClientError, signed_with: timedelta) -> bool:
        """Sign with the time of the response from now on.

        Args:
            error: the response, which refuses the time of a request.
            signed_with: the offset when that request was signed, or before.

        Returns:
            Whether another attempt is signed with another time. Not if the response has no possible time, or one close to that.
        """
        if signed_with != self.offset:
            # Another request, which ran at the same time, has brought the store's time already.
            return True
        theirs = times.of_http(error.response.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date", ""))
        if theirs is None:
            return False
        offset = theirs - datetime.now(UTC)
        if abs(offset) < _TOLERANCE:
            offset = timedelta(0)
        # Close to the last year of Python, no later time could be computed.
        if abs(offset - self.offset) < _TOLERANCE or theirs.year == MAXYEAR:
            return False
        if offset:
            logger.warning(
                "the clock of this machine is wrong by %d seconds: cdfd signs requests with the store's time",
                -offset.total_seconds(),
            )
        else:
            logger.info("the clock of this machine is right again")
        self.offset = offset
        return True

    def sign(self, client: Any) -> None:
        """Let a client sign with the corrected time."""
        AUTH_TYPE_MAPS.setdefault(_SIGNATURE, _StoreTimeAuth)
        client.meta.events.register_first("choose-signer.s3", self._choose)

    def _choose(self, signature_version: Any, context: dict[str, Any], **_: Any) -> str | None:
        context[_OFFSET] = self.offset
        return _SIGNATURE if self.offset and signature_version in ("s3v4", "v4") else None


_clocks: defaultdict[str | None, StoreClock] = defaultdict(StoreClock)


def clock_of(endpoint: str | None) -> StoreClock:
    """The clock of an endpoint; None: of AWS."""
    return _clocks[endpoint]


class _StoreTimeAuth(S3SigV4Auth):  # type: ignore[misc]  # botocore has no types
    def _modify_request_before_signing(self, request: Any) -> None:
        request.context["timestamp"] = (datetime.now(UTC) + request.context[_OFFSET]).strftime(SIGV4_TIMESTAMP)
        super()._modify_request_before_signing(request)
