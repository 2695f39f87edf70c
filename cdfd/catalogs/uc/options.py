"""Options of Unity Catalog, and where they come from if they are not set."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from cdfd.errors import ConfigError
from cdfd.storage.credentials import is_url

API = "/api/2.1/unity-catalog"


@dataclass(frozen=True, slots=True)
class UnityOptions:
    """All options of a client; equal options share one client.

    Attributes:
        endpoint: URL of the API, without a slash at its end.
        token, token_file: a bearer token, or a file with one, which is read again when it changes.
        client_id, client_secret, client_secret_file, token_url, scope: OAuth client credentials.
        ca_file: certificates to trust, besides those of the system.
        credentials: `vended` by the catalog, or the user's `own`.
        local_locations: whether tables may be on this machine. None: if the catalog is.
        requests_per_second: for all tables together.
        timeout: seconds for one request.
        deadline: seconds for a request with all its retries.
        store: options of the tables' stores, such as ("s3.region", "eu-west-1").
    """

    endpoint: str
    token: str | None = field(default=None, repr=False)
    token_file: str | None = None
    client_id: str | None = None
    client_secret: str | None = field(default=None, repr=False)
    client_secret_file: str | None = None
    token_url: str | None = None
    scope: str = "all-apis"
    ca_file: str | None = None
    credentials: str = "vended"
    local_locations: bool | None = None
    requests_per_second: float = 50.0
    timeout: float = 15.0
    deadline: float = 30.0
    store: tuple[tuple[str, object], ...] = field(default=(), repr=False)

    @property
    def host(self) -> str:
        """The catalog as errors name it: its host and port."""
        return urlsplit(self.endpoint).netloc


_NAMES = frozenset(UnityOptions.__dataclass_fields__) - {"store"}
_STORES = ("s3", "gs", "az")
"""Beginnings of options for the tables' stores: `s3.region`."""
_VARIABLES = {
    "endpoint": ("UC_ENDPOINT", "DATABRICKS_HOST"),
    "token": ("UC_TOKEN", "DATABRICKS_TOKEN"),
    "client_id": ("DATABRICKS_CLIENT_ID",),
    "client_secret": ("DATABRICKS_CLIENT_SECRET",),
}
_FLAGS = {"true": True, "false": False}


def parse(options: Mapping[str, object], environ: Mapping[str, str] | None = None) -> UnityOptions:
    """Options from a mapping. Those that are not set come from the environment, the secrets only if no secret is set.

    Args:
        options: such as {"endpoint": "https://catalog.example", "token_file": "/run/secrets/uc"}.
        environ: environment variables; None for those of the process.

    Raises:
        ConfigError: an unknown key, an invalid value, or no endpoint. The error contains no secrets.
    """
    environ = os.environ if environ is None else environ
    values: dict[str, object] = {}
    store: dict[str, object] = {}
    for key, value in options.items():
        name = key.lower()
        if name.partition(".")[0] in _STORES and "." in name:
            store[name] = value
        elif name not in _NAMES:
            near = difflib.get_close_matches(name, _NAMES, 1)
            hint = f"Did you mean {near[0]}?" if near else f"Known: {', '.join(sorted(_NAMES))}, s3.region and the like"
            raise ConfigError(f"unknown option {key!r:.100} of Unity Catalog", hint=hint)
        elif value is not None:
            values[name] = _value(name, value)
    secrets = ("token", "token_file", "client_id", "client_secret", "client_secret_file")
    chosen = any(name in values for name in secrets)
    for name, variables in _VARIABLES.items():
        if name not in values and not (chosen and name in secrets):
            text = next((environ[variable] for variable in variables if environ.get(variable)), None)
            values |= {} if text is None else {name: text}
    return _check(values, tuple(sorted(store.items())))


def _value(name: str, value: object) -> object:
    if name == "local_locations":
        flag = _FLAGS.get(str(value).lower())
        if flag is None:
            raise ConfigError(f"the option {name} of Unity Catalog is expected to be true or false")
        return flag
    if name in ("requests_per_second", "timeout", "deadline"):
        try:
            number = float(str(value))
        except ValueError:
            number = 0.0
        if not 0 < number < 1e6:
            raise ConfigError(f"the option {name} of Unity Catalog is expected to be a number above 0")
        return number
    if not isinstance(value, str) or not value:
        raise ConfigError(f"the option {name} of Unity Catalog is expected to be text")
    return value


def _check(values: dict[str, object], store: tuple[tuple[str, object], ...]) -> UnityOptions:
    endpoint = values.get("endpoint")
    if endpoint is None:
        raise ConfigError(
            "no endpoint of Unity Catalog is set",
            hint="Set `catalogs.uc.endpoint`, the option `endpoint`, or the variable UC_ENDPOINT",
        )
    for name in ("endpoint", "token_url"):
        if (url := values.get(name)) is not None and not is_url(str(url)):
            if name == "endpoint" and re.fullmatch(r"[A-Za-z0-9.-]+(:\d+)?/?", str(url)) and is_url(f"https://{url}"):
                values[name] = f"https://{url}"  # as in DATABRICKS_HOST
                continue
            raise ConfigError(
                f"the option {name} of Unity Catalog is not a URL", hint="Such as https://catalog.example"
            )
    base = str(values["endpoint"]).rstrip("/")
    values["endpoint"] = base if "/api/" in base else base + API
    if values.get("credentials", "vended") not in ("vended", "own"):
        raise ConfigError("the option credentials of Unity Catalog is expected to be vended or own")
    if "client_id" in values and not {"client_secret", "client_secret_file"} & set(values):
        raise ConfigError("the option client_id of Unity Catalog needs client_secret or client_secret_file")
    if "client_id" in values and "token_url" not in values:
        parts = urlsplit(str(values["endpoint"]))
        values["token_url"] = f"{parts.scheme}://{parts.netloc}/oidc/v1/token"
    return UnityOptions(**values, store=store)  # type: ignore[arg-type]  # names and types are those of the table above
