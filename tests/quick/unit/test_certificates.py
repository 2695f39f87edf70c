"""When certificates expire, and the warnings before. How often their files are loaded."""

import logging
import shutil
import ssl
import time
from pathlib import Path
from typing import Any

import pytest

from cdfd.config import certificates
from cdfd.config.certificates import expiry, has_expired, warn_of_expiry
from cdfd.errors import ConfigError
from cdfd.sinks.kafka.client.certificates import check_files
from cdfd.sinks.kafka.client.schema_registry import tls_of
from cdfd.sinks.kafka.security import Security
from cdfd.sinks.kafka.settings import SchemaRegistry
from tests.support.kafka.certificates import Certificates

DAY = 86_400


@pytest.fixture(scope="module")
def issued(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates.issue(tmp_path_factory.mktemp("certificates"))


def days(certificate: Path, key: Path, password: str = "") -> float | None:
    ends = expiry(str(certificate), str(key), password)
    return None if ends is None else (ends - time.time()) / DAY


def test_of_servers_and_of_clients(issued: Certificates) -> None:
    assert days(issued.server, issued.server) == pytest.approx(1, abs=0.01)
    assert days(issued.client, issued.client_key) == pytest.approx(1, abs=0.01)
    assert days(issued.client, issued.client_locked_key, issued.key_password) == pytest.approx(1, abs=0.01)


def test_expired_certificate_has_negative_days(issued: Certificates) -> None:
    for old in (issued.expired_server, issued.expired_client):
        assert days(old, old) == pytest.approx(-1, abs=0.01)
        assert has_expired(str(old), str(old))
    assert not has_expired(str(issued.client), str(issued.client_key))


def test_nothing_is_known_of_files_that_cannot_be_used(issued: Certificates, tmp_path: Path) -> None:
    assert days(issued.client, issued.server) is None
    assert days(issued.client, issued.client_locked_key, "wrong") is None
    assert days(tmp_path / "none", tmp_path / "none") is None
    assert not has_expired("none", "none")


def test_certificate_near_its_expiry_is_logged(
    issued: Certificates, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with caplog.at_level(logging.INFO, "cdfd.config"):
        warn_of_expiry("http.tls", str(issued.server), str(issued.server))
        warn_of_expiry("http.tls", str(issued.expired_server), str(issued.expired_server))
        monkeypatch.setattr(certificates, "SOON_DAYS", 0.5)
        warn_of_expiry("http.tls", str(issued.server), str(issued.server))
    assert [record.message for record in caplog.records] == [
        f"the certificate of http.tls expires in 1.0 days: renew {issued.server}",
        f"the certificate of http.tls has expired: renew {issued.expired_server}",
    ]


def test_files_of_kafka_are_loaded_again_only_after_a_change(
    issued: Certificates, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each table that is opened asks for them, and hundreds are opened at once when a broker has failed."""
    loaded, load = list[ssl.SSLContext](), ssl.SSLContext.load_verify_locations

    def count(context: ssl.SSLContext, *arguments: Any, **options: Any) -> None:
        loaded.append(context)
        load(context, *arguments, **options)

    monkeypatch.setattr(ssl.SSLContext, "load_verify_locations", count)
    authority = tmp_path / "ca.pem"
    security = Security.model_validate({"protocol": "SSL", "ca_path": str(authority)})
    registry = SchemaRegistry.model_validate({"url": "https://registry:8081", "ca_path": str(authority)})
    for number, source in enumerate((issued.ca, issued.other_ca), 1):
        replacement = tmp_path / "new.pem"
        shutil.copy(source, replacement)
        replacement.rename(authority)
        for _ in range(3):
            check_files(security)
        assert len(loaded) == 2 * number - 1
        assert len({tls_of(registry) for _ in range(3)}) == 1
        assert len(loaded) == 2 * number
    authority.write_text("no certificate")
    for _ in range(2):
        with pytest.raises(ConfigError, match="cannot be used"):
            check_files(security)
        with pytest.raises(ConfigError, match="cannot be used"):
            tls_of(registry)
