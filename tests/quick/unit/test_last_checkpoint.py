import contextlib
import hashlib
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdfd.delta import last_checkpoint
from cdfd.delta.last_checkpoint import LastCheckpoint, V2Checkpoint
from cdfd.errors import LogError

GOLDEN = Path(__file__).parents[4] / "shared" / "golden"
V2_NAME = "00000000000000000002.checkpoint.6374b053-df23-479b-b2cf-c9c550132b49.json"

# Specification, "JSON checksum".
VECTOR = (
    b'{"k0":"\'v 0\'", "checksum": "adsaskfljadfkjadfkj", '
    b'"k1":{"k2": 2, "k3": ["v3", [1, 2], {"k4": "v4", "k5": ["v5", "v6", "v7"]}]}}'
)
VECTOR_CANONICAL = (
    '"k0"="%27v%200%27","k1"+"k2"=2,"k1"+"k3"+0="v3","k1"+"k3"+1+0=1,"k1"+"k3"+1+1=2,"k1"+"k3"+2+"k4"="v4",'
    '"k1"+"k3"+2+"k5"+0="v5","k1"+"k3"+2+"k5"+1="v6","k1"+"k3"+2+"k5"+2="v7"'
)


class TestCanonicalForm:
    def test_vector_of_the_specification(self) -> None:
        assert last_checkpoint.canonical(json.loads(VECTOR)) == VECTOR_CANONICAL
        assert last_checkpoint.checksum(VECTOR) == "6a92d155a59bf2eecbd4b4ec7fd1f875"

    @pytest.mark.parametrize(
        ("document", "canonical"),
        [
            ('{"a": true, "b": false, "c": null}', '"a"=true,"b"=false,"c"=null'),
            ('{"a": 42, "b": 3.14}', '"a"=42,"b"=3.14'),
            ('{"a": 1.0, "b": 1e3, "c": 1.50, "d": -0}', '"a"=1.0,"b"=1e3,"c"=1.50,"d"=-0'),
            ('{"a": 123456789012345678901234567890.10}', '"a"=123456789012345678901234567890.10'),
            ('{"a": "hello world"}', '"a"="hello%20world"'),
            ('{"a": "aZ09-._~"}', '"a"="aZ09-._~"'),
            ('{"a": "!*\'()+/ü\\n"}', '"a"="%21%2A%27%28%29%2B%2F%C3%BC%0A"'),
            ('{"a b": {"ü": 1}}', '"a%20b"+"%C3%BC"=1'),
            (
                '{"a": 10, "b": {"y": null, "x": "https://delta.io"} }',
                '"a"=10,"b"+"x"="https%3A%2F%2Fdelta.io","b"+"y"=null',
            ),
            ('{"l": [null, "hi ho", 2.71]}', '"l"+0=null,"l"+1="hi%20ho","l"+2=2.71'),
            ('{"k1": "v1", "checksum": "<anything>", "k3": 23}', '"k1"="v1","k3"=23'),
            ('{"a": {"checksum": "kept"}}', '"a"+"checksum"="kept"'),
            ('{"a": {}, "b": [], "c": [[], {}]}', ""),
            ("{}", ""),
            ('{"b": 1, "a": {"b": 1}, "aa": 1, "a-": 1, "B": 1}', '"B"=1,"a"+"b"=1,"a-"=1,"aa"=1,"b"=1'),
        ],
    )
    def test_checksum_is_that_of_the_canonical_form(self, document: str, canonical: str) -> None:
        expected = hashlib.md5(canonical.encode(), usedforsecurity=False).hexdigest()
        assert last_checkpoint.checksum(document.encode()) == expected

    def test_paths_are_sorted_as_bytes(self) -> None:
        assert last_checkpoint.canonical({"l": list(range(11))}).startswith('"l"+0=0,"l"+1=1,"l"+10=10,"l"+2=2')

    def test_array_at_the_top(self) -> None:
        assert last_checkpoint.canonical([None, "hi ho", 2.71]) == '0=null,1="hi%20ho",2=2.71'

    @pytest.mark.parametrize("document", [b"[" * 100_000, b'{"a":1,"a":2}', b"nan", b""])
    def test_no_checksum_of_what_is_no_document(self, document: bytes) -> None:
        with pytest.raises(LogError):
            last_checkpoint.checksum(document)

    def test_deep_values_do_not_exhaust_the_stack(self) -> None:
        value: object = 1
        for _ in range(20_000):
            value = [value]
        assert last_checkpoint.canonical(value) == "+".join(["0"] * 20_000) + "=1"


def document(**fields: object) -> bytes:
    content = {"version": 5, "size": 9} | fields
    return json.dumps({name: value for name, value in content.items() if value is not ...}).encode()


