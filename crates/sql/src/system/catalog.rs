//! The rows of `pg_catalog`.
//!
//! A relation's rows are PostgreSQL's own, from [`super::data`], and those of the user's objects, from the
//! [`Directory`]. A relation that has no function here is empty: nothing of its kind can exist in a database.

use super::data::{self, Definition, Positions};
use super::directory::{
    Class, ClassKind, Comment, Constraint, ConstraintKind, Directory, Index, PG_ATTRDEF, PG_AUTHID, PG_CLASS,
    PG_CONSTRAINT, PG_DATABASE, PG_NAMESPACE, PG_REWRITE, Qualified, index_definition,
};
use super::facts::{Facts, OWNER_OID};
use super::names::{PG_CATALOG_OID, PUBLIC_OID, schema_oid};
use super::shape::{Shape, int, ints, oid, or_null, text};
use crate::types;
use isles_kernel::schema::{OnChange, Sequence, plain_name};
use isles_kernel::value::Value;

pub(super) type Rows = Vec<Vec<Value>>;

/// Access methods: of tables and of indexes.
const HEAP: u32 = 2;
const BTREE: u32 = 403;
/// The tablespace where everything is.
const PG_DEFAULT: u32 = 1_663;
const PG_GLOBAL: u32 = 1_664;
pub(super) const UTF8: i64 = 6;

/// The rows of a relation of `pg_catalog`.
pub(super) fn rows(definition: &Definition, facts: &Facts) -> Rows {
    let directory = facts.directory();
    let mut rows: Rows = match definition.relation.name.as_str() {
        // Only settings that a session has are shown.
        "pg_settings" => return settings(definition, facts),
        name => data::built_in(name).to_vec(),
    };
    rows.extend(match definition.relation.name.as_str() {
        "pg_attrdef" => attribute_defaults(definition, directory),
        "pg_attribute" => attributes(definition, directory),
        "pg_authid" => roles(definition, facts, "rolpassword", Value::Null),
        "pg_class" => classes(definition, facts),
        "pg_constraint" => constraints(definition, directory),
        "pg_database" => databases(definition, facts),
        "pg_depend" => dependencies(definition, directory),
        "pg_description" => descriptions(definition, directory),
        "pg_group" => groups(definition, facts),
        "pg_index" => indexes(definition, directory),
        "pg_indexes" => index_list(definition, directory),
        "pg_namespace" => namespaces(definition, directory),
        "pg_prepared_statements" => prepared_statements(definition, facts),
        "pg_rewrite" => rewrites(definition, directory),
        "pg_roles" => roles(definition, facts, "rolpassword", text("********")),
        "pg_sequence" => sequences(definition, directory),
        "pg_sequences" => sequence_list(definition, facts),
        "pg_shadow" | "pg_user" => users(definition, facts),
        "pg_shdescription" => shared_descriptions(definition, facts),
        "pg_stat_activity" => activity(definition, facts),
        "pg_stat_all_tables" | "pg_stat_user_tables" => table_statistics(definition, facts),
        "pg_stat_database" => database_statistics(definition, facts),
        "pg_tables" => table_list(definition, facts),
        "pg_tablespace" => tablespaces(definition),
        "pg_views" => view_list(definition, facts),
        _ => Rows::new(),
    });
    rows
}

fn namespaces(definition: &Definition, directory: &Directory) -> Rows {
    let shape = Shape::new(definition, &[("nspowner", oid(OWNER_OID))], ["oid", "nspname"]);
    directory.namespaces.iter().map(|(number, name)| shape.row([oid(*number), text(name)])).collect()
}

/// Comments of the schema, and those that the schemas have before anybody says otherwise.
fn descriptions(definition: &Definition, directory: &Directory) -> Rows {
    let shape = Shape::new(definition, &[], ["classoid", "objoid", "objsubid", "description"]);
    let row = |comment: &Comment| {
        let (catalog, object) = (oid(comment.catalog), oid(comment.object));
        shape.row([catalog, object, Value::Int(comment.column), text(&comment.text)])
    };
    let own = directory.comments.iter().filter(|comment| !is_shared(comment));
    let said = |number: u32| directory.comments.iter().any(|c| c.catalog == PG_NAMESPACE && c.object == number);
    let schemas = SCHEMA_COMMENTS.into_iter().filter(|(number, _)| !said(*number));
    let schemas =
        schemas.map(|(number, comment)| shape.row([oid(PG_NAMESPACE), oid(number), Value::Int(0), text(comment)]));
    own.map(row).chain(schemas).collect()
}

