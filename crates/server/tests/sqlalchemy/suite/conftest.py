"""Hands pytest over to SQLAlchemy's own plugin, as its README.dialects says."""

import pytest

pytest.register_assert_rewrite("sqlalchemy.testing.assertions")

from sqlalchemy.dialects.postgresql import provision  # noqa: E402

# The suite uses no extension; its provisioning asks for two, which no test of it needs.
provision._extensions.clear()

from sqlalchemy.testing.plugin.pytestplugin import *  # noqa: E402,F401,F403
