"""Ids that a writer gives to the rows of new files."""

import json

import pytest

from cdfd.delta.actions import DomainMetadata, Metadata, Protocol
from cdfd.delta.write.writing import ROW_TRACKING_DOMAIN, gives_ids, high_water_mark, keeps_ids, with_row_ids
from cdfd.errors import LogError

TRACKED = Protocol(1, 7, None, frozenset({"rowTracking", "domainMetadata"}))


def metadata(**more: str) -> Metadata:
    return Metadata("T", "{}", (), {f"delta.{name}": value for name, value in more.items()})


@pytest.mark.parametrize(
    ("protocol", "settings", "gives", "keeps"),
    [
        (TRACKED, {}, True, False),
        (TRACKED, {"enableRowTracking": "TRUE"}, True, True),
        (TRACKED, {"enableRowTracking": "true", "rowTrackingSuspended": "true"}, False, False),
        (Protocol(1, 2), {"enableRowTracking": "true"}, False, False),
    ],
)
def test_ids_are_given_with_the_feature_and_kept_if_it_is_enabled(
    protocol: Protocol, settings: dict[str, str], gives: bool, keeps: bool
) -> None:
    assert (gives_ids(protocol, metadata(**settings)), keeps_ids(protocol, metadata(**settings))) == (gives, keeps)


def test_ids_follow_the_highest_one() -> None:
    *adds, (kind, domain) = with_row_ids([({"path": "a"}, 3), ({"path": "b"}, 0), ({"path": "c"}, 2)], 9, 4)
    assert [(each["path"], each["baseRowId"], each["defaultRowCommitVersion"]) for _, each in adds] == [
        ("a", 10, 4),
        ("b", 13, 4),
        ("c", 13, 4),
    ]
    assert (kind, domain["domain"], domain["removed"]) == ("domainMetadata", ROW_TRACKING_DOMAIN, False)
    written = DomainMetadata(ROW_TRACKING_DOMAIN, str(domain["configuration"]))
    assert json.loads(written.configuration) == {"rowIdHighWaterMark": 14}
    assert high_water_mark({ROW_TRACKING_DOMAIN: written}) == 14


def test_table_without_ids_has_no_highest_one() -> None:
    assert high_water_mark({"other": DomainMetadata("other", "{}")}) == -1


@pytest.mark.parametrize("text", ["", "{}", "[]", "7", '{"rowIdHighWaterMark":true}', '{"rowIdHighWaterMark":"7"}'])
def test_domain_without_the_highest_id_is_refused(text: str) -> None:
    with pytest.raises(LogError, match="rowIdHighWaterMark"):
        high_water_mark({ROW_TRACKING_DOMAIN: DomainMetadata(ROW_TRACKING_DOMAIN, text)})
