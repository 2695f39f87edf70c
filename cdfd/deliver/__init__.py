"""One table's delivery: its loop, its recovery, and versions that several processes deliver in parts."""
