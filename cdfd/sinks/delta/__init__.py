"""Delivery to Delta tables."""
