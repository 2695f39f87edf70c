"""`cdfd demo`: the main job, shown on a table that it makes itself."""
