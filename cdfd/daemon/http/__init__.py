"""The daemon over HTTP: metrics, health, status and a page for people."""
