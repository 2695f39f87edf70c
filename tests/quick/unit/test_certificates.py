"""When certificates expire, and the warnings before."""

import logging
import time
from pathlib import Path

import pytest

from cdfd.config import certificates
from cdfd.config.certificates import expiry, has_expired, warn_of_expiry
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
