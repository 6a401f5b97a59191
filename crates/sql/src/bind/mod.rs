//! Binding: from PostgreSQL's raw tree to statements whose names and types are known.

pub mod ddl;
pub mod utility;
