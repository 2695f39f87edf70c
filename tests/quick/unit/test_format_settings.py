"""`sink.format`: a word, or an envelope and an encoding."""

from typing import Any

import pytest

from cdfd.config.parser import parse
from cdfd.config.problems import ConfigProblems
from cdfd.encode.formats import CHOICES, FormatChoice, RecordFormat
from cdfd.runtime.registry import RECORD_FORMATS
from cdfd.sinks.kafka.settings import KafkaSettings

CONFIG = """
pipeline: shop
tables: [{{uri: /lake/orders}}]
sink: {{kind: kafka, bootstrap_servers: "a:1", format: {form}, schema_registry: {{url: "http://registry:8081"}}}}
"""


def sink(form: str) -> KafkaSettings:
    actual = parse(CONFIG.format(form=form), {}).sink
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
