//! What stands in the way of a migration, found before anything is changed.
//!
//! Of the table: foreign keys from it and to it, which would have to lead into a tenant; global indexes, which tenant
//! tables do not have; unique keys that a copy cannot keep while its rows come in any order.
//! Of its rows: those whose tenant has no valid name.
//!
//! Keys need no check: what is unique in the whole table is unique within each tenant.

use super::work::{owned_scope, sources};
use crate::database::{Database, Strategy};
use crate::execute::bounds::Bounds;
use crate::tenants::State as TenantState;
use isles_engine::shard::{KeyRange, StoredRow};
use isles_kernel::error::SqlError;
use isles_kernel::names::{NameError, TenantId};
use isles_kernel::schema::{ForeignKey, Key, Schema, Table, TableKind, plain_name};
use isles_sql::row_tenant::{NoTenant, RowTenant};
use isles_sql::text;
use isles_sql::types::{self, Oid, Type};
use std::collections::{BTreeMap, BTreeSet};

/// Rows that are read at once.
const PAGE_ROWS: usize = 2_000;
/// Rows that are named of those that are wrong for one reason.
const EXAMPLES: usize = 5;
/// Tenants that are counted; beyond it the report says so many.
const MAX_COUNTED: usize = 100_000;

/// Something that stands in the way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conflict {
    pub message: String,
    /// How many rows are concerned, and the keys of some.
    pub rows: Option<u64>,
    pub examples: Vec<String>,
    pub hint: String,
}

/// What a migration would find.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Report {
    pub table: String,
    pub rows: u64,
    /// Tenants that the rows would belong to, the null tenant among them.
    pub tenants: u64,
    pub conflicts: Vec<Conflict>,
}

impl Report {
    /// The report as an error, if there is a conflict.
    pub fn refuse(&self) -> Result<(), SqlError> {
        let Some(first) = self.conflicts.first() else { return Ok(()) };
        let table = plain_name(&self.table);
        let about_rows = self.conflicts.iter().all(|conflict| conflict.rows.is_some());
        let mut error = match about_rows {
            true => {
                let rows: u64 = self.conflicts.iter().filter_map(|conflict| conflict.rows).sum();
                let s = if rows == 1 { "row" } else { "rows" };
                SqlError::new("23514", format!("{rows} {s} of table \"{table}\" cannot be given to a tenant"))
            }
            false => SqlError::unsupported(format!("table \"{table}\" cannot become a tenant table")),
        };
        let lines: Vec<String> = self.conflicts.iter().map(Conflict::line).collect();
        error = error.of_table(&self.table).with_detail(lines.join("\n")).with_hint(first.hint.clone());
        Err(error)
    }
}

impl Conflict {
    fn of_table(message: String, hint: impl Into<String>) -> Conflict {
        Conflict { message, rows: None, examples: Vec::new(), hint: hint.into() }
    }

    fn line(&self) -> String {
        match self.rows {
            None => self.message.clone(),
            Some(rows) => {
                let more = if rows > self.examples.len() as u64 { ", …" } else { "" };
                let s = if rows == 1 { "row" } else { "rows" };
                format!("{rows} {s}: {}: {}{more}", self.message, self.examples.join(", "))
            }
        }
    }
}

/// What the schema has against it.
pub(super) fn of_table(database: &Database, schema: &Schema, table: &Table) -> Vec<Conflict> {
    let mut found = of_kind(database, table);
    for foreign in &table.foreign_keys {
        let message = format!("foreign key \"{}\" refers to table \"{}\"", foreign.name, foreign.table);
        found.push(Conflict::of_table(message, drop_and_add(&table.name, foreign)));
    }
    for other in schema.tables.values().filter(|other| other.name != table.name) {
        for foreign in other.foreign_keys.iter().filter(|foreign| foreign.table == table.name) {
            let message = format!("foreign key \"{}\" of table \"{}\" refers to it", foreign.name, other.name);
            found.push(Conflict::of_table(message, drop_and_add(&other.name, foreign)));
        }
    }
    found.extend(table.keys.iter().filter_map(of_key));
    found
}

/// Both statements: when the second one is due, nothing tells any more what the foreign key was.
fn drop_and_add(table: &str, foreign: &ForeignKey) -> String {
    let ForeignKey { name, columns, table: parent, references, on_delete, on_update, deferral } = foreign;
    let (columns, references) = (columns.join(", "), references.join(", "));
    let (on_delete, on_update) = (on_delete.sql(), on_update.sql());
    let deferral = deferral.sql();
    format!(
        "ALTER TABLE {table} DROP CONSTRAINT {name}; when both tables are tenant tables: ALTER TABLE {table} ADD \
         CONSTRAINT {name} FOREIGN KEY ({columns}) REFERENCES {parent} ({references}) ON DELETE {on_delete} \
         ON UPDATE {on_update}{deferral}"
    )
}

fn of_kind(database: &Database, table: &Table) -> Vec<Conflict> {
    let message = match &table.kind {
        TableKind::Tenant => "it is a tenant table already",
        TableKind::Reference => "it is a reference table, which every shard has a copy of",
        TableKind::Hash { regions, .. } if !regions.is_empty() => {
            "it is kept in a region, and tenants are on any shard"
        }
        TableKind::Hash { .. } | TableKind::Global if database.strategy() == Strategy::Adapter => {
            "with strategy \"adapter\" each tenant has a shard of its own, and rows do not change shards"
        }
        TableKind::Hash { .. } | TableKind::Global => return Vec::new(),
    };
    vec![Conflict::of_table(message.into(), "tables of kind hash and global can become tenant tables")]
}

