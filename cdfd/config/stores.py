"""The sections `storage` and `catalogs` of a configuration file: access to the places of tables and ledgers."""

from __future__ import annotations

from typing import Literal

from pydantic import model_validator

from cdfd.config.fields import Count, Flag, LocalPath, Seconds, SecretText, Section, Text, WebAddress
from cdfd.config.problems import Conflicts


class S3(Section):
    """Access to S3 and compatible stores. cdfd takes keys that you do not set from `AWS_*` variables, profiles and roles."""

    endpoint_url: WebAddress | None = None
    """Address of an S3-compatible store.

    Default: `AWS_ENDPOINT_URL_S3`, `AWS_ENDPOINT_URL`, or AWS.
    """

    region: Text | None = None
    """Region of the bucket.

    Default: `AWS_REGION`, `AWS_DEFAULT_REGION`.
    """

    access_key_id: SecretText | None = None
    """Id of the access key. The three credentials go together: if you set one, cdfd ignores those of the environment.

    Default: `AWS_ACCESS_KEY_ID`.
    """

    secret_access_key: SecretText | None = None
    """Secret of the access key.

    Default: `AWS_SECRET_ACCESS_KEY`.
    """

    session_token: SecretText | None = None
    """Token of temporary credentials.

    Default: `AWS_SESSION_TOKEN`.
    """

    profile: Text | None = None
    """A profile of the AWS configuration files. Without credentials, cdfd tries web identity, container and instance.

    Default: `AWS_PROFILE`.
    """

    path_style: Flag | None = None
    """Whether URLs are `endpoint/bucket/key` instead of `bucket.endpoint/key`.

    Default: `true` with `endpoint_url`.
    """

    request_payer: Flag = False
    """Whether you agree to pay for requests."""

    server_side_encryption: Literal["AES256", "aws:kms", "aws:kms:dsse"] | None = None
    """Encryption of the objects that cdfd writes, such as the ledger and Delta targets."""

    kms_key_id: Text | None = None
    """Key for the encryption."""

    connect_timeout: Seconds = 5.0
    """Longest time to connect."""

    read_timeout: Seconds = 15.0
    """Longest wait for the next bytes of a response."""

    deadline: Seconds = 60.0
    """Longest time for a request with all its retries. After it, the request is an error."""

    @model_validator(mode="after")
    def _check_credentials(self) -> S3:
        if (self.access_key_id is None) != (self.secret_access_key is None):
            raise Conflicts(((), "access_key_id and secret_access_key go together"))
        if self.session_token is not None and self.access_key_id is None:
            raise Conflicts((("session_token",), "has no use without access_key_id and secret_access_key"))
        return self

    def options(self) -> dict[str, object]:
        """The options for `open_storage`, with revealed secrets. Never show them."""
        return self.set_fields()


class Storage(Section):
    """Access to the stores of tables, ledgers and Delta targets."""

    s3: S3 = S3()

    def options(self, uri: str) -> dict[str, object]:
        """The options for `open_storage` at a location, with revealed secrets. Stores other than S3 have their own configuration."""
        return self.s3.options() if uri.lower().startswith(("s3:", "s3a:")) else {}


class UnityCatalog(Section):
    """Unity Catalog, for tables named `uc://catalog.schema.table`. cdfd takes what you do not set from `UC_ENDPOINT`, `UC_TOKEN` and the
    variables of Databricks, such as `DATABRICKS_HOST` and `DATABRICKS_CLIENT_SECRET`.
    """

    endpoint: WebAddress | None = None
    """Address of the server or workspace, such as `https://catalog.example`.

    Default: `UC_ENDPOINT`, `DATABRICKS_HOST`.
    """

    token: SecretText | None = None
    """A bearer token. A file is read again when it changes.

    Default: `UC_TOKEN`, `DATABRICKS_TOKEN`.
    """

    client_id: Text | None = None
    """Id of an OAuth client, or of a service principal. cdfd gets its tokens and renews them.

    Default: `DATABRICKS_CLIENT_ID`.
    """

    client_secret: SecretText | None = None
    """Secret of the OAuth client.

    Default: `DATABRICKS_CLIENT_SECRET`.
    """

    token_url: WebAddress | None = None
    """Address that gives tokens to the OAuth client.

    Default: `/oidc/v1/token` of the endpoint.
    """

    scope: Text = "all-apis"
    """Scope of the OAuth client's tokens."""

    ca_file: LocalPath | None = None
    """Certificates of authorities that sign the server's.

    Default: those of the system.
    """

    credentials: Literal["vended", "own"] = "vended"
    """Credentials for the tables' files. `vended`: temporary ones of the catalog. `own`: those of `storage.s3`, or of the environment."""

    local_locations: Flag | None = None
    """Whether the catalog's tables may be on the daemon's machine. Then the catalog's owners can make the daemon read local files.

    Default: `true` if the catalog is on the same machine.
    """

    requests_per_second: Count = 50
    """Requests a second to the catalog, of all tables together."""

    timeout: Seconds = 15.0
    """Longest time for one request."""

    deadline: Seconds = 30.0
    """Longest time for a request with all its retries. After it, the request is an error, and the table is tried again later."""

    def options(self, s3: S3) -> dict[str, object]:
        """The options for `open_storage`, with revealed secrets. Never show them."""
        secrets = {"token": self.token, "client_secret": self.client_secret}
        files = {f"{name}_file": secret.file for name, secret in secrets.items() if secret is not None and secret.file}
        own = s3.options()
        if self.credentials == "vended":
            own = {name: value for name, value in own.items() if name not in _OWN_KEYS}
        return self.set_fields() | files | {f"s3.{name}": value for name, value in own.items()}


_OWN_KEYS = frozenset({"access_key_id", "secret_access_key", "session_token", "profile"})


class Glue(Section):
    """AWS Glue, for tables named `glue://database.table`. Its credentials are those of `storage.s3`."""

    region: Text | None = None
    """Region of the catalog.

    Default: that of `storage.s3`.
    """

    catalog_id: Text | None = None
    """Account of the catalog.

    Default: your own.
    """

    endpoint_url: WebAddress | None = None
    """Address of the service.

    Default: that of AWS.
    """

    def options(self, s3: S3) -> dict[str, object]:
        """The options for `open_storage`, with revealed secrets. Never show them."""
        own = s3.options()
        shared = {name: value for name, value in own.items() if name in _OWN_KEYS or name == "region"}
        return shared | self.set_fields() | {f"s3.{name}": value for name, value in own.items()}


class Catalogs(Section):
    """Catalogs that name tables."""

    uc: UnityCatalog = UnityCatalog()
    glue: Glue = Glue()
