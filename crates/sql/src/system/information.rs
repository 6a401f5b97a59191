//! The rows of `information_schema`.
//!
//! PostgreSQL has these as views over `pg_catalog`; here they are computed from the same [`Directory`]. Where it shows
//! only what the session's role may see, that is everything.

use super::catalog::{Rows, view_definition};
use super::data::{self, Definition, FunctionRow};
use super::directory::{Attribute, Class, ClassKind, Constraint, ConstraintKind, Directory, Reference, parenthesized};
use super::facts::Facts;
use super::names::format_type;
use super::shape::{Shape, int, or_null, text};
use crate::types::{self, Oid};
use isles_kernel::schema::{OnChange, Sequence, SqlType, relation_name, relation_parts};
use isles_kernel::value::Value;

/// Bytes of a character at most, in UTF-8.
const MAX_CHARACTER_BYTES: i64 = 4;
/// What PostgreSQL says of a text without a limit.
const UNLIMITED_BYTES: i64 = 1 << 30;

const TABLE_PRIVILEGES: [&str; 7] = ["INSERT", "SELECT", "UPDATE", "DELETE", "TRUNCATE", "REFERENCES", "TRIGGER"];
const COLUMN_PRIVILEGES: [&str; 4] = ["INSERT", "SELECT", "UPDATE", "REFERENCES"];

/// The rows of a relation of `information_schema`.
pub(super) fn rows(definition: &Definition, facts: &Facts) -> Rows {
    let directory = facts.directory();
    match definition.relation.name.as_str() {
        "character_sets" => character_sets(definition, facts),
        "check_constraints" => check_constraints(definition, facts),
        "collations" => collations(definition, facts),
        "column_privileges" | "role_column_grants" => column_privileges(definition, facts),
        "columns" => columns(definition, facts),
        "constraint_column_usage" => constraint_columns(definition, facts),
        "constraint_table_usage" => constraint_tables(definition, facts),
        "element_types" => element_types(definition, facts),
        "enabled_roles" => enabled_roles(definition, facts),
        "information_schema_catalog_name" => vec![vec![text(&facts.database)]],
        "key_column_usage" => key_columns(definition, facts),
        "parameters" => parameters(definition, facts),
        "referential_constraints" => referential_constraints(definition, facts),
        "routines" => routines(definition, facts),
        "schemata" => schemata(definition, facts),
        "sequences" => sequences(definition, facts),
        "table_constraints" => table_constraints(definition, facts),
        "table_privileges" | "role_table_grants" => table_privileges(definition, facts, directory),
        "tables" => tables(definition, facts),
        "views" => views(definition, facts),
        _ => Rows::new(),
    }
}

fn yes(yes: bool) -> Value {
    text(if yes { "YES" } else { "NO" })
}

fn schemata(definition: &Definition, facts: &Facts) -> Rows {
    let same = [("catalog_name", text(&facts.database)), ("schema_owner", text(&facts.owner))];
    let shape = Shape::new(definition, &same, ["schema_name"]);
    facts.directory().namespaces.iter().map(|(_, name)| shape.row([text(name)])).collect()
}

/// The relations that have columns a query can name: of the system and of the user.
fn visible_relations(facts: &Facts) -> impl Iterator<Item = (&str, &str, bool)> {
    let system = data::definitions().iter();
    let system = system.map(|d| (d.relation.schema.as_str(), d.relation.name.as_str(), d.kind == "v"));
    let user = facts.directory().classes.iter().filter_map(|class| match class.kind {
        ClassKind::Table(_) => Some((class.schema.as_str(), class.name.as_str(), false)),
        ClassKind::View { .. } => Some((class.schema.as_str(), class.name.as_str(), true)),
        _ => None,
    });
    system.chain(user)
}

