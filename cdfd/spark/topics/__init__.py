"""Readers of cdfd's topics for Spark."""
