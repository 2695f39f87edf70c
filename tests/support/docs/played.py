"""Which pages are played, by which test. `test_blocks.py` looks for blocks that no test runs."""

FRONT = ("README",)
DEMO = ("install", "tail", "configuration", "python", "refine", "shape", "daemon", "status", "vacuum")
"""Pages on the table of the demo."""
CONTROLS = ("controls",)
ALONE = ("recovery", "delta-mirror", "delta-changelog")
"""Pages that change the table of the demo: each has its own."""
TREVNI = ("trevni",)
MANY = ("many-tables", "shards")
SIZING = ("sizing",)
FIVE_MINUTES = ("tutorial", "backfill", "positions", "formats")
S3 = ("s3",)
CHART = ("kubernetes",)
SHELL = ("spark", "spark-source", "spark-kafka", "spark-topics")
"""Pages in the shell of `make spark`."""
PLAYED = (*FRONT, *DEMO, *ALONE, *TREVNI, *CONTROLS, *MANY, *SIZING, *FIVE_MINUTES, *S3, *CHART, *SHELL)
