"""Where bytes are: the port and its implementations."""
