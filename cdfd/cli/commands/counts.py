"""Numbers of things in reports of commands."""


def quantity(number: int, thing: str) -> str:
    """`1 row`, `1,234 rows`."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"
