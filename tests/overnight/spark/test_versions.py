"""The next version of Spark, with its delta-spark: some of the tests, run with the PySpark of another environment."""

import subprocess

from tests.support.cache import ROOT
from tests.support.kafka.shared import SharedBroker
from tests.support.spark import environments

SECONDS = 900
SELECTED = (
    "tests/standard/spark/test_register.py::test_sessions_in_any_order",
    "tests/standard/spark/test_source.py::TestRows::test_those_of_delta_spark",
    "tests/integration/spark/test_source_stream.py::test_from_the_beginning_and_on",
    "tests/integration/spark/test_source_stream.py::test_available_now_with_a_limit",
    "tests/integration/spark/test_source_stream.py::test_rows_of_a_small_micro_batch_come_with_its_plan",
    "tests/integration/spark/test_source_stream.py::test_lag",
    "tests/integration/spark/test_frames.py::TestRows::test_rows_equal_those_of_all_other_readers",
    "tests/integration/spark/test_frames_oracle.py::test_rows_are_those_of_delta_spark[vectors]",
    "tests/standard/spark/test_kafka_sink.py::TestStream::test_a_batch_that_is_run_again_is_not_delivered_again",
    "tests/overnight/spark/test_read_time_changes.py",
)


def test_with_the_next_spark(needs_spark: None, broker: SharedBroker) -> None:
    """Formats, rows of batches and of `cdfd.spark.changes`, streams, records delivered once, and updates against delta-spark's preview.

    No test is skipped.
    """
    python = environments.python(*environments.NEXT_SPARK)
    asked = [str(python), "-c", "import pyspark; print(pyspark.__version__)"]
    own = environments.variables() | {"CDFD_TEST_BROKER": str(broker.place), "CDFD_REFINE_ORACLE": "1"}
    version = subprocess.run(asked, env=own, capture_output=True, text=True, check=True, timeout=60).stdout.strip()
    assert f"pyspark=={version}" in environments.NEXT_SPARK
    # Each tier has a session of its own, and a process has one session at a time.
    for tier in ("standard", "integration", "overnight"):
        selected = [test for test in SELECTED if test.startswith(f"tests/{tier}/")]
        command = [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", *selected]
        done = subprocess.run(command, env=own, cwd=ROOT, capture_output=True, text=True, timeout=SECONDS)
        assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
        assert "skipped" not in done.stdout
