//! The user's objects, numbered.
//!
//! PostgreSQL numbers its objects in the order of their making. A schema here has names only, so a number is a hash of
//! kind and name: the same on every router, at every restart and for as long as the object keeps its name. Renaming an
//! object gives it another number. Where two names have one hash, which among a thousand objects happens once in four
//! thousand databases, the later name takes the next free number.
//!
//! Invariants:
//!   * No two objects of a schema have one number, and no number is below [`FIRST_USER_OID`].
//!   * Nothing that the user did not make is here: no hidden column, no tenant in front of a key.

use super::names::{SCHEMAS, quote_identifier, quote_list};
use crate::types;
use isles_kernel::hash::fnv1a32;
use isles_kernel::schema::{
    BUCKET_COLUMN, Check, Column, CommentOn, Deferral, ForeignKey, Key, KeyOver, KeyPart, OnChange, RESERVED_PREFIX,
    Schema, Sequence, SqlType, TENANT_COLUMN, TENANT_KEY_COLUMN, Table, TableKind, View, relation_parts,
    written_regions,
};
use isles_kernel::value::{DataType, Value};
use std::collections::{HashMap, HashSet};

/// As PostgreSQL: below are its own objects.
pub(super) const FIRST_USER_OID: u32 = 16_384;
/// Numbers stay positive where a client takes them for a signed integer.
const USER_OIDS: u32 = i32::MAX as u32 - FIRST_USER_OID;

/// Oids of the catalogs themselves, as `classoid` names them.
pub(super) const PG_CLASS: u32 = 1_259;
pub(super) const PG_AUTHID: u32 = 1_260;
pub(super) const PG_DATABASE: u32 = 1_262;
pub(super) const PG_ATTRDEF: u32 = 2_604;
pub(super) const PG_CONSTRAINT: u32 = 2_606;
pub(super) const PG_NAMESPACE: u32 = 2_615;
pub(super) const PG_REWRITE: u32 = 2_618;

pub(super) fn user_oid(kind: &str, name: &str) -> u32 {
    FIRST_USER_OID + fnv1a32(&format!("{kind}\0{name}")) % USER_OIDS
}

/// The number of a relation by its name alone, unless another relation's name would have the same.
pub(super) fn plain_oid(schema: &Schema, name: &str) -> Option<u32> {
    let oid = user_oid("relation", name);
    let keys = schema.tables.values().flat_map(|table| table.keys.iter().map(|key| table.key_relation(&key.name)));
    let names = schema.tables.keys().chain(schema.views.keys()).chain(schema.sequences.keys());
    let mut others = names.cloned().chain(keys).filter(|other| *other != name);
    (!others.any(|other| user_oid("relation", &other) == oid)).then_some(oid)
}

/// A relation: what `pg_class` has a row for.
#[derive(Debug)]
pub(super) struct Class {
    pub(super) oid: u32,
    /// Its schema, by number and by name.
    pub(super) namespace: u32,
    pub(super) schema: String,
    /// Within its schema.
    pub(super) name: String,
    /// The one text for it, with its schema in it.
    pub(super) relation: String,
    pub(super) columns: Vec<Attribute>,
    pub(super) kind: ClassKind,
}

#[derive(Debug)]
pub(super) enum ClassKind {
    Table(TableClass),
    Index(Index),
    View { sql: String, rule: u32 },
    Sequence(Sequence),
}

#[derive(Debug)]
pub(super) struct TableClass {
    /// How it was said to be stored: `kind=hash`, `shard_by=id`.
    pub(super) options: Vec<String>,
    /// Whether a foreign key is on it or refers to it. PostgreSQL has triggers for these, and psql looks for foreign
    /// keys only where there are triggers.
    pub(super) has_foreign_keys: bool,
    pub(super) has_indexes: bool,
    pub(super) checks: usize,
}

