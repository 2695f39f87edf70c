"""The commands behind the command line: one module for each, called by `cdfd.cli`."""
