"""Unity Catalog: its Delta REST API, and the older API of servers and tables that do not have it."""
