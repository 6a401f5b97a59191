//! The kernel's schema, printed in PostgreSQL's dialect.
//!
//! Texts sort by bytes (`COLLATE "C"`), as on SQLite. Names are always quoted. The tenant leads every key of a tenant
//! table, so no key and no foreign key can reach from one tenant into another.
//!
//! Each table has our triggers. Their names begin with a control character because triggers fire in the order of
//! their names: a client's trigger that changes the same row again must find the first change logged before its
//! own. They fire `ALWAYS`, so that `session_replication_role` cannot switch them off.
//!
//! Each table is made with its fence ([`tenancy`]), in one transaction: none is ever there without it.

use super::tenancy;
use super::value::type_of;
use crate::error::{Result, ShardError};
use isles_kernel::form;
use isles_kernel::schema::{
    BUCKET_COLUMN, Check, Column, Deferral, Expression, ForeignKey, HIDDEN_KEY_COLUMN, Key, KeyOver, KeyPart, OnChange,
    Schema, SchemaChange, TENANT_COLUMN, TENANT_KEY_COLUMN, Table, TableKind, plain_name, relation_parts,
};
use isles_kernel::value::{DataType, Value};

/// The triggers that write the log, by name.
pub(super) const CAPTURES: [&str; 3] = ["\u{1}_isles_capture", "\u{1}_isles_update", "\u{1}_isles_rekey"];
const NO_TRUNCATE: &str = "\u{1}_isles_truncate";

/// Whether new tables are captured from the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Capture {
    On,
    Off,
}

pub(super) fn quote(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// A relation in its schema, whatever the session's search path.
pub(super) fn table_name(relation: &str) -> String {
    let (namespace, name) = relation_parts(relation);
    format!("{}.{}", quote(namespace), quote(name))
}

pub(super) fn columns(names: &[String]) -> String {
    names.iter().map(|name| quote(name)).collect::<Vec<_>>().join(", ")
}

/// Types of texts, whose order is that of their bytes: text, varchar, bpchar and their arrays.
const TEXTS: [u32; 6] = [25, 1042, 1043, 1009, 1014, 1015];

/// A column's type, as it stands in a table.
fn column_type(column: &Column) -> String {
    let text = match column.sql_type {
        Some(declared) => TEXTS.contains(&declared.oid),
        None => column.ty == DataType::Text,
    };
    if text { format!("{} COLLATE \"C\"", column.type_name()) } else { column.type_name() }
}

/// Refuses what the server would refuse in words that name hidden columns.
pub(super) fn check(change: &SchemaChange, next: &Schema) -> Result<()> {
    let foreign_keys = match change {
        SchemaChange::CreateTable(table) => table.foreign_keys.as_slice(),
        SchemaChange::AddForeignKey { foreign_key, .. } => std::slice::from_ref(foreign_key),
        _ => &[],
    };
    for foreign in foreign_keys {
        let tenant = next.tables.get(&foreign.table).is_some_and(|target| target.kind == TableKind::Tenant);
        let action = match (foreign.on_delete, foreign.on_update) {
            (OnChange::SetNull, _) | (_, OnChange::SetNull) => "SET NULL",
            (_, OnChange::Cascade) => "ON UPDATE CASCADE",
            _ => continue,
        };
        if tenant {
            // The tenant is one of the key's columns, and is computed.
            let message = format!("{action} is not supported on tenant tables of PostgreSQL shards");
            return Err(ShardError::statement("0A000", message));
        }
    }
    Ok(())
}

/// The statements of one change from `old` to `next`.
pub(super) fn print(change: &SchemaChange, old: &Schema, next: &Schema, capture: Capture) -> Vec<String> {
    Print { old, next, capture }.change(change)
}

struct Print<'a> {
    old: &'a Schema,
    next: &'a Schema,
    capture: Capture,
}

