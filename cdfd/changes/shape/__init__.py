"""Rows shaped on the way: filtered, masked, renamed. The same for every reader of change rows."""
