"""What all tests have in common."""

from hypothesis import settings

# How long an example takes says how busy the machine is: benchmarks measure time, tests do not. In CI, Hypothesis sets that itself.
if settings.get_current_profile_name() == "default":
    settings.register_profile("untimed", deadline=None)
    settings.load_profile("untimed")