#[derive(Debug)]
pub(super) struct Index {
    pub(super) table: u32,
    /// The one text for it.
    pub(super) table_relation: String,
    /// From 1, as `attnum`; 0 for an expression.
    pub(super) positions: Vec<i64>,
    /// As they are written: quoted names, expressions, with their directions.
    pub(super) parts: Vec<String>,
    /// As `indoption`: 1 for descending, 2 for nulls first.
    pub(super) options: Vec<i64>,
    pub(super) expressions: Vec<String>,
    pub(super) predicate: Option<String>,
    pub(super) unique: bool,
    pub(super) global: bool,
    pub(super) primary: bool,
}

#[derive(Debug)]
pub(super) struct Attribute {
    pub(super) name: String,
    pub(super) ty: SqlType,
    pub(super) not_null: bool,
    /// The default's number and expression.
    pub(super) default: Option<(u32, String)>,
    /// `a` for always, `d` for by default, empty for neither.
    pub(super) identity: &'static str,
}

#[derive(Debug)]
pub(super) struct Constraint {
    pub(super) oid: u32,
    pub(super) name: String,
    pub(super) table: u32,
    /// The one text for it.
    pub(super) table_relation: String,
    /// From 1.
    pub(super) positions: Vec<i64>,
    /// The index that keeps it; for a foreign key the one that it refers to.
    pub(super) index: u32,
    pub(super) kind: ConstraintKind,
}

#[derive(Debug)]
pub(super) enum ConstraintKind {
    Primary,
    Unique,
    Foreign(Reference),
    /// The expression.
    Check(String),
}

#[derive(Debug)]
pub(super) struct Reference {
    pub(super) table: u32,
    pub(super) positions: Vec<i64>,
    pub(super) key: ForeignKey,
    /// The schema and name of the constraint that it refers to.
    pub(super) unique: Option<(String, String)>,
}

/// What a row of `pg_description` says of an object.
#[derive(Debug)]
pub(super) struct Comment {
    /// The catalog that the object is in.
    pub(super) catalog: u32,
    pub(super) object: u32,
    /// The column, from 1; 0 for the whole.
    pub(super) column: i64,
    pub(super) text: String,
}

#[derive(Debug, Default)]
pub(super) struct Directory {
    /// Schemas, those of the system first.
    pub(super) namespaces: Vec<(u32, String)>,
    pub(super) classes: Vec<Class>,
    pub(super) constraints: Vec<Constraint>,
    pub(super) comments: Vec<Comment>,
    by_oid: HashMap<u32, usize>,
    by_name: HashMap<String, usize>,
    taken: HashSet<u32>,
}

impl Directory {
    pub(super) fn of(schema: &Schema) -> Directory {
        let namespaces = SCHEMAS.iter().map(|(oid, name)| (*oid, (*name).into())).collect();
        let mut directory = Directory { namespaces, ..Directory::default() };
        for name in schema.namespaces.iter().filter(|name| is_users(name)) {
            let oid = directory.number("namespace", name);
            directory.namespaces.push((oid, name.clone()));
        }
        for table in schema.tables.values().filter(|table| is_users(&table.name)) {
            directory.add_table(schema, table);
        }
        for view in schema.views.values().filter(|view| is_users(&view.name)) {
            directory.add_view(view);
        }
        for sequence in schema.sequences.values().filter(|sequence| is_users(&sequence.name)) {
            directory.add_sequence(sequence);
        }
        // A table may refer to one that comes later.
        for table in schema.tables.values().filter(|table| is_users(&table.name)) {
            for key in &table.foreign_keys {
                directory.add_foreign_key(schema, table, key);
            }
        }
        directory.comments = schema.comments.iter().filter_map(|(on, text)| directory.comment(on, text)).collect();
        directory
    }

    pub(super) fn class(&self, oid: u32) -> Option<&Class> {
        self.by_oid.get(&oid).map(|&at| &self.classes[at])
    }