fn tables(definition: &Definition, facts: &Facts) -> Rows {
    let same = [("table_catalog", text(&facts.database)), ("is_typed", yes(false))];
    let shape = Shape::new(definition, &same, ["table_schema", "table_name", "table_type", "is_insertable_into"]);
    let row = |(schema, name, is_view): (&str, &str, bool)| {
        let kind = if is_view { "VIEW" } else { "BASE TABLE" };
        shape.row([text(schema), text(name), text(kind), yes(!is_view)])
    };
    visible_relations(facts).map(row).collect()
}

fn views(definition: &Definition, facts: &Facts) -> Rows {
    let no = yes(false);
    let same = [
        ("table_catalog", text(&facts.database)),
        ("check_option", text("NONE")),
        ("is_updatable", no.clone()),
        ("is_insertable_into", no.clone()),
        ("is_trigger_updatable", no.clone()),
        ("is_trigger_deletable", no.clone()),
        ("is_trigger_insertable_into", no),
    ];
    let shape = Shape::new(definition, &same, ["table_schema", "table_name", "view_definition"]);
    let row =
        |(class, sql): (&Class, &str)| shape.row([text(&class.schema), text(&class.name), text(&view_definition(sql))]);
    facts.directory().views().map(row).collect()
}

/// What the standard says of a type, in this order: character maximum and octet length; numeric precision, radix and
/// scale; datetime precision; interval type.
const TYPE_COLUMNS: [&str; 7] = [
    "character_maximum_length",
    "character_octet_length",
    "numeric_precision",
    "numeric_precision_radix",
    "numeric_scale",
    "datetime_precision",
    "interval_type",
];

fn type_facts(ty: SqlType) -> [Value; 7] {
    let number = |n: Option<i64>| n.map_or(Value::Null, Value::Int);
    let (precision, radix, scale) = numeric_facts(ty);
    let interval = format_type(ty.oid, Some(ty.modifier));
    let interval =
        interval.strip_prefix("interval ").map(|fields| fields.split('(').next().unwrap_or(fields).to_uppercase());
    [
        number(character_length(ty)),
        number(octet_length(ty)),
        number(precision),
        number(radix),
        number(scale),
        number(datetime_precision(ty)),
        or_null(interval),
    ]
}

fn character_length(ty: SqlType) -> Option<i64> {
    match Oid(ty.oid) {
        _ if ty.modifier == -1 => None,
        types::BPCHAR | types::VARCHAR => Some(i64::from(ty.modifier) - 4),
        types::BIT | types::VARBIT => Some(ty.modifier.into()),
        _ => None,
    }
}

fn octet_length(ty: SqlType) -> Option<i64> {
    let is_text = matches!(Oid(ty.oid), types::TEXT | types::BPCHAR | types::VARCHAR);
    is_text.then(|| character_length(ty).map_or(UNLIMITED_BYTES, |length| length * MAX_CHARACTER_BYTES))
}

/// Precision, radix and scale.
fn numeric_facts(ty: SqlType) -> (Option<i64>, Option<i64>, Option<i64>) {
    match Oid(ty.oid) {
        types::INT2 => (Some(16), Some(2), Some(0)),
        types::INT4 => (Some(32), Some(2), Some(0)),
        types::INT8 => (Some(64), Some(2), Some(0)),
        types::FLOAT4 => (Some(24), Some(2), None),
        types::FLOAT8 => (Some(53), Some(2), None),
        types::NUMERIC if ty.modifier == -1 => (None, Some(10), None),
        types::NUMERIC => {
            let packed = i64::from(ty.modifier) - 4;
            (Some((packed >> 16) & 0xffff), Some(10), Some(packed & 0xffff))
        }
        _ => (None, None, None),
    }
}

