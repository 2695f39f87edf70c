"""Certificates for brokers and clients, of an authority made for the occasion."""

from __future__ import annotations

import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_DAY = datetime.timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Certificates:
    """PEM files.

    Attributes:
        ca: the authority's certificate.
        other_ca: that of an authority that signed none of them.
        server: certificate and key of a broker at 127.0.0.1; the name `localhost` is not in it.
        client: certificate of the user `CN=client`.
        client_key: its key.
        client_locked_key: the same key, locked with `key_password`.
        expired_server, expired_client: certificate and key in one, which were valid until yesterday.
    """

    ca: Path
    other_ca: Path
    server: Path
    client: Path
    client_key: Path
    client_locked_key: Path
    expired_server: Path
    expired_client: Path
    key_password: str = "correct horse"

    @classmethod
    def issue(cls, folder: Path) -> Certificates:
        """New ones, in an existing folder."""
        made = cls(
            ca=folder / "ca.pem",
            other_ca=folder / "other-ca.pem",
            server=folder / "server.pem",
            client=folder / "client.pem",
            client_key=folder / "client-key.pem",
            client_locked_key=folder / "client-locked-key.pem",
            expired_server=folder / "expired-server.pem",
            expired_client=folder / "expired-client.pem",
        )
        authority = _Identity.create("authority")
        server = _Identity.create("broker", authority, address="127.0.0.1")
        client = _Identity.create("client", authority)
        made.ca.write_bytes(authority.pem())
        made.other_ca.write_bytes(_Identity.create("another").pem())
        made.server.write_bytes(server.key_pem() + server.pem())
        made.client.write_bytes(client.pem())
        made.client_key.write_bytes(client.key_pem())
        made.client_locked_key.write_bytes(client.key_pem(made.key_password))
        for path, old in (
            (made.expired_server, _Identity.create("broker", authority, address="127.0.0.1", days=-1)),
            (made.expired_client, _Identity.create("client", authority, days=-1)),
        ):
            path.write_bytes(old.key_pem() + old.pem())
        return made


@dataclass(frozen=True, slots=True)
class _Identity:
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @classmethod
    def create(
        cls, name: str, issuer: _Identity | None = None, *, address: str | None = None, days: int = 1
    ) -> _Identity:
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        now = datetime.datetime.now(datetime.UTC)
        signer = issuer.key if issuer is not None else key
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(issuer.certificate.subject if issuer is not None else subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - 2 * _DAY)
            .not_valid_after(now + days * _DAY)
            .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
        )
        if issuer is None:
            builder = builder.add_extension(_may_sign(), critical=True)
        if issuer is not None:
            side = ExtendedKeyUsageOID.SERVER_AUTH if address is not None else ExtendedKeyUsageOID.CLIENT_AUTH
            builder = builder.add_extension(x509.ExtendedKeyUsage([side]), critical=False)
        if address is not None:
            names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(address))])
            builder = builder.add_extension(names, critical=False)
        return cls(builder.sign(signer, hashes.SHA256()), key)

    def pem(self) -> bytes:
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    def key_pem(self, password: str | None = None) -> bytes:
        locked: serialization.KeySerializationEncryption = serialization.NoEncryption()
        if password is not None:
            locked = serialization.BestAvailableEncryption(password.encode())
        return self.key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, locked)


def _may_sign() -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=True,
        crl_sign=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
