"""The image: built by the Dockerfile's own steps, and run read-only by users that own nothing in it."""

import asyncio
import json
import os
import shutil
import signal
import ssl
import subprocess
import tempfile
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest

from cdfd import __version__
from tests.support.commands import history
from tests.support.image import rootfs
from tests.support.image.rootfs import Container, Image
from tests.support.kafka.certificates import Certificates

ROOT = Path(__file__).parents[3]
WITHIN = 60.0
STOPS_WITHIN = 10.0
CONFIG = """
pipeline: image
tables: [{uri: orders, start: earliest}]
sink: {kind: files, path: /var/lib/cdfd/changes}
"""
ROWS = ["insert", "insert", "insert", "update_preimage", "update_postimage", "delete"]


@pytest.fixture(scope="module")
def image() -> Iterator[Image]:
    reason = rootfs.missing()
    if reason is not None:
        assert "CI" not in os.environ, reason
        pytest.skip(reason)
    # Not below pytest's own folder, which only its user can read.
    folder = Path(tempfile.mkdtemp(prefix="cdfd-image-", dir="/var/tmp"))
    folder.chmod(0o755)
    try:
        yield rootfs.built(ROOT / "Dockerfile", folder, {"VERSION": "1.2.3", "REVISION": "abc"})
    finally:
        shutil.rmtree(folder)


@pytest.fixture
def etc(image: Image) -> Iterator[Path]:
    """The folder of the configuration, and of a table."""
    folder = image.folder.parent / "etc"
    asyncio.run(history(folder / "orders"))
    (folder / "cdfd.yaml").write_text(CONFIG)
    subprocess.run(["chmod", "-R", "a+rX", folder], check=True)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def volume(image: Image) -> Iterator[Path]:
    """An empty volume, as an engine makes it: with owner and mode of what the image has there."""
    folder = image.folder.parent / "volume"
    folder.mkdir()
    place = (image.layer / "var/lib/cdfd").stat()
    os.chown(folder, place.st_uid, place.st_gid)
    folder.chmod(place.st_mode & 0o777)
    yield folder
    shutil.rmtree(folder)


def delivered(volume: Path) -> list[str]:
    files = sorted((volume / "changes" / "orders").glob("[!_.]*"))
    return [json.loads(line)["_change_type"] for file in files for line in file.read_text().splitlines()]


def stopped(container: Container) -> int:
    begin = time.monotonic()
    os.kill(container.pid, signal.SIGTERM)
    code = container.process.wait(WITHIN)
    assert time.monotonic() - begin < STOPS_WITHIN
    return code


def until(container: Container, volume: Path) -> None:
    deadline = time.monotonic() + WITHIN
    while delivered(volume) != ROWS:
        assert container.process.poll() is None, container.process.communicate()[0]
        assert time.monotonic() < deadline, delivered(volume)
        time.sleep(0.1)


@pytest.mark.parametrize("user", ["", "1000620000:0"], ids=["its own user", "any user of group 0"])
def test_it_delivers_with_a_writable_volume_only(image: Image, etc: Path, volume: Path, user: str) -> None:
    with rootfs.running(image, {etc: "/etc/cdfd", volume: "/var/lib/cdfd"}, user) as container:
        until(container, volume)
        status = Path(f"/proc/{container.pid}/status").read_text()
        assert [line.split()[-1] for line in status.splitlines() if line.startswith("NSpid:")] == ["1"]
        assert "\nCapEff:\t0000000000000000\n" in status
        said = container.run(["/opt/cdfd/bin/cdfd", "--version"])
        assert said.stdout == f"cdfd {__version__} (cdfd-native {__version__})\n"
        healthy = container.run(image.health)
        assert (healthy.returncode, healthy.stdout) == (0, "")
        written = container.run(["/opt/cdfd/bin/python", "-c", "open('/opt/cdfd/x', 'w')"])
        assert "Read-only file system" in written.stdout
        assert stopped(container) == 0
    owners = {file.stat().st_uid for file in volume.rglob("*")}
    assert owners == {int((user or image.user).split(":")[0])}


def test_it_stops_before_it_has_begun(image: Image, volume: Path) -> None:
    """Process 1 is not ended by a signal that it does not handle; here it waits for its configuration."""
    os.mkfifo(volume / "never-written")
    (volume / "never-written").chmod(0o666)
    arguments = ["run", "-c", "/var/lib/cdfd/never-written"]
    with rootfs.running(image, {volume: "/var/lib/cdfd"}, arguments=arguments) as container:
        deadline = time.monotonic() + WITHIN
        while not handles(container.pid, signal.SIGTERM):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert stopped(container) == 0


def handles(pid: int, number: int) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    caught = next(line for line in status.splitlines() if line.startswith("SigCgt:"))
    return bool(int(caught.split()[1], 16) >> (number - 1) & 1)


def test_its_parts_are_those_of_the_lock(image: Image) -> None:
    packages = [file.name for file in image.layer.glob("opt/cdfd/lib/python3*/site-packages/*.dist-info")]
    names = {name.split("-")[0] for name in packages}
    assert {"cdfd", "cdfd_native", "pyarrow", "kafka_python"} <= names
    assert not {"pip", "setuptools", "hatchling", "maturin", "pyspark", "pytest"} & names
    assert image.labels["org.opencontainers.image.version"] == "1.2.3"
    assert image.labels["org.opencontainers.image.revision"] == "abc"


class _Health(BaseHTTPRequestHandler):
    """Answers with the status that the path names."""

    def do_GET(self) -> None:
        self.send_response(int(self.path[1:]))
        self.end_headers()
        self.wfile.write(b'{"healthy": false}')

    def log_message(self, *_: object) -> None:
        pass


def health(url: str, **environ: str) -> tuple[int, str]:
    command = ["python3", "-I", str(ROOT / "docker" / "healthcheck.py")]
    done = subprocess.run(
        command, env=os.environ | {"CDFD_HEALTH_URL": url} | environ, capture_output=True, text=True, timeout=WITHIN
    )
    assert done.stderr == ""
    return done.returncode, done.stdout


def test_the_health_check() -> None:
    with HTTPServer(("127.0.0.1", 0), _Health) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        assert health(f"{address}/200") == (0, "")
        assert health(f"{address}/500") == (1, f'{address}/500: 500 {{"healthy": false}}\n')
        server.shutdown()
    code, said = health(f"{address}/200")
    assert code == 1
    assert "refused" in said
    assert health("none") == (0, "")


def test_the_health_check_with_tls(tmp_path: Path) -> None:
    certificates = Certificates.issue(tmp_path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificates.server)
    with HTTPServer(("127.0.0.1", 0), _Health) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        Thread(target=server.serve_forever, daemon=True).start()
        address = f"https://127.0.0.1:{server.server_port}/200"
        assert health(address, CDFD_HEALTH_CA=str(certificates.ca)) == (0, "")
        assert health(address, CDFD_HEALTH_CA="none") == (0, "")
        for other in ({}, {"CDFD_HEALTH_CA": str(certificates.other_ca)}):
            code, said = health(address, **other)
            assert code == 1
            assert "certificate verify failed" in said
        assert health(address, CDFD_HEALTH_CA="/none.pem") == (
            1,
            "CDFD_HEALTH_CA: [Errno 2] No such file or directory\n",
        )
        server.shutdown()
