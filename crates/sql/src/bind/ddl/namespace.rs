//! CREATE SCHEMA and DROP SCHEMA.

use super::draft::{Behavior, Draft, Otherwise, RelationKind, described, no_namespace};
use super::drop::{drop_all, in_the_way_of};
use super::text::{identifier, strings};
use super::{DdlChange, Result};
use isles_kernel::error::SqlError;
use isles_kernel::schema::{INDEX_NAMESPACE, SchemaChange, is_copy_namespace, relation_parts};
use pg_raw_parse::nodes::{CreateSchemaStmt, DropStmt};

pub(super) fn create(draft: &mut Draft<'_>, statement: &CreateSchemaStmt) -> Result<()> {
    if !statement.schema_elts().is_empty() {
        let error = SqlError::unsupported("CREATE SCHEMA with statements inside is not supported");
        return Err(error.with_hint("create the schema, then what is in it"));
    }
    let role = || statement.authrole().and_then(|role| role.rolename());
    let Some(name) = statement.schemaname().or_else(role) else {
        return Err(SqlError::new("42601", "a schema's name is missing"));
    };
    if name == INDEX_NAMESPACE || is_copy_namespace(name) {
        return Err(SqlError::new("42939", format!("unacceptable schema name \"{name}\"")));
    }
    if name.starts_with("pg_") {
        let error = SqlError::new("42939", format!("unacceptable schema name \"{name}\""));
        return Err(error.with_detail("The prefix \"pg_\" is reserved for system schemas."));
    }
    if draft.schema.has_namespace(name) && Otherwise::of(statement.if_not_exists) == Otherwise::Skip {
        draft.notices.push(SqlError::new("42P06", format!("schema \"{name}\" already exists, skipping")));
        return Ok(());
    }
    draft.push(SchemaChange::CreateNamespace { namespace: name.into() })
}

pub(super) fn drop(mut draft: Draft<'_>, statement: &DropStmt) -> Result<Option<DdlChange>> {
    let behavior = Behavior::of(statement.behavior);
    for object in statement.objects() {
        let name = strings(object).concat();
        if ["public", "pg_catalog", "information_schema"].contains(&name.as_str()) {
            return Err(SqlError::new("2BP01", format!("cannot drop schema {name} because it is required by Isles")));
        }
        if draft.schema.has_namespace(&name) {
            drop_one(&mut draft, &name, behavior)?;
        } else if statement.missing_ok {
            draft.notice(format!("schema \"{name}\" does not exist, skipping"));
        } else {
            return Err(no_namespace(&name));
        }
    }
    Ok(Some(draft.finish("DROP SCHEMA")))
}

fn drop_one(draft: &mut Draft<'_>, namespace: &str, behavior: Behavior) -> Result<()> {
    let within = |name: &&String| relation_parts(name).0 == namespace;
    let owned = |name: &String| draft.schema.sequences.get(name).is_some_and(|sequence| sequence.owner.is_some());
    let tables: Vec<String> = draft.schema.tables.keys().filter(within).cloned().collect();
    let views: Vec<String> = draft.schema.views.keys().filter(within).cloned().collect();
    let sequences = draft.schema.sequences.keys().filter(within).filter(|name| !owned(name)).cloned().collect();
    let kinds = [(RelationKind::View, views), (RelationKind::Table, tables), (RelationKind::Sequence, sequences)];
    let described = |(kind, names): &(RelationKind, Vec<String>)| -> Vec<String> {
        names.iter().map(|name| described(*kind, name)).collect()
    };
    let whats: Vec<String> = kinds.iter().flat_map(described).collect();
    if behavior == Behavior::Restrict && !whats.is_empty() {
        return Err(in_the_way_of(&format!("schema {}", identifier(namespace)), &whats));
    }
    super::drop::cascades(draft, &whats);
    for (kind, names) in kinds {
        // A view over others of them has gone with the first.
        let left: Vec<String> = names.into_iter().filter(|name| draft.kind_of(name).is_some()).collect();
        drop_all(draft, kind, &left, behavior)?;
    }
    draft.push(SchemaChange::DropNamespace { namespace: namespace.into() })
}
