"""Tokens of IAM for Amazon MSK, signed by AWS's library; STS is moto's."""

import base64
import sys
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from moto.server import ThreadedMotoServer

from cdfd.errors import ConfigError, SinkError
from cdfd.sinks.kafka.client import msk
from cdfd.sinks.kafka.client.login import login
from cdfd.sinks.kafka.security import Aws, Security

SERVERS = ["b-1.shop.abc123.c2.kafka.eu-west-1.amazonaws.com:9098"]


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "AWS_ACCESS_KEY_ID": "AKIDEXAMPLE",
        "AWS_SECRET_ACCESS_KEY": "s3cret-key",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": "/dev/null",
        "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
    }.items():
        monkeypatch.setenv(name, value)


def signed(token: str) -> tuple[str, dict[str, list[str]]]:
    """The address that the token signs, and its parameters."""
    url = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)).decode()
    return urlsplit(url).netloc, parse_qs(urlsplit(url).query)


def test_a_token_is_a_signed_address() -> None:
    token = msk.fetch(Aws(), "eu-west-1")
    host, query = signed(token.value)
    assert host == "kafka.eu-west-1.amazonaws.com"
    assert query["Action"] == ["kafka-cluster:Connect"]
    assert query["X-Amz-Credential"][0].startswith("AKIDEXAMPLE/")
    assert query["X-Amz-Expires"] == ["900"]
    assert abs(token.expires - time.time() - 900) < 5
    assert "s3cret-key" not in repr(query)


def test_kafka_gets_it_with_oauthbearer() -> None:
    security = Security.model_validate({"protocol": "SASL_SSL", "mechanism": "AWS_MSK_IAM"})
    options = login(security, SERVERS)
    assert options["sasl_mechanism"] == "OAUTHBEARER"
    host, _ = signed(options["sasl_oauth_token_provider"].token())
    assert host == "kafka.eu-west-1.amazonaws.com"


@pytest.mark.parametrize(
    ("aws", "server", "region"),
    [
        ({}, SERVERS[0], "eu-west-1"),
        ({}, "boot-abc.c2.kafka-serverless.us-east-2.amazonaws.com:9098", "us-east-2"),
        ({}, "b-1.shop.abc.c2.kafka.cn-north-1.amazonaws.com.cn:9098", "cn-north-1"),
        ({"region": "eu-north-1"}, SERVERS[0], "eu-north-1"),
        ({"region": "eu-north-1"}, "kafka.internal:9098", "eu-north-1"),
    ],
)
def test_region_is_configured_or_that_of_the_server(aws: dict[str, Any], server: str, region: str) -> None:
    assert msk.region_of(Aws.model_validate(aws), [server]) == region


def test_server_without_a_region_asks_for_the_setting() -> None:
    with pytest.raises(ConfigError, match="region of the MSK cluster") as caught:
        msk.region_of(Aws(), ["kafka.internal:9098"])
    assert "sink.security.aws.region" in str(caught.value.hint)


def test_missing_credentials_are_not_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(SinkError, match="no credentials found") as caught:
        msk.fetch(Aws(), "eu-west-1")
    assert not caught.value.retriable


def test_a_profile_that_does_not_exist() -> None:
    with pytest.raises(SinkError, match="profile") as caught:
        msk.fetch(Aws(profile="none-such"), "eu-west-1")
    assert not caught.value.retriable


class TestRoles:
    ROLE = "arn:aws:iam::123456789012:role/cdfd"

    @pytest.fixture
    def sts(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
        server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
        server.start()
        host, port = server.get_host_and_port()
        monkeypatch.setenv("AWS_ENDPOINT_URL_STS", f"http://{host}:{port}")
        monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
        monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
        yield f"http://{host}:{port}"
        server.stop()

    def test_token_of_a_role_has_its_session(self, sts: str) -> None:
        _, query = signed(msk.fetch(Aws(role_arn=self.ROLE), "eu-west-1").value)
        assert not query["X-Amz-Credential"][0].startswith("AKIDEXAMPLE/")
        assert query["X-Amz-Security-Token"]

    def test_sts_is_away(self, sts: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("AWS_ENDPOINT_URL_STS", "http://127.0.0.1:1")
        with pytest.raises(SinkError, match="cannot sign a token") as caught:
            msk.fetch(Aws(role_arn=self.ROLE), "eu-west-1")
        assert caught.value.retriable


def test_the_library_is_an_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "aws_msk_iam_sasl_signer", None)
    security = Security.model_validate({"protocol": "SASL_SSL", "mechanism": "AWS_MSK_IAM"})
    with pytest.raises(ConfigError, match="aws-msk-iam-sasl-signer-python is not installed") as caught:
        login(security, SERVERS)
    assert caught.value.hint == "Run pip install 'cdfd[msk]'"
