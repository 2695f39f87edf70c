"""Updates that files do not say: matched by row ids or by the key, net changes of a range, updates that change nothing."""
