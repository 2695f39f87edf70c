"""`cdfd demo`: runs a daemon on a table that the demo creates and changes."""
