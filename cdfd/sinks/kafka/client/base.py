"""The common part of the producers: one transaction at a time, and no further calls after an error."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from cdfd.encoding.records import Records
from cdfd.errors import FencedError, SinkError
from cdfd.sinks.kafka.client.producer import ProducerSettings
from cdfd.sinks.kafka.records.batches import Oversized, Partitions

log = logging.getLogger("cdfd.kafka")


class BaseProducer(ABC):
    """The `Producer` port, except for the calls of a client.

    Attributes:
        errors: the exceptions of the client; they are translated into `SinkError`.

    Args:
        settings: the settings of the producer.
    """

    errors: tuple[type[Exception], ...]
    _client: Any

    def __init__(self, settings: ProducerSettings) -> None:
        self._settings = settings
        self._failure: SinkError | None = None
        self._in_transaction = False
        self._closed = False

    def init_transactions(self) -> None:
        """See the port."""
        with self._attempt(f"start transactions of {self._settings.transactional_id}"):
            if self._transactional:
                self._init_transactions()

    def begin(self) -> None:
        """See the port."""
        with self._attempt("begin a transaction"):
            if self._transactional:
                self._client.begin_transaction()
            self._in_transaction = True

    def send(self, topic: str, partitions: Partitions, records: Records, timestamp: int) -> Sequence[Oversized]:
        """See the port."""
        with self._attempt(f"deliver to topic {topic}"):
            return self._send(topic, partitions, records, timestamp)

    def flush(self) -> None:
        """See the port."""
        with self._attempt("flush"):
            self._flush()

    def commit(self) -> None:
        """See the port."""
        with self._attempt("commit a transaction"):
            self._flush()
            if self._transactional:
                self._commit()
            self._in_transaction = False

    def abort(self) -> None:
        """See the port."""
        if not self._in_transaction:
            return
        self._in_transaction = False
        try:
            self._abort(self._settings.closing_timeout)
        except self.errors as error:
            self._fail(error, "abort a transaction")
            log.warning(
                "cannot abort a transaction: %s. The next producer's start ends it, or the broker does after its timeout",
                self._reason(error),
            )
        self._forget_failures()

    def close(self) -> None:
        """See the port."""
        if self._closed:
            return
        self.abort()
        self._closed = True
        self._failure = self._failure or SinkError("the producer is closed")
        self._disconnect(self._settings.closing_timeout)

    @property
    def _transactional(self) -> bool:
        return self._settings.transactional_id is not None

    @property
    def _fenced(self) -> bool:
        return isinstance(self._failure, FencedError)

    @contextmanager
    def _attempt(self, doing: str) -> Iterator[None]:
        """Translate errors. After the first error, every call raises that error."""
        if self._failure is not None:
            raise self._failure
        try:
            yield
        except SinkError as error:
            self._failure = error
            raise
        except self.errors as error:
            raise self._fail(error, doing) from error

    def _fail(self, error: Exception, doing: str) -> SinkError:
        self._failure = self._failure or self._translated(error, doing)
        return self._failure

    @abstractmethod
    def _init_transactions(self) -> None: ...

    @abstractmethod
    def _send(self, topic: str, partitions: Partitions, records: Records, timestamp: int) -> Sequence[Oversized]: ...

    @abstractmethod
    def _flush(self) -> None:
        """Wait until all records are acknowledged. Raise the error of any that failed."""

    @abstractmethod
    def _commit(self) -> None: ...

    @abstractmethod
    def _abort(self, timeout: float) -> None:
        """Abort the transaction, unless the producer is fenced. Without transactions, wait for all records."""

    @abstractmethod
    def _forget_failures(self) -> None:
        """Forget the errors of records that were aborted."""

    @abstractmethod
    def _disconnect(self, timeout: float) -> None:
        """Release connections and threads."""

    @abstractmethod
    def _translated(self, error: Exception, doing: str) -> SinkError:
        """A client's exception as an error of ours."""

    @abstractmethod
    def _reason(self, error: Exception) -> str:
        """The text of a client's exception."""