fn datetime_precision(ty: SqlType) -> Option<i64> {
    /// Microseconds.
    const FULL: i64 = 6;
    match Oid(ty.oid) {
        types::DATE => Some(0),
        types::TIME | types::TIMESTAMP | types::TIMESTAMPTZ | types::TIMETZ => {
            Some(if ty.modifier < 0 { FULL } else { ty.modifier.into() })
        }
        types::INTERVAL if ty.modifier < 0 || ty.modifier & 0xffff == 0xffff => Some(FULL),
        types::INTERVAL => Some((ty.modifier & 0xffff).into()),
        _ => None,
    }
}

fn data_type(oid: u32) -> String {
    let is_array = data::type_row(oid).is_some_and(|row| row.element != 0 && row.length == -1);
    if is_array { "ARRAY".into() } else { format_type(oid, None) }
}

fn type_name(oid: u32) -> &'static str {
    data::type_row(oid).map_or("unknown", |row| row.name)
}

fn columns(definition: &Definition, facts: &Facts) -> Rows {
    let same = [
        ("table_catalog", text(&facts.database)),
        ("udt_catalog", text(&facts.database)),
        ("udt_schema", text("pg_catalog")),
        ("is_self_referencing", yes(false)),
        ("is_generated", text("NEVER")),
    ];
    let names = [
        "table_schema",
        "table_name",
        "column_name",
        "ordinal_position",
        "dtd_identifier",
        "column_default",
        "is_nullable",
        "data_type",
        "udt_name",
        "is_identity",
        "identity_generation",
        "identity_start",
        "identity_increment",
        "identity_maximum",
        "identity_minimum",
        "identity_cycle",
        "is_updatable",
        TYPE_COLUMNS[0],
        TYPE_COLUMNS[1],
        TYPE_COLUMNS[2],
        TYPE_COLUMNS[3],
        TYPE_COLUMNS[4],
        TYPE_COLUMNS[5],
        TYPE_COLUMNS[6],
    ];
    let shape = Shape::new(definition, &same, names);
    let row = |schema: &str, table: &str, at: usize, column: &Attribute, is_view: bool| {
        let [max, octets, precision, radix, scale, datetime, interval] = type_facts(column.ty);
        let relation = relation_name(schema, table);
        let [generation, start, increment, maximum, minimum, cycle] = identity(facts.directory(), &relation, column);
        shape.row([
            text(schema),
            text(table),
            text(&column.name),
            int(at + 1),
            text(&(at + 1).to_string()),
            or_null(column.default.as_ref().map(|(_, sql)| sql.as_str())),
            yes(!column.not_null),
            text(&data_type(column.ty.oid)),
            text(type_name(column.ty.oid)),
            yes(!column.identity.is_empty()),
            generation,
            start,
            increment,
            maximum,
            minimum,
            cycle,
            yes(!is_view),
            max,
            octets,
            precision,
            radix,
            scale,
            datetime,
            interval,
        ])
    };
    let mut rows = Rows::new();
    for system in data::definitions() {
        for (at, c) in system.relation.columns.iter().enumerate() {
            let ty = SqlType { oid: c.ty.oid.0, modifier: c.ty.modifier };
            let column = Attribute { name: c.name.clone(), ty, not_null: c.not_null, default: None, identity: "" };
            rows.push(row(&system.relation.schema, &system.relation.name, at, &column, system.kind == "v"));
        }
    }
    for class in facts.directory().classes.iter().filter(|class| has_columns(class)) {
        let is_view = matches!(class.kind, ClassKind::View { .. });
        let columns = class.columns.iter().enumerate();
        rows.extend(columns.map(|(at, column)| row(&class.schema, &class.name, at, column, is_view)));
    }
    rows
}

fn has_columns(class: &Class) -> bool {
    matches!(class.kind, ClassKind::Table(_) | ClassKind::View { .. })
}

