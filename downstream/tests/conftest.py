"""Fixtures lie in tests/support of the core."""

pytest_plugins = ["shared_fixtures"]
