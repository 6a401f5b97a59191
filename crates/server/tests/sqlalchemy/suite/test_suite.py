"""SQLAlchemy's compliance suite for dialects, all of it."""

from sqlalchemy.testing.suite import *  # noqa: F401,F403