pub(super) const SCHEMA_COMMENTS: [(u32, &str); 2] =
    [(PG_CATALOG_OID, "system catalog schema"), (PUBLIC_OID, "standard public schema")];

/// Databases and roles are of all databases.
fn is_shared(comment: &Comment) -> bool {
    comment.catalog == PG_DATABASE || comment.catalog == PG_AUTHID
}

fn shared_descriptions(definition: &Definition, facts: &Facts) -> Rows {
    let shape = Shape::new(definition, &[], ["classoid", "objoid", "description"]);
    let row = |comment: &Comment| {
        let object = if comment.catalog == PG_DATABASE { facts.database_oid() } else { comment.object };
        shape.row([oid(comment.catalog), oid(object), text(&comment.text)])
    };
    facts.directory().comments.iter().filter(|comment| is_shared(comment)).map(row).collect()
}

/// What `pg_class` says of a relation, the user's or the system's.
struct ClassRow<'a> {
    oid: u32,
    name: &'a str,
    schema: u32,
    kind: &'a str,
    columns: usize,
    method: u32,
    has_index: bool,
    checks: usize,
    has_triggers: bool,
    has_rules: bool,
    identity: &'static str,
    rows: f64,
    options: Value,
}

fn classes(definition: &Definition, facts: &Facts) -> Rows {
    let same = [("relowner", oid(OWNER_OID)), ("relpersistence", text("p")), ("relispopulated", Value::Bool(true))];
    let names = [
        "oid",
        "relname",
        "relnamespace",
        "relkind",
        "relnatts",
        "relam",
        "relhasindex",
        "relhastriggers",
        "relhasrules",
        "relreplident",
        "reltuples",
        "reloptions",
        "relfilenode",
        "relchecks",
    ];
    let shape = Shape::new(definition, &same, names);
    let row = |c: ClassRow<'_>| {
        shape.row([
            oid(c.oid),
            text(c.name),
            oid(c.schema),
            text(c.kind),
            int(c.columns),
            oid(c.method),
            Value::Bool(c.has_index),
            Value::Bool(c.has_triggers),
            Value::Bool(c.has_rules),
            text(c.identity),
            Value::Float(c.rows),
            c.options,
            oid(if c.kind == "v" { 0 } else { c.oid }),
            int(c.checks),
        ])
    };
    let system = data::definitions().iter().map(|definition| row(system_class(definition)));
    let user = facts.directory().classes.iter().map(|class| row(user_class(class, facts)));
    system.chain(user).collect()
}

fn system_class(definition: &Definition) -> ClassRow<'_> {
    let is_table = definition.kind == "r";
    ClassRow {
        oid: definition.oid,
        name: &definition.relation.name,
        schema: schema_oid(&definition.relation.schema).unwrap_or(PG_CATALOG_OID),
        kind: definition.kind,
        columns: definition.relation.columns.len(),
        method: if is_table { HEAP } else { 0 },
        has_index: false,
        checks: 0,
        has_triggers: false,
        has_rules: !is_table,
        identity: "n",
        rows: -1.0,
        options: Value::Null,
    }
}

fn user_class<'a>(class: &'a Class, facts: &Facts) -> ClassRow<'a> {
    let row = ClassRow {
        oid: class.oid,
        name: &class.name,
        schema: class.namespace,
        kind: "r",
        columns: class.columns.len(),
        method: HEAP,
        has_index: false,
        checks: 0,
        has_triggers: false,
        has_rules: false,
        identity: "d",
        rows: -1.0,
        options: Value::Null,
    };
    match &class.kind {
        ClassKind::Table(table) => ClassRow {
            has_index: table.has_indexes,
            checks: table.checks,
            has_triggers: table.has_foreign_keys,
            rows: facts.sizes.get(&class.relation).map_or(-1.0, |size| size.rows as f64),
            options: Value::Array(table.options.iter().map(|option| text(option)).collect()),
            ..row
        },
        ClassKind::Index(index) => {
            let options = if index.global { Value::Array(vec![text("global=true")]) } else { Value::Null };
            ClassRow { kind: "i", method: BTREE, identity: "n", rows: 0.0, options, ..row }
        }
        ClassKind::View { .. } => ClassRow { kind: "v", method: 0, has_rules: true, identity: "n", ..row },
        ClassKind::Sequence(_) => ClassRow { kind: "S", method: 0, identity: "n", rows: 1.0, ..row },
    }
}

