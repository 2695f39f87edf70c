"""Decoders of texts by themselves: schemas, values, statistics, paths."""

from random import Random

import pyarrow as pa

from cdfd.delta import paths, retention, statistics
from cdfd.delta.actions import Metadata
from cdfd.delta.types import schema_string, values
from cdfd.delta.types.datatypes import DataType, Decimal, Primitive
from cdfd.delta.types.schema import TableSchema
from tests.support.fuzz import mutate
from tests.support.fuzz.cases import Case, Target, Violation, guarded
from tests.support.fuzz.decoders import fields
from tests.support.fuzz.tables import PROPERTIES


def check_schema(case: Case) -> str:
    """A schema string, with partition columns and a mapping."""

    def parse() -> str:
        metadata = Metadata("id", case.args["schema"], tuple(case.args["partitions"]), case.args["configuration"])
        schema = TableSchema.of(metadata)
        for child in schema.struct:
            schema.physical_name(child)
        again = schema_string.parse(schema_string.serialize(schema.struct))
        if again != schema.struct:
            raise Violation("written otherwise", f"{again} {schema.struct}"[:500])
        retention.Retention.of(metadata)
        return "value"

    return guarded(parse)


def _make_schema(random: Random) -> Case:
    text = random.choice(fields("metaData", "schemaString")).decode()
    if random.random() < 0.8:
        for _ in range(mutate.times(random)):
            text = mutate.document(random, text.encode()).decode(errors="replace")
    else:
        text = mutate.text(random, text)
    configuration = (
        {"delta.columnMapping.mode": random.choice(("none", "name", "id", "x"))} if random.random() < 0.5 else {}
    )
    configuration |= {random.choice(PROPERTIES): random.choice(mutate.TEXTS) for _ in range(random.randrange(3))}
    partitions = random.choice(([], [], ["id"], ["ID"], ["s", "d"], ["nope"], ["id", "Id"], [""]))
    return Case("schema", {}, {"schema": text, "partitions": partitions, "configuration": configuration})


KINDS: dict[str, DataType] = {
    **{
        str(n): Primitive(n)
        for n in ("string", "long", "integer", "short", "byte", "float", "double", "boolean", "binary")
    },  # type: ignore[arg-type]
    **{str(n): Primitive(n) for n in ("date", "timestamp", "timestamp_ntz")},  # type: ignore[arg-type]
    "decimal(5,2)": Decimal(5, 2),
    "decimal(38,38)": Decimal(38, 38),
}
SEEDS = (
    *("1", "-7", "1.5", "1e3", "NaN", "-Infinity", "true", "FALSE", "abc", "", "2020-02-29", "2020-01-01 00:00:00"),
    *(
        "2020-01-01T00:00:00.123456Z",
        "1969-12-31 23:59:59.999999999+14:00",
        "9999-12-31",
        "-290308-12-21 19:59:05.224192",
    ),
    *(
        "123456789012345678901234567890.12",
        "\\u00ff",
        "é",
        "0x1p3",
        "1_000",
        " 1 ",
        "+1",
        "1e400",
        "1E-400",
        "infinity",
    ),
)


def check_value(case: Case) -> str:
    def parse() -> str:
        kind = KINDS[case.args["kind"]]
        value = values.parse(case.args["text"], kind, "c")
        value.validate(full=True)
        text = values.serialize(value)
        again = values.parse(text, kind, "c")
        if text is not None and not again.equals(value) and "nan" not in str(value).lower():
            raise Violation("written otherwise", f"{text!r:.300} {again!r:.300} {value!r:.300}")
        return "value"

    return guarded(parse)


def _make_value(random: Random) -> Case:
    text = random.choice(SEEDS)
    if random.random() < 0.9:
        text = mutate.repeated(random, text, mutate.text)
    return Case("value", {}, {"kind": random.choice(sorted(KINDS)), "text": text})


_typed = TableSchema(
    schema_string.parse(
        '{"type":"struct","fields":['
        + ",".join(
            f'{{"name":"{n}","type":"{k}","nullable":true,"metadata":{{}}}}'
            for n, k in (
                ("id", "long"),
                ("s", "string"),
                ("d", "date"),
                ("t", "timestamp"),
                ("x", "decimal(38,10)"),
                ("f", "double"),
                ("b", "boolean"),
            )
        )
        + "]}"
    )
)


