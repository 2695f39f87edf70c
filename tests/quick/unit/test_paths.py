import contextlib
import pickle
import posixpath

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cdfd.delta import paths
from cdfd.delta.paths import Location, LogName
from cdfd.errors import LogError, PathError
from tests.support.checkpoint_layout import part_name, v2_name

UUID = "80a083e8-7026-4e79-81be-64bd76c43a11"


class TestNames:
    @pytest.mark.parametrize(
        ("name", "expected"),
        [
            ("00000000000000000007.json", LogName("commit", 7)),
            ("00000000000000000010.checkpoint.parquet", LogName("checkpoint", 10)),
            (
                "00000000000000000010.checkpoint.0000000002.0000000003.parquet",
                LogName("part", 10, part=2, parts=3),
            ),
            (f"00000000000000000010.checkpoint.{UUID}.json", LogName("v2", 10)),
            (f"00000000000000000010.checkpoint.{UUID}.parquet", LogName("v2", 10)),
            ("_last_checkpoint", LogName("last_checkpoint", -1)),
            ("09223372036854775807.json", LogName("commit", 2**63 - 1)),
        ],
    )
    def test_name_of_each_kind_of_log_file_is_parsed(self, name: str, expected: LogName) -> None:
        assert paths.parse_name(name) == expected

    @pytest.mark.parametrize(
        "name",
        [
            "",
            "0.json",
            "000000000000000000007.json",
            "00000000000000000007.json.tmp",
            "00000000000000000007.json\n",
            ".00000000000000000007.json",
            "._00000000000000000007.json",
            ".00000000000000000007.json.crc",
            "00000000000000000007.json.crc",
            "00000000000000000007.JSON",
            "٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٧.json",
            "99999999999999999999.json",
            "_sidecars",
            "_sidecars/",
            "_staged_commits/",
            f"_staged_commits/00000000000000000007.{UUID}.json",
            f"00000000000000000007.{UUID}.json",
            "00000000000000000010.checkpoint.0000000004.0000000003.parquet",
            "00000000000000000010.checkpoint.0000000000.0000000003.parquet",
            "00000000000000000010.checkpoint.1.3.parquet",
            "00000000000000000010.checkpoint.json",
            "00000000000000000010.checkpoint.x.json",
            "00000000000000000004.00000000000000000006.compacted.json",
            "00000000000000000006.00000000000000000004.compacted.json",
            "00000000000000000007.crc",
            "_last_checkpoint.tmp",
            "_commits",
        ],
    )
    def test_names_that_a_reader_skips(self, name: str) -> None:
        assert paths.parse_name(name) is None

    @given(st.integers(0, 2**63 - 1), st.integers(1, 10**9), st.data())
    def test_made_name_is_parsed_to_its_parts(self, version: int, parts: int, data: st.DataObject) -> None:
        part = data.draw(st.integers(1, parts))
        assert paths.parse_name(paths.commit_name(version)) == LogName("commit", version)
        assert paths.parse_name(paths.checkpoint_name(version)) == LogName("checkpoint", version)
        assert paths.parse_name(part_name(version, part, parts)) == LogName("part", version, part=part, parts=parts)
        assert paths.parse_name(v2_name(version, UUID)) == LogName("v2", version)

    @given(st.text(max_size=80))
    def test_no_name_breaks_it(self, name: str) -> None:
        paths.parse_name(name)

    def test_names_of_checkpoints_are_told_from_commits(self) -> None:
        names = [paths.checkpoint_name(1), part_name(1, 1, 2), v2_name(1, UUID), paths.commit_name(1)]
        assert [name is not None and name.is_checkpoint for name in map(paths.parse_name, names)] == [
            True,
            True,
            True,
            False,
        ]


