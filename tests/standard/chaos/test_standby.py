"""A leader that is killed for each sink in a store, and in the long form one that hands over. Kafka's are in tests/standard/kafka."""

from pathlib import Path

import pytest

from tests.support.chaos.stored import STORED, outlive
from tests.support.sampling import ALL


@pytest.mark.parametrize("sink", STORED)
def test_another_process_writes_after_the_leader_ends(sink: str, tmp_path: Path) -> None:
    outlive(sink, tmp_path, ("kill", "stop"), 2 if ALL else 1)
