//! Statements that neither read nor write rows by themselves.

use super::BindContext;
use isles_kernel::error::SqlError;
use pg_raw_parse::Node;

/// A bound statement that returns no rows of tables.
#[derive(Debug, Clone, PartialEq)]
pub enum Utility {}

/// Binds a statement that is not one of rows. Whatever is not known is refused by its name.
pub fn bind(node: Node<'_>, _context: &BindContext<'_>) -> Result<Utility, SqlError> {
    Err(super::unsupported_node(node))
}
