//! Tables that become tenant tables.

use super::gate::{Admin, Answer, Body, Refusal, done};
use axum::extract::Path;
use axum::http::StatusCode;
use isles_cluster::migrations::{Conflict, MigrationInfo};
use isles_kernel::error::SqlError;
use serde::Deserialize;
use serde_json::{Value, json};

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct NewMigration {
    table: Option<String>,
    /// A column, or an expression over columns.
    tenant_by: Option<String>,
    #[serde(default)]
    dry_run: bool,
}

pub(super) async fn list(admin: Admin) -> Answer {
    let all = admin.database().migrations().await?;
    done(StatusCode::OK, &all.iter().map(shown).collect::<Vec<_>>())
}

/// Begins one, or says what it would find.
pub(super) async fn begin(admin: Admin, body: Result<Body<NewMigration>, Refusal>) -> Answer {
    let Body(new) = body?;
    let missing = |what: &str| SqlError::new("22023", format!("{what} required"));
    let table = new.table.ok_or_else(|| missing("table"))?;
    let tenant_by = new.tenant_by.ok_or_else(|| missing("tenantBy"))?;
    if new.dry_run {
        let report = admin.database().try_migration(&table, &tenant_by).await?;
        let conflict = |one: &Conflict| json!({"message": one.message, "rows": one.rows, "examples": one.examples, "hint": one.hint});
        let conflicts: Vec<Value> = report.conflicts.iter().map(conflict).collect();
        let data = json!({
            "table": table, "rows": report.rows, "tenants": report.tenants, "conflicts": conflicts,
        });
        return done(StatusCode::OK, &data);
    }
    admin.note("make a tenant table", &table);
    let info = admin.database().start_migration(&table, &tenant_by).await?;
    done(StatusCode::ACCEPTED, &shown(&info))
}

pub(super) async fn cancel(admin: Admin, Path(table): Path<String>) -> Answer {
    admin.note("cancel a migration", &table);
    admin.database().cancel_migration(&table).await?;
    done(StatusCode::ACCEPTED, &json!({ "table": table }))
}

fn shown(info: &MigrationInfo) -> Value {
    let (migration, known) = (&info.migration, info.progress.clone().unwrap_or_default());
    json!({
        "table": migration.table,
        "tenantBy": migration.tenant_by,
        "state": migration.state.name(),
        "phase": known.phase.map(|phase| phase.name()),
        "rowsCopied": migration.rows_copied().max(known.rows),
        "rowsTotal": migration.total,
        "pauseMicros": migration.pause_micros,
        "createdAt": migration.created_at,
        "updatedAt": migration.updated_at,
        "waitsFor": known.waits,
        "error": migration.failure.as_ref().map(|failure| json!({
            "code": failure.sqlstate, "message": failure.message, "detail": failure.detail, "hint": failure.hint,
        })),
    })
}
