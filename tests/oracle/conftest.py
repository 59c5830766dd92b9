"""Comparisons made outside the test modules say as much as those inside."""

import pytest

pytest.register_assert_rewrite("tests.oracle.agreement")