    /// By the one text for a relation.
    pub(super) fn class_named(&self, relation: &str) -> Option<&Class> {
        self.by_name.get(relation).map(|&at| &self.classes[at])
    }

    pub(super) fn namespace_oid(&self, name: &str) -> Option<u32> {
        self.namespaces.iter().find(|(_, known)| known == name).map(|(oid, _)| *oid)
    }

    pub(super) fn namespace_name(&self, oid: u32) -> Option<&str> {
        self.namespaces.iter().find(|(known, _)| *known == oid).map(|(_, name)| name.as_str())
    }

    pub(super) fn constraint(&self, oid: u32) -> Option<&Constraint> {
        self.constraints.iter().find(|constraint| constraint.oid == oid)
    }

    /// The relations that have rows: tables, with what only tables have.
    pub(super) fn tables(&self) -> impl Iterator<Item = (&Class, &TableClass)> {
        self.classes.iter().filter_map(|class| match &class.kind {
            ClassKind::Table(table) => Some((class, table)),
            _ => None,
        })
    }

    pub(super) fn indexes(&self) -> impl Iterator<Item = (&Class, &Index)> {
        self.classes.iter().filter_map(|class| match &class.kind {
            ClassKind::Index(index) => Some((class, index)),
            _ => None,
        })
    }

    pub(super) fn views(&self) -> impl Iterator<Item = (&Class, &str)> {
        self.classes.iter().filter_map(|class| match &class.kind {
            ClassKind::View { sql, .. } => Some((class, sql.as_str())),
            _ => None,
        })
    }

    pub(super) fn sequences(&self) -> impl Iterator<Item = (&Class, &Sequence)> {
        self.classes.iter().filter_map(|class| match &class.kind {
            ClassKind::Sequence(sequence) => Some((class, sequence)),
            _ => None,
        })
    }

    /// The sequence that a column of a table owns.
    pub(super) fn sequence_of(&self, table: &str, column: &str) -> Option<&Class> {
        let owned = |sequence: &Sequence| sequence.owner.as_ref().is_some_and(|(t, c)| t == table && c == column);
        let identity = self.class_named(table)?.columns.iter().find(|c| c.name == column)?.identity;
        let named = |class: &Class| !identity.is_empty() && class.relation == format!("{table}_{column}_seq");
        self.sequences().find(|(class, sequence)| owned(sequence) || named(class)).map(|(class, _)| class)
    }

    fn number(&mut self, kind: &str, name: &str) -> u32 {
        let mut oid = user_oid(kind, name);
        while !self.taken.insert(oid) {
            oid = if oid == i32::MAX as u32 { FIRST_USER_OID } else { oid + 1 };
        }
        oid
    }

    fn add(&mut self, relation: &str, columns: Vec<Attribute>, kind: ClassKind) -> u32 {
        let oid = self.number("relation", relation);
        self.by_oid.insert(oid, self.classes.len());
        self.by_name.insert(relation.into(), self.classes.len());
        let (schema, name) = relation_parts(relation);
        let (namespace, schema, name) = (self.namespace_oid(schema).unwrap_or(0), schema.into(), name.into());
        self.classes.push(Class { oid, namespace, schema, name, relation: relation.into(), columns, kind });
        oid
    }

    fn add_table(&mut self, schema: &Schema, table: &Table) {
        let columns: Vec<Attribute> = visible_columns(table).map(|c| self.attribute(&table.name, c)).collect();
        let refers = |other: &Table| other.foreign_keys.iter().any(|key| key.table == table.name);
        let has_foreign_keys = !table.foreign_keys.is_empty() || schema.tables.values().any(refers);
        let class = TableClass {
            options: options(table),
            has_foreign_keys,
            has_indexes: !table.hidden_key || !table.keys.is_empty(),
            checks: table.checks.len(),
        };
        let oid = self.add(&table.name, columns, ClassKind::Table(class));
        if !table.hidden_key && table.primary_index().is_none() {
            let columns = table.primary_key.clone();
            let primary = Key { name: table.primary_key_name(), columns, unique: true, ..Key::default() };
            self.add_key(table, oid, &primary, Some(ConstraintKind::Primary));
        }
        for key in table.keys.iter().filter(|key| is_users(&key.name)) {
            let kind = if key.primary { ConstraintKind::Primary } else { ConstraintKind::Unique };
            self.add_key(table, oid, key, key.constraint.then_some(kind));
        }
        for check in &table.checks {
            self.add_check(table, check);
        }
    }