/// Generation, start, increment, maximum, minimum and cycle.
fn identity(directory: &Directory, table: &str, column: &Attribute) -> [Value; 6] {
    let none = [Value::Null, Value::Null, Value::Null, Value::Null, Value::Null, yes(false)];
    if column.identity.is_empty() {
        return none;
    }
    let Some(Class { kind: ClassKind::Sequence(s), .. }) = directory.sequence_of(table, &column.name) else {
        return none;
    };
    let generation = if column.identity == "a" { "ALWAYS" } else { "BY DEFAULT" };
    let [start, increment, max, min] = [s.start, s.increment, s.max, s.min].map(|n| text(&n.to_string()));
    [text(generation), start, increment, max, min, yes(s.cycle)]
}

fn element_types(definition: &Definition, facts: &Facts) -> Rows {
    let same = [
        ("object_catalog", text(&facts.database)),
        ("object_type", text("TABLE")),
        ("udt_catalog", text(&facts.database)),
        ("udt_schema", text("pg_catalog")),
    ];
    let names =
        ["object_schema", "object_name", "collection_type_identifier", "data_type", "udt_name", "dtd_identifier"];
    let shape = Shape::new(definition, &same, names);
    let mut rows = Rows::new();
    for class in facts.directory().classes.iter().filter(|class| has_columns(class)) {
        for (at, column) in class.columns.iter().enumerate() {
            if let Some(array) = data::type_row(column.ty.oid).filter(|row| row.is_array) {
                let at = (at + 1).to_string();
                let (says, name) = (data_type(array.element), type_name(array.element));
                let (schema, table) = (text(&class.schema), text(&class.name));
                rows.push(shape.row([schema, table, text(&at), text(&says), text(name), text(&format!("a{at}"))]));
            }
        }
    }
    rows
}

fn sequences(definition: &Definition, facts: &Facts) -> Rows {
    let same = [
        ("sequence_catalog", text(&facts.database)),
        ("numeric_precision_radix", Value::Int(2)),
        ("numeric_scale", Value::Int(0)),
    ];
    let names = [
        "sequence_schema",
        "sequence_name",
        "data_type",
        "numeric_precision",
        "start_value",
        "minimum_value",
        "maximum_value",
        "increment",
        "cycle_option",
    ];
    let shape = Shape::new(definition, &same, names);
    let row = |(class, s): (&Class, &Sequence)| {
        let ty = SqlType { oid: types::natural(s.ty).0, modifier: -1 };
        let precision = numeric_facts(ty).0.map_or(Value::Null, Value::Int);
        let [start, min, max, increment] = [s.start, s.min, s.max, s.increment].map(|n| text(&n.to_string()));
        let (schema, name, says) = (text(&class.schema), text(&class.name), text(&data_type(ty.oid)));
        shape.row([schema, name, says, precision, start, min, max, increment, yes(s.cycle)])
    };
    // As PostgreSQL: the sequences of identity columns belong to their columns alone.
    let is_identity = |class: &Class| {
        facts.directory().tables().any(|(table, _)| {
            let identity = table.columns.iter().filter(|column| !column.identity.is_empty());
            identity
                .into_iter()
                .any(|c| facts.directory().sequence_of(&table.relation, &c.name).is_some_and(|s| s.oid == class.oid))
        })
    };
    facts.directory().sequences().filter(|(class, _)| !is_identity(class)).map(row).collect()
}

fn constraint_type(constraint: &Constraint) -> &'static str {
    match constraint.kind {
        ConstraintKind::Primary => "PRIMARY KEY",
        ConstraintKind::Unique => "UNIQUE",
        ConstraintKind::Foreign(_) => "FOREIGN KEY",
        ConstraintKind::Check(_) => "CHECK",
    }
}

/// `NOT NULL` is a check, whose name is made of numbers.
fn not_null_checks(directory: &Directory) -> impl Iterator<Item = (&Class, &Attribute, String)> {
    directory.tables().flat_map(|(class, _)| {
        let columns = class.columns.iter().enumerate().filter(|(_, column)| column.not_null);
        columns
            .map(move |(at, column)| (class, column, format!("{}_{}_{}_not_null", class.namespace, class.oid, at + 1)))
    })
}

