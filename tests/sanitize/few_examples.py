"""A pytest plugin: Hypothesis tries few examples, since a sanitized build is slow."""

import hypothesis
import pytest

hypothesis.settings.register_profile(
    "few", max_examples=10, deadline=None, suppress_health_check=list(hypothesis.HealthCheck)
)


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    hypothesis.settings.load_profile("few")
