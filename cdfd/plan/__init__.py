"""From commits to files and rows to read, pure: refinement, incremental snapshots, schemas, files that a filter excludes."""
