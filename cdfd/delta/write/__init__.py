"""Additions of a writer to a log: actions, checkpoints, compaction, clean-up."""
