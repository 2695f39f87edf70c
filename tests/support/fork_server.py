"""Processes of `cdfd` that are forked from one that has imported its modules: a start takes a tenth of the time of Python's own.

Such a process has its own arguments, variables, folder and streams, and is signalled, killed and waited for like any other. It does not show
which modules a command imports, nor when, nor whether Python ends without a complaint. Tests of imports, of the allocator and of variables
of Python start Python, and so do all tests in their long form.
"""

import atexit
import contextlib
import gc
import importlib
import json
import os
import pkgutil
import runpy
import selectors
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).parents[2]
_NUMBER = struct.Struct("<i")
_NOT_IMPORTED = (
    "cdfd.__main__",
    "cdfd.catalogs.",
    "cdfd.daemon.telemetry.",
    "cdfd.demo",
    "cdfd.spark",
    "cdfd.storage.",
    "cdfd.trevni",
)
"""Modules that few commands import. A smaller process is forked faster."""
_READ_AT_START = ("PYTHON", "LC_", "LANG", "ARROW_", "CDFD_NATIVE")

_server: "_Server | None" = None


def start(command: Sequence[str], arguments: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
    """Start `cdfd`: by a fork within `forks`, else by its command.

    Args:
        command: its command.
        arguments: those after it.
        options: `cwd`, `env`, and what `subprocess.Popen` has for streams.
    """
    if _server is not None and _server.takes(options.get("env") or os.environ):
        return Forked(_server, arguments, **options)
    return subprocess.Popen([*command, *arguments], **options)


@contextlib.contextmanager
def forks() -> Iterator[None]:
    """Fork processes meanwhile."""
    global _server
    _server = _Server()
    try:
        yield
    finally:
        _server.close()
        _server = None


class _Server:
    """The process that is forked, from the side of the tests. It is started with the first one that it is asked for."""

    def __init__(self) -> None:
        self._variables = _read_at_start(os.environ)
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def takes(self, environment: Mapping[str, str]) -> bool:
        """Whether a process with these variables can be forked."""
        return _read_at_start(environment) == self._variables

    def fork(self, request: Sequence[Any], streams: Sequence[int]) -> tuple[int, socket.socket]:
        """The number of a new process, and the socket that gets its status once it has ended."""
        document = json.dumps(request).encode()
        ours, theirs = socket.socketpair()
        with theirs, self._lock:
            if self._process is None:
                self._start()
            socket.send_fds(self._requests, [_NUMBER.pack(len(document))], [theirs.fileno(), *streams])
            self._requests.sendall(document)
        return _number(ours), ours

    def close(self) -> None:
        """End the server. Processes of it run on."""
        if self._process is not None:
            self._requests.close()
            self._process.wait()

    def _start(self) -> None:
        self._requests, theirs = socket.socketpair()
        command = [sys.executable, "-m", "tests.support.fork_server", str(theirs.fileno())]
        own = os.environ | {"OPENBLAS_NUM_THREADS": "1"}  # numpy would start threads
        with theirs:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()], cwd=_ROOT, env=own
            )


class Forked(subprocess.Popen[Any]):
    """A process that a server forks and waits for, instead of this process."""

    def __init__(self, server: _Server, arguments: Sequence[str], **options: Any) -> None:
        self._server = server
        super().__init__(arguments, **options)

    def _execute_child(self, *values: Any) -> None:
        arguments, folder, environment, pipes = values[0], values[5], values[6], values[10:16]
        request = (list(arguments), str(folder or os.getcwd()), dict(environment or os.environ))
        streams = (pipes[0], pipes[3], pipes[5])  # -1 is the stream of this process
        self.pid, self._channel = self._server.fork(
            request, [own if pipe == -1 else pipe for own, pipe in enumerate(streams)]
        )
        self._child_created = True
        self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]

    def _internal_poll(self, *_: Any, **__: Any) -> int | None:
        return self._status(0)

    def _wait(self, timeout: float | None) -> int:
        if (code := self._status(timeout)) is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return code

    def _status(self, seconds: float | None) -> int | None:
        """The exit code, if there is one within so many seconds. While another thread waits for it, none is known at once."""
        if self.returncode is None and self._waitpid_lock.acquire(blocking=seconds != 0):  # type: ignore[attr-defined]
            try:
                if self.returncode is None:
                    self._channel.settimeout(seconds)
                    self.returncode = os.waitstatus_to_exitcode(_number(self._channel))
                    self._channel.close()
            except (BlockingIOError, TimeoutError):
                pass
            finally:
                self._waitpid_lock.release()  # type: ignore[attr-defined]
        return self.returncode


