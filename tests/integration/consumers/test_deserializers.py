"""confluent-kafka's deserializers read the three encodings with a registry, and are left with the rows of the Delta table."""

import socket
import ssl
from collections.abc import Iterable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from cdfd.errors import SinkError
from cdfd.sinks.kafka.client.schema_registry import SchemaRegistry, tls_of
from cdfd.sinks.kafka.settings import SchemaRegistry as Settings
from tests.support.consumers import deserializers
from tests.support.consumers.images import Images, as_numbers, difference, images
from tests.support.consumers.life import NESTED, SCALARS, Life
from tests.support.consumers.living import deliver
from tests.support.kafka.certificates import Certificates
from tests.support.kafka.pipeline import Pipeline
from tests.support.schema_registry import Registry, serving

_CHOICES = [
    {"envelope": "flat", "encoding": "avro"},
    {"envelope": "flat", "encoding": "json_schema", "binary": "hex"},
    {"envelope": "flat", "encoding": "protobuf"},
    {"envelope": "debezium", "encoding": "json_schema", "binary": "hex"},
    {"envelope": "debezium", "encoding": "protobuf"},
]


def folded(pairs: Iterable[deserializers.Pair]) -> list[Mapping[str, Any]]:
    """The rows that are left. Records of one key are in order."""
    rows: dict[int, Mapping[str, Any]] = {}
    for key, value in pairs:
        if value is None or value.get("_change_type") == "delete" or value.get("op") == "d":
            rows.pop(key["id"], None)
        else:
            rows[key["id"]] = value["after"] if "op" in value else value
    return list(rows.values())


def without_empty(rows: Images) -> Images:
    """Protobuf does not tell an array or a map that is empty from one that is null."""
    return {
        number: {name: None if each in ([], {}) else each for name, each in row.items()} for number, row in rows.items()
    }


@pytest.mark.parametrize("choice", _CHOICES, ids=lambda choice: f"{choice['envelope']}-{choice['encoding']}")
def test_the_rows_are_left(choice: Mapping[str, str], pipeline: Pipeline, registry: Registry) -> None:
    topics = {"prefix": f"{pipeline.name}.", "partitions": 3}
    sink = {"format": choice, "tombstones": "always", "schema_registry": {"url": registry.url}, "topics": topics}
    pipeline.configure(sink=sink)
    life = Life(pipeline.uri, 7, steps=20, columns=(*SCALARS, *NESTED))
    deliver(pipeline, life, 7)
    pairs = deserializers.pairs(pipeline.direct, pipeline.topic, {"url": registry.url}, choice["encoding"])
    assert None in [value for _, value in pairs]
    check(pairs, life, choice["encoding"])


def check(pairs: Iterable[deserializers.Pair], life: Life, encoding: str) -> None:
    actual, expected = images(folded(pairs), life.schema), life.images()
    if encoding == "json_schema":
        expected = as_numbers(expected)
    elif encoding == "protobuf":
        actual, expected = without_empty(actual), without_empty(expected)
    assert not difference(actual, expected)


@pytest.mark.parametrize("strategy", ["record", "topic_record"])
@pytest.mark.parametrize("encoding", ["avro", "json_schema", "protobuf"])
def test_deserializers_name_the_subjects_that_cdfd_registers(
    encoding: str, strategy: str, pipeline: Pipeline, registry: Registry
) -> None:
    """The topic has a dash, which neither Avro nor Protobuf allows in names."""
    assert "-" in pipeline.topic
    pipeline.configure(
        sink={
            "format": {"encoding": encoding, **({"binary": "hex"} if encoding == "json_schema" else {})},
            "schema_registry": {"url": registry.url, "subject": strategy},
            "topics": {"prefix": f"{pipeline.name}."},
        }
    )
    life = Life(pipeline.uri, 8, steps=12, columns=(*SCALARS, *NESTED))
    deliver(pipeline, life, 8)
    assert not {f"{pipeline.topic}-key", f"{pipeline.topic}-value"} & registry.subjects.keys()
    check(
        deserializers.pairs(pipeline.direct, pipeline.topic, {"url": registry.url}, encoding, strategy), life, encoding
    )


def test_registry_with_its_own_authority_and_clients_certificates(pipeline: Pipeline, tmp_path: Path) -> None:
    """The first URL is down. confluent-kafka's client has the same URLs and certificates."""
    certificates = Certificates.issue(tmp_path)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=certificates.ca)
    tls.load_cert_chain(certificates.server)
    tls.verify_mode = ssl.CERT_REQUIRED
    with socket.create_server(("127.0.0.1", 0)) as free:
        down = f"https://127.0.0.1:{free.getsockname()[1]}"
    with serving(tls=tls) as secured:
        files = {
            "certificate_path": certificates.client,
            "key_path": certificates.client_key,
            "ca_path": certificates.ca,
        }
        settings = {"url": [down, secured.url], **{name: str(path) for name, path in files.items()}}
        topics = {"prefix": f"{pipeline.name}."}
        pipeline.configure(sink={"format": "avro", "schema_registry": settings, "topics": topics})
        life = Life(pipeline.uri, 9, steps=8, columns=(*SCALARS, *NESTED))
        deliver(pipeline, life, 9)
        client = {
            "url": f"{down},{secured.url}",
            "ssl.ca.location": str(certificates.ca),
            "ssl.certificate.location": str(certificates.client),
            "ssl.key.location": str(certificates.client_key),
        }
        check(deserializers.pairs(pipeline.direct, pipeline.topic, client, "avro"), life, "avro")
        for files, reason in (({}, "CERTIFICATE_VERIFY_FAILED"), ({"ca_path": str(certificates.ca)}, "REQUIRED|EOF")):
            known = tls_of(Settings.model_validate({"url": secured.url, **files}))
            stranger = SchemaRegistry(secured.url, tls=known, attempts=1)
            with closing(stranger), pytest.raises(SinkError, match=reason):
                stranger.check()
