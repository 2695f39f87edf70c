"""Change rows as bytes for others."""
