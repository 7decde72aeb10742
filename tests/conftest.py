"""Hypothesis tries the same examples in every run, so that a red run is a change's fault.

To look for new ones: `pytest --hypothesis-profile=default`.
"""

from hypothesis import settings

settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")
