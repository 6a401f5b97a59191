//! A shard that is a SQLite file.