    fn add_key(&mut self, table: &Table, table_oid: u32, key: &Key, constraint: Option<ConstraintKind>) {
        let parts = key_parts(key);
        let index = Index {
            table: table_oid,
            table_relation: table.name.clone(),
            positions: parts.iter().map(|part| part_position(table, part)).collect(),
            parts: parts.iter().map(part_text).collect(),
            options: parts.iter().map(|part| i64::from(part.descending) + 2 * i64::from(part.nulls_first)).collect(),
            expressions: parts.iter().filter_map(part_expression).map(str::to_string).collect(),
            predicate: key.predicate.as_ref().map(|predicate| predicate.sql.clone()),
            unique: key.unique,
            global: key.global.is_some(),
            primary: matches!(constraint, Some(ConstraintKind::Primary)),
        };
        let positions = index.positions.clone();
        let columns = parts.iter().map(|part| index_column(table, part)).collect();
        let index = self.add(&table.key_relation(&key.name), columns, ClassKind::Index(index));
        if let Some(kind) = constraint {
            self.add_constraint(table, &key.name, positions, index, kind);
        }
    }

    fn add_check(&mut self, table: &Table, check: &Check) {
        let positions = positions(table, &check.expression.columns);
        self.add_constraint(table, &check.name, positions, 0, ConstraintKind::Check(check.expression.sql.clone()));
    }

    /// A comment on what is not in the schema is on nothing that can be asked about.
    fn comment(&self, on: &CommentOn, text: &str) -> Option<Comment> {
        let class = |name: &String| self.class_named(name).map(|class| class.oid);
        let (catalog, object, column) = match on {
            CommentOn::Table(name) | CommentOn::Index(name) | CommentOn::View(name) | CommentOn::Sequence(name) => {
                (PG_CLASS, class(name)?, 0)
            }
            CommentOn::Column(table, column) => {
                let class = self.class_named(table)?;
                let at = class.columns.iter().position(|c| &c.name == column)?;
                (PG_CLASS, class.oid, at as i64 + 1)
            }
            CommentOn::Constraint(table, name) => {
                let constraint = self.constraints.iter().find(|c| &c.table_relation == table && &c.name == name)?;
                (PG_CONSTRAINT, constraint.oid, 0)
            }
            CommentOn::Schema(name) => (PG_NAMESPACE, self.namespace_oid(name)?, 0),
            CommentOn::Database => (PG_DATABASE, 0, 0),
            CommentOn::Role(name) => (PG_AUTHID, user_oid("role", name), 0),
        };
        Some(Comment { catalog, object, column, text: text.into() })
    }

    fn add_constraint(&mut self, table: &Table, name: &str, positions: Vec<i64>, index: u32, kind: ConstraintKind) {
        let oid = self.number("constraint", &format!("{}\0{name}", table.name));
        let table_oid = self.class_named(&table.name).map_or(0, |class| class.oid);
        let (name, table_relation) = (name.to_string(), table.name.clone());
        self.constraints.push(Constraint { oid, name, table: table_oid, table_relation, positions, index, kind });
    }

