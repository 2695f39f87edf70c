"""From a plan to rows: data files are opened, projected to the table's schema, and read in order by several threads."""
