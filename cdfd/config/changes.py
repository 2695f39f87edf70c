"""The difference between two configurations, by the names of settings. Pure."""

from collections.abc import Iterator

from cdfd.config.fields import Section


def changed_settings(old: Section, new: Section, prefix: str = "") -> list[str]:
    """The dotted names of settings with different values, such as `poll.interval`. Never shows a value, which may be a secret."""
    return list(_changed(old, new, prefix))


def _changed(old: Section, new: Section, prefix: str) -> Iterator[str]:
    if type(old) is not type(new):
        yield prefix.removesuffix(".")
        return
    for name in type(old).model_fields:
        before, after = getattr(old, name), getattr(new, name)
        if isinstance(before, Section) and isinstance(after, Section):
            yield from _changed(before, after, f"{prefix}{name}.")
        elif before != after:
            yield f"{prefix}{name}"
