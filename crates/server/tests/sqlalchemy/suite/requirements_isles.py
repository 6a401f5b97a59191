"""What Isles does not have, so that the suite's fixtures do not ask for it.

A test that needs one of these is skipped, and a skipped test does not count as passed.
"""

from sqlalchemy.testing import exclusions
from sqlalchemy.testing.requirements import SuiteRequirements


class Requirements(SuiteRequirements):
    @property
    def temporary_tables(self):
        return exclusions.closed()

    @property
    def temporary_views(self):
        return exclusions.closed()

    @property
    def temp_table_reflection(self):
        return exclusions.closed()

    @property
    def has_temp_table(self):
        return exclusions.closed()

    @property
    def temp_table_names(self):
        return exclusions.closed()
