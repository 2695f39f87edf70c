"""Text for people and their terminals: logs, escaped text, progress lines."""
