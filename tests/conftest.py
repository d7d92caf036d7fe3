"""Fixtures lie in tests/support."""

import pytest

pytest_plugins = ["shared_fixtures", "browser_fixtures"]
pytest.register_assert_rewrite("cpu_time", "page_checks", "probe_cases")