def check_statistics(case: Case) -> str:
    """Counts of many files at once are those of each by itself; bounds are at least as wide as those written."""
    texts: list[str | None] = case.args["stats"]
    utf8 = [None if t is None else t.encode("utf-8", "replace").decode() for t in texts]
    together = statistics.record_counts(pa.array(utf8, pa.large_string())).to_pylist()
    single = [statistics.record_counts(pa.array([text], pa.string()))[0].as_py() for text in utf8]
    if together != single:
        raise Violation("together otherwise", f"{together}, not {single}")
    statistics.counts_only(pa.array(utf8, pa.large_string())).validate(full=True)
    for text in texts:
        stats = statistics.parse(text, _typed)
        for name in (*_typed.names, "nope"):
            stats.null_count((name,))
            low, high, bounds = stats.min((name,)), stats.max((name,)), stats.bounds((name,))
            for written in (low, high):
                if written is not None:
                    written.validate(full=True)
            least, most = values.as_python(low), values.as_python(high)
            if (least is not None and bounds[0] is not None and bounds[0] > least) or (
                most is not None and bounds[1] is not None and bounds[1] < most
            ):
                raise Violation("a bound inside of those written", f"{bounds}, of {least} and {most}")
    return "value"


STATS = (
    '{"numRecords":10,"minValues":{"id":5,"s":"a","d":"2026-01-05","t":"2026-01-05T00:00:00.000Z","x":1.5,"f":0.5,"b":true},'
    '"maxValues":{"id":9,"s":"z","d":"2026-01-09","t":"2026-01-09T00:00:00.001Z","x":7.25,"f":2.5,"b":true},"nullCount":{"id":0,"s":10}}',
    '{"numRecords":3,"tightBounds":false}',
    "{}",
)


def _make_statistics(random: Random) -> Case:
    texts: list[str | None] = []
    for _ in range(random.randrange(1, 4)):
        text = random.choice(STATS)
        if random.random() < 0.6:
            text = mutate.repeated(random, text.encode(), mutate.document).decode(errors="replace")
        elif random.random() < 0.7:
            text = mutate.repeated(random, text, mutate.text)
        texts.append(None if random.random() < 0.1 else text)
    return Case("statistics", {}, {"stats": texts})


def check_path(case: Case) -> str:
    """A path leads to a place below the root, or nowhere; of many paths at once each is what it is by itself."""
    text, root = case.args["path"], case.args["root"]
    paths.parse_name(text)

    def resolve() -> str:
        decoded = paths.decode(text)
        column = (
            paths.decode_column(pa.array([text, None, "a%20b", text])).to_pylist() if _is_utf8(text) else [decoded] * 4
        )
        if column != [decoded, None, "a b", decoded] and _is_utf8(text):
            raise Violation("together otherwise", f"{column!r:.500}")
        location = paths.resolve(root, decoded, case.args["roots"])
        parts = location.path.split("/")
        if (
            location.root not in (root, *case.args["roots"])
            or location.path.startswith("/")
            or {"..", ".", ""} & {*parts}
            or (not location.path.isprintable() and any(ord(c) < 32 for c in location.path))
        ):
            raise Violation("leads elsewhere", repr(location)[:500])
        return "value"

    return guarded(resolve)


def _is_utf8(text: str) -> bool:
    return not any(0xD800 <= ord(char) < 0xE000 for char in text)


def _make_path(random: Random) -> Case:
    seeds = (
        "part-0.parquet",
        "a=b/c%20d.parquet",
        "/data/t/x.parquet",
        "file:///data/t/x",
        "s3://b/t/x",
        "s3a://b/t/%2e%2e/x",
        "_change_data/x",
        "00000000000000000001.json",
        "00000000000000000001.checkpoint.0000000001.0000000002.parquet",
    )
    text = mutate.repeated(
        random, random.choice((*seeds, *(p.decode() for p in fields("add", "path")[:30]))), mutate.text
    )
    root = random.choice(("/data/t", "file:///data/t", "s3://b/t", "t", "memory://x", "/"))
    return Case("path", {}, {"path": text, "root": root, "roots": random.choice(([], ["/data/clones", "s3://c/"]))})


TARGETS = (
    Target("schema", _make_schema, check_schema, 110),
    Target("value", _make_value, check_value, 100),
    Target("statistics", _make_statistics, check_statistics, 30),
    Target("path", _make_path, check_path, 90),
)
