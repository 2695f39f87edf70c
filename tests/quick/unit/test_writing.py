"""Content of log entries, and the rules of tables that an append cannot keep."""

import json
from typing import Any

import pytest

from cdfd.delta.actions import Metadata, Protocol
from cdfd.delta.protocol import WRITER_FEATURES
from cdfd.delta.types.column_mapping import highest_id
from cdfd.delta.types.datatypes import ArrayType, Primitive, StructField, StructType
from cdfd.delta.types.schema_merge import nullable
from cdfd.delta.write.checkpoint_writing import can_checkpoint
from cdfd.delta.write.writing import (
    check_appendable,
    conditions,
    features_of,
    keeps_ids,
    protocol_fields,
    with_features,
)
from cdfd.errors import LogError, UnsupportedError

INTEGER = Primitive("integer")


def metadata(**configuration: str) -> Metadata:
    return Metadata("id", "{}", (), {key.replace("_", "."): value for key, value in configuration.items()})


def struct(field: dict[str, Any]) -> StructType:
    return StructType((StructField("n", INTEGER, True, field),))


PLAIN = StructType(())


@pytest.mark.parametrize(
    ("protocol", "columns", "named"),
    [
        (Protocol(1, 4), struct({"delta.generationExpression": "1"}), "generatedColumns in column 'n'"),
        (Protocol(1, 6), struct({"delta.identity.start": 1}), "identityColumns in column 'n'"),
        (Protocol(3, 7, frozenset(), frozenset({"icebergCompatV2"})), PLAIN, "the feature icebergCompatV2"),
        (Protocol(3, 7, frozenset({"new"}), frozenset({"new"})), PLAIN, "the feature new"),
        (Protocol(1, 8), PLAIN, "writer version 8"),
        (Protocol(1, 0), PLAIN, "writer version 0"),
        (
            Protocol(1, 4),
            StructType((StructField("a", ArrayType(struct({"delta.generationExpression": "1"})), True, {}),)),
            "generatedColumns in column 'n'",
        ),
    ],
)
def test_table_that_cannot_be_appended_to_names_its_feature(
    protocol: Protocol, columns: StructType, named: str
) -> None:
    with pytest.raises(UnsupportedError, match="rows cannot be appended") as error:
        check_appendable(protocol, columns)
    assert error.value.what.endswith(named)


def test_conditions_are_those_of_the_table_and_of_its_columns() -> None:
    invariant = {"delta.invariants": json.dumps({"expression": {"expression": "n > 3"}})}
    inside = StructType((StructField("s", struct(invariant)),))
    assert conditions(metadata(delta_constraints_positive="n > 0"), inside) == {
        "the CHECK constraint 'positive'": "n > 0",
        "the invariant of column 'n'": "n > 3",
    }


@pytest.mark.parametrize("text", ["{}", "n > 3", "null", 1, '{"expression": "n > 3"}'])
def test_an_invariant_without_an_expression_is_refused(text: object) -> None:
    with pytest.raises(UnsupportedError, match="column 'n' has an unknown invariant"):
        conditions(metadata(), struct({"delta.invariants": text}))


def test_versions_alone_are_no_rules() -> None:
    for version in range(1, 7):
        check_appendable(Protocol(2, version), PLAIN)


@pytest.mark.parametrize("feature", sorted(WRITER_FEATURES))
def test_each_writer_feature_that_is_known_is_honoured_or_refused(feature: str) -> None:
    protocol = Protocol(3, 7, frozenset(), frozenset({feature}))
    refused = {"geospatial", "timestampNanos"}
    if feature in refused or feature.startswith("iceberg"):
        with pytest.raises(UnsupportedError, match=feature):
            check_appendable(protocol, PLAIN)
    else:
        check_appendable(protocol, PLAIN)
        # Without checkpoints, the log of a target that cdfd writes would grow for ever.
        assert can_checkpoint(protocol)


def test_features_are_added_to_any_protocol() -> None:
    needed = features_of(StructType((StructField("a", ArrayType(Primitive("timestamp_ntz")), True, {}),)))
    assert needed == {"timestampNtz"}
    assert protocol_fields(with_features(Protocol(1, 4), needed)) == {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": ["timestampNtz"],
        "writerFeatures": [
            "appendOnly",
            "changeDataFeed",
            "checkConstraints",
            "generatedColumns",
            "invariants",
            "timestampNtz",
        ],
    }
    listed = with_features(Protocol(1, 2), needed)
    assert with_features(listed, needed) is listed
    assert with_features(Protocol(1, 2), frozenset()) == Protocol(1, 2)


def test_a_changelog_has_no_rules_of_its_source() -> None:
    inner = StructType((StructField("b", INTEGER, False, {"delta.generationExpression": "1"}),))
    schema = StructType((StructField("a", ArrayType(inner, False), False, {"comment": "c", "delta.invariants": "{}"}),))
    (field,) = nullable(schema)
    assert field == StructField(
        "a", ArrayType(StructType((StructField("b", INTEGER, True, {}),))), True, {"comment": "c"}
    )


@pytest.mark.parametrize(("text", "highest"), [(None, 7), ("1", 7), ("9", 9), ("2147483647", 2**31 - 1)])
def test_the_highest_id_is_never_below_those_of_columns(text: str | None, highest: int) -> None:
    properties = {} if text is None else {"delta.columnMapping.maxColumnId": text}
    inside = StructType((StructField("a", ArrayType(struct({"delta.columnMapping.id": 7})), True, {}),))
    assert highest_id(properties, inside) == highest


@pytest.mark.parametrize("text", ["", "-1", "many", "9" * 11, "9" * 5_000])
def test_a_highest_column_id_that_is_no_number(text: str) -> None:
    with pytest.raises(LogError, match="must be a 32-bit whole number"):
        highest_id({"delta.columnMapping.maxColumnId": text}, StructType(()))


def test_writer_feature_is_added_to_reader_features_that_are_there() -> None:
    vectors = frozenset({"deletionVectors"})
    actual = with_features(Protocol(3, 7, vectors, vectors), vectors, frozenset({"changeDataFeed"}))
    assert (actual.reader_features, actual.writer_features) == (vectors, vectors | {"changeDataFeed"})


@pytest.mark.parametrize(
    ("features", "configuration", "kept"),
    [
        ({"rowTracking"}, {"delta_enableRowTracking": "true"}, True),
        ({"rowTracking"}, {}, False),
        ({"rowTracking"}, {"delta_enableRowTracking": "true", "delta_rowTrackingSuspended": "true"}, False),
        (set(), {"delta_enableRowTracking": "true"}, False),
    ],
)
def test_ids_of_rows_are_kept_if_row_tracking_is_enabled(
    features: set[str], configuration: dict[str, str], kept: bool
) -> None:
    assert keeps_ids(Protocol(1, 7, None, frozenset(features)), metadata(**configuration)) is kept
