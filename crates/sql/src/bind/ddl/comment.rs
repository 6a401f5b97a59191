//! COMMENT ON.

use super::Result;
use super::draft::{Draft, RelationKind, no_column, no_namespace, no_relation};
use super::text::strings;
use isles_kernel::error::SqlError;
use isles_kernel::schema::{CommentOn, SchemaChange, plain_name};
use pg_raw_parse::nodes::CommentStmt;
use pg_raw_parse::raw::ObjectType;

pub(super) fn comment(draft: &mut Draft<'_>, statement: &CommentStmt) -> Result<()> {
    let names = strings(statement.object());
    let on = match statement.objtype {
        ObjectType::OBJECT_TABLE => CommentOn::Table(relation(draft, RelationKind::Table, &names)?),
        ObjectType::OBJECT_VIEW => CommentOn::View(relation(draft, RelationKind::View, &names)?),
        ObjectType::OBJECT_SEQUENCE => CommentOn::Sequence(relation(draft, RelationKind::Sequence, &names)?),
        ObjectType::OBJECT_INDEX => CommentOn::Index(relation(draft, RelationKind::Index, &names)?),
        ObjectType::OBJECT_COLUMN => column(draft, names)?,
        ObjectType::OBJECT_TABCONSTRAINT => constraint(draft, names)?,
        ObjectType::OBJECT_DATABASE => CommentOn::Database,
        ObjectType::OBJECT_ROLE => CommentOn::Role(names.concat()),
        ObjectType::OBJECT_SCHEMA => match names.as_slice() {
            [name] if draft.schema.has_namespace(name) => CommentOn::Schema(name.clone()),
            other => return Err(no_namespace(&other.concat())),
        },
        _ => return Err(SqlError::unsupported("a comment on this kind of object is not supported")),
    };
    // An empty comment is none.
    let text = statement.comment().filter(|text| !text.is_empty()).map(Into::into);
    draft.push(SchemaChange::SetComment { on, text })
}

fn relation(draft: &Draft<'_>, kind: RelationKind, names: &[String]) -> Result<String> {
    let name = draft.name_of(names)?;
    match draft.kind_of(&name) {
        Some(there) if there == kind => Ok(name),
        Some(_) => {
            let article = if kind == RelationKind::Index { "an" } else { "a" };
            Err(SqlError::new("42809", format!("\"{}\" is not {article} {}", plain_name(&name), kind.word())))
        }
        None => Err(no_relation(&name)),
    }
}

fn column(draft: &Draft<'_>, mut names: Vec<String>) -> Result<CommentOn> {
    let column = names.pop().unwrap_or_default();
    if names.is_empty() {
        return Err(SqlError::new("42601", "column name must be qualified"));
    }
    let name = draft.name_of(&names)?;
    let there = match (draft.schema.tables.get(&name), draft.schema.views.get(&name)) {
        (Some(table), _) => table.visible_columns().iter().any(|c| c.name == column),
        (None, Some(view)) => view.columns.iter().any(|(c, _)| *c == column),
        (None, None) => return Err(no_relation(&name)),
    };
    if there { Ok(CommentOn::Column(name, column)) } else { Err(no_column(&name, &column)) }
}

fn constraint(draft: &Draft<'_>, mut names: Vec<String>) -> Result<CommentOn> {
    let constraint = names.pop().unwrap_or_default();
    let table = draft.name_of(&names)?;
    if !draft.table(&table)?.has_constraint(&constraint) {
        let message = format!("constraint \"{constraint}\" for table \"{}\" does not exist", plain_name(&table));
        return Err(SqlError::new("42704", message));
    }
    Ok(CommentOn::Constraint(table, constraint))
}
