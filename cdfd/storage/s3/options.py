"""Options of an S3-protocol store, with the keys that users know from delta-rs."""

import difflib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from cdfd.errors import ConfigError
from cdfd.storage.credentials import SOURCE, KeySource, is_url


@dataclass(frozen=True, slots=True)
class S3Options:
    """All options of a client; equal options share one client. None means the default of botocore's usual chain.

    Attributes:
        path_style: `endpoint/bucket/key` instead of `bucket.endpoint/key`; None to decide by the endpoint.
        anonymous: send unsigned requests, for public buckets.
        request_payer: agree to be billed for the requests.
        encryption, kms_key_id, bucket_key: server-side encryption of written objects (`aws:kms`, a key's id or ARN).
        connect_timeout, read_timeout: seconds to wait for a connection, or for the next bytes of a response.
        deadline: seconds that a call may take, with all its attempts.
        source: of keys that are renewed, instead of fixed ones and of the chain's.
    """

    endpoint_url: str | None = None
    region: str | None = None
    profile: str | None = None
    access_key_id: str | None = field(default=None, repr=False)
    secret_access_key: str | None = field(default=None, repr=False)
    session_token: str | None = field(default=None, repr=False)
    path_style: bool | None = None
    anonymous: bool = False
    request_payer: bool = False
    encryption: str | None = None
    kms_key_id: str | None = None
    bucket_key: bool = False
    connect_timeout: float = 5.0
    read_timeout: float = 15.0
    deadline: float = 60.0
    source: KeySource | None = field(default=None, repr=False)

    def redact(self, text: str) -> str:
        """A text from elsewhere, with these options' secrets masked."""
        for secret in (self.secret_access_key, self.session_token, self.access_key_id):
            if secret:
                text = text.replace(secret, "***")
        return text


_NAMES = {
    "endpoint_url": "endpoint_url",
    "endpoint": "endpoint_url",
    "endpoint_url_s3": "endpoint_url",
    "region": "region",
    "default_region": "region",
    "profile": "profile",
    "access_key_id": "access_key_id",
    "secret_access_key": "secret_access_key",
    "session_token": "session_token",
    "token": "session_token",
    "path_style": "path_style",
    "virtual_hosted_style_request": "path_style",
    "s3_addressing_style": "path_style",
    "skip_signature": "anonymous",
    "request_payer": "request_payer",
    "server_side_encryption": "encryption",
    "sse_kms_key_id": "kms_key_id",
    "kms_key_id": "kms_key_id",
    "sse_bucket_key_enabled": "bucket_key",
    "connect_timeout": "connect_timeout",
    "timeout": "read_timeout",
    "read_timeout": "read_timeout",
    "deadline": "deadline",
    "retry_timeout": "deadline",
}
_IGNORED = frozenset(
    {
        "allow_http",
        "s3_allow_unsafe_rename",
        "s3_locking_provider",
        "conditional_put",
        "copy_if_not_exists",
        "max_retries",
    }
)
"""Options of delta-rs that cdfd ignores, because it does not need them. So one mapping works for both."""
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m)?")
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, None: 1.0}
_FLAGS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


def parse(options: Mapping[str, object], environ: Mapping[str, str] | None = None) -> S3Options:
    """Options from a mapping. Keys are case-insensitive, the prefix `aws_` is optional, and values may be text.

    Args:
        options: such as {"AWS_ACCESS_KEY_ID": "...", "aws_endpoint_url": "http://localhost:9000"}.
        environ: environment variables for the region and the endpoint; None for those of the process. Botocore reads the credentials.

    Raises:
        ConfigError: an unknown key, or an invalid value. The error contains no secrets.
    """
    environ = os.environ if environ is None else environ
    values: dict[str, object] = {"source": options.get(SOURCE)}
    allow_http = True
    for key, value in options.items():
        name = key.lower().removeprefix("aws_")
        if name == "allow_http" and value is not None:
            allow_http = _as_flag(name, value)
        if value is None or name in _IGNORED or key == SOURCE:
            continue
        if name not in _NAMES:
            near = difflib.get_close_matches(name, _NAMES, 1)
            raise ConfigError(f"unknown storage option {key!r:.100}", hint=f"Did you mean {near[0]}?" if near else None)
        values[_NAMES[name]] = _value(name, _NAMES[name], value)
    # Botocore does not know the first of these, and does not use path-style addresses for the others.
    for name, variables in (("region", ("AWS_REGION",)), ("endpoint_url", ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"))):
        if values.get(name) is None:
            values[name] = next((environ[variable] for variable in variables if environ.get(variable)), None)
    parsed = S3Options(**values)  # type: ignore[arg-type]  # names and types are those of the tables above
    url = parsed.endpoint_url
    if url is not None and not is_url(url):
        raise ConfigError(
            "the storage option endpoint_url is not a URL",
            hint="For example https://minio.example:9000, without a user name",
        )
    if url is not None and url.startswith("http://") and not allow_http:
        raise ConfigError("the endpoint's address is http:// and allow_http is false", hint="Use https://, or allow it")
    if (parsed.access_key_id is None) != (parsed.secret_access_key is None):
        raise ConfigError("set both storage options access_key_id and secret_access_key, or neither")
    if parsed.session_token is not None and parsed.access_key_id is None:
        raise ConfigError("the storage option session_token needs access_key_id")
    return parsed


def _value(key: str, name: str, value: object) -> object:
    if name == "path_style":
        if key == "s3_addressing_style":
            styles = {"path": True, "virtual": False, "auto": None}
            if value not in styles:
                raise ConfigError(f"the storage option {key} is expected to be path, virtual or auto")
            return styles[str(value)]
        flag = _as_flag(key, value)
        return not flag if key == "virtual_hosted_style_request" else flag
    if name in ("anonymous", "request_payer", "bucket_key"):
        if name == "request_payer" and str(value).lower() == "requester":
            return True
        return _as_flag(key, value)
    if name in ("connect_timeout", "read_timeout", "deadline"):
        matched = _DURATION.fullmatch(str(value).strip())
        if matched is None or float(matched[1]) <= 0:
            raise ConfigError(f"the storage option {key} is not a duration", hint="For example 30, 500ms or 2m")
        return float(matched[1]) * _UNITS[matched[2]]
    if not isinstance(value, str) or not value:
        raise ConfigError(f"the storage option {key} is expected to be text")
    return value


def _as_flag(key: str, value: object) -> bool:
    flag = _FLAGS.get(str(value).lower())
    if flag is None:
        raise ConfigError(f"the storage option {key} is expected to be true or false")
    return flag
