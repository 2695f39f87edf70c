"""Durations for people."""


def duration(seconds: float) -> str:
    """A duration in its two largest units: `4.5 s`, `3 min 20 s`, `25 h 0 min`, `12 d 3 h`."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes = int(seconds) // 60
    if minutes < 60:
        return f"{minutes} min {int(seconds) % 60} s"
    hours = minutes // 60
    return f"{hours} h {minutes % 60} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"
