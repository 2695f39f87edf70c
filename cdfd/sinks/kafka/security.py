"""The section `sink.security`: access to a Kafka cluster."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import model_validator

from cdfd.config.problems import Conflicts, Path, refuse
from cdfd.config.settings import LocalPath, SecretText, Section, Text, UserText, WebAddress


class OAuth(Section):
    """Tokens for the mechanism OAUTHBEARER, or for a schema registry: from a token endpoint with client credentials, or from a file."""

    token_url: WebAddress | None = None
    """Token endpoint of the identity provider. Its grant is `client_credentials`."""

    client_id: Text | None = None
    """Id of the client at the identity provider. Required with `token_url`."""

    client_secret: SecretText | None = None
    """Secret of the client. Required with `token_url`."""

    client_authentication: Literal["basic", "post"] = "basic"
    """How the client sends id and secret. `basic`: in a header. `post`: in the form, which some providers want."""

    scope: Text | None = None
    """Scopes of the token, with spaces between them."""

    parameters: Mapping[str, Text] = {}
    """Further fields of the form, such as `audience`."""

    ca_path: LocalPath | None = None
    """PEM file of the authorities that the token endpoint's certificate may have.

    Default: the system's.
    """

    token: SecretText | None = None
    """A token, instead of `token_url`. With `token_file`, something else renews the file, such as Kubernetes."""

    extensions: Mapping[str, Text] = {}
    """SASL extensions that the broker wants, such as `logicalCluster`. A schema registry does not get them."""

    @model_validator(mode="after")
    def _check_source(self) -> OAuth:
        conflicts: list[tuple[Path, str]] = []
        if (self.token_url is None) == (self.token is None):
            conflicts.append(((), "either token_url or token is required"))
        for name in ("client_id", "client_secret"):
            if self.token_url is not None and getattr(self, name) is None:
                conflicts.append(((name,), "required with token_url"))
        if self.token is not None and self.token_url is None:
            of_endpoint = {
                "client_id": self.client_id,
                "client_secret": self.client_secret,
                "client_authentication": self.client_authentication != "basic",
                "scope": self.scope,
                "parameters": self.parameters,
                "ca_path": self.ca_path,
            }
            conflicts += [((name,), "has no use with token") for name, value in of_endpoint.items() if value]
        conflicts += [
            (("parameters", name), "has a key of its own, or is always the same")
            for name in self.parameters
            if name in ("grant_type", "scope", "client_id", "client_secret")
        ]
        # RFC 7628: names are letters, and a control character ends a value. `auth` is the token itself.
        conflicts += [
            (("extensions", name), "expected a name of letters other than auth, and a printable value")
            for name, value in self.extensions.items()
            if not re.fullmatch("[A-Za-z]+", name) or name == "auth" or not value.isprintable()
        ]
        refuse(conflicts)
        return self


class Aws(Section):
    """IAM access to Amazon MSK, for the mechanism AWS_MSK_IAM. Credentials come from the usual chain of AWS, or as here."""

    region: Text | None = None
    """Region of the cluster.

    Default: the one in the brokers' names.
    """

    profile: Text | None = None
    """A profile of the AWS configuration files, instead of the usual chain."""

    role_arn: Text | None = None
    """A role that cdfd assumes, with the credentials of the usual chain."""

    @model_validator(mode="after")
    def _check_source(self) -> Aws:
        if self.profile is not None and self.role_arn is not None:
            raise Conflicts((("role_arn",), "has no use with profile, which can name a role itself"))
        return self


class Security(Section):
    """Access to the Kafka cluster."""

    protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    """Protocol of the connections."""

    mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "AWS_MSK_IAM"] | None = None
    """SASL mechanism. Required with SASL. `AWS_MSK_IAM` needs `pip install 'cdfd[msk]'`."""

    username: UserText | None = None
    """User name. Required with PLAIN and SCRAM."""

    password: SecretText | None = None
    """Password. Required with PLAIN and SCRAM."""

    ca_path: LocalPath | None = None
    """PEM file of trusted certificate authorities.

    Default: the system's.
    """

    certificate_path: LocalPath | None = None
    """PEM file of the client's certificate."""

    key_path: LocalPath | None = None
    """PEM file of the client's private key."""

    key_password: SecretText | None = None
    """Password of the private key."""

    oauth: OAuth | None = None
    aws: Aws | None = None

    @model_validator(mode="before")
    @classmethod
    def _refuse_kerberos(cls, data: Any) -> Any:
        mechanism = data.get("mechanism") if isinstance(data, dict) else None
        if isinstance(mechanism, str) and mechanism.upper() in ("GSSAPI", "KERBEROS"):
            what = (
                "Kerberos (GSSAPI) is not supported. Use SCRAM-SHA-512, OAUTHBEARER or a client certificate: "
                "a cluster can have a listener for them next to the one for Kerberos"
            )
            raise Conflicts((("mechanism",), what))
        return data

    @model_validator(mode="after")
    def _check_protocol(self) -> Security:
        conflicts: list[tuple[Path, str]] = []
        sasl = self.protocol.startswith("SASL_")
        own = {"OAUTHBEARER": ("oauth",), "AWS_MSK_IAM": ("aws",)}.get(self.mechanism or "", ("username", "password"))
        needed = {"mechanism", *own} - {"aws"} if sasl else set()
        for name in ("mechanism", "username", "password", "oauth", "aws"):
            is_set = getattr(self, name) is not None
            if name in needed and not is_set:
                mechanism = f" and mechanism {self.mechanism}" if name == "oauth" else ""
                conflicts.append(((name,), f"required with protocol {self.protocol}{mechanism}"))
            elif is_set and not sasl:
                useless = f"has no use with protocol {self.protocol}; expected SASL_SSL or SASL_PLAINTEXT"
                conflicts.append(((name,), useless))
            elif is_set and name not in ("mechanism", *own):
                conflicts.append(((name,), f"has no use with mechanism {self.mechanism}"))
        if self.mechanism == "AWS_MSK_IAM" and self.protocol == "SASL_PLAINTEXT":
            conflicts.append((("protocol",), "expected SASL_SSL with mechanism AWS_MSK_IAM"))
        tls = self.protocol.endswith("SSL")
        for name in ("ca_path", "certificate_path", "key_path"):
            if not tls and getattr(self, name) is not None:
                conflicts.append(((name,), f"has no use with protocol {self.protocol}; expected SSL or SASL_SSL"))
        if tls and (self.certificate_path is None) != (self.key_path is None):
            conflicts.append(((), "certificate_path and key_path go together"))
        if self.key_password is not None and self.key_path is None:
            conflicts.append((("key_password",), "has no use without key_path"))
        refuse(conflicts)
        return self
