"""Tokens of IAM for Amazon MSK: signed by AWS's own library (`pip install cdfd[msk]`), sent with the mechanism OAUTHBEARER."""

import re
import time
from collections.abc import Sequence
from types import ModuleType

from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectionError,
    CredentialRetrievalError,
    HTTPClientError,
    MetadataRetrievalError,
)

from cdfd.errors import ConfigError, SinkError
from cdfd.sinks.kafka.client.tokens import Token
from cdfd.sinks.kafka.security import Aws

_TRANSIENT = (ConnectionError, CredentialRetrievalError, HTTPClientError, MetadataRetrievalError)
# b-1.shop.abc123.c2.kafka.eu-west-1.amazonaws.com, boot-abc123.c2.kafka-serverless.eu-west-1.amazonaws.com
_BROKER = re.compile(r"\.kafka(?:-serverless)?\.(?P<region>[a-z0-9-]+)\.amazonaws\.com(?:\.cn)?:\d+")
_HINT = "Check the AWS credentials of this process: its role, profile or variables"


def signer() -> ModuleType:
    """AWS's library. `ConfigError` if it is not installed."""
    try:
        from aws_msk_iam_sasl_signer import MSKAuthTokenProvider
    except ImportError as error:
        raise ConfigError(
            "sink.security.mechanism is AWS_MSK_IAM, but aws-msk-iam-sasl-signer-python is not installed",
            hint="Run pip install 'cdfd[msk]'",
        ) from error
    provider: ModuleType = MSKAuthTokenProvider
    return provider


def region_of(aws: Aws, servers: Sequence[str]) -> str:
    """The region of a cluster. `ConfigError` if neither settings nor names of brokers have it."""
    regions = (match["region"] for server in servers if (match := _BROKER.search(server)))
    region = aws.region or next(regions, None)
    if region is None:
        raise ConfigError(
            "the region of the MSK cluster is not known", hint="Set sink.security.aws.region, such as eu-west-1"
        )
    return region


def fetch(aws: Aws, region: str) -> Token:
    """A new token, which is valid for 15 minutes.

    Raises:
        SinkError: there are no credentials. Only errors of networks and of AWS itself are retriable.
        ConfigError: the library is not installed.
    """
    library = signer()
    now = time.time()
    try:
        if aws.profile is not None:
            value, expires_ms = library.generate_auth_token_from_profile(region, aws.profile)
        elif aws.role_arn is not None:
            value, expires_ms = library.generate_auth_token_from_role_arn(region, aws.role_arn, "cdfd")
        else:
            value, expires_ms = library.generate_auth_token(region)
    except AttributeError:
        # The library goes on with None if it finds no credentials.
        raise SinkError(f"{_CANNOT}: no credentials found", hint=_HINT) from None
    except ClientError as error:
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        reason = error.response.get("Error", {}).get("Code", "unknown error")
        hint = "Check sink.security.aws.role_arn, and that the role trusts this process"
        raise SinkError(f"{_CANNOT}: {reason}", hint=hint, retriable=status >= 500 or status == 429) from None
    except (BotoCoreError, ValueError) as error:
        raise SinkError(f"{_CANNOT}: {error}", hint=_HINT, retriable=isinstance(error, _TRANSIENT)) from None
    return Token(value, expires_ms / 1000, now)


_CANNOT = "cannot sign a token for Amazon MSK"
