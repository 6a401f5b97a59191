//! VACUUM and ANALYZE: shards see to that themselves, so what remains is to check what the statement says.

use super::{Context, Utility};
use crate::bind::ddl;
use crate::system;
use isles_kernel::error::SqlError;
use pg_raw_parse::Node;
use pg_raw_parse::nodes::{VacuumRelation, VacuumStmt};

const VACUUM_OPTIONS: &[&str] = &[
    "analyze",
    "buffer_usage_limit",
    "disable_page_skipping",
    "freeze",
    "full",
    "index_cleanup",
    "only_database_stats",
    "parallel",
    "process_main",
    "process_toast",
    "skip_database_stats",
    "skip_locked",
    "truncate",
    "verbose",
];
const ANALYZE_OPTIONS: &[&str] = &["buffer_usage_limit", "skip_locked", "verbose"];

pub(super) fn bind(statement: &VacuumStmt, context: &Context<'_>) -> Result<Utility, SqlError> {
    let (what, known) = match statement.is_vacuumcmd {
        true => ("VACUUM", VACUUM_OPTIONS),
        false => ("ANALYZE", ANALYZE_OPTIONS),
    };
    let named = |name: &str| statement.options().iter().any(|option| option.defname() == Some(name));
    for option in statement.options().iter().filter_map(|option| option.defname()) {
        if !known.contains(&option) {
            return Err(SqlError::new("42601", format!("unrecognized {what} option \"{option}\"")));
        }
    }
    let mut warnings = Vec::new();
    for relation in statement.rels().iter() {
        let columns: Vec<String> = relation.va_cols().iter().filter_map(Node::as_str).map(Into::into).collect();
        if statement.is_vacuumcmd && !columns.is_empty() && !named("analyze") {
            let message = "ANALYZE option must be specified when a column list is provided";
            return Err(SqlError::unsupported(message));
        }
        warnings.extend(check(relation, &columns, what, context)?);
    }
    Ok(match statement.is_vacuumcmd {
        true => Utility::Vacuum { warnings },
        false => Utility::Analyze { warnings },
    })
}

/// Fails if there is no such relation or column; warns of one that has no rows of its own.
fn check(
    relation: &VacuumRelation,
    columns: &[String],
    what: &str,
    context: &Context<'_>,
) -> Result<Option<SqlError>, SqlError> {
    let Some(range) = relation.relation() else { return Ok(None) };
    let (namespace, name) = (range.schemaname().unwrap_or("pg_catalog"), range.relname().unwrap_or_default());
    let is_rowless = ddl::check_columns(context, range, columns);
    match is_rowless {
        // What the catalogs have is maintained as little as anything else.
        Err(error) if error.sqlstate == "42P01" && system::relation(namespace, name).is_some() => Ok(None),
        Err(error) => Err(error),
        Ok(ddl::Rows::Own) => Ok(None),
        Ok(ddl::Rows::OfOthers) => {
            let verb = what.to_lowercase();
            let message = format!("skipping \"{name}\" --- cannot {verb} non-tables or special system tables");
            Ok(Some(SqlError::new("01000", message)))
        }
    }
}
