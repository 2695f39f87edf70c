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


def test_it_is_not_imported_before_it_is_needed() -> None:
    assert _python("import sys, cdfd, cdfd.api, cdfd.cli, cdfd.spark; print('pyspark' in sys.modules)") == "False"
