"""Where change rows go: the port and its implementations."""
