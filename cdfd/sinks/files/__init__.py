"""Delivery to files of a local folder."""