def _read_at_start(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that Python and imported modules read."""
    return {name: value for name, value in environment.items() if name.startswith(_READ_AT_START)}


def _number(channel: socket.socket) -> int:
    if not (received := channel.recv(_NUMBER.size, socket.MSG_WAITALL)):
        raise RuntimeError("the fork server has ended")
    return int(_NUMBER.unpack(received)[0])


# The server


def _import_modules() -> None:
    import cdfd
    from cdfd.runtime import allocator

    allocator.choose()  # as the daemon does, before it imports Arrow
    for module in pkgutil.walk_packages(cdfd.__path__, "cdfd."):
        if not module.name.startswith(_NOT_IMPORTED):
            importlib.import_module(module.name)
    gc.collect()
    gc.freeze()


def _serve(requests: socket.socket) -> tuple[Any, list[int]] | None:
    """Fork a process for each request, and send its status once it has ended.

    Returns: the request and its streams in each new process; None at the end of the server.
    """
    channels = dict[int, socket.socket]()
    ended, wakes = socket.socketpair()
    wakes.setblocking(False)
    signal.set_wakeup_fd(wakes.fileno())
    signal.signal(signal.SIGCHLD, lambda *_: None)
    with contextlib.ExitStack() as stack:
        for each in (requests, ended, wakes):
            stack.enter_context(each)
        selector = stack.enter_context(selectors.DefaultSelector())
        selector.register(ended, selectors.EVENT_READ)
        selector.register(requests, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is ended:
                    ended.recv(4096)
                    for pid, channel in list(channels.items()):
                        done, status = os.waitpid(pid, os.WNOHANG)
                        if done:
                            with (
                                channels.pop(pid),
                                contextlib.suppress(OSError),
                            ):  # a test that has failed reads no status
                                channel.sendall(_NUMBER.pack(status))
                    continue
                header, handles, _, _ = socket.recv_fds(requests, _NUMBER.size, 4)
                if not header:
                    return None
                document = requests.recv(*_NUMBER.unpack(header), socket.MSG_WAITALL)  # type: ignore[call-arg]
                channel, *streams = socket.socket(fileno=handles[0]), *handles[1:]
                if (pid := os.fork()) == 0:
                    for other in (channel, *channels.values()):
                        other.close()
                    return json.loads(document), streams
                for stream in streams:
                    os.close(stream)
                channels[pid] = channel
                channel.sendall(_NUMBER.pack(pid))


def _run(arguments: Sequence[str], folder: str, environment: Mapping[str, str], streams: Sequence[int]) -> None:
    """Become `cdfd`, as if Python had just started."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    encoding = sys.stdout.encoding
    sys.stdout = os.fdopen(1, "w", 1 if os.isatty(1) else -1, encoding, closefd=False)
    sys.stderr = os.fdopen(2, "w", 1, encoding, "backslashreplace", closefd=False)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    time.tzset()
    sys.argv[1:] = arguments
    try:
        runpy.run_module("cdfd", run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as ended:
        code = int(ended.code or 0)
    except Exception:  # noqa: BLE001 - as Python does
        sys.excepthook(*sys.exc_info())
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    # Python would now destroy all objects, which copies all pages of the server.
    os._exit(code)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Arrow's jemalloc has a thread of its own, and knows forks.
    warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
    _import_modules()
    if (forked := _serve(socket.socket(fileno=int(sys.argv[1])))) is not None:
        _run(*forked[0], forked[1])  # type: ignore[call-arg]