DECODED = [
    ("part-0.parquet", "part-0.parquet"),
    ("a%20b.parquet", "a b.parquet"),
    ("a+b.parquet", "a+b.parquet"),
    ("p=%2525.parquet", "p=%25.parquet"),
    ("p=2021-09-08%2011%253A11/x", "p=2021-09-08 11%3A11/x"),
    ("p@%23h", "p@#h"),
    ("%C3%a9", "é"),
    ("é%20ü", "é ü"),
    ("%F0%9F%98%80", "😀"),
    ("/t/x", "/t/x"),
    ("file:/t/x", "/t/x"),
    ("file:///t/x", "/t/x"),
    ("FILE:///t/x%20y", "/t/x y"),
    ("file://localhost/t/x", "/t/x"),
    ("file://host/t/x", "file://host/t/x"),
    ("s3a://b/k%20", "s3://b/k "),
    ("s3n://b/k", "s3://b/k"),
    ("S3://b/k", "s3://b/k"),
    ("abfss://c@a.dfs.core.windows.net/k", "abfss://c@a.dfs.core.windows.net/k"),
    ("%66ile:/x", "file:/x"),
    ("./x", "x"),
    ("d/../d/x", "d/x"),
    ("d//x", "d/x"),
    ("d/./x%20y", "d/x y"),
    ("../x/./y", "../x/y"),
    ("d/../../x", "../x"),
    ("/t//./x", "/t/x"),
    ("//host//x", "//host/x"),
    ("s3://b//k/../x", "s3://b/x"),
    ("s3a://b/d//x", "s3://b/d/x"),
    ("d/x/..", "d/x/.."),
    ("d//x/", "d//x/"),
    (".", "."),
    ("%2E%2E", ".."),
    ("..x/...", "..x/..."),
    ("", ""),
]
MALFORMED = ["%", "a%", "a%2", "%zz", "%%41", "%4%31", "%G0", "%+1", "% 1", "%FF", "%C3", "%C3/%A9", "%ED%A0%80"]


def fails(uri: str) -> bool:
    try:
        paths.decode(uri)
    except LogError:
        return True
    return False


class TestDecode:
    @pytest.mark.parametrize(("uri", "path"), DECODED)
    def test_once_and_in_one_spelling(self, uri: str, path: str) -> None:
        assert paths.decode(uri) == path

    @pytest.mark.parametrize("uri", MALFORMED)
    def test_malformed_path_is_refused(self, uri: str) -> None:
        with pytest.raises(LogError, match="path"):
            paths.decode(uri)

    def test_column_agrees_and_keeps_nulls_type_and_slices(self) -> None:
        uris = [uri for uri, _ in DECODED]
        expected = [path for _, path in DECODED]
        for kind in (pa.string(), pa.large_string()):
            column = pa.array(["junk%20", None, *uris, None, ""], kind)
            assert paths.decode_column(column) == pa.array(["junk ", None, *expected, None, ""], kind)
            assert paths.decode_column(column[2:-2]) == pa.array(expected, kind)

    def test_column_without_escapes_is_the_same_one(self) -> None:
        column = pa.array(["a", None, "b/c"])
        assert paths.decode_column(column) is column
        empty = pa.array([], pa.string())
        assert paths.decode_column(empty) is empty

    @pytest.mark.parametrize("uri", MALFORMED)
    def test_column_names_the_malformed_path(self, uri: str) -> None:
        with pytest.raises(LogError) as caught:
            paths.decode_column(pa.array(["fine%20", None, uri, "41"]))
        assert repr(uri) in str(caught.value)

    @given(
        st.lists(
            st.none()
            | st.text(st.sampled_from("%0123456789abcdefABCDEF//..:sn3filé+ "), max_size=12)
            | st.text(max_size=5)
        )
    )
    @example(["s3a:///%25", None, "file:////x", "file:/"])
    def test_column_agrees_with_scalar(self, uris: list[str | None]) -> None:
        column = pa.array(uris, pa.string())
        bad = next((uri for uri in uris if uri is not None and fails(uri)), None)
        if bad is None:
            expected = [None if uri is None else paths.decode(uri) for uri in uris]
            assert paths.decode_column(column).to_pylist() == expected
        else:
            with pytest.raises(LogError) as caught:
                paths.decode_column(column)
            assert repr(bad) in caught.value.what  # a line of text has no two adjacent spaces

    @given(st.lists(st.text(st.sampled_from("%20 /=é+#?:\n") | st.characters(codec="utf-8"), max_size=12)))
    def test_a_column_that_is_encoded_comes_back(self, uris: list[str]) -> None:
        plain = pa.array([paths.decode(f"x{uri.replace('%', '%25')}") for uri in uris], pa.large_string())
        encoded = paths.encode_column(plain)
        assert all(uri.isascii() and " " not in uri for uri in encoded.to_pylist())
        assert paths.decode_column(encoded) == plain

    @given(
        st.lists(
            st.text(st.characters(codec="utf-8", exclude_characters="/"), min_size=1).filter(
                lambda name: name.strip(".")
            )
        )
    )
    def test_undoes_what_writers_encode(self, names: list[str]) -> None:
        path = "/".join(names)
        encoded = "".join(f"%{byte:02X}" for byte in path.encode("utf-8"))
        assert paths.decode(encoded) == path


