"""Standby: of several processes of a pipeline, one delivers. The others wait for their turn."""
