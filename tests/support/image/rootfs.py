"""Builds the image by its Dockerfile's own steps, and runs it, without a container engine.

A stage is an overlay over this machine's root: it sees everything, and what it writes stays in a folder of its own. So the base image is this
machine's Debian with the Python that runs the tests, and with its Rust. Needs root, cargo, and Linux with overlayfs.
"""

import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.image.dockerfile import Instruction, Stage, assignments, stages, substituted

_STEP_SECONDS = 900
_PASSED_ON = ("PIP_", "CARGO_", "SSL_", "REQUESTS_", "HTTP", "http", "NO_PROXY", "no_proxy")
"""Variables by which pip and cargo find their indexes here, and crates that were compiled before: what is compiled now stays in the stage."""

_LOOPBACK_UP = """
import fcntl, socket, struct
fcntl.ioctl(socket.socket(), 0x8914, struct.pack("16sh14x", b"lo", 0x1 | 0x40))  # SIOCSIFFLAGS, IFF_UP | IFF_RUNNING
"""


def missing() -> str | None:
    """Why images cannot be built here, or None."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "a root of its own needs root on Linux"
    if shutil.which("cargo") is None:
        return "there is no cargo"
    done = subprocess.run(["unshare", "--mount", "--pid", "--net", "--fork", "true"], capture_output=True, check=False)
    return done.stderr.decode() or None


@dataclass
class Image:
    """An image that was built from a Dockerfile.

    Attributes:
        folder: has the layers of the last stage.
        variables: `ENV`.
        labels: `LABEL`.
        user, entrypoint, command, health: as in the Dockerfile; `health` without its options.
        volumes: `VOLUME`.
    """

    folder: Path
    variables: dict[str, str] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    user: str = "0:0"
    entrypoint: list[str] = field(default_factory=list)
    command: list[str] = field(default_factory=list)
    health: list[str] = field(default_factory=list)
    volumes: list[str] = field(default_factory=list)

    @property
    def layer(self) -> Path:
        """The files that the Dockerfile adds to its base image."""
        return self.folder / "upper"


def built(dockerfile: Path, folder: Path, build_arguments: Mapping[str, str]) -> Image:
    """Do what the Dockerfile says, with these build arguments, in an empty folder.

    Raises:
        AssertionError: a step failed; the message has its output.
    """
    arguments, all_stages = stages(dockerfile.read_text())
    images: dict[str, Image] = {}
    for number, stage in enumerate(all_stages):
        name = stage.name or str(number)
        images[name] = _Builder(dockerfile.parent, folder / name, images).build(stage, {**arguments, **build_arguments})
    return images[name]


class _Builder:
    """One stage."""

    def __init__(self, context: Path, folder: Path, earlier: Mapping[str, Image]) -> None:
        self._context = context
        self._earlier = earlier
        self._image = Image(folder)
        self._arguments: dict[str, str] = {}
        self._where = Path("/")
        for part in ("upper", "work", "root"):
            (folder / part).mkdir(parents=True)
        # The base image's Python can be run by everybody.
        base = Path(sys.base_prefix)
        self._run(" ".join(["chmod o+x", *(shlex.quote(str(parent)) for parent in base.parents)]))

    def build(self, stage: Stage, build_arguments: Mapping[str, str]) -> Image:
        for instruction in stage.instructions:
            if instruction.name == "ARG":
                declared = assignments(instruction.text)
                self._arguments |= {name: build_arguments.get(name, default) for name, default in declared.items()}
                continue
            self._perform(instruction, substituted(instruction.text, self._arguments | self._image.variables))
        return self._image

    def _perform(self, instruction: Instruction, text: str) -> None:
        image = self._image
        match instruction.name:
            case "RUN":
                self._run(instruction.text)
            case "COPY":
                self._copy(text.split())
            case "WORKDIR":
                self._run(f"mkdir -p {text}")
                self._where = Path(text)
            case "ENV":
                image.variables |= assignments(text)
            case "LABEL":
                image.labels |= assignments(text)
            case "USER":
                image.user = text
            case "VOLUME":
                image.volumes += text.split()
            case "HEALTHCHECK":
                image.health = Instruction(0, "CMD", text.partition(" CMD ")[2]).words() or []
            case "ENTRYPOINT":
                image.entrypoint = instruction.words() or []
            case "CMD":
                image.command = instruction.words() or []
            case "EXPOSE":
                pass
            case _:
                raise ValueError(instruction)

    def _copy(self, words: list[str]) -> None:
        source = self._context
        if words[0].startswith("--from="):
            source = self._earlier[words.pop(0).removeprefix("--from=")].layer
        *sources, target = words
        into = self._image.layer / str(self._where / target).lstrip("/")
        for name in sources:
            origin = source / name.lstrip("/")
            if source is not self._context and not origin.exists():
                continue  # it is of the base image: this machine has its own
            if origin.is_dir():
                ignored = shutil.ignore_patterns("__pycache__") if source is self._context else None
                shutil.copytree(origin, into, symlinks=True, dirs_exist_ok=True, ignore=ignored)
            else:
                place = into / origin.name if target.endswith("/") or len(sources) > 1 else into
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(origin, place)

    def _run(self, script: str) -> None:
        inherited = {key: value for key, value in os.environ.items() if key.startswith(_PASSED_ON)}
        cargo = Path(shutil.which("cargo") or "/usr/bin/cargo").parent
        path = f"{sys.base_prefix}/bin:{cargo}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        variables = inherited | {"PATH": path, "HOME": "/root"} | self._arguments | self._image.variables
        inside = f"cd {self._where} && {script}"
        mounts = _mounts(self._image.folder)
        cache = Path.home() / ".cache" / "pip"
        if cache.is_dir():  # what was downloaded once is not downloaded again
            mounts.append(f"mount --bind {cache} root/root/.cache/pip")
        done = subprocess.run(
            _isolated(self._image.folder, mounts, [*_with(variables), "sh", "-c", inside]),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_STEP_SECONDS,
            check=False,
        )
        assert done.returncode == 0, f"{script}\n{done.stdout}"


@dataclass(frozen=True, slots=True)
class Container:
    """A running image.

    Attributes:
        process: `unshare`, which ends as the image's first process does.
        pid: of that first process, as the machine counts.
    """

    image: Image
    process: subprocess.Popen[str]
    pid: int

    def run(
        self, command: Sequence[str], variables: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in it, as the image's user."""
        entered = ["nsenter", "--target", str(self.pid), "--mount", "--net", "--pid", "--root", "--wd=/"]
        return subprocess.run(
            [*entered, *_with(self.image.variables | dict(variables or {})), *_as_user(self.image.user), *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=60,
            check=False,
        )


@contextmanager
def running(
    image: Image, binds: Mapping[Path, str], user: str = "", arguments: Sequence[str] | None = None
) -> Iterator[Container]:
    """Run an image read-only, as process 1, with a network of its own.

    Args:
        binds: folders of this machine, and where the image sees them. Its volumes are writable, all others are not.
        user: `uid:gid`, if not the image's own.
        arguments: instead of `CMD`.
    """
    user = user or image.user
    mounts = [f"{sys.executable} -c {shlex.quote(_LOOPBACK_UP)}", *_mounts(image.folder)]
    for source, target in binds.items():
        mounts.append(f"mount --bind {source} root{target}")
        if target not in image.volumes:
            mounts.append(f"mount -o remount,ro,bind root{target}")
    mounts.append("mount -o remount,ro root")
    command = image.command if arguments is None else arguments
    inner = [*_with(image.variables), *_as_user(user), *image.entrypoint, *command]
    process = subprocess.Popen(
        _isolated(image.folder, mounts, inner, "--net"),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield Container(image, process, _first_child(process.pid))
    finally:
        process.kill()
        process.communicate()


def _mounts(folder: Path) -> list[str]:
    return [
        f"cd {folder}",
        "mount -t overlay overlay -o lowerdir=/,upperdir=upper,workdir=work root",
        "mount -t proc proc root/proc",
        "mount --rbind /dev root/dev",
    ]


def _isolated(folder: Path, mounts: Sequence[str], inner: Sequence[str], *options: str) -> list[str]:
    script = "\n".join(["set -eu", *mounts, f"exec chroot root {shlex.join(inner)}"])
    return ["unshare", "--mount", "--pid", "--fork", "--kill-child", *options, "sh", "-c", script]


def _with(variables: Mapping[str, str]) -> list[str]:
    """These variables and no others."""
    return ["/usr/bin/env", "-i", *(f"{name}={value}" for name, value in variables.items())]


def _as_user(user: str) -> list[str]:
    uid, _, gid = user.partition(":")
    privileges = ["--no-new-privs", "--bounding-set=-all", "--inh-caps=-all"]
    return ["/usr/bin/setpriv", f"--reuid={uid}", f"--regid={gid or 0}", "--clear-groups", *privileges]


def _first_child(pid: int) -> int:
    deadline = time.monotonic() + 30
    children = Path(f"/proc/{pid}/task/{pid}/children")
    while not (ids := children.read_text().split()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return int(ids[0])
