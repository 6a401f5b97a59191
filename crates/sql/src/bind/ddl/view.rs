//! CREATE VIEW.

use super::draft::{Draft, RelationKind};
use super::text::statement_text;
use super::{Result, refuse_temporary};
use crate::system;
use crate::types::{self, Type};
use isles_kernel::error::SqlError;
use isles_kernel::schema::{CommentOn, PUBLIC, SchemaChange, SqlType, View, plain_name};
use pg_raw_parse::Node;
use pg_raw_parse::nodes::ViewStmt;
use pg_raw_parse::raw::ViewCheckOption;

pub(super) fn create(draft: &mut Draft<'_>, statement: &ViewStmt) -> Result<()> {
    refuse_temporary(statement.view())?;
    if !statement.options().is_empty() || statement.with_check_option != ViewCheckOption::NO_CHECK_OPTION {
        return Err(SqlError::unsupported("options of a view are not supported"));
    }
    let name = draft.new_name(statement.view())?;
    let sql = statement_text(statement.query())?;
    // Later its names mean what they mean now, whoever reads it, and in no schema that is made meanwhile.
    let path = Some(system::existing(&draft.schema, draft.context.search_path)).filter(|path| *path != [PUBLIC]);
    let view = View { columns: columns(draft, statement, &sql)?, name: name.clone(), sql, path };
    match draft.kind_of(&name) {
        Some(RelationKind::View) if statement.replace => replace(draft, view),
        Some(_) if statement.replace => Err(SqlError::new("42809", format!("\"{}\" is not a view", plain_name(&name)))),
        _ => draft.push(SchemaChange::CreateView(view)),
    }
}

fn columns(draft: &Draft<'_>, statement: &ViewStmt, sql: &str) -> Result<Vec<(String, SqlType)>> {
    let fields = draft.expressions().query_columns(&draft.schema, draft.context.search_path, sql)?;
    let aliases: Vec<&str> = statement.aliases().iter().filter_map(Node::as_str).collect();
    if aliases.len() > fields.len() {
        return Err(SqlError::new("42601", "CREATE VIEW specifies more column names than columns"));
    }
    let mut columns: Vec<(String, SqlType)> = Vec::new();
    for (at, field) in fields.iter().enumerate() {
        let name = aliases.get(at).copied().unwrap_or(&field.name).to_string();
        if columns.iter().any(|(other, _)| *other == name) {
            return Err(SqlError::new("42701", format!("column \"{name}\" specified more than once")));
        }
        let ty = if field.ty.oid == types::UNKNOWN { Type::of(types::TEXT) } else { field.ty };
        columns.push((name, SqlType { oid: ty.oid.0, modifier: ty.modifier }));
    }
    Ok(columns)
}

/// The new view begins with the old one's columns; whoever reads it finds what they did.
fn replace(draft: &mut Draft<'_>, view: View) -> Result<()> {
    let old = draft.schema.views.get(&view.name).map(|old| old.columns.clone()).unwrap_or_default();
    if view.columns.len() < old.len() {
        return Err(SqlError::new("42P16", "cannot drop columns from view"));
    }
    for ((old_name, old_type), (name, ty)) in old.iter().zip(&view.columns) {
        if old_name != name {
            let message = format!("cannot change name of view column \"{old_name}\" to \"{name}\"");
            let hint = "Use ALTER VIEW ... RENAME COLUMN ... to change name of view column instead.";
            return Err(SqlError::new("42P16", message).with_hint(hint));
        }
        if old_type != ty {
            let shown = |ty: &SqlType| ty.name().unwrap_or_default();
            let message =
                format!("cannot change data type of view column \"{name}\" from {} to {}", shown(old_type), shown(ty));
            return Err(SqlError::new("42P16", message));
        }
    }
    let of_view = |on: &CommentOn| match on {
        CommentOn::View(other) | CommentOn::Column(other, _) => *other == view.name,
        _ => false,
    };
    let comments: Vec<_> = draft.schema.comments.iter().filter(|(on, _)| of_view(on)).cloned().collect();
    draft.push(SchemaChange::DropView { view: view.name.clone() })?;
    draft.push(SchemaChange::CreateView(view))?;
    for (on, text) in comments {
        draft.push(SchemaChange::SetComment { on, text: Some(text) })?;
    }
    Ok(())
}