    fn add_foreign_key(&mut self, schema: &Schema, table: &Table, key: &ForeignKey) {
        let Some(target) = schema.tables.get(&key.table) else { return };
        let Some(target_oid) = self.class_named(&key.table).map(|class| class.oid) else { return };
        let columns = visible_key(&key.columns);
        let referred = positions(target, &visible_key(&key.references));
        let unique = self.indexes().find(|(_, i)| i.table == target_oid && i.unique && i.positions == referred);
        let (index, unique) =
            unique.map_or((0, None), |(class, _)| (class.oid, Some((class.schema.clone(), class.name.clone()))));
        let unique =
            unique.filter(|(_, name)| self.constraints.iter().any(|c| c.table == target_oid && &c.name == name));
        let mut key = key.clone();
        key.columns.clone_from(&columns);
        key.references = visible_key(&key.references);
        let name = key.name.clone();
        let reference = Reference { table: target_oid, positions: referred, key, unique };
        self.add_constraint(table, &name, positions(table, &columns), index, ConstraintKind::Foreign(reference));
    }

    fn add_view(&mut self, view: &View) {
        let column = |(name, ty): &(String, SqlType)| Attribute::plain(name, *ty);
        let rule = self.number("rule", &view.name);
        let columns = view.columns.iter().map(column).collect();
        self.add(&view.name, columns, ClassKind::View { sql: view.sql.clone(), rule });
    }

    fn add_sequence(&mut self, sequence: &Sequence) {
        let column = |name, oid: crate::types::Oid| {
            let ty = SqlType { oid: oid.0, modifier: -1 };
            Attribute { not_null: true, ..Attribute::plain(name, ty) }
        };
        let columns = [("last_value", types::INT8), ("log_cnt", types::INT8), ("is_called", types::BOOL)]
            .map(|(n, t)| column(n, t));
        self.add(&sequence.name, columns.into(), ClassKind::Sequence(sequence.clone()));
    }

    fn attribute(&mut self, table: &str, column: &Column) -> Attribute {
        let default = default_expression(column);
        let default = default.map(|sql| (self.number("default", &format!("{table}\0{}", column.name)), sql));
        let identity = column.identity.as_ref().map_or("", |identity| if identity.always { "a" } else { "d" });
        Attribute { name: column.name.clone(), ty: type_of(column), not_null: !column.nullable, default, identity }
    }
}

impl Attribute {
    fn plain(name: &str, ty: SqlType) -> Attribute {
        Attribute { name: name.into(), ty, not_null: false, default: None, identity: "" }
    }
}

/// A key's entries; one without `parts` has its columns, ascending.
fn key_parts(key: &Key) -> Vec<KeyPart> {
    let plain = |name: &String| KeyPart { over: KeyOver::Column(name.clone()), descending: false, nulls_first: false };
    let parts = if key.parts.is_empty() { key.columns.iter().map(plain).collect() } else { key.parts.clone() };
    parts.into_iter().filter(|part| !matches!(&part.over, KeyOver::Column(name) if is_hidden(name))).collect()
}

fn part_expression(part: &KeyPart) -> Option<&str> {
    match &part.over {
        KeyOver::Column(_) => None,
        KeyOver::Expression(expression) => Some(&expression.sql),
    }
}

fn part_position(table: &Table, part: &KeyPart) -> i64 {
    match &part.over {
        KeyOver::Column(name) => positions(table, std::slice::from_ref(name)).first().copied().unwrap_or(0),
        KeyOver::Expression(_) => 0,
    }
}

/// Nulls come last in ascending order and first in descending, unless it is said otherwise.
fn part_text(part: &KeyPart) -> String {
    let what = match &part.over {
        KeyOver::Column(name) => quote_identifier(name),
        KeyOver::Expression(expression) if is_call(&expression.sql) => expression.sql.clone(),
        KeyOver::Expression(expression) => parenthesized(&expression.sql),
    };
    let direction = match (part.descending, part.nulls_first) {
        (false, false) => "",
        (false, true) => " NULLS FIRST",
        (true, true) => " DESC",
        (true, false) => " DESC NULLS LAST",
    };
    format!("{what}{direction}")
}

