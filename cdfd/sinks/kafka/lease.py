"""The lease of a pipeline in Kafka: the offset and the metadata that a consumer group without members has for the progress topic.

    group cdfd.<pipeline>.standby, topic _cdfd_progress.<pipeline>, partition 0: offset <beat>, metadata {"owner":...,"term":...}

Group membership would not do: before a member counts as gone, brokers wait at least `group.min.session.timeout.ms`, which is 6 s by default.
An offset is durable as soon as its commit is answered, and the coordinator of the group answers in order. It cannot be replaced
conditionally, so the last writer wins. Brokers keep the offset for `offsets.retention.minutes` after the last commit: 7 days by default.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from kafka import KafkaAdminClient, TopicPartition
from kafka.errors import GroupAuthorizationFailedError, KafkaError, NoError, TopicAuthorizationFailedError
from kafka.structs import OffsetAndMetadata

from cdfd.errors import SinkError
from cdfd.sinks.kafka.client.failures import translate
from cdfd.sinks.kafka.client.worker import Worker, in_worker
from cdfd.sinks.kafka.progress.topic_admin import CONNECT_SECONDS, TopicAdmin
from cdfd.sinks.kafka.progress.topics import PROGRESS_PARTITION, Topic
from cdfd.sinks.lease import Claim, Lease, parse_claim

_SETTLE_SECONDS = 0.03
"""A few times as long as a commit of an offset takes. If two standbys read that the lease is released, the later writer leads."""
_DENIED = (GroupAuthorizationFailedError, TopicAuthorizationFailedError)


class KafkaLease(Lease):
    """The lease of a pipeline. It accesses nothing before the first call. All calls are made in one thread, and in order.

    Args:
        connection: of `connection.arguments`.
        pipeline: its name.
        progress: the progress topic, which is created if it is missing: an offset belongs to a topic.
        timeout: longest wait for an answer, in seconds.
    """

    def __init__(self, connection: Mapping[str, Any], pipeline: str, progress: Topic, timeout: float) -> None:
        self._connection = connection
        self._group = f"cdfd.{pipeline}.standby"
        self._progress = progress
        self._partition = TopicPartition(progress.name, PROGRESS_PARTITION)
        self._timeout = timeout
        self._worker = Worker("cdfd-lease")
        self._admin: TopicAdmin | None = None
        self.place = f"the offset of group {self._group}"
        self.settle = _SETTLE_SECONDS

    @in_worker
    def read(self) -> Claim | None:
        """Fetch the offset; see the port."""
        with self._translate_errors():
            offsets = self._open().list_group_offsets({self._group: [self._partition]})[self._group]
        stored = offsets.get(self._partition)
        if stored is None or stored.offset < 0:
            return None
        return parse_claim(stored.metadata or "", self.place)

    @in_worker
    def write(self, claim: Claim) -> None:
        """Commit an offset; see the port. The last writer wins."""
        commit = {self._partition: OffsetAndMetadata(claim.beat, claim.text(), -1)}
        with self._translate_errors():
            refusal = self._open().alter_group_offsets(self._group, commit)[self._partition]
            if refusal is not NoError:
                raise refusal(refusal.description)

    def close(self) -> None:
        """Disconnect, without waiting for it."""
        self._worker.submit(self._disconnect)
        self._worker.close()

    # In the thread.

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        doing = f"use the consumer group {self._group}, which has the lease"
        try:
            yield
        except _DENIED as error:
            hint = (
                f"Give the user of sink.security Read on the group {self._group} and on the topic {self._progress.name}"
            )
            raise SinkError(f"cannot {doing}: {type(error).__name__}", hint=hint) from error
        except KafkaError as error:
            raise translate(error, doing) from error

    def _open(self) -> KafkaAdminClient:
        if self._admin is None:
            admin = TopicAdmin(self._connection, timeout=CONNECT_SECONDS, request_timeout=self._timeout)
            try:
                admin.ensure([self._progress])
            except SinkError:
                admin.close()
                raise
            self._admin = admin
        return self._admin.client

    def _disconnect(self) -> None:
        if self._admin is not None:
            self._admin.close()
            self._admin = None