impl Print<'_> {
    fn change(&self, change: &SchemaChange) -> Vec<String> {
        match change {
            SchemaChange::CreateNamespace { namespace } => {
                vec![format!("CREATE SCHEMA {}", quote(namespace)), tenancy::namespace_grant(namespace)]
            }
            SchemaChange::DropNamespace { namespace } => vec![format!("DROP SCHEMA {}", quote(namespace))],
            SchemaChange::CreateTable(table) => create_table(table, self.next, self.capture),
            SchemaChange::DropTable { table } => vec![format!("DROP TABLE {}", table_name(table))],
            SchemaChange::RenameTable { table, to } => rename_table(table, to),
            SchemaChange::AddColumn { table, column } => self.add_column(table, column),
            SchemaChange::DropColumn { table, column } => {
                vec![alter(table, &format!("DROP COLUMN {}", quote(column)))]
            }
            SchemaChange::RenameColumn { table, column, to } => {
                let rename = alter(table, &format!("RENAME COLUMN {} TO {}", quote(column), quote(to)));
                self.without_triggers(table, vec![rename])
            }
            SchemaChange::AlterColumn { table, column, convert } => self.alter_column(table, column, convert.as_ref()),
            SchemaChange::Rekey { table, .. } => self.rekey(table),
            // Keys go with their table, and the names without namespaces are the same.
            SchemaChange::ReplaceTable { table, by, aside } => {
                let to = |other: &str| format!("SET SCHEMA {}", quote(relation_parts(other).0));
                vec![alter(table, &to(aside)), alter(by, &to(table))]
            }
            SchemaChange::CreateKey { table, key } => {
                self.next.tables.get(table).map(|table| create_key(table, key)).into_iter().collect()
            }
            SchemaChange::DropKey { table, key } => vec![format!("DROP INDEX {}", index_name(table, key))],
            SchemaChange::RenameKey { table, key, to } => vec![rename_index(table, key, to)],
            SchemaChange::AddCheck { table, check } => vec![alter(table, &format!("ADD {}", check_text(check)))],
            SchemaChange::DropCheck { table, check: name }
            | SchemaChange::DropForeignKey { table, foreign_key: name } => {
                vec![alter(table, &format!("DROP CONSTRAINT {}", quote(name)))]
            }
            SchemaChange::AddForeignKey { table, foreign_key } => match self.next.tables.get(table) {
                Some(own) => vec![alter(table, &format!("ADD {}", foreign_key_text(own, foreign_key, self.next)))],
                None => vec![],
            },
            SchemaChange::RenameConstraint { table, constraint, to } => self.rename_constraint(table, constraint, to),
            SchemaChange::CreateObject(object) => {
                [object.postgres.clone()].into_iter().chain(tenancy::object_fence(object)).collect()
            }
            SchemaChange::DropObject { name } => {
                self.old.objects.get(name).map(|object| object.postgres_drop.clone()).into_iter().collect()
            }
            // These are the router's; the shard remembers them with the schema.
            SchemaChange::CreateView(_)
            | SchemaChange::DropView { .. }
            | SchemaChange::RenameView { .. }
            | SchemaChange::CreateSequence(_)
            | SchemaChange::AlterSequence(_)
            | SchemaChange::DropSequence { .. }
            | SchemaChange::RenameSequence { .. }
            | SchemaChange::SetComment { .. } => vec![],
        }
    }

    /// Our triggers name the key's columns, so they are made anew around a change of these. Nobody writes meanwhile:
    /// the change holds the table's lock.
    fn without_triggers(&self, table: &str, statements: Vec<String>) -> Vec<String> {
        let drop = |trigger: &&str| format!("DROP TRIGGER {} ON {}", quote(trigger), table_name(table));
        let drops: Vec<String> = CAPTURES.iter().chain([&NO_TRUNCATE]).map(drop).collect();
        let made = self.next.tables.get(table).map(triggers).unwrap_or_default();
        drops.into_iter().chain(statements).chain(made).chain(switch(table, self.capture)).collect()
    }

    fn add_column(&self, table: &str, column: &Column) -> Vec<String> {
        let add = alter(table, &format!("ADD COLUMN {}", column_text(column)));
        match self.next.tables.get(table) {
            Some(own) if own.hidden_key => {
                let moved = move_hidden_key(own);
                self.without_triggers(table, [add].into_iter().chain(moved).collect())
            }
            _ => vec![add],
        }
    }

    fn alter_column(&self, table: &str, column: &Column, convert: Option<&Expression>) -> Vec<String> {
        let before = self.old.tables.get(table);
        let Some(old) = before.and_then(|before| before.position(&column.name).map(|at| &before.columns[at])) else {
            return vec![];
        };
        let (name, mut parts) = (quote(&column.name), Vec::new());
        let retyped = column_type(old) != column_type(column) || convert.is_some();
        if old.default.is_some() && (retyped || column.default.is_none()) {
            parts.push(format!("ALTER COLUMN {name} DROP DEFAULT"));
        }
        if retyped {
            let using = convert.map_or(String::new(), |convert| format!(" USING ({})", convert.postgres));
            parts.push(format!("ALTER COLUMN {name} TYPE {}{using}", column_type(column)));
        }
        if let Some(default) = column.default.as_ref().filter(|value| retyped || old.default.as_ref() != Some(*value)) {
            parts.push(format!("ALTER COLUMN {name} SET DEFAULT {}", literal(default, column.ty)));
        }
        match (old.nullable, column.nullable) {
            (true, false) => parts.push(format!("ALTER COLUMN {name} SET NOT NULL")),
            (false, true) => parts.push(format!("ALTER COLUMN {name} DROP NOT NULL")),
            _ => {}
        }
        // One by one: within one statement, the default would be changed before the type.
        let statements: Vec<String> = parts.iter().map(|part| alter(table, part)).collect();
        if retyped { self.without_triggers(table, statements) } else { statements }
    }

    fn rekey(&self, table: &str) -> Vec<String> {
        let (Some(old), Some(new)) = (self.old.tables.get(table), self.next.tables.get(table)) else { return vec![] };
        let mut statements = vec![refuse_moving(table)];
        if old.kind != new.kind {
            statements.push(refuse_rows(table));
        }
        statements.push(alter(table, &format!("DROP CONSTRAINT {}", quote(&old.primary_key_name()))));
        if old.hidden_key && !new.hidden_key {
            statements.push(alter(table, &format!("DROP COLUMN {}", quote(HIDDEN_KEY_COLUMN))));
        }
        statements.push(alter(table, &format!("ADD {}", primary_key(new))));
        self.without_triggers(table, statements)
    }

    fn rename_constraint(&self, table: &str, constraint: &str, to: &str) -> Vec<String> {
        let key = self.old.tables.get(table).is_some_and(|table| table.keys.iter().any(|key| key.name == constraint));
        match key {
            // A unique constraint is an index here.
            true => vec![rename_index(table, constraint, to)],
            false => vec![alter(table, &format!("RENAME CONSTRAINT {} TO {}", quote(constraint), quote(to)))],
        }
    }
}

