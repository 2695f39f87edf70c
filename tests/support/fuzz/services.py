"""Targets that parse the input of users: configuration, options, requests."""

import asyncio
import socket
from pathlib import Path
from random import Random

from cdfd.config.parser import parse as parse_config
from cdfd.config.sections import Http
from cdfd.config.values import Listen
from cdfd.daemon.http.status import Status
from cdfd.errors import CdfdError
from cdfd.log import bounds
from cdfd.spark.engine.sink_options import SinkOptions
from cdfd.spark.source.options import SourceOptions
from tests.support.fuzz import mutate
from tests.support.fuzz.cases import Case, Target, Violation, check_text, guarded
from tests.support.manual_time import ManualClock
from tests.support.statuses import NOW_MS, configuration, serve_status

CONFIGS = Path(__file__).parents[3] / "config"
SECRET = "a-secret-nobody-may-see"


def check_config(case: Case) -> str:
    """A configuration's text: settings, or what is wrong with it, and never a secret."""

    def parse() -> str:
        try:
            repr(parse_config(case.files["text"].decode("utf-8", "replace"), {"KAFKA_PASSWORD": SECRET, "HOME": "/"}))
        except CdfdError as error:
            if SECRET in str(error):
                raise Violation("secret shown", str(error)[:500]) from None
            # One problem a line: each is bounded by itself.
            for line in str(error).split("; "):
                check_text(line[:4000])
            return "refused: ConfigError"
        return "value"

    return parse()


_TOKENS = (
    *(
        b"&a ",
        b"*a",
        b"<<: *a",
        b"!!python/object:os.system ",
        b"!!binary ",
        b"? ",
        b"- ",
        b": ",
        b"|\n",
        b"\t",
        b"---\n",
    ),
    *(b"%YAML 9.9\n", b"...\n", b"${KAFKA_PASSWORD}", b"${", b"${NOPE}", b"${NOPE:-${X}}", b"{" * 500, b"[" * 500),
    *(
        b"\xff",
        b"1e999",
        b"0x7fffffffffffffffff",
        b"9" * 5000,
        b"12:30:45",
        b"2026-13-45",
        b"~",
        b"yes",
        b"'",
        b'"',
        b"#",
    ),
)


def _make_config(random: Random) -> Case:
    text = random.choice([path.read_bytes() for path in sorted(CONFIGS.glob("*.yaml"))])
    for _ in range(mutate.times(random)):
        kind = random.randrange(4)
        lines = text.split(b"\n")
        at = random.randrange(len(lines))
        if kind == 0:
            text = mutate.content(random, text)
        elif kind == 1:
            place = random.randrange(len(text) + 1)
            text = text[:place] + random.choice(_TOKENS) + text[place:]
        elif kind == 2:
            lines[at] = (
                lines[at].partition(b":")[0]
                + b": "
                + random.choice((*_TOKENS, *(t.encode("utf-8", "replace") for t in mutate.TEXTS)))
            )
            text = b"\n".join(lines)
        else:
            lines.insert(at, random.choice(lines))
            text = b"\n".join(lines)
    return Case("config", {"text": text})


OPTIONS = (
    *(
        "path",
        "startingVersion",
        "startingTimestamp",
        "endingVersion",
        "endingTimestamp",
        "maxFilesPerTrigger",
        "maxBytesPerTrigger",
    ),
    *(
        "changes",
        "columns",
        "ignoreMissingFiles",
        "maxPartitionBytes",
        "allowedRoots",
        "onReplace",
        "snapshotPlanning",
        "readChangeFeed",
        "storage.region",
        "nope",
    ),
    *(
        "pipeline",
        "uri",
        "table",
        "topic",
        "key",
        "kafka.bootstrap.servers",
        "bootstrap_servers",
        "topics.config.x",
        "security.password",
    ),
    *("snapshotVersion", "job", "format", "topics.prefix", "topics", "storage.s3.region", "storage"),
)
WORDS = (
    "0",
    "7",
    "latest",
    "earliest",
    "snapshot",
    "64m",
    "1k",
    "true",
    "cdf",
    "id,v",
    "2026-01-01",
    "2026-01-01T00:00:00+02:00",
    "a:9092",
)


def check_options(case: Case) -> str:
    options = case.args["options"]
    outcome = guarded(lambda: str(SourceOptions.parse(options)) and "value")
    other = guarded(lambda: str(SinkOptions.parse(options, {})) and "value")
    guarded(lambda: str(bounds.parse_bound(options.get("startingversion", "0"))))
    return outcome if other.startswith("refused") else other


def _make_options(random: Random) -> Case:
    sink = {"pipeline": "p", "uri": "/x", "bootstrap_servers": "a:9092"} if random.random() < 0.4 else {"path": "/x"}
    for name in random.sample(OPTIONS, random.randrange(1, 5)):
        word = random.choice(WORDS)
        sink[name.upper() if random.random() < 0.1 else name] = (
            word if random.random() < 0.5 else mutate.text(random, word)
        )
    return Case("options", {}, {"options": sink})


# --- requests ---

REQUEST = b"GET /status HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"


def check_request(case: Case) -> str:
    """Whatever comes, the server answers the next request."""

    async def ask() -> str:
        status = Status(configuration(), ManualClock(NOW_MS))
        async with serve_status(Http(listen=Listen("127.0.0.1", 0)), status) as address:
            assert address is not None
            await asyncio.to_thread(_exchange, address.port, case.files["request"], 0.02)
            answer = await asyncio.to_thread(_exchange, address.port, REQUEST, 10.0)
        if not answer.startswith(b"HTTP/1.1 200"):
            raise Violation("no answer any more", repr(answer[:300]))
        if b"correct-horse-battery" in answer or b"Traceback" in answer:
            raise Violation("secret shown", repr(answer[:300]))
        return "value"

    return asyncio.run(asyncio.wait_for(ask(), 20))


def _exchange(port: int, data: bytes, seconds: float) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
        answer = b""
        connection.settimeout(seconds)
        try:
            connection.sendall(data)
            while some := connection.recv(65536):
                answer += some
        except OSError:
            pass
        return answer


_HEADERS = (
    *(b"Content-Length: 5\r\n", b"Content-Length: -1\r\n", b"Transfer-Encoding: chunked\r\n", b"Host: \r\n"),
    *(b"Expect: 100-continue\r\n", b"Range: bytes=0-\r\n", b"X: " + b"a" * 9000 + b"\r\n", b"Upgrade: websocket\r\n"),
)


def _make_request(random: Random) -> Case:
    path = random.choice(
        (
            b"/",
            b"/metrics",
            b"/healthz",
            b"/readyz",
            b"/status",
            b"/../etc/passwd",
            b"*",
            b"http://x/status",
            b"/%00",
            b"/status?a=" + b"b" * 9000,
        )
    )
    data = random.choice((b"GET ", b"HEAD ", b"POST ", b"OPTIONS ", b"TRACE ", b"X ")) + path + REQUEST[11:]
    for _ in range(random.randrange(3)):
        data = data.replace(b"\r\n", b"\r\n" + random.choice(_HEADERS), 1)
    return Case("request", {"request": mutate.content(random, data) if random.random() < 0.7 else data})


TARGETS = (
    Target("config", _make_config, check_config, 6),
    Target("options", _make_options, check_options, 6),
    Target("request", _make_request, check_request, 1),
)