class TestParse:
    def test_hint_of_required_fields_alone_is_parsed(self) -> None:
        assert last_checkpoint.parse(b'{"version":10,"size":13}') == LastCheckpoint(10, 13)

    def test_hint_of_all_fields_is_parsed(self) -> None:
        hint = last_checkpoint.parse(
            document(
                parts=2,
                sizeInBytes=30499,
                numOfAddFiles=10,
                checkpointSchema={"type": "struct", "fields": [{"scale": 1.50, "name": "ü"}]},
                v2Checkpoint={
                    "path": V2_NAME,
                    "sizeInBytes": 891,
                    "modificationTime": 1714496115810,
                    "sidecarFiles": [],
                },
                version=2,
                unknown={"x": 1},
            )
        )
        assert hint == LastCheckpoint(2, 9, 30499, 10, V2Checkpoint(V2_NAME, 891, 1714496115810))

    def test_null_field_of_a_hint_is_an_absent_one(self) -> None:
        hint = last_checkpoint.parse(document(parts=None, checksum=None, v2Checkpoint=None, checkpointSchema=None))
        assert hint == LastCheckpoint(5, 9)

    @pytest.mark.parametrize(
        "data",
        [
            b"",
            b"\n",
            b"{",
            b"[]",
            b"7",
            b"null",
            b"\xff",
            b"\xef\xbb\xbf{}",
            b'{"version":1,"size":2}x',
            b'{"version":1,"size":2,"x":NaN}',
            b'{"version":1,"size":2,"x":-Infinity}',
            b'{"version":1,"version":1,"size":2}',
            b'{"version":1,"size":2,"x":{"a":1,"a":1}}',
            b'{"version":1,"size":2,"x":[[{"a":1,"b":2,"a":3}]]}',
            b'{"version":1,"size":2,"x":"\\ud800","checksum":"00000000000000000000000000000000"}',
            b'{"x":' * 100_000,
            b'{"version":1,"size":2,"checkpointSchema":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
            b'{"version":' + b"9" * 100_000 + b',"size":2}',
            document(version=...),
            document(size=...),
            document(version=None),
            document(version=-1),
            document(size=-1),
            document(version="5"),
            document(version=True),
            document(version=5.0),
            document(version=2**63),
            document(version=[5]),
            document(parts=0),
            document(parts=-2),
            document(parts=2**31),
            document(sizeInBytes=-1),
            document(sizeInBytes="1"),
            document(numOfAddFiles=-1),
            document(numOfAddFiles={}),
            document(checksum=7),
            document(checksum=""),
            document(checksum="0" * 32),
            document(v2Checkpoint=[]),
            document(v2Checkpoint={}),
            document(v2Checkpoint={"path": 7}),
            document(v2Checkpoint={"path": V2_NAME}),
            document(v2Checkpoint={"path": "../../etc/passwd"}, version=2),
            document(v2Checkpoint={"path": V2_NAME, "sizeInBytes": -1}, version=2),
        ],
    )
    def test_broken_hint_is_refused_in_few_words(self, data: bytes) -> None:
        with pytest.raises(LogError, match="_last_checkpoint") as caught:
            last_checkpoint.parse(data)
        assert len(str(caught.value)) < 500

    def test_checksum_is_verified(self) -> None:
        right = last_checkpoint.serialize(LastCheckpoint(5, 9))
        assert last_checkpoint.parse(right).version == 5
        checksum = last_checkpoint.checksum(right).encode()
        assert last_checkpoint.parse(right.replace(checksum, checksum.upper())).version == 5
        with pytest.raises(LogError, match="checksum"):
            last_checkpoint.parse(right.replace(b'"size":9', b'"size":8'))

    @given(st.binary(max_size=64) | st.text(max_size=64).map(str.encode))
    def test_noise_is_a_log_error(self, data: bytes) -> None:
        with contextlib.suppress(LogError):
            last_checkpoint.parse(data)

    @pytest.mark.skipif(not GOLDEN.exists(), reason="golden tables are not here")
    def test_files_of_real_writers(self) -> None:
        parsed, stated = 0, 0
        for path in sorted(GOLDEN.rglob("_last_checkpoint")):
            table = path.relative_to(GOLDEN).parts[1]
            data = path.read_bytes()
            if table == "corrupted-last-checkpoint-kernel":
                with pytest.raises(LogError):
                    last_checkpoint.parse(data)
            else:
                hint = last_checkpoint.parse(data)
                assert last_checkpoint.parse(last_checkpoint.serialize(hint)) == hint
                parsed, stated = parsed + 1, stated + ("checksum" in json.loads(data))
        assert parsed
        assert stated >= 5


optional = st.none() | st.integers(0, 2**63 - 1)


@given(
    st.builds(
        LastCheckpoint,
        version=st.integers(0, 2**63 - 1),
        size=st.integers(0, 2**63 - 1),
        size_in_bytes=optional,
        num_of_add_files=optional,
    )
)
def test_serialized_hint_is_parsed_to_its_checksum(hint: LastCheckpoint) -> None:
    data = last_checkpoint.serialize(hint)
    assert last_checkpoint.parse(data) == hint
    assert json.loads(data)["checksum"] == last_checkpoint.checksum(data)
    assert json.loads(data)["version"] == hint.version


def test_round_trip_of_a_v2_checkpoint() -> None:
    hint = LastCheckpoint(2, 9, v2_checkpoint=V2Checkpoint(V2_NAME, 891))
    assert last_checkpoint.parse(last_checkpoint.serialize(hint)).v2_checkpoint == hint.v2_checkpoint