fn alter(table: &str, what: &str) -> String {
    format!("ALTER TABLE {} {what}", table_name(table))
}

/// An index is in its table's schema.
fn index_name(table: &str, key: &str) -> String {
    format!("{}.{}", quote(relation_parts(table).0), quote(key))
}

fn rename_index(table: &str, key: &str, to: &str) -> String {
    format!("ALTER INDEX {} RENAME TO {}", index_name(table, key), quote(to))
}

pub(super) fn text_literal(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

fn rename_table(table: &str, to: &str) -> Vec<String> {
    let (from, into) = (text_literal(table), text_literal(to));
    vec![
        alter(table, &format!("RENAME TO {}", quote(plain_name(to)))),
        format!("UPDATE _isles.row_version SET tab = {into} WHERE tab = {from}"),
    ]
}

/// A column is added behind all others, where the hidden key stands: it is made again behind it.
fn move_hidden_key(table: &Table) -> Vec<String> {
    let (name, key) = (&table.name, quote(HIDDEN_KEY_COLUMN));
    let moved = quote(&format!("{HIDDEN_KEY_COLUMN}_before"));
    vec![
        alter(name, &format!("DROP CONSTRAINT {}", quote(&table.primary_key_name()))),
        alter(name, &format!("RENAME COLUMN {key} TO {moved}")),
        alter(name, &format!("ADD COLUMN {key} bigint")),
        format!("UPDATE {} SET {key} = {moved}", table_name(name)),
        alter(name, &format!("ALTER COLUMN {key} SET NOT NULL, DROP COLUMN {moved}")),
        alter(name, &format!("ADD {}", primary_key(table))),
    ]
}

/// Fails where rows are.
fn refuse_rows(table: &str) -> String {
    let message = format!("the primary key of \"{table}\" places its rows, and the table is not empty");
    refuse_if(
        &format!("SELECT FROM {}", table_name(table)),
        "0A000",
        &message,
        "create a table with this primary key and copy the rows",
    )
}

/// Fails while versions of rows are kept by their old key.
fn refuse_moving(table: &str) -> String {
    let moving = format!("SELECT FROM _isles.row_version WHERE tab = {}", text_literal(table));
    refuse_if(&moving, "55006", &format!("rows of \"{table}\" are being moved"), "wait until the move has ended")
}

fn refuse_if(query: &str, sqlstate: &str, message: &str, hint: &str) -> String {
    let (message, hint) = (text_literal(message), text_literal(hint));
    let body = format!(
        "BEGIN IF EXISTS ({query}) THEN \
         RAISE EXCEPTION USING ERRCODE = '{sqlstate}', MESSAGE = {message}, HINT = {hint}; END IF; END"
    );
    format!("DO {}", text_literal(&body))
}

fn create_table(table: &Table, schema: &Schema, capture: Capture) -> Vec<String> {
    let mut parts: Vec<String> = hidden_columns(table).iter().map(ToString::to_string).collect();
    parts.extend(table.columns.iter().map(column_text));
    parts.push(primary_key(table));
    parts.extend(table.checks.iter().map(check_text));
    parts.extend(table.foreign_keys.iter().map(|foreign| foreign_key_text(table, foreign, schema)));
    let create = format!("CREATE TABLE {} ({})", table_name(&table.name), parts.join(", "));
    let keys = table.shard_keys().map(|key| create_key(table, key));
    let switch = switch(&table.name, capture);
    [create].into_iter().chain(keys).chain(triggers(table)).chain(switch).chain(tenancy::table_fence(table)).collect()
}

fn primary_key(table: &Table) -> String {
    format!("CONSTRAINT {} PRIMARY KEY ({})", quote(&table.primary_key_name()), columns(&table.physical_key()))
}

fn check_text(check: &Check) -> String {
    format!("CONSTRAINT {} CHECK ({})", quote(&check.name), check.expression.postgres)
}

fn hidden_columns(table: &Table) -> &'static [&'static str] {
    match table.kind {
        TableKind::Hash { .. } => &["\"_bucket\" integer NOT NULL"],
        TableKind::Tenant => &[
            "\"_tenant\" text COLLATE \"C\" GENERATED ALWAYS AS (coalesce(\"_shard\", '')) STORED",
            "\"_shard\" text COLLATE \"C\"",
        ],
        TableKind::Reference | TableKind::Global => &[],
    }
}

