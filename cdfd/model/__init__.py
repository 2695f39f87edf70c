"""Values that rooms hand to each other: positions, plans, batches of changes. They read nothing."""
