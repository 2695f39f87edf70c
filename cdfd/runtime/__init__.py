"""Tools for every room: threads, clocks, logs, registries, Arrow from Python's values, `cdfd-native`."""