fn table_constraints(definition: &Definition, facts: &Facts) -> Rows {
    let same = [
        ("constraint_catalog", text(&facts.database)),
        ("table_catalog", text(&facts.database)),
        ("enforced", yes(true)),
    ];
    let names = [
        "constraint_schema",
        "constraint_name",
        "table_schema",
        "table_name",
        "constraint_type",
        "nulls_distinct",
        "is_deferrable",
        "initially_deferred",
    ];
    let shape = Shape::new(definition, &same, names);
    let row = |name: &str, relation: &str, kind: &str, distinct: Value, (deferrable, deferred): (bool, bool)| {
        let (schema, table) = relation_parts(relation);
        let (deferrable, deferred) = (yes(deferrable), yes(deferred));
        shape.row([text(schema), text(name), text(schema), text(table), text(kind), distinct, deferrable, deferred])
    };
    let declared = facts.directory().constraints.iter().map(|c| {
        let distinct = if matches!(c.kind, ConstraintKind::Unique) { yes(true) } else { Value::Null };
        row(&c.name, &c.table_relation, constraint_type(c), distinct, Directory::deferral(c))
    });
    let checks = not_null_checks(facts.directory())
        .map(|(class, _, name)| row(&name, &class.relation, "CHECK", Value::Null, (false, false)));
    declared.chain(checks).collect()
}

fn check_constraints(definition: &Definition, facts: &Facts) -> Rows {
    let same = [("constraint_catalog", text(&facts.database))];
    let shape = Shape::new(definition, &same, ["constraint_schema", "constraint_name", "check_clause"]);
    let row = |(class, column, name): (&Class, &Attribute, String)| {
        shape.row([text(&class.schema), text(&name), text(&format!("{} IS NOT NULL", column.name))])
    };
    let declared = facts.directory().constraints.iter().filter_map(|c| match &c.kind {
        ConstraintKind::Check(sql) => {
            let schema = relation_parts(&c.table_relation).0;
            Some(shape.row([text(schema), text(&c.name), text(&format!("({})", parenthesized(sql)))]))
        }
        _ => None,
    });
    declared.chain(not_null_checks(facts.directory()).map(row)).collect()
}

fn key_columns(definition: &Definition, facts: &Facts) -> Rows {
    let same = [("constraint_catalog", text(&facts.database)), ("table_catalog", text(&facts.database))];
    let names = [
        "constraint_schema",
        "constraint_name",
        "table_schema",
        "table_name",
        "column_name",
        "ordinal_position",
        "position_in_unique_constraint",
    ];
    let shape = Shape::new(definition, &same, names);
    let mut rows = Rows::new();
    let is_key = |c: &&Constraint| !matches!(c.kind, ConstraintKind::Check(_));
    for c in facts.directory().constraints.iter().filter(is_key) {
        for (at, column) in facts.directory().column_names(c.table, &c.positions).iter().enumerate() {
            let referred = match c.kind {
                ConstraintKind::Foreign(_) => int(at + 1),
                _ => Value::Null,
            };
            let (schema, table) = relation_parts(&c.table_relation);
            let [schema, name, table, column] = [schema, &c.name, table, column].map(text);
            rows.push(shape.row([schema.clone(), name, schema, table, column, int(at + 1), referred]));
        }
    }
    rows
}

/// The table and columns that a constraint uses: of a foreign key, those that it refers to.
fn used<'a>(directory: &'a Directory, c: &'a Constraint) -> (&'a str, Vec<&'a str>) {
    match &c.kind {
        ConstraintKind::Foreign(to) => (to.key.table.as_str(), directory.column_names(to.table, &to.positions)),
        _ => (c.table_relation.as_str(), directory.column_names(c.table, &c.positions)),
    }
}

