"""Transforms of rows: filters, chosen columns, masks. The same for every reader of change rows."""
