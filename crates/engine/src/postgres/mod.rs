//! A shard that is a PostgreSQL database.