/// Whether an expression is one call of a function, which needs no parentheses around it.
fn is_call(sql: &str) -> bool {
    let name_ends = sql.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(0);
    name_ends > 0 && sql[name_ends..].starts_with('(') && encloses(&sql[name_ends..])
}

pub(super) fn parenthesized(sql: &str) -> String {
    if encloses(sql) { sql.into() } else { format!("({sql})") }
}

/// Whether the first parenthesis is closed by the last character.
fn encloses(sql: &str) -> bool {
    let mut depth = 0;
    let mut quoted = false;
    for (at, c) in sql.char_indices() {
        match c {
            '\'' => quoted = !quoted,
            '(' if !quoted => depth += 1,
            ')' if !quoted => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return at > 0 && at + 1 == sql.len();
        }
    }
    false
}

/// The columns of an index have no defaults and are never `NOT NULL`. An expression is named after its function.
fn index_column(table: &Table, part: &KeyPart) -> Attribute {
    match &part.over {
        KeyOver::Column(name) => {
            let column = table.columns.iter().find(|column| &column.name == name);
            let ty = column.map_or(SqlType { oid: types::TEXT.0, modifier: -1 }, type_of);
            Attribute::plain(name, ty)
        }
        KeyOver::Expression(expression) => {
            let sql = expression.sql.as_str();
            let name = if is_call(sql) { sql.split('(').next().unwrap_or("expr") } else { "expr" };
            // The type of an expression is known to the binder alone.
            Attribute::plain(name, SqlType { oid: types::TEXT.0, modifier: -1 })
        }
    }
}

fn type_of(column: &Column) -> SqlType {
    column.sql_type.unwrap_or(SqlType { oid: types::natural(column.ty).0, modifier: -1 })
}

fn default_expression(column: &Column) -> Option<String> {
    if column.identity.is_some() {
        return None;
    }
    let value = || column.default.as_ref().filter(|value| !value.is_null()).map(|value| literal(value, column.ty));
    column.default_sql.clone().or_else(value)
}

/// A constant as PostgreSQL prints it.
fn literal(value: &Value, ty: DataType) -> String {
    match value {
        Value::Bool(b) => b.to_string(),
        Value::Int(n) if *n >= 0 => n.to_string(),
        Value::Int(n) => format!("'{n}'::{}", ty.postgres_name()),
        Value::Numeric(n) => n.as_str().into(),
        Value::Float(x) => x.to_string(),
        Value::Text(text) | Value::Json(text) => format!("'{}'::{}", text.replace('\'', "''"), ty.postgres_name()),
        other => format!("{other:?}"),
    }
}

fn is_users(name: &str) -> bool {
    !name.starts_with(RESERVED_PREFIX)
}

fn is_hidden(column: &str) -> bool {
    [BUCKET_COLUMN, TENANT_COLUMN, TENANT_KEY_COLUMN].contains(&column) || !is_users(column)
}

fn visible_columns(table: &Table) -> impl Iterator<Item = &Column> {
    table.columns.iter().filter(|column| !is_hidden(&column.name))
}

fn visible_key(columns: &[String]) -> Vec<String> {
    columns.iter().filter(|name| !is_hidden(name)).cloned().collect()
}

/// Positions among the visible columns, from 1.
fn positions(table: &Table, names: &[String]) -> Vec<i64> {
    let at = |name: &String| visible_columns(table).position(|column| &column.name == name);
    names.iter().filter_map(at).map(|at| at as i64 + 1).collect()
}

fn options(table: &Table) -> Vec<String> {
    match &table.kind {
        TableKind::Hash { group, shard_by, buckets, regions } => {
            // Without a key of its own a table is spread by a column that is ours.
            let shard_by = (!table.hidden_key).then(|| format!("shard_by={}", shard_by.join(",")));
            let rest = [format!("group={group}"), format!("buckets={buckets}")];
            let region = (!regions.is_empty()).then(|| format!("region={}", written_regions(regions)));
            ["kind=hash".into()].into_iter().chain(shard_by).chain(rest).chain(region).collect()
        }
        TableKind::Tenant => vec!["kind=tenant".into()],
        TableKind::Reference => vec!["kind=reference".into()],
        TableKind::Global => vec!["kind=global".into()],
    }
}

