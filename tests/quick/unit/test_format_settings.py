"""`sink.format`: a word, or an envelope and an encoding."""

import itertools
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from cdfd.config.parser import parse
from cdfd.config.problems import ConfigProblems
from cdfd.encode.formats import CHOICES, EncoderOptions, FormatChoice, RecordFormat, keys_of
from cdfd.encode.records import Origin
from cdfd.encode.registered import Registration
from cdfd.runtime.registry import RECORD_FORMATS
from cdfd.sinks.kafka.settings import KafkaSettings
from tests.support.schemas import Catalog

KEYED = ["k", "_change_type", "_commit_version", "_commit_timestamp", "_change_ordinal"]
CONFIG = """
pipeline: shop
tables: [{{uri: /lake/orders}}]
sink: {{kind: kafka, bootstrap_servers: "a:1", format: {form}, schema_registry: {{url: "http://registry:8081"}}}}
"""


def sink(form: str, framing: str = "confluent", longs: str = "number") -> KafkaSettings:
    text = CONFIG.format(form=form).replace('8081"}', f'8081", framing: {framing}}}, longs: {longs}')
    actual = parse(text, {}).sink
    assert isinstance(actual, KafkaSettings)
    return actual


@pytest.mark.parametrize("word", CHOICES)
def test_a_word_is_an_envelope_and_an_encoding(word: str) -> None:
    choice = CHOICES[word]
    same = sink(f"{{envelope: {choice.envelope}, encoding: {choice.encoding}}}").format
    assert sink(word).format == sink(f"{{name: {word}}}").format == same
    assert (same.choice, str(same)) == (choice, word)


def test_forms_of_values_go_with_a_word() -> None:
    actual = sink("{name: debezium, decimal: double}").format
    assert actual.choice == FormatChoice("debezium", "json", decimal="double")
    assert str(actual) == "{envelope: debezium, encoding: json}"


@pytest.mark.parametrize("longs", ["number", "string"])
@pytest.mark.parametrize("framing", ["confluent", "apicurio"])
@pytest.mark.parametrize("decimal", ["precise", "string", "double"])
@pytest.mark.parametrize("encoding", ["json", "json_schema", "connect_json", "avro", "protobuf"])
def test_typed_keys_are_those_whose_bytes_change(encoding: str, decimal: str, framing: str, longs: str) -> None:
    """A compacted topic would keep the record of the old key for ever."""
    if (encoding, decimal) == ("protobuf", "precise"):
        return
    settings = sink(f"{{encoding: {encoding}, decimal: {decimal}}}", framing, longs)
    assert settings.schema_registry is not None
    choice = settings.format.choice
    assert isinstance(choice, FormatChoice)
    registration = Registration(Catalog(), framing=settings.schema_registry.framing)
    options = EncoderOptions(
        Origin("p", "t", "id", "t"), ("k",), longs_as_strings=longs == "string", registration=registration
    )

    def key(kind: pa.DataType) -> bytes:
        # As the feed does after a schema change, with one registry.
        keys = keys_of(choice, options)
        assert keys is not None
        value = Decimal(7) if pa.types.is_decimal(kind) else 7
        (text,) = keys(
            pa.record_batch([pa.array([value], kind), *(pa.array([0]) for _ in range(4))], KEYED)
        ).to_pylist()
        before, after = keys.encoding.wrapping
        return before + text + after

    integers = {"byte": pa.int8(), "short": pa.int16(), "integer": pa.int32(), "long": pa.int64()}
    decimals = {"decimal(5,2)": pa.decimal128(5, 2), "decimal(9,2)": pa.decimal128(9, 2)}
    for kinds in (integers, {"float": pa.float32(), "double": pa.float64()}, decimals):
        for (old, first), (new, second) in itertools.combinations(kinds.items(), 2):
            typed = {old.partition("(")[0], new.partition("(")[0]} & settings.typed_keys
            assert (key(first) != key(second)) == bool(typed), (old, new)


def test_tombstones_follow_every_delete_in_the_envelope_of_debezium() -> None:
    assert sink("{envelope: debezium, encoding: protobuf}").tombstone_rule == "always"
    assert sink("{encoding: protobuf}").tombstone_rule == "auto"


@pytest.mark.parametrize(
    ("form", "problem"),
    [
        ("dbezium", "sink.format: expected flat, debezium, avro, arrow or cloudevents, or a mapping"),
        ("{envelope: debezium, encoding: arrow}", "sink.format.envelope: encoding arrow has the envelope flat alone"),
        ("{encoding: arrow, time: iso}", "sink.format.time: encoding arrow has values as they are"),
        ("{encoding: protobuf, decimal: precise}", "sink.format.decimal: encoding protobuf has no such type"),
        ("{name: avro, encoding: json}", "sink.format.encoding: has no use with name"),
        ("{encoding: xml}", "sink.format.encoding: expected json, json_schema, connect_json, avro, protobuf or arrow"),
    ],
)
def test_what_does_not_go_together(form: str, problem: str) -> None:
    with pytest.raises(ConfigProblems) as info:
        sink(form)
    assert problem in str(info.value)


def test_an_encoding_with_schemas_needs_a_registry() -> None:
    text = CONFIG.format(form="{encoding: json_schema}").replace(', schema_registry: {url: "http://registry:8081"}', "")
    with pytest.raises(ConfigProblems, match=r"schema_registry: required with format .*json_schema"):
        parse(text, {})


def test_a_format_of_another_package(monkeypatch: pytest.MonkeyPatch) -> None:
    made: Any = RecordFormat(lambda _options: None)  # type: ignore[arg-type,return-value]
    monkeypatch.setitem(RECORD_FORMATS._loaded, "tsv", made)
    assert sink("tsv").format.record_format is made
    with pytest.raises(ConfigProblems, match=r"format.decimal: has no use with name"):
        sink("{name: tsv, decimal: double}")
