"""The port of queues in which stores announce new objects, and its implementations."""
