"""The daemon's process: it starts the loops of all tables, restarts those that fail, and stops them."""
