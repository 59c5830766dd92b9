"""A pytest plugin: Hypothesis tries few examples, since a sanitized build is slow."""

import hypothesis
import pytest

hypothesis.settings.register_profile(
    "few",
    max_examples=10,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(hypothesis.HealthCheck),
)


@pytest.hookimpl(tryfirst=True)
def pytest_collection() -> None:
    """After the tests' own choice of a profile, before a test module reads it."""
    hypothesis.settings.load_profile("few")