fn column_text(column: &Column) -> String {
    let mut text = format!("{} {}", quote(&column.name), column_type(column));
    if let Some(default) = &column.default {
        text.push_str(&format!(" DEFAULT {}", literal(default, column.ty)));
    }
    if !column.nullable {
        text.push_str(" NOT NULL");
    }
    text
}

/// A value as a constant of its column's type.
fn literal(value: &Value, ty: DataType) -> String {
    let text = match value {
        Value::Null => return "NULL".into(),
        Value::Bool(b) => b.to_string(),
        Value::Int(n) => n.to_string(),
        Value::Float(x) if x.is_nan() => "NaN".into(),
        Value::Float(x) if x.is_infinite() => if *x > 0.0 { "Infinity" } else { "-Infinity" }.into(),
        // `{:?}` is the shortest text that reads back as the same float, minus zero included.
        Value::Float(x) => format!("{x:?}"),
        Value::Numeric(n) => n.to_string(),
        Value::Text(s) | Value::Json(s) => s.clone(),
        Value::Bytes(b) => format!("\\x{}", hex(b)),
        Value::Uuid(u) => hex(u),
        Value::Interval(interval) => interval.to_string(),
        Value::Array(members) => form::array_text(members),
        Value::Date(i32::MAX) | Value::Timestamp(i64::MAX) | Value::TimestampTz(i64::MAX) => "infinity".into(),
        Value::Date(i32::MIN) | Value::Timestamp(i64::MIN) | Value::TimestampTz(i64::MIN) => "-infinity".into(),
        Value::Date(days) => return format!("('2000-01-01'::date + {days})"),
        Value::Time(86_400_000_000) => "24:00:00".into(),
        Value::Time(micros) => return time_of(*micros),
        Value::Timestamp(micros) => return moment(*micros),
        Value::TimestampTz(micros) => return format!("({} AT TIME ZONE 'UTC')", moment(*micros)),
    };
    format!("'{}'::{}", text.replace('\'', "''"), type_of(ty).name())
}

