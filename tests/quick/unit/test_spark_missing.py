"""PySpark is an extra: without it there is an error that says so, and nothing else misses it."""

import subprocess
import sys


def _python(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True)
    return done.stdout.strip()


def test_the_error_says_what_to_install() -> None:
    told = _python(
        "import sys\n"
        "sys.modules['pyspark'] = None\n"
        "import cdfd.spark, cdfd.errors\n"
        "try:\n"
        "    cdfd.spark.register(None)\n"
        "except cdfd.errors.ConfigError as error:\n"
        "    print(error)\n"
    )
    assert told == "Spark needs PySpark 4.1 or newer. Run: pip install 'cdfd[spark]'"


def test_an_old_one_is_refused_by_name() -> None:
    """Not by the names that it lacks: Python data sources of 4.0 write no Arrow batches."""
    told = _python(
        "import pyspark.sql.datasource, cdfd.spark, cdfd.errors\n"
        "pyspark.__version__ = '4.0.1'\n"
        "del pyspark.sql.datasource.DataSourceArrowWriter, pyspark.sql.datasource.DataSourceStreamArrowWriter\n"
        "try:\n"
        "    cdfd.spark.register(None)\n"
        "except cdfd.errors.ConfigError as error:\n"
        "    print(error)\n"
    )
    assert told == "PySpark 4.0.1 is too old: cdfd needs 4.1 or newer. Run: pip install 'cdfd[spark]'"


def test_it_is_not_imported_before_it_is_needed() -> None:
    assert _python("import sys, cdfd, cdfd.api, cdfd.cli, cdfd.spark; print('pyspark' in sys.modules)") == "False"