/// Whether the schema is written before a relation's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Qualified<'a> {
    Always,
    /// Where this path does not find it.
    Beyond(&'a [String]),
}

/// `CREATE INDEX …`, as `pg_get_indexdef` says it.
pub(super) fn index_definition(class: &Class, index: &Index, qualified: Qualified<'_>) -> String {
    let unique = if index.unique { "UNIQUE " } else { "" };
    let (schema, table) = relation_parts(&index.table_relation);
    let found = matches!(qualified, Qualified::Beyond(path) if path.iter().any(|known| known == schema));
    let schema = if found { String::new() } else { format!("{}.", quote_identifier(schema)) };
    let (name, table) = (quote_identifier(&class.name), quote_identifier(table));
    let filter = index.predicate.as_ref().map(|sql| format!(" WHERE {}", parenthesized(sql))).unwrap_or_default();
    let with = if index.global { " WITH (global='true')" } else { "" };
    format!("CREATE {unique}INDEX {name} ON {schema}{table} USING btree ({}){with}{filter}", index.parts.join(", "))
}

/// Whether parentheses that nobody needs are left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Parentheses {
    All,
    Needed,
}

impl Directory {
    /// As `pg_get_constraintdef` says it.
    pub(super) fn constraint_definition(
        &self,
        constraint: &Constraint,
        parentheses: Parentheses,
        path: &[String],
    ) -> String {
        let own = self.column_names(constraint.table, &constraint.positions);
        match &constraint.kind {
            ConstraintKind::Primary => format!("PRIMARY KEY ({})", quote_list(&own)),
            ConstraintKind::Unique => format!("UNIQUE ({})", quote_list(&own)),
            ConstraintKind::Check(sql) if parentheses == Parentheses::All => format!("CHECK ({})", parenthesized(sql)),
            ConstraintKind::Check(sql) => format!("CHECK {}", parenthesized(sql)),
            ConstraintKind::Foreign(reference) => {
                let there = self.column_names(reference.table, &reference.positions);
                let (schema, table) = relation_parts(&reference.key.table);
                let found = path.iter().any(|known| known == schema);
                let schema = if found { String::new() } else { format!("{}.", quote_identifier(schema)) };
                let table = format!("{schema}{}", quote_identifier(table));
                let actions =
                    action(" ON UPDATE ", reference.key.on_update) + &action(" ON DELETE ", reference.key.on_delete);
                let deferral = reference.key.deferral.sql();
                format!(
                    "FOREIGN KEY ({}) REFERENCES {table}({}){actions}{deferral}",
                    quote_list(&own),
                    quote_list(&there)
                )
            }
        }
    }

    /// Whether a constraint can be deferred, and whether it is without a word.
    pub(super) fn deferral(constraint: &Constraint) -> (bool, bool) {
        match &constraint.kind {
            ConstraintKind::Foreign(reference) => match reference.key.deferral {
                Deferral::None => (false, false),
                Deferral::Immediate => (true, false),
                Deferral::Deferred => (true, true),
            },
            _ => (false, false),
        }
    }

    pub(super) fn column_names(&self, class: u32, positions: &[i64]) -> Vec<&str> {
        let Some(class) = self.class(class) else { return Vec::new() };
        positions.iter().filter_map(|at| class.columns.get(*at as usize - 1)).map(|c| c.name.as_str()).collect()
    }
}

fn action(event: &str, change: OnChange) -> String {
    if change == OnChange::NoAction { String::new() } else { format!("{event}{}", change.sql()) }
}