fn attributes(definition: &Definition, directory: &Directory) -> Rows {
    let same = [
        ("attstattarget", Value::Int(-1)),
        ("attcacheoff", Value::Int(-1)),
        ("attislocal", Value::Bool(true)),
        ("attcompression", text("")),
        ("attgenerated", text("")),
    ];
    let names = [
        "attrelid",
        "attname",
        "attnum",
        "atttypid",
        "atttypmod",
        "attnotnull",
        "atthasdef",
        "attidentity",
        "attlen",
        "attbyval",
        "attalign",
        "attstorage",
        "attcollation",
        "attndims",
    ];
    let shape = Shape::new(definition, &same, names);
    let row = |class: u32, name: &str, at: usize, ty: (u32, i32), marks: [Value; 3]| {
        let facts = data::type_row(ty.0);
        let [not_null, has_default, identity] = marks;
        shape.row([
            oid(class),
            text(name),
            int(at + 1),
            oid(ty.0),
            Value::Int(ty.1.into()),
            not_null,
            has_default,
            identity,
            Value::Int(facts.map_or(-1, |row| row.length)),
            Value::Bool(facts.is_some_and(|row| row.by_value)),
            text(facts.map_or("i", |row| row.align)),
            text(facts.map_or("x", |row| row.storage)),
            Value::Int(facts.map_or(0, |row| row.collation)),
            Value::Int(facts.is_some_and(|row| row.is_array).into()),
        ])
    };
    let mut rows = Rows::new();
    for system in data::definitions() {
        for (at, column) in system.relation.columns.iter().enumerate() {
            let marks = [Value::Bool(column.not_null), Value::Bool(false), text("")];
            rows.push(row(system.oid, &column.name, at, (column.ty.oid.0, column.ty.modifier), marks));
        }
    }
    for class in &directory.classes {
        for (at, column) in class.columns.iter().enumerate() {
            let marks = [Value::Bool(column.not_null), Value::Bool(column.default.is_some()), text(column.identity)];
            rows.push(row(class.oid, &column.name, at, (column.ty.oid, column.ty.modifier), marks));
        }
    }
    rows
}

/// The expression is given as its text: `pg_get_expr` has nothing more to do.
fn attribute_defaults(definition: &Definition, directory: &Directory) -> Rows {
    let shape = Shape::new(definition, &[], ["oid", "adrelid", "adnum", "adbin"]);
    let mut rows = Rows::new();
    for class in &directory.classes {
        for (at, column) in class.columns.iter().enumerate() {
            if let Some((number, sql)) = &column.default {
                rows.push(shape.row([oid(*number), oid(class.oid), int(at + 1), text(sql)]));
            }
        }
    }
    rows
}

fn indexes(definition: &Definition, directory: &Directory) -> Rows {
    let on = Value::Bool(true);
    let same =
        [("indimmediate", on.clone()), ("indisvalid", on.clone()), ("indisready", on.clone()), ("indislive", on)];
    let names = [
        "indexrelid",
        "indrelid",
        "indnatts",
        "indnkeyatts",
        "indisunique",
        "indisprimary",
        "indkey",
        "indcollation",
        "indclass",
        "indoption",
        "indexprs",
        "indpred",
    ];
    let shape = Shape::new(definition, &same, names);
    let row = |(class, index): (&Class, &Index)| {
        let collation = |oid: u32| data::type_row(oid).map_or(0, |row| row.collation);
        let types: Vec<u32> = class.columns.iter().map(|column| column.ty.oid).collect();
        shape.row([
            oid(class.oid),
            oid(index.table),
            int(index.positions.len()),
            int(index.positions.len()),
            Value::Bool(index.unique),
            Value::Bool(index.primary),
            ints(&index.positions),
            ints(&types.iter().map(|oid| collation(*oid)).collect::<Vec<_>>()),
            ints(&types.iter().map(|oid| operator_class(*oid)).collect::<Vec<_>>()),
            ints(&index.options),
            or_null(joined(&index.expressions)),
            or_null(index.predicate.as_deref()),
        ])
    };
    directory.indexes().map(row).collect()
}

/// As `pg_get_expr` shows a list of expressions.
fn joined(expressions: &[String]) -> Option<String> {
    (!expressions.is_empty()).then(|| expressions.join(", "))
}