fn constraint_columns(definition: &Definition, facts: &Facts) -> Rows {
    let same = [("constraint_catalog", text(&facts.database)), ("table_catalog", text(&facts.database))];
    let names = ["table_schema", "table_name", "column_name", "constraint_schema", "constraint_name"];
    let shape = Shape::new(definition, &same, names);
    let mut rows = Rows::new();
    for c in &facts.directory().constraints {
        let (relation, columns) = used(facts.directory(), c);
        let ((schema, table), own) = (relation_parts(relation), relation_parts(&c.table_relation).0);
        rows.extend(columns.iter().map(|column| shape.row([schema, table, column, own, &c.name].map(text))));
    }
    rows
}

fn constraint_tables(definition: &Definition, facts: &Facts) -> Rows {
    let same = [("constraint_catalog", text(&facts.database)), ("table_catalog", text(&facts.database))];
    let shape = Shape::new(definition, &same, ["table_schema", "table_name", "constraint_schema", "constraint_name"]);
    let row = |c: &Constraint| {
        let (schema, table) = relation_parts(used(facts.directory(), c).0);
        shape.row([schema, table, relation_parts(&c.table_relation).0, &c.name].map(text))
    };
    facts.directory().constraints.iter().map(row).collect()
}

fn referential_constraints(definition: &Definition, facts: &Facts) -> Rows {
    let same = [("constraint_catalog", text(&facts.database)), ("match_option", text("NONE"))];
    let names = [
        "constraint_schema",
        "constraint_name",
        "unique_constraint_catalog",
        "unique_constraint_schema",
        "unique_constraint_name",
        "update_rule",
        "delete_rule",
    ];
    let shape = Shape::new(definition, &same, names);
    let row = |c: &Constraint, to: &Reference| {
        let (catalog, schema, unique) = match &to.unique {
            Some((schema, name)) => (text(&facts.database), text(schema), text(name)),
            None => (Value::Null, Value::Null, Value::Null),
        };
        let [update, delete] = [to.key.on_update, to.key.on_delete].map(OnChange::sql);
        let own = relation_parts(&c.table_relation).0;
        shape.row([text(own), text(&c.name), catalog, schema, unique, text(update), text(delete)])
    };
    let foreign = |c: &Constraint| match &c.kind {
        ConstraintKind::Foreign(to) => Some(row(c, to)),
        _ => None,
    };
    facts.directory().constraints.iter().filter_map(foreign).collect()
}

fn table_privileges(definition: &Definition, facts: &Facts, directory: &Directory) -> Rows {
    let shape =
        Shape::new(definition, &grants(facts), ["table_schema", "table_name", "privilege_type", "with_hierarchy"]);
    let mut rows = Rows::new();
    for class in directory.classes.iter().filter(|class| has_columns(class)) {
        for privilege in TABLE_PRIVILEGES {
            let (schema, table) = (text(&class.schema), text(&class.name));
            rows.push(shape.row([schema, table, text(privilege), yes(privilege == "SELECT")]));
        }
    }
    rows
}

fn column_privileges(definition: &Definition, facts: &Facts) -> Rows {
    let shape = Shape::new(definition, &grants(facts), ["table_schema", "table_name", "column_name", "privilege_type"]);
    let mut rows = Rows::new();
    for class in facts.directory().classes.iter().filter(|class| has_columns(class)) {
        for column in &class.columns {
            let row =
                |privilege: &str| shape.row([class.schema.as_str(), &class.name, &column.name, privilege].map(text));
            rows.extend(COLUMN_PRIVILEGES.into_iter().map(row));
        }
    }
    rows
}

