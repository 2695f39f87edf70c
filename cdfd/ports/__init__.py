"""Ports with several implementations, to which other packages can add: see `registry`."""