/// The default class of B-tree operators for a type.
fn operator_class(ty: u32) -> i64 {
    let at = Positions::of("pg_opclass");
    let input = match data::type_row(ty) {
        // These have no class of their own.
        Some(row) if row.name == "varchar" => types::TEXT.0,
        Some(row) if row.is_array => types::ANYARRAY.0,
        _ => ty,
    };
    let fits = |row: &&Vec<Value>| {
        at.oid(row, "opcmethod") == BTREE
            && at.oid(row, "opcintype") == input
            && row[at.of_column("opcdefault")] == Value::Bool(true)
    };
    data::built_in("pg_opclass").iter().find(fits).map_or(0, |row| at.int(row, "oid"))
}

fn constraints(definition: &Definition, directory: &Directory) -> Rows {
    let on = Value::Bool(true);
    let same = [("convalidated", on.clone()), ("conislocal", on)];
    let names = [
        "oid",
        "connamespace",
        "conname",
        "contype",
        "conrelid",
        "conindid",
        "confrelid",
        "confupdtype",
        "confdeltype",
        "confmatchtype",
        "conkey",
        "confkey",
        "conbin",
        "connoinherit",
        "condeferrable",
        "condeferred",
    ];
    let shape = Shape::new(definition, &same, names);
    let row = |constraint: &Constraint| {
        let c = constraint;
        let expression = if let ConstraintKind::Check(sql) = &c.kind { text(sql) } else { Value::Null };
        let is_check = !expression.is_null();
        let (deferrable, deferred) = Directory::deferral(c);
        let (referred, update, delete, matching, key) = match &c.kind {
            ConstraintKind::Foreign(to) => {
                let key = ints(&to.positions);
                (to.table, action_code(to.key.on_update), action_code(to.key.on_delete), "s", key)
            }
            _ => (0, " ", " ", " ", Value::Null),
        };
        shape.row([
            oid(c.oid),
            oid(directory.class(c.table).map_or(PUBLIC_OID, |class| class.namespace)),
            text(&c.name),
            text(constraint_code(c)),
            oid(c.table),
            oid(c.index),
            oid(referred),
            text(update),
            text(delete),
            text(matching),
            ints(&c.positions),
            key,
            expression,
            Value::Bool(!is_check),
            Value::Bool(deferrable),
            Value::Bool(deferred),
        ])
    };
    directory.constraints.iter().map(row).collect()
}

fn constraint_code(constraint: &Constraint) -> &'static str {
    match constraint.kind {
        ConstraintKind::Primary => "p",
        ConstraintKind::Unique => "u",
        ConstraintKind::Foreign(_) => "f",
        ConstraintKind::Check(_) => "c",
    }
}

fn action_code(action: OnChange) -> &'static str {
    match action {
        OnChange::NoAction => "a",
        OnChange::Restrict => "r",
        OnChange::Cascade => "c",
        OnChange::SetNull => "n",
    }
}