/// A time of day. An interval is multiplied as a float, which is exact for so few microseconds.
fn time_of(micros: i64) -> String {
    format!("('00:00'::time + interval '1 microsecond' * {micros})")
}

/// A timestamp as a date and a time of day, both of which are exact.
fn moment(micros: i64) -> String {
    const DAY: i64 = 86_400_000_000;
    format!("(('2000-01-01'::date + {}) + {})", micros.div_euclid(DAY), time_of(micros.rem_euclid(DAY)))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn create_key(table: &Table, key: &Key) -> String {
    let unique = if key.is_unique_on_shard() { "UNIQUE " } else { "" };
    // One over all tenants finds their rows without knowing which they are.
    let lead = |names: &[String]| if key.global.is_none() { lead(table, names) } else { names.to_vec() };
    let parts: Vec<String> = match key.parts.as_slice() {
        [] => lead(&key.columns).iter().map(|name| quote(name)).collect(),
        parts => lead(&[]).into_iter().chain(parts.iter().map(key_part)).collect(),
    };
    let filter = key.predicate.as_ref().map_or(String::new(), |only| format!(" WHERE {}", only.postgres));
    format!("CREATE {unique}INDEX {} ON {} ({}){filter}", quote(&key.name), table_name(&table.name), parts.join(", "))
}

fn key_part(part: &KeyPart) -> String {
    let over = match &part.over {
        KeyOver::Column(name) => quote(name),
        KeyOver::Expression(expression) => format!("({})", expression.postgres),
    };
    let direction = if part.descending { "DESC" } else { "ASC" };
    let nulls = if part.nulls_first { "FIRST" } else { "LAST" };
    format!("{over} {direction} NULLS {nulls}")
}

/// The columns of a key of `table`, with the tenant before them where there is one.
fn lead(table: &Table, names: &[String]) -> Vec<String> {
    let tenant = matches!(table.kind, TableKind::Tenant).then(|| TENANT_KEY_COLUMN.to_string());
    tenant.into_iter().chain(names.iter().cloned()).collect()
}

fn foreign_key_text(table: &Table, foreign: &ForeignKey, schema: &Schema) -> String {
    let target = if foreign.table == table.name { Some(table) } else { schema.tables.get(&foreign.table) };
    let same_tenant = target.is_some_and(|target| matches!(target.kind, TableKind::Tenant));
    let (from, to) = match same_tenant {
        true => (lead(table, &foreign.columns), lead(table, &foreign.references)),
        false => (foreign.columns.clone(), foreign.references.clone()),
    };
    format!(
        "CONSTRAINT {} FOREIGN KEY ({}) REFERENCES {} ({}) ON DELETE {} ON UPDATE {} DEFERRABLE INITIALLY {}",
        quote(&foreign.name),
        columns(&from),
        table_name(&foreign.table),
        columns(&to),
        foreign.on_delete.sql(),
        foreign.on_update.sql(),
        if foreign.deferral == Deferral::Deferred { "DEFERRED" } else { "IMMEDIATE" },
    )
}

fn triggers(table: &Table) -> Vec<String> {
    let name = table_name(&table.name);
    let [capture, update, rekey] = CAPTURES.map(quote);
    // The bucket counts as well: a row that changes its unit leaves one and enters another.
    let bucket = matches!(table.kind, TableKind::Hash { .. }).then(|| BUCKET_COLUMN.to_string());
    let key: Vec<String> = table.physical_key().into_iter().chain(bucket).collect();
    let differ: Vec<String> = key.iter().map(|c| format!("OLD.{0} IS DISTINCT FROM NEW.{0}", quote(c))).collect();
    let differ = differ.join(" OR ");
    let row = key_condition(table);
    vec![
        format!(
            "CREATE TRIGGER {capture} AFTER INSERT OR DELETE ON {name} FOR EACH ROW \
             EXECUTE FUNCTION _isles.capture('row', {row})"
        ),
        format!(
            "CREATE TRIGGER {update} AFTER UPDATE ON {name} FOR EACH ROW WHEN (NOT ({differ})) \
             EXECUTE FUNCTION _isles.capture('update', {row})"
        ),
        format!(
            "CREATE TRIGGER {rekey} AFTER UPDATE ON {name} FOR EACH ROW WHEN ({differ}) \
             EXECUTE FUNCTION _isles.capture('rekey', {row})"
        ),
        format!(
            "CREATE TRIGGER {0} BEFORE TRUNCATE ON {name} FOR EACH STATEMENT EXECUTE FUNCTION _isles.refuse_truncate(); \
             ALTER TABLE {name} ENABLE ALWAYS TRIGGER {0}",
            quote(NO_TRUNCATE)
        ),
    ]
}

/// How `_isles.row_now` finds the row `t` that has the key of the row `$1`; a constant, for a trigger's argument.
fn key_condition(table: &Table) -> String {
    let part = |name: String| {
        let ty = table.position(&name).map_or_else(|| "text".into(), |at| table.columns[at].type_name());
        let text = name.replace('\'', "''");
        format!("t.{} = ($1->>'{text}')::{ty}", quote(&name))
    };
    let condition = table.physical_key().into_iter().map(part).collect::<Vec<_>>().join(" AND ");
    format!("'{}'", condition.replace('\'', "''"))
}

/// Switches the capture of one table. This waits for every transaction that has written to it, and whoever writes
/// after it, at any isolation level, finds it switched: triggers are not read through a snapshot.
pub(super) fn switch(table: &str, capture: Capture) -> Vec<String> {
    let how = match capture {
        Capture::On => "ENABLE ALWAYS",
        Capture::Off => "DISABLE",
    };
    let parts = CAPTURES.map(|trigger| format!("{how} TRIGGER {}", quote(trigger)));
    vec![format!("ALTER TABLE {} {}", table_name(table), parts.join(", "))]
}

/// Names, types and nullability of the columns that a table must have, in order, as the server names them.
pub(super) fn expected_columns(table: &Table) -> Vec<(String, String, bool)> {
    let hidden: Vec<(String, String, bool)> = match table.kind {
        TableKind::Hash { .. } => vec![(BUCKET_COLUMN.into(), "integer".into(), true)],
        TableKind::Tenant => {
            vec![(TENANT_KEY_COLUMN.into(), "text".into(), true), (TENANT_COLUMN.into(), "text".into(), false)]
        }
        TableKind::Reference | TableKind::Global => vec![],
    };
    let own = table.columns.iter().map(|column| (column.name.clone(), column.type_name(), !column.nullable));
    hidden.into_iter().chain(own).collect()
}
