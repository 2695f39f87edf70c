"""`make spark` has what the pages of Spark say, answers as they say, and leaves nothing behind."""

import os
import subprocess
import sys
from pathlib import Path

from tests.support.docs.console import console
from tests.support.docs.pages import Tour
from tests.support.docs.played import SHELL

DOCS = Path(__file__).parents[3] / "docs"
SECONDS = 120.0  # until an answer of the shell is given up; nothing waits for it otherwise
COMMAND = [sys.executable, "-m", "tests.support.spark.shell"]

# The table of the tutorial, which the page of topics begins with. The shell's broker has a topic shop.orders of its own.
TUTORIAL = """
```
$ cdfd demo shop
...
$ cat tutorial.yaml
pipeline: tutorial
tables:
  - uri: shop/orders
    key: [order_id]
    start: earliest
sink:
  kind: kafka
  bootstrap_servers: localhost:9092
  topics: {prefix: tutorial.}
progress: {ledger: none}
http: {listen: null}
$ cdfd run -c tutorial.yaml
...
$ cdfd progress show -c tutorial.yaml
table   sink  ledger  newest  lag  next
orders  7     -       7       0    resuming at version 8, the position in the topic _cdfd_progress.tutorial
```
"""


def test_pages_in_the_shell(needs_spark: None, needs_broker: None, tmp_path: Path) -> None:
    errors, tutorial = tmp_path / "errors", tmp_path / "tutorial.md"
    tutorial.write_text(TUTORIAL)
    update = os.environ.get("CDFD_DOCS") == "update"
    with (
        Tour(tmp_path / "tour", update=update) as tour,
        console(COMMAND, tour.folder, tour.environment(), errors, SECONDS) as shell,
    ):
        servers, folder = (shell.run(f"print({name})")[0].decode().strip() for name in ("servers", "folder"))
        tour.console, tour.places = shell, {"localhost:9092": servers}
        for page in SHELL:
            if page == "spark-topics":
                tour.play(tutorial)
                tour.places = {"localhost:9092": servers, "shop.orders": "tutorial.orders"}
            tour.play(DOCS / f"{page}.md")
    assert subprocess.run(["pgrep", "-f", folder], capture_output=True, check=False).returncode == 1