/// An object that depends: its catalog, its number and its column.
type ObjectAddress = (u32, u32, i64);
/// A row of `pg_depend`: an object, what it depends on, and how.
type Dependency = (ObjectAddress, ObjectAddress, &'static str);

fn dependencies(definition: &Definition, directory: &Directory) -> Rows {
    let names = ["classid", "objid", "objsubid", "refclassid", "refobjid", "refobjsubid", "deptype"];
    let shape = Shape::new(definition, &[], names);
    let row = |((class, object, sub), (to_class, to, to_sub), kind): Dependency| {
        shape.row([oid(class), oid(object), Value::Int(sub), oid(to_class), oid(to), Value::Int(to_sub), text(kind)])
    };
    let sequences = directory.sequences().filter_map(|(class, sequence)| owned_sequence(directory, class, sequence));
    let constraints = directory.constraints.iter().flat_map(constraint_dependencies);
    let indexes = directory.indexes().flat_map(|(class, index)| index_dependencies(directory, class, index));
    let rules = directory.classes.iter().filter_map(|class| match class.kind {
        ClassKind::View { rule, .. } => Some(((PG_REWRITE, rule, 0), (PG_CLASS, class.oid, 0), "i")),
        _ => None,
    });
    let defaults = directory.classes.iter().flat_map(default_dependencies);
    sequences.chain(constraints).chain(indexes).chain(rules).chain(defaults).map(row).collect()
}

/// A constraint goes with its columns; its index goes with it. A foreign key needs what it refers to.
fn constraint_dependencies(c: &Constraint) -> Vec<Dependency> {
    let own = (PG_CONSTRAINT, c.oid, 0);
    let mut found: Vec<Dependency> = c.positions.iter().map(|at| (own, (PG_CLASS, c.table, *at), "a")).collect();
    match &c.kind {
        ConstraintKind::Primary | ConstraintKind::Unique => found.push(((PG_CLASS, c.index, 0), own, "i")),
        ConstraintKind::Foreign(to) => {
            found.extend(to.positions.iter().map(|at| (own, (PG_CLASS, to.table, *at), "n")));
            found.push((own, (PG_CLASS, c.index, 0), "n"));
        }
        ConstraintKind::Check(_) => {}
    }
    found
}

/// An index that is no constraint goes with its columns.
fn index_dependencies(directory: &Directory, class: &Class, index: &Index) -> Vec<Dependency> {
    let keeps = |c: &Constraint| c.index == class.oid && !matches!(c.kind, ConstraintKind::Foreign(_));
    if directory.constraints.iter().any(keeps) {
        return Vec::new();
    }
    let columns = index.positions.iter().filter(|at| **at > 0);
    columns.map(|at| ((PG_CLASS, class.oid, 0), (PG_CLASS, index.table, *at), "a")).collect()
}

fn owned_sequence(directory: &Directory, class: &Class, sequence: &Sequence) -> Option<Dependency> {
    let (table, column) = sequence.owner.as_ref()?;
    let table = directory.class_named(table)?;
    let at = table.columns.iter().position(|c| &c.name == column)?;
    let kind = if table.columns[at].identity.is_empty() { "a" } else { "i" };
    Some(((PG_CLASS, class.oid, 0), (PG_CLASS, table.oid, at as i64 + 1), kind))
}

fn default_dependencies(class: &Class) -> impl Iterator<Item = Dependency> {
    class.columns.iter().enumerate().filter_map(|(at, column)| {
        let (number, _) = column.default.as_ref()?;
        Some(((PG_ATTRDEF, *number, 0), (PG_CLASS, class.oid, at as i64 + 1), "a"))
    })
}

fn rewrites(definition: &Definition, directory: &Directory) -> Rows {
    let same = [
        ("rulename", text("_RETURN")),
        ("ev_type", text("1")),
        ("ev_enabled", text("O")),
        ("is_instead", Value::Bool(true)),
        ("ev_qual", text("<>")),
    ];
    let shape = Shape::new(definition, &same, ["oid", "ev_class", "ev_action"]);
    let row = |class: &Class| match &class.kind {
        ClassKind::View { sql, rule } => Some(shape.row([oid(*rule), oid(class.oid), text(sql)])),
        _ => None,
    };
    directory.classes.iter().filter_map(row).collect()
}

fn sequences(definition: &Definition, directory: &Directory) -> Rows {
    let names = ["seqrelid", "seqtypid", "seqstart", "seqincrement", "seqmax", "seqmin", "seqcycle"];
    let shape = Shape::new(definition, &[("seqcache", Value::Int(1))], names);
    let row = |(class, s): (&Class, &Sequence)| {
        shape.row([
            oid(class.oid),
            oid(types::natural(s.ty).0),
            Value::Int(s.start),
            Value::Int(s.increment),
            Value::Int(s.max),
            Value::Int(s.min),
            Value::Bool(s.cycle),
        ])
    };
    directory.sequences().map(row).collect()
}

fn sequence_list(definition: &Definition, facts: &Facts) -> Rows {
    let same = [("sequenceowner", text(&facts.owner)), ("cache_size", Value::Int(1))];
    let names = [
        "schemaname",
        "sequencename",
        "data_type",
        "start_value",
        "min_value",
        "max_value",
        "increment_by",
        "cycle",
        "last_value",
    ];
    let shape = Shape::new(definition, &same, names);
    let row = |(class, s): (&Class, &Sequence)| {
        let last = facts.last_values.get(&class.relation).map_or(Value::Null, |last| Value::Int(*last));
        shape.row([
            text(&class.schema),
            text(&class.name),
            oid(types::natural(s.ty).0),
            Value::Int(s.start),
            Value::Int(s.min),
            Value::Int(s.max),
            Value::Int(s.increment),
            Value::Bool(s.cycle),
            last,
        ])
    };
    facts.directory().sequences().map(row).collect()
}

fn table_list(definition: &Definition, facts: &Facts) -> Rows {
    let same = [("tableowner", text(&facts.owner)), ("rowsecurity", Value::Bool(false))];
    let names = ["schemaname", "tablename", "hasindexes", "hasrules", "hastriggers"];
    let shape = Shape::new(definition, &same, names);
    let system = data::definitions().iter().filter(|d| d.kind == "r").map(|d| (&d.relation.schema, &d.relation.name));
    let no = Value::Bool(false);
    let system = system.map(|(schema, name)| shape.row([text(schema), text(name), no.clone(), no.clone(), no.clone()]));
    let user = facts.directory().tables().map(|(class, table)| {
        let triggers = Value::Bool(table.has_foreign_keys);
        shape.row([text(&class.schema), text(&class.name), Value::Bool(table.has_indexes), no.clone(), triggers])
    });
    system.chain(user).collect()
}

/// The system's own views have no query here: their rows are computed.
fn view_list(definition: &Definition, facts: &Facts) -> Rows {
    let shape = Shape::new(definition, &[("viewowner", text(&facts.owner))], ["schemaname", "viewname", "definition"]);
    let system = data::definitions().iter().filter(|d| d.kind == "v");
    let system = system.map(|d| shape.row([text(&d.relation.schema), text(&d.relation.name), Value::Null]));
    let user = facts.directory().views();
    let row =
        |(class, sql): (&Class, &str)| shape.row([text(&class.schema), text(&class.name), text(&view_definition(sql))]);
    let user = user.map(row);
    system.chain(user).collect()
}

/// As `pg_get_viewdef` says it.
pub(super) fn view_definition(sql: &str) -> String {
    format!(" {};", sql.trim().trim_end_matches(';'))
}

fn index_list(definition: &Definition, directory: &Directory) -> Rows {
    let shape = Shape::new(definition, &[], ["schemaname", "tablename", "indexname", "indexdef"]);
    let row = |(class, index): (&Class, &Index)| {
        let says = index_definition(class, index, Qualified::Always);
        shape.row([text(&class.schema), text(plain_name(&index.table_relation)), text(&class.name), text(&says)])
    };
    directory.indexes().map(row).collect()
}

fn roles(definition: &Definition, facts: &Facts, password: &str, hidden: Value) -> Rows {
    let names = [
        "oid",
        "rolname",
        "rolsuper",
        "rolinherit",
        "rolcreaterole",
        "rolcreatedb",
        "rolcanlogin",
        "rolreplication",
        "rolbypassrls",
    ];
    let shape = Shape::new(definition, &[("rolconnlimit", Value::Int(-1)), (password, hidden)], names);
    let row = |(number, role): (u32, super::Role)| {
        let all = Value::Bool(role.is_superuser);
        shape.row([
            oid(number),
            text(&role.name),
            all.clone(),
            Value::Bool(true),
            all.clone(),
            all.clone(),
            Value::Bool(role.can_login),
            all.clone(),
            all,
        ])
    };
    facts.all_roles().into_iter().map(row).collect()
}

fn users(definition: &Definition, facts: &Facts) -> Rows {
    let names = ["usename", "usesysid", "usecreatedb", "usesuper", "userepl", "usebypassrls", "passwd"];
    let shape = Shape::new(definition, &[], names);
    let password = if definition.relation.name == "pg_user" { text("********") } else { Value::Null };
    let row = |(number, role): (u32, super::Role)| {
        let all = Value::Bool(role.is_superuser);
        shape.row([text(&role.name), oid(number), all.clone(), all.clone(), all.clone(), all, password.clone()])
    };
    facts.all_roles().into_iter().filter(|(_, role)| role.can_login).map(row).collect()
}

fn groups(definition: &Definition, facts: &Facts) -> Rows {
    let shape = Shape::new(definition, &[("grolist", Value::Array(Vec::new()))], ["groname", "grosysid"]);
    let groups = facts.all_roles().into_iter().filter(|(_, role)| !role.can_login);
    groups.map(|(number, role)| shape.row([text(&role.name), oid(number)])).collect()
}

fn databases(definition: &Definition, facts: &Facts) -> Rows {
    let same = [
        ("datdba", oid(OWNER_OID)),
        ("encoding", Value::Int(UTF8)),
        ("datlocprovider", text("c")),
        ("datallowconn", Value::Bool(true)),
        ("datconnlimit", Value::Int(-1)),
        ("dattablespace", oid(PG_DEFAULT)),
        ("datcollate", text("C")),
        ("datctype", text("C")),
    ];
    let shape = Shape::new(definition, &same, ["oid", "datname"]);
    vec![shape.row([oid(facts.database_oid()), text(&facts.database)])]
}

fn tablespaces(definition: &Definition) -> Rows {
    let shape = Shape::new(definition, &[("spcowner", oid(OWNER_OID))], ["oid", "spcname"]);
    vec![shape.row([oid(PG_DEFAULT), text("pg_default")]), shape.row([oid(PG_GLOBAL), text("pg_global")])]
}

/// A setting has PostgreSQL's description, if PostgreSQL has the setting.
fn settings(definition: &Definition, facts: &Facts) -> Rows {
    let at = Positions::of("pg_settings");
    let custom = [
        ("category", text("Customized Options")),
        ("context", text("user")),
        ("vartype", text("string")),
        ("source", text("session")),
        ("pending_restart", Value::Bool(false)),
    ];
    let shape = Shape::new(definition, &custom, ["name", "setting", "reset_val"]);
    let row = |(name, value): (&String, &String)| {
        let same = |row: &&Vec<Value>| matches!(&row[0], Value::Text(known) if known.eq_ignore_ascii_case(name));
        let Some(known) = data::built_in("pg_settings").iter().find(same) else {
            return shape.row([text(name), text(value), text(value)]);
        };
        let mut row = known.clone();
        let is_default = row[at.of_column("boot_val")] == text(value);
        row[at.of_column("setting")] = text(value);
        row[at.of_column("source")] = text(if is_default { "default" } else { "session" });
        row
    };
    facts.settings.iter().map(row).collect()
}

fn activity(definition: &Definition, facts: &Facts) -> Rows {
    let same = [
        ("datid", oid(facts.database_oid())),
        ("datname", text(&facts.database)),
        ("backend_type", text("client backend")),
    ];
    let names = ["pid", "usesysid", "usename", "application_name", "backend_start", "state", "query"];
    let shape = Shape::new(definition, &same, names);
    let row = |session: &super::SessionFact| {
        shape.row([
            Value::Int(session.pid.into()),
            facts.role_oid(&session.user).map_or(Value::Null, oid),
            text(&session.user),
            text(&session.application_name),
            Value::TimestampTz(session.since),
            text(&session.state),
            text(&session.query),
        ])
    };
    facts.sessions.iter().map(row).collect()
}

fn prepared_statements(definition: &Definition, facts: &Facts) -> Rows {
    let none = [("generic_plans", Value::Int(0)), ("custom_plans", Value::Int(0))];
    let shape = Shape::new(definition, &none, ["name", "statement", "prepare_time", "parameter_types", "from_sql"]);
    let row = |statement: &super::StatementFact| {
        let params: Vec<i64> = statement.params.iter().map(|oid| i64::from(oid.0)).collect();
        let (name, sql, since) = (text(&statement.name), text(&statement.statement), statement.since);
        shape.row([name, sql, Value::TimestampTz(since), ints(&params), Value::Bool(statement.from_sql)])
    };
    facts.statements.iter().map(row).collect()
}

fn table_statistics(definition: &Definition, facts: &Facts) -> Rows {
    let counts = definition.relation.columns.iter().filter(|column| column.ty.oid == types::INT8);
    let zeros: Vec<(&str, Value)> = counts.map(|column| (column.name.as_str(), Value::Int(0))).collect();
    let names = ["relid", "schemaname", "relname", "n_live_tup"];
    let shape = Shape::new(definition, &zeros, names);
    let row = |class: &Class| {
        let rows = Value::Int(facts.size_of(&class.relation).rows);
        shape.row([oid(class.oid), text(&class.schema), text(&class.name), rows])
    };
    facts.directory().tables().map(|(class, _)| row(class)).collect()
}

fn database_statistics(definition: &Definition, facts: &Facts) -> Rows {
    let counts = definition.relation.columns.iter().filter(|column| column.ty.oid == types::INT8);
    let zeros: Vec<(&str, Value)> = counts.map(|column| (column.name.as_str(), Value::Int(0))).collect();
    let shape = Shape::new(definition, &zeros, ["datid", "datname", "numbackends"]);
    vec![shape.row([oid(facts.database_oid()), text(&facts.database), int(facts.sessions.len())])]
}
