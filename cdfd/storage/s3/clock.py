"""The store's clock: requests are signed with a time, and the store refuses them if it is more than 15 minutes off.

Botocore signs with this machine's clock. If a store refuses the time, its response contains the store's time. From then on, requests are
signed with that.
"""

import logging
from datetime import MAXYEAR, UTC, datetime, timedelta
from typing import Any

from botocore.auth import AUTH_TYPE_MAPS, SIGV4_TIMESTAMP, S3SigV4Auth
from botocore.exceptions import ClientError

from cdfd.runtime import times

logger = logging.getLogger("cdfd.storage")

_offset = timedelta(0)
_SIGNATURE = "cdfd-s3v4"


def current_offset() -> timedelta:
    """The correction that is added to this machine's time to sign a request."""
    return _offset


def adjust_offset(error: ClientError, signed_with: timedelta) -> bool:
    """Sign with the time of the response from now on.

    Args:
        error: the response, which refuses the time of a request.
        signed_with: the offset when that request was signed, or before.

    Returns:
        Whether another attempt is signed with another time. Not if the response has no time that can be, or the corrected one is close to it.
    """
    global _offset
    if signed_with != _offset:
        # Another request, which ran at the same time, has brought the store's time already.
        return True
    theirs = times.of_http(error.response.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date", ""))
    if theirs is None:
        return False
    offset = theirs - datetime.now(UTC)
    # Close to the last year of Python, no later time could be computed.
    if abs(offset - _offset) < timedelta(minutes=1) or theirs.year == MAXYEAR:
        return False
    logger.warning(
        "the clock of this machine is wrong by %d seconds: cdfd signs requests with the store's time",
        -offset.total_seconds(),
    )
    _offset = offset
    return True


class _StoreTimeAuth(S3SigV4Auth):  # type: ignore[misc]  # botocore has no types
    def _modify_request_before_signing(self, request: Any) -> None:
        if _offset:
            request.context["timestamp"] = (datetime.now(UTC) + _offset).strftime(SIGV4_TIMESTAMP)
        super()._modify_request_before_signing(request)


def sign_with_store_time(client: Any) -> None:
    """Let a client sign with the corrected time."""
    AUTH_TYPE_MAPS.setdefault(_SIGNATURE, _StoreTimeAuth)
    client.meta.events.register_first("choose-signer.s3", _choose)


def _choose(signature_version: Any, **_: Any) -> str | None:
    return _SIGNATURE if _offset and signature_version in ("s3v4", "v4") else None
