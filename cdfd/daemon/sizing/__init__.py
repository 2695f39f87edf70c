"""Estimates of rows, bytes, processor, memory, requests and money of a pipeline, from the logs of its tables."""
