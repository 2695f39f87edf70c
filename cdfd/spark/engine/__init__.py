"""Deliveries that Spark runs for the daemon: large versions, backfills, and tables that it follows itself."""
