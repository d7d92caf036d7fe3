"""Fixtures lie in tests/support of the core."""

import pytest

pytest_plugins = ["shared_fixtures"]
pytest.register_assert_rewrite("probe_cases", "probe_conformance")
