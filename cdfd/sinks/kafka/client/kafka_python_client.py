"""A client of kafka-python: connected, with the settings of a producer, and with workarounds that no producer has to know.

- `close` raises and leaves the sender running while batches are in flight. Only the producer's own `close` ends the client.
- A request for a coordinator that refuses connections is lost: the sender then spins until the batch expires (`_retrying`).
- Until the markers of a transaction are written, a broker answers CONCURRENT_TRANSACTIONS to the next one, for a few milliseconds. The client
  then sleeps for `retry_backoff_ms`, which is 100 by default and shorter here.
"""

from collections.abc import Callable
from threading import Semaphore
from typing import Any

from kafka import KafkaProducer
from kafka.errors import KafkaConnectionError

from cdfd.sinks.kafka.client.connection import network
from cdfd.sinks.kafka.client.producer import ProducerSettings

IDLE_MS = 60_000
"""Time without a request after which a connection is closed. A daemon has two or more for each table, and most tables are idle."""
_RETRY_BACKOFF_MS = 3
_RECONNECT_MS = 50
_REQUEST_BYTES = 8 << 20
_AT_A_TIME = 8
_LONGEST_WAIT = 1.0

_turns = Semaphore(_AT_A_TIME)
"""Network threads that work at a time. Each table has one, and when a broker is lost, all of them have work. Each thread that waits for
Python's lock wakes up 2,000 times a second to ask for it: those of 500 tables took both cores for that, and the event loop never got it."""


class _InTurn:
    """The selector of a network thread. The thread has a turn from the end of a `select` to the beginning of the next one.

    A thread that waits long for a turn goes on without: another one may be at a name server that hangs.
    """

    def __init__(self, selector: Any) -> None:
        self._selector = selector
        self._has_turn = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._selector, name)

    def select(self, timeout: float | None = None) -> Any:
        """As that of the selector."""
        self._give_back()
        ready = self._selector.select(timeout)
        self._has_turn = _turns.acquire(timeout=_LONGEST_WAIT)
        return ready

    def close(self) -> None:
        """As that of the selector."""
        self._give_back()
        self._selector.close()

    def _give_back(self) -> None:
        if self._has_turn:
            self._has_turn = False
            _turns.release()


class _Client(KafkaProducer):  # type: ignore[misc]  # kafka-python has no types
    """A producer that only `close` ends.

    kafka-python's own closes itself once more in its destructor and at the end of the process. If the broker hangs, that waits for a second,
    and prints a traceback.
    """

    def __del__(self) -> None:
        return

    def _cleanup_factory(self) -> Callable[[], None]:
        return lambda: None


def connect(settings: ProducerSettings) -> KafkaProducer:
    """A client that has met a broker."""
    timeout_ms = int(settings.timeout * 1000)
    options = {
        "acks": "all",
        "enable_idempotence": True,
        "allow_auto_create_topics": False,
        "linger_ms": 0,
        "max_request_size": max(_REQUEST_BYTES, settings.batching.limit),
        "bootstrap_timeout_ms": timeout_ms,
        "max_block_ms": timeout_ms,
        "delivery_timeout_ms": timeout_ms,
        "request_timeout_ms": timeout_ms // 3,
        "retry_backoff_ms": _RETRY_BACKOFF_MS,
        "connections_max_idle_ms": IDLE_MS,
        "metrics_enabled": False,
    }
    if settings.transactional_id is not None:
        options |= {
            "transactional_id": settings.transactional_id,
            "transaction_timeout_ms": int(settings.transaction_timeout * 1000),
        }
    with network(settings.connection) as connection:
        made = connection.pop("kafka_client")
        return _Client(**connection | options, kafka_client=lambda **arguments: _retrying(made(**arguments)))


def _retrying(client: Any) -> Any:
    """A network client that says of an unreachable node that it is not ready, and that waits until one may be reached again.

    The sender loses the request that it was about to send where `await_ready` raises. Where it returns False, the sender looks the
    coordinator up again and retries the request. It does so every few milliseconds, however long no node can be reached: for hundreds of
    tables, that took all processors.
    """
    client._net._selector = _InTurn(client._net._selector)
    connect, choose = client.await_ready, client.least_loaded_node

    def await_ready(node: Any, **waiting: Any) -> bool:
        try:
            return bool(connect(node, **waiting))
        except KafkaConnectionError:
            client.poll(timeout_ms=max(_RECONNECT_MS, client.connection_delay(node) * 1000))
            return False

    def least_loaded_node(**options: Any) -> Any:
        node = choose(**options)
        if node is None:
            client.poll(timeout_ms=max(_RECONNECT_MS, client.least_loaded_node_refresh_ms()))
        return node

    client.await_ready, client.least_loaded_node = await_ready, least_loaded_node
    return client
