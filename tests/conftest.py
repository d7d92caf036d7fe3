"""Fixtures lie in tests/support."""

import pytest

pytest_plugins = ["shared_fixtures", "browser_fixtures"]
pytest.register_assert_rewrite("page_checks", "probe_cases", "probe_conformance")
