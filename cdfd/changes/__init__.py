"""One commit -> change rows: what to read (`plan`), how it is read (`read`, `execute`), in one schema (`reconciliation`).

The package has the name of the public function; `cdfd.changes` is the function (see `cdfd`).
"""
