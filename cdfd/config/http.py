"""The section `http` of a configuration file: the server, and who may use it."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import PlainValidator, model_validator

from cdfd.config import values
from cdfd.config.fields import AS_TEXT, LocalPath, SecretText, Section, UserText
from cdfd.config.problems import Conflicts
from cdfd.config.values import Listen


class HttpTls(Section):
    """TLS of the server. The daemon reads the files again when they change."""

    certificate: LocalPath
    """PEM file of the server's certificate, with its chain."""

    key: LocalPath
    """PEM file of the certificate's private key."""

    client_ca: LocalPath | None = None
    """PEM file of certificate authorities. With it, every request needs a client certificate, except for `/healthz` and
    `/readyz`.
    """


class HttpAuthentication(Section):
    """Authentication of every request except for `/healthz` and `/readyz`: by user and password, by token, or by either."""

    username: UserText | None = None
    """User name, for basic authentication."""

    password: SecretText | None = None
    """Password, for basic authentication."""

    token: SecretText | None = None
    """Token, for bearer authentication."""

    @model_validator(mode="after")
    def _check_ways(self) -> HttpAuthentication:
        if (self.username is None) != (self.password is None):
            raise Conflicts(((), "username and password go together"))
        if self.username is None and self.token is None:
            raise Conflicts(((), "username and password, or token, are required"))
        return self


class Http(Section):
    """Metrics, health and status over HTTP."""

    nullable: ClassVar[frozenset[str]] = frozenset({"listen"})

    listen: Annotated[Listen, PlainValidator(Listen.parse), AS_TEXT] | None = Listen("127.0.0.1", 9464)
    """Address of metrics, health and status. `null` turns the server off."""

    hosts: tuple[Annotated[str, PlainValidator(values.host_name)], ...] = ()
    """Additional host names in URLs. `*.example.com` stands for all names below a domain, `*` for any name."""

    tls: HttpTls | None = None
    authentication: HttpAuthentication | None = None
