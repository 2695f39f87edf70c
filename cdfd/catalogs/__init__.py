"""Catalogs: tables by name, the commits that their catalog has ratified, and the credentials that it vends."""