class TestResolve:
    ROOT = "/data/orders"

    @pytest.mark.parametrize(
        ("path", "expected"),
        [
            ("x.parquet", "x.parquet"),
            ("p=1/x y.parquet", "p=1/x y.parquet"),
            ("./p=1/./x", "p=1/x"),
            ("p=1/../x", "x"),
            ("p=1//x", "p=1/x"),
            ("a:b=c/x", None),
            ("t=10:30/x", "t=10:30/x"),
            ("p=%2E%2E/x", "p=%2E%2E/x"),
            ("..x/...", "..x/..."),
            ("/data/orders/x", "x"),
            ("/data/./orders//p/../x", "x"),
        ],
    )
    def test_path_is_resolved_within_the_table(self, path: str, expected: str | None) -> None:
        if expected is None:
            with pytest.raises(PathError):
                paths.resolve(self.ROOT, path)
        else:
            assert paths.resolve(self.ROOT, path) == Location(self.ROOT, expected)

    @pytest.mark.parametrize(
        "path",
        [
            "../x",
            "p/../../x",
            "./../orders/x",
            "/etc/passwd",
            "/data/orders2/x",
            "/data/orders/../secret",
            "/data/orders/../../etc/passwd",
            "/../etc/passwd",
            "s3://other/x",
            "http://169.254.169.254/latest/meta-data",
        ],
    )
    def test_outside_is_refused_with_what_to_do(self, path: str) -> None:
        with pytest.raises(PathError) as caught:
            paths.resolve(self.ROOT, path)
        assert "allowed_roots" in str(caught.value)
        assert caught.value.path == path

    @pytest.mark.parametrize(
        "path",
        [
            "",
            ".",
            "p/..",
            "p/",
            "p/.",
            "/data/orders",
            "/data/orders/",
            "//data/orders/x",
            "//host/share/x",
            "..\\x",
            "p\\x",
            "C:/x",
            "C:\\x",
            "c:x",
            "x\0.parquet",
            "x\ny",
            "x\x1b[2J",
            "x\x7f",
            "x\ud800",
            "file://host/data/orders/x",
            "file:x",
            "file:",
            "file:/",
            "dbfs:/user/hive/t/x",
            "s3:/b/x",
            "x-1.y+z:/x",
        ],
    )
    def test_what_stores_read_differently_is_refused(self, path: str) -> None:
        with pytest.raises(PathError) as caught:
            paths.resolve(self.ROOT, path, ["/", "file:///"])
        assert str(caught.value).isprintable()

    @pytest.mark.parametrize("path", ["t=10:/x", "10:/x", "a b:/x", "t/a:/x", "ab:x"])
    def test_a_colon_that_ends_no_scheme_is_a_name_s(self, path: str) -> None:
        assert paths.resolve(self.ROOT, path) == Location(self.ROOT, path)

    def test_roots_may_be_uris(self) -> None:
        for root in (
            "file:/data/my%20orders",
            "file:///data/my%20orders/",
            "/data/my orders",
            "file://localhost/data/my orders",
        ):
            assert paths.resolve(root, "/data/my orders/x") == Location(root, "x")
        for root in ("s3://b/t", "s3a://b/t/", "S3N://b/t"):
            assert paths.resolve(root, "s3://b/t/p/x") == Location(root, "p/x")
        assert paths.resolve("s3://b", "s3://b/x") == Location("s3://b", "x")
        with pytest.raises(PathError):
            paths.resolve("s3://b/t", "/b/t/x")
        with pytest.raises(PathError):
            paths.resolve("s3://b/t", "s3://B/t/x")
        with pytest.raises(PathError):
            paths.resolve("s3://b/t", "s3://b/../c/x")

    def test_allowed_roots_are_compared_by_component(self) -> None:
        roots = ["file:///mnt/base%20table", "s3a://lake/base/"]
        assert paths.resolve("/t", "/mnt/base table/p/x", roots) == Location(roots[0], "p/x")
        assert paths.resolve("/t", "s3://lake/base/x", roots) == Location(roots[1], "x")
        for outside in ("/mnt/base table2/x", "s3://lake/base2/x", "s3://lake2/base/x", "s3://lake/base/../x"):
            with pytest.raises(PathError):
                paths.resolve("/t", outside, roots)

    def test_root_of_the_file_system_may_be_allowed(self) -> None:
        for root in ("/", "file:/", "file:///"):
            assert paths.resolve("/t", "/etc/hosts", [root]) == Location(root, "etc/hosts")

    def test_relative_root_holds_no_absolute_path(self) -> None:
        assert paths.resolve("../tables/t", "x") == Location("../tables/t", "x")
        with pytest.raises(PathError):
            paths.resolve("../tables/t", "/tables/t/x")

    def test_location_can_be_sent_to_another_process(self) -> None:
        location = paths.resolve(self.ROOT, "x")
        assert pickle.loads(pickle.dumps(location)) == location

    @given(
        st.lists(
            st.sampled_from(
                ["..", ".", "", "a", "data", "orders", "b", "...", "a b", "%2e%2e", "C:", "s3:", "file:", "\\", "\0"]
            )
            | st.text(max_size=3),
            max_size=8,
        ),
        st.sampled_from(
            ["", "/", "//", "s3://lake/", "s3://lake/t/", "file:///", "file:", "/data/orders/", "/mnt/base/"]
        ),
    )
    def test_never_leaves_its_root(self, segments: list[str], prefix: str) -> None:
        roots = [self.ROOT, "/mnt/base", "s3://lake/t"]
        try:
            location = paths.resolve(roots[0], prefix + "/".join(segments), roots[1:])
        except PathError:
            return
        assert location.root in roots
        assert not location.path.startswith("/")
        assert location.path == posixpath.normpath(location.path)
        assert ".." not in location.path.split("/")
        assert posixpath.normpath(f"{self.ROOT}/{location.path}").startswith(f"{self.ROOT}/")

    @given(st.text())
    def test_only_ever_path_errors(self, path: str) -> None:
        with contextlib.suppress(PathError):
            paths.resolve("/t", path, ["/mnt"])
        with contextlib.suppress(PathError):
            paths.locate("/t", path)

    @given(st.text(st.sampled_from("a./:s3"), max_size=8))
    def test_what_a_reader_finds_in_the_table_is_located_there(self, path: str) -> None:
        try:
            location = paths.resolve("/t", path)
        except PathError:
            return
        assert paths.locate("/t", path) == location
