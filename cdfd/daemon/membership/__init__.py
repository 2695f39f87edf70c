"""Which tables a daemon delivers: those of its configuration and of its patterns, as both change while it runs."""