fn of_key(key: &Key) -> Option<Conflict> {
    let name = &key.name;
    if key.primary {
        let hint = "create a table whose primary key has the shard key, and copy the rows";
        return Some(Conflict::of_table(format!("primary key \"{name}\" is kept by a global index"), hint));
    }
    if key.global.is_some() {
        let hint = format!("DROP INDEX {name}: a tenant's rows are on one shard, where a plain index finds them");
        return Some(Conflict::of_table(format!("index \"{name}\" is global"), hint));
    }
    (key.unique && key.unique_columns().is_none()).then(|| {
        let message = format!("unique index \"{name}\" is over expressions, or over some of the rows");
        Conflict::of_table(message, format!("DROP INDEX {name}, and create it again afterwards"))
    })
}

/// A row, as an error names it: `Key (id)=(7)`.
pub(super) fn shown_key(table: &Table, row: &[isles_kernel::value::Value]) -> String {
    let visible = |at: &usize| !table.columns[*at].is_hidden();
    let at: Vec<usize> = table.key_positions().into_iter().filter(visible).collect();
    // A table without a key of its own is shown by its first column.
    let at = if at.is_empty() { vec![0] } else { at };
    let value = |at: &usize| {
        let column = &table.columns[*at];
        let ty = match column.sql_type {
            Some(declared) => Type::with(Oid(declared.oid), declared.modifier),
            None => Type::of(types::natural(column.ty)),
        };
        let mut out = Vec::new();
        text::output(&row[*at], ty, &text::Settings::default(), &mut out);
        String::from_utf8_lossy(&out).into_owned()
    };
    let names: Vec<&str> = at.iter().map(|at| table.columns[*at].name.as_str()).collect();
    let values: Vec<String> = at.iter().map(value).collect();
    format!("Key ({})=({})", names.join(", "), values.join(", "))
}

/// Why a row has no tenant, in words that are the same for all rows that have none for this reason.
pub(super) fn reason(no: &NoTenant) -> String {
    match no {
        NoTenant::Name(NameError::Empty { .. }) => "the tenant's name is empty".into(),
        NoTenant::Name(NameError::TooLong { limit, unit, .. }) => {
            format!("the tenant's name has more than {limit} {unit}")
        }
        NoTenant::Name(NameError::BadCharacter { .. }) => "the tenant's name has a control character".into(),
        NoTenant::Failed(error) => format!("the tenant cannot be computed: {}", error.message),
    }
}

/// What a look at all rows finds.
struct Looking<'a> {
    database: &'a Database,
    table: &'a Table,
    by: &'a RowTenant,
    report: Report,
    tenants: BTreeSet<Option<TenantId>>,
    wrong: BTreeMap<String, (u64, Vec<String>)>,
}

impl Looking<'_> {
    fn look(&mut self, row: &StoredRow) {
        self.report.rows += 1;
        let why = match self.by.tenant(&row.values) {
            Ok(tenant) if self.tenants.contains(&tenant) => return,
            Ok(Some(tenant)) if is_dropped(self.database, &tenant) => format!("tenant \"{tenant}\" is being dropped"),
            Ok(tenant) => {
                if self.tenants.len() < MAX_COUNTED {
                    self.tenants.insert(tenant);
                }
                return;
            }
            Err(no) => reason(&no),
        };
        let (count, examples) = self.wrong.entry(why).or_default();
        *count += 1;
        if examples.len() < EXAMPLES {
            examples.push(shown_key(self.table, &row.values));
        }
    }

    fn report(mut self) -> Report {
        self.report.tenants = self.tenants.len() as u64;
        let hint = "put these rows right, or choose another expression";
        let conflict = |(message, (rows, examples)): (String, (u64, Vec<String>))| Conflict {
            message,
            rows: Some(rows),
            examples,
            hint: hint.into(),
        };
        self.report.conflicts.extend(self.wrong.into_iter().map(conflict));
        self.report
    }
}

fn is_dropped(database: &Database, tenant: &TenantId) -> bool {
    let record = database.tenants.find(tenant).and_then(|entry| entry.record());
    record.is_some_and(|record| record.state == TenantState::Dropping)
}

/// Looks at the table and at all its rows, as they are now.
pub(super) async fn look(
    database: &Database,
    table: &str,
    tenant_by: &str,
    bounds: &Bounds,
) -> Result<Report, SqlError> {
    let schema = database.hold_schema().await?.schema.clone();
    let table = schema.tables.get(table).ok_or_else(|| no_table(table))?;
    let conflicts = of_table(database, &schema, table);
    let report = Report { table: table.name.clone(), conflicts, ..Report::default() };
    let is_shardable = matches!(table.kind, TableKind::Hash { .. } | TableKind::Global);
    let by = RowTenant::of(table, tenant_by)?;
    if !is_shardable {
        return Ok(report);
    }
    let mut looking = Looking { database, table, by: &by, report, tenants: BTreeSet::new(), wrong: BTreeMap::new() };
    for shard in sources(database, table) {
        let open = database.shards.get(&shard).await.map_err(|error| error.for_people())?;
        let mut snapshot = open.snapshot().await.map_err(|error| error.for_people())?;
        let mut range = KeyRange::table(&table.name).within(owned_scope(database, table, &shard));
        loop {
            bounds.check(&*database.env)?;
            let page = snapshot.page(&range, PAGE_ROWS).await.map_err(|error| error.for_people())?;
            page.rows.iter().for_each(|row| looking.look(row));
            match page.next {
                Some(next) => range.after = Some(next),
                None => break,
            }
        }
    }
    Ok(looking.report())
}

pub(super) fn no_table(name: &str) -> SqlError {
    SqlError::new("42P01", format!("relation \"{}\" does not exist", plain_name(name)))
}
