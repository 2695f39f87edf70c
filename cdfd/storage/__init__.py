"""Storage: the port and its implementations."""