/// The owner may do everything, and nobody granted anything else.
fn grants(facts: &Facts) -> [(&'static str, Value); 4] {
    [
        ("grantor", text(&facts.owner)),
        ("grantee", text(&facts.owner)),
        ("table_catalog", text(&facts.database)),
        ("is_grantable", yes(true)),
    ]
}

fn enabled_roles(definition: &Definition, facts: &Facts) -> Rows {
    let shape = Shape::new(definition, &[], ["role_name"]);
    vec![shape.row([text(&facts.user)])]
}

fn character_sets(definition: &Definition, facts: &Facts) -> Rows {
    let same = [
        ("character_set_name", text("UTF8")),
        ("character_repertoire", text("UCS")),
        ("form_of_use", text("UTF8")),
        ("default_collate_schema", text("pg_catalog")),
        ("default_collate_name", text("ucs_basic")),
    ];
    let shape = Shape::new(definition, &same, ["default_collate_catalog"]);
    vec![shape.row([text(&facts.database)])]
}

fn collations(definition: &Definition, facts: &Facts) -> Rows {
    let same = [
        ("collation_catalog", text(&facts.database)),
        ("collation_schema", text("pg_catalog")),
        ("pad_attribute", text("NO PAD")),
    ];
    let shape = Shape::new(definition, &same, ["collation_name"]);
    ["default", "C", "POSIX", "ucs_basic"].into_iter().map(|name| shape.row([text(name)])).collect()
}

fn sorted_functions() -> Vec<&'static FunctionRow> {
    let mut all: Vec<_> = data::functions().filter(|row| row.kind == "f" || row.kind == "p").collect();
    all.sort_by_key(|row| row.oid);
    all
}

fn specific_name(row: &FunctionRow) -> Value {
    text(&format!("{}_{}", row.name, row.oid))
}

fn routines(definition: &Definition, facts: &Facts) -> Rows {
    let same = [
        ("specific_catalog", text(&facts.database)),
        ("specific_schema", text("pg_catalog")),
        ("routine_catalog", text(&facts.database)),
        ("routine_schema", text("pg_catalog")),
        ("routine_type", text("FUNCTION")),
        ("type_udt_catalog", text(&facts.database)),
        ("type_udt_schema", text("pg_catalog")),
        ("dtd_identifier", text("0")),
        ("routine_body", text("EXTERNAL")),
        ("external_language", text("INTERNAL")),
        ("parameter_style", text("GENERAL")),
        ("security_type", text("INVOKER")),
        ("as_locator", yes(false)),
        ("is_udt_dependent", yes(false)),
        ("schema_level_routine", yes(true)),
        ("max_dynamic_result_sets", Value::Int(0)),
    ];
    let shape = Shape::new(definition, &same, ["specific_name", "routine_name", "data_type", "type_udt_name"]);
    let row = |f: &'static FunctionRow| {
        shape.row([specific_name(f), text(f.name), text(&data_type(f.result)), text(type_name(f.result))])
    };
    sorted_functions().into_iter().map(row).collect()
}

fn parameters(definition: &Definition, facts: &Facts) -> Rows {
    let same = [
        ("specific_catalog", text(&facts.database)),
        ("specific_schema", text("pg_catalog")),
        ("udt_catalog", text(&facts.database)),
        ("udt_schema", text("pg_catalog")),
        ("is_result", yes(false)),
        ("as_locator", yes(false)),
    ];
    let names = [
        "specific_name",
        "ordinal_position",
        "dtd_identifier",
        "parameter_mode",
        "parameter_name",
        "data_type",
        "udt_name",
    ];
    let shape = Shape::new(definition, &same, names);
    let mut rows = Rows::new();
    for f in sorted_functions() {
        for (at, ty) in f.all_args.as_ref().unwrap_or(&f.args).iter().enumerate() {
            let mode = match f.modes.get(at).copied() {
                Some("o" | "t") => "OUT",
                Some("b") => "INOUT",
                _ => "IN",
            };
            let name = or_null(f.names.get(at).copied().filter(|name| !name.is_empty()));
            let (says, udt) = (data_type(*ty), type_name(*ty));
            let number = text(&(at + 1).to_string());
            rows.push(shape.row([specific_name(f), int(at + 1), number, text(mode), name, text(&says), text(udt)]));
        }
    }
    rows
}
