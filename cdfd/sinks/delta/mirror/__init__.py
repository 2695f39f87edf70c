"""A Delta table that is kept equal to the rows of its source."""
