//! Functions that need the schema: `pg_get_indexdef`, `'t'::regclass`, `pg_table_is_visible` and their kin.
//!
//! They are called by row, from the stage, by PostgreSQL's own number of the function. What is not found is what
//! PostgreSQL says of it: null, a number as text, or an error of its own.

use super::catalog::{SCHEMA_COMMENTS, UTF8, view_definition};
use super::data::{self, FunctionRow};
use super::directory::{
    Class, ClassKind, PG_CLASS, PG_DATABASE, PG_NAMESPACE, Parentheses, Qualified, index_definition,
};
use super::facts::Facts;
use super::names::{
    Shown, format_type, function_arguments, function_result, function_signature, parse_type, quote_identifier,
    split_name,
};
use super::shape::text;
use crate::types::{self, Oid};
use isles_kernel::error::SqlError;
use isles_kernel::schema::relation_name;
use isles_kernel::value::Value;
use std::sync::Arc;

type Answer = Result<Value, SqlError>;

/// Functions that a stage has beside those of the language. The stage asks them first.
pub trait SystemFunctions: Send + Sync {
    /// The function's value; none if it is not one of these. Arguments have the types of the function's parameters;
    /// a `cstring` is a text.
    fn call(&self, function: Oid, args: &[Value]) -> Option<Answer>;

    /// The rows of a function that returns a set; none if it is not one of these.
    fn rows(&self, function: Oid, args: &[Value]) -> Option<Result<Vec<Vec<Value>>, SqlError>>;

    /// Reads a value of a reg type (`regclass`, `regtype`, …) from text; none for other types.
    fn read(&self, ty: Oid, text: &str) -> Option<Answer> {
        self.call(reg_functions(ty)?.0, &[Value::text(text)])
    }

    /// Writes a value of a reg type as text; none for other types.
    fn write(&self, ty: Oid, value: &Value) -> Option<Answer> {
        self.call(reg_functions(ty)?.1, std::slice::from_ref(value))
    }
}

/// Whether values of this type are names of what is in the system's tables: `regclass`, `regtype`, …
pub fn is_name_type(ty: Oid) -> bool {
    reg_functions(ty).is_some()
}

/// `pg_type.typinput` and `typoutput` of the reg types.
fn reg_functions(ty: Oid) -> Option<(Oid, Oid)> {
    let (read, write) = match ty {
        types::REGPROC => (44, 45),
        types::REGPROCEDURE => (2_212, 2_213),
        types::REGOPER => (2_214, 2_215),
        types::REGOPERATOR => (2_216, 2_217),
        types::REGCLASS => (2_218, 2_219),
        types::REGTYPE => (2_220, 2_221),
        types::REGROLE => (4_098, 4_092),
        types::REGNAMESPACE => (4_084, 4_085),
        Oid(4_191) => (4_193, 4_194),
        _ => return None,
    };
    Some((Oid(read), Oid(write)))
}

/// The functions over one database.
pub struct Functions {
    facts: Arc<Facts>,
}

impl Functions {
    pub fn new(facts: Arc<Facts>) -> Functions {
        Functions { facts }
    }
}

impl SystemFunctions for Functions {
    fn call(&self, function: Oid, args: &[Value]) -> Option<Answer> {
        let row = data::function_row(function.0)?;
        let null = row.is_strict && args.iter().any(Value::is_null);
        // A null argument decides only where the function is one of ours.
        let args = if null { &[][..] } else { args };
        let answer = self.dispatch(row.name, args);
        if null { answer.map(|_| Ok(Value::Null)) } else { answer }
    }

    fn rows(&self, function: Oid, args: &[Value]) -> Option<Result<Vec<Vec<Value>>, SqlError>> {
        Some(Ok(match (data::function_row(function.0)?.name, args) {
            ("pg_get_keywords", _) => data::keywords().iter().map(|keyword| keyword.row.clone()).collect(),
            ("pg_options_to_table", [Value::Array(options)]) => options.iter().map(option_row).collect(),
            ("aclexplode" | "pg_listening_channels" | "pg_partition_ancestors" | "pg_options_to_table", _) => {
                Vec::new()
            }
            ("pg_partition_tree" | "pg_available_extensions" | "pg_available_extension_versions", _) => Vec::new(),
            _ => return None,
        }))
    }
}

/// `name=value` as two columns.
fn option_row(option: &Value) -> Vec<Value> {
    let Value::Text(option) = option else { return vec![Value::Null, Value::Null] };
    match option.split_once('=') {
        Some((name, value)) => vec![text(name), text(value)],
        None => vec![text(option), Value::Null],
    }
}

impl Functions {
    fn dispatch(&self, name: &str, args: &[Value]) -> Option<Answer> {
        self.definition(name, args)
            .or_else(|| self.reg_type(name, args))
            .or_else(|| self.visibility(name, args))
            .or_else(|| self.description(name, args))
            .or_else(|| self.size(name, args))
            .or_else(|| self.session(name, args))
            .or_else(|| self.privilege(name, args))
    }

    /// Definitions of objects, as text.
    fn definition(&self, name: &str, args: &[Value]) -> Option<Answer> {
        Some(match name {
            "pg_get_indexdef" => self.index_definition(args),
            "pg_get_constraintdef" => {
                let directory = self.facts.directory();
                let found = number(args, 0).and_then(|oid| directory.constraint(oid));
                let pretty = matches!(args.get(1), Some(Value::Bool(true)));
                let parentheses = if pretty { Parentheses::Needed } else { Parentheses::All };
                let path = &self.facts.search_path;
                let says = |found| Value::Text(directory.constraint_definition(found, parentheses, path));
                Ok(found.map_or(Value::Null, says))
            }
            "pg_get_viewdef" => self.view_definition(args),
            "pg_get_expr" => Ok(args.first().cloned().unwrap_or(Value::Null)),
            "pg_get_userbyid" => Ok(number(args, 0).map_or(Value::Null, |oid| Value::Text(self.user_name(oid)))),
            "format_type" => Ok(number(args, 0)
                .map_or(Value::Null, |oid| Value::Text(format_type(oid, signed(args, 1).map(|m| m as i32))))),
            "pg_get_serial_sequence" => self.serial_sequence(args),
            "pg_get_function_arguments" => self.function(args, |row| function_arguments(row, Shown::All)),
            "pg_get_function_identity_arguments" => self.function(args, |row| function_arguments(row, Shown::Identity)),
            "pg_get_function_result" => self.function(args, function_result),
            "pg_sequence_last_value" => Ok(self.last_value(args)),
            // None of these can exist.
            "pg_get_triggerdef"
            | "pg_get_ruledef"
            | "pg_get_partkeydef"
            | "pg_get_statisticsobjdef"
            | "pg_get_statisticsobjdef_columns"
            | "pg_get_statisticsobjdef_expressions"
            | "pg_get_functiondef"
            | "pg_get_function_sqlbody"
            | "pg_get_function_arg_default"
            | "pg_get_partition_constraintdef" => Ok(Value::Null),
            _ => return None,
        })
    }

    fn index_definition(&self, args: &[Value]) -> Answer {
        let Some(class) = number(args, 0).and_then(|oid| self.facts.directory().class(oid)) else {
            return Ok(Value::Null);
        };
        let ClassKind::Index(index) = &class.kind else { return Ok(Value::Null) };
        let column = signed(args, 1).unwrap_or(0);
        if column > 0 {
            // Without its direction.
            let part = index.parts.get(column as usize - 1).map(|part| part.split(" DESC").next().unwrap_or(part));
            return Ok(text(part.map_or("", |part| part.trim_end_matches(" NULLS FIRST"))));
        }
        let pretty = matches!(args.get(2), Some(Value::Bool(true)));
        let qualified = if pretty { Qualified::Beyond(&self.facts.search_path) } else { Qualified::Always };
        Ok(Value::Text(index_definition(class, index, qualified)))
    }

    fn view_definition(&self, args: &[Value]) -> Answer {
        let oid = self.relation_argument(args.first())?;
        Ok(match oid.and_then(|oid| self.facts.directory().class(oid)).map(|class| &class.kind) {
            Some(ClassKind::View { sql, .. }) => Value::Text(view_definition(sql)),
            _ => Value::Null,
        })
    }

    fn function(&self, args: &[Value], say: impl Fn(&FunctionRow) -> String) -> Answer {
        let row = number(args, 0).and_then(data::function_row);
        Ok(row.map_or(Value::Null, |row| Value::Text(say(row))))
    }

    fn serial_sequence(&self, args: &[Value]) -> Answer {
        let [Value::Text(table), Value::Text(column)] = args else { return Ok(Value::Null) };
        let oid = self.read_class(table)?;
        let class = self.facts.directory().class(oid);
        let name = class.map_or(table.as_str(), |class| class.name.as_str());
        let relation = class.map_or("", |class| class.relation.as_str());
        if !class.is_some_and(|class| class.columns.iter().any(|c| &c.name == column)) {
            let message = format!("column \"{column}\" of relation \"{name}\" does not exist");
            return Err(SqlError::new("42703", message));
        }
        let sequence = self.facts.directory().sequence_of(relation, column);
        let full = |s: &Class| format!("{}.{}", quote_identifier(&s.schema), quote_identifier(&s.name));
        Ok(sequence.map_or(Value::Null, |sequence| Value::Text(full(sequence))))
    }

    fn last_value(&self, args: &[Value]) -> Value {
        let class = number(args, 0).and_then(|oid| self.facts.directory().class(oid));
        let last = class.and_then(|class| self.facts.last_values.get(&class.relation));
        last.map_or(Value::Null, |last| Value::Int(*last))
    }

    fn user_name(&self, oid: u32) -> String {
        let role = self.facts.all_roles().into_iter().find(|(number, _)| *number == oid);
        role.map_or_else(|| format!("unknown (OID={oid})"), |(_, role)| role.name)
    }

    /// Input and output of the reg types, and `to_regclass` and its kin, which say null where input is an error.
    fn reg_type(&self, name: &str, args: &[Value]) -> Option<Answer> {
        let given = match args.first() {
            Some(Value::Text(text)) => text.as_str(),
            _ => "",
        };
        let oid = number(args, 0).unwrap_or(0);
        Some(match name {
            "regclassin" | "regclass" => self.read_class(given).map(value),
            "regtypein" => read_or(given, parse_type),
            "regprocin" => read_or(given, read_function),
            "regprocedurein" => read_or(given, read_procedure),
            "regoperin" | "regoperatorin" => read_or(given, read_operator),
            "regnamespacein" => read_or(given, |given| self.read_schema(given)),
            "regrolein" => read_or(given, |given| self.read_role(given)),
            "regcollationin" => read_or(given, read_collation),
            "to_regclass" => missing_is_null(self.read_class(given)),
            "to_regtype" => missing_is_null(read_number_or(given, parse_type)),
            "to_regproc" => missing_is_null(read_number_or(given, read_function)),
            "to_regprocedure" => missing_is_null(read_number_or(given, read_procedure)),
            "to_regoper" | "to_regoperator" => missing_is_null(read_number_or(given, read_operator)),
            "to_regnamespace" => missing_is_null(read_number_or(given, |given| self.read_schema(given))),
            "to_regrole" => missing_is_null(read_number_or(given, |given| self.read_role(given))),
            "to_regcollation" => missing_is_null(read_number_or(given, read_collation)),
            "regclassout" => written(oid, self.class_name(oid)),
            "regtypeout" => written(oid, data::type_row(oid).map(|_| format_type(oid, None))),
            "regprocout" => written(oid, data::function_row(oid).map(unambiguous_name)),
            "regprocedureout" => written(oid, data::function_row(oid).map(function_signature)),
            "regoperout" | "regoperatorout" => written(oid, operator_name(oid, name == "regoperatorout")),
            "regnamespaceout" => written(oid, self.facts.directory().namespace_name(oid).map(quote_identifier)),
            "regroleout" => written(oid, self.role_name(oid)),
            "regcollationout" => written(oid, collation_name(oid)),
            _ => return None,
        })
    }

    /// The one text for a relation of the user, by its number.
    pub fn relation(&self, oid: u32) -> Option<String> {
        self.facts.directory().class(oid).map(|class| class.relation.clone())
    }

    /// The same, by its name as SQL writes it, or its number as text.
    pub fn find_relation(&self, given: &str) -> Result<String, SqlError> {
        let missing = || SqlError::new("42P01", format!("relation \"{given}\" does not exist"));
        self.relation(self.read_class(given)?).ok_or_else(missing)
    }

    /// A relation's number: from its name, or a number as text.
    fn read_class(&self, given: &str) -> Result<u32, SqlError> {
        read_number_or(given, |given| {
            let parts = split_name(given)?;
            let missing = || SqlError::new("42P01", format!("relation \"{}\" does not exist", parts.join(".")));
            let qualified = match &parts[..] {
                [name] => return self.find_class(name).ok_or_else(missing),
                [schema, name] => (schema, name),
                [database, schema, name] if *database == self.facts.database => (schema, name),
                [_, _, _] => {
                    let message = format!("cross-database references are not implemented: \"{}\"", parts.join("."));
                    return Err(SqlError::new("0A000", message));
                }
                _ => {
                    let message = format!("improper relation name (too many dotted names): {}", parts.join("."));
                    return Err(SqlError::new("42601", message));
                }
            };
            self.find_class_in(qualified.0, qualified.1)?.ok_or_else(missing)
        })
    }

    fn find_class(&self, name: &str) -> Option<u32> {
        let system = data::definition("pg_catalog", name).map(|definition| definition.oid);
        let in_schema = |schema: &String| self.find_class_in(schema, name).ok().flatten();
        system.or_else(|| self.facts.search_path.iter().find_map(in_schema))
    }

    fn read_schema(&self, given: &str) -> Result<u32, SqlError> {
        let name = split_name(given)?.join(".");
        let missing = || SqlError::new("3F000", format!("schema \"{name}\" does not exist"));
        self.facts.directory().namespace_oid(&name).ok_or_else(missing)
    }

    fn find_class_in(&self, schema: &str, name: &str) -> Result<Option<u32>, SqlError> {
        if self.facts.schema.has_namespace(schema) {
            return Ok(self.facts.directory().class_named(&relation_name(schema, name)).map(|class| class.oid));
        }
        match data::definition(schema, name) {
            Some(definition) => Ok(Some(definition.oid)),
            None if self.facts.directory().namespace_oid(schema).is_some() => Ok(None),
            None => Err(SqlError::new("3F000", format!("schema \"{schema}\" does not exist"))),
        }
    }

    /// A relation's name, with its schema where the search path does not find it.
    fn class_name(&self, oid: u32) -> Option<String> {
        if let Some(class) = self.facts.directory().class(oid) {
            let name = quote_identifier(&class.name);
            let found = self.find_class(&class.name) == Some(oid);
            return Some(if found { name } else { format!("{}.{name}", quote_identifier(&class.schema)) });
        }
        let system = data::definitions().iter().find(|definition| definition.oid == oid)?;
        let (schema, name) = (&system.relation.schema, quote_identifier(&system.relation.name));
        Some(if schema == "pg_catalog" { name } else { format!("{schema}.{name}") })
    }

    fn read_role(&self, given: &str) -> Result<u32, SqlError> {
        let name = split_name(given)?.join(".");
        let missing = || SqlError::new("42704", format!("role \"{name}\" does not exist"));
        self.facts.role_oid(&name).ok_or_else(missing)
    }

    fn role_name(&self, oid: u32) -> Option<String> {
        let role = self.facts.all_roles().into_iter().find(|(number, _)| *number == oid);
        role.map(|(_, role)| quote_identifier(&role.name))
    }

    /// A relation given by name or by number; none for a number that is nobody's.
    fn relation_argument(&self, arg: Option<&Value>) -> Result<Option<u32>, SqlError> {
        match arg {
            Some(Value::Text(name)) => self.read_class(name).map(Some),
            Some(value) => Ok(data::as_oid(value).filter(|oid| self.class_exists(*oid))),
            None => Ok(None),
        }
    }

    fn class_exists(&self, oid: u32) -> bool {
        self.facts.directory().class(oid).is_some() || data::definitions().iter().any(|d| d.oid == oid)
    }

    /// `pg_table_is_visible` and its kin: whether the search path finds it. Null for what does not exist.
    fn visibility(&self, name: &str, args: &[Value]) -> Option<Answer> {
        let oid = number(args, 0).unwrap_or(0);
        let exists = |found: bool| if found { Value::Bool(true) } else { Value::Null };
        Some(Ok(match name {
            "pg_table_is_visible" => match data::definitions().iter().find(|d| d.oid == oid) {
                Some(system) => Value::Bool(system.relation.schema == "pg_catalog"),
                None => match self.facts.directory().class(oid) {
                    Some(class) => Value::Bool(self.find_class(&class.name) == Some(oid)),
                    None => Value::Null,
                },
            },
            "pg_type_is_visible" => exists(data::type_row(oid).is_some()),
            "pg_function_is_visible" => exists(data::function_row(oid).is_some()),
            "pg_operator_is_visible" => exists(has_row("pg_operator", oid)),
            "pg_opclass_is_visible" => exists(has_row("pg_opclass", oid)),
            "pg_opfamily_is_visible" => exists(has_row("pg_opfamily", oid)),
            "pg_collation_is_visible" => exists(has_row("pg_collation", oid)),
            "pg_conversion_is_visible"
            | "pg_statistics_obj_is_visible"
            | "pg_ts_config_is_visible"
            | "pg_ts_dict_is_visible"
            | "pg_ts_parser_is_visible"
            | "pg_ts_template_is_visible" => Value::Null,
            _ => return None,
        }))
    }

    /// Comments.
    fn description(&self, name: &str, args: &[Value]) -> Option<Answer> {
        let oid = number(args, 0).unwrap_or(0);
        let catalog = match args.get(1) {
            Some(Value::Text(catalog)) => data::definition("pg_catalog", catalog).map(|definition| definition.oid),
            _ => None,
        };
        Some(Ok(match name {
            "obj_description" => self.comment(oid, catalog, 0).unwrap_or_else(|| description_of(oid, catalog)),
            "col_description" => {
                let column = signed(args, 1).unwrap_or(0);
                self.comment(oid, Some(PG_CLASS), column).unwrap_or(Value::Null)
            }
            "shobj_description" if oid == self.facts.database_oid() => {
                self.comment(0, Some(PG_DATABASE), 0).unwrap_or(Value::Null)
            }
            "shobj_description" => self.comment(oid, catalog, 0).unwrap_or(Value::Null),
            _ => return None,
        }))
    }

    fn comment(&self, object: u32, catalog: Option<u32>, column: i64) -> Option<Value> {
        let mut comments = self.facts.directory().comments.iter();
        let found = comments
            .find(|c| c.object == object && c.column == column && catalog.is_none_or(|catalog| c.catalog == catalog));
        found.map(|comment| text(&comment.text))
    }

    fn size(&self, name: &str, args: &[Value]) -> Option<Answer> {
        let bytes = |class: &Class| Value::Int(self.facts.size_of(&class.relation).bytes);
        Some(match name {
            "pg_relation_size" | "pg_total_relation_size" | "pg_table_size" => {
                self.relation_argument(args.first()).map(|oid| match oid {
                    Some(oid) => self.facts.directory().class(oid).map_or(Value::Int(0), bytes),
                    None => Value::Null,
                })
            }
            "pg_indexes_size" | "pg_tablespace_size" => Ok(Value::Int(0)),
            "pg_database_size" => Ok(Value::Int(self.facts.sizes.values().map(|size| size.bytes).sum())),
            "pg_size_pretty" => Ok(match args.first() {
                Some(Value::Int(bytes)) => text(&pretty_size(*bytes)),
                Some(Value::Numeric(bytes)) => {
                    let whole = bytes.as_str().split('.').next().unwrap_or("0");
                    whole.parse().map_or(Value::Null, |bytes| text(&pretty_size(bytes)))
                }
                _ => Value::Null,
            }),
            _ => return None,
        })
    }

    /// What the session and the server know.
    fn session(&self, name: &str, args: &[Value]) -> Option<Answer> {
        Some(match (name, args) {
            ("version", _) => Ok(text(&self.facts.version)),
            ("current_setting", [Value::Text(setting)]) => self.setting(setting, Missing::IsError),
            ("current_setting", [Value::Text(setting), Value::Bool(true)]) => self.setting(setting, Missing::IsNull),
            ("current_setting", [Value::Text(setting), _]) => self.setting(setting, Missing::IsError),
            ("current_setting", _) => Ok(Value::Null),
            (
                "pg_is_in_recovery" | "pg_is_wal_replay_paused" | "pg_is_other_temp_schema" | "row_security_active",
                _,
            ) => Ok(Value::Bool(false)),
            ("pg_my_temp_schema", _) => Ok(Value::Int(0)),
            ("pg_postmaster_start_time" | "pg_conf_load_time", _) => Ok(Value::TimestampTz(self.facts.started)),
            ("txid_current" | "pg_current_xact_id", _) => Ok(Value::Int(self.facts.transaction)),
            ("pg_encoding_to_char", _) => Ok(text(signed(args, 0).map_or("", encoding_name))),
            ("pg_char_to_encoding", [Value::Text(name)]) => Ok(Value::Int(encoding_number(name))),
            ("pg_char_to_encoding", _) => Ok(Value::Null),
            ("getdatabaseencoding" | "pg_client_encoding", _) => Ok(text("UTF8")),
            ("pg_tablespace_location", _) => Ok(text("")),
            ("pg_relation_filenode", _) => Ok(number(args, 0).map_or(Value::Null, |oid| Value::Int(oid.into()))),
            ("inet_client_addr" | "inet_client_port" | "inet_server_addr" | "inet_server_port", _) => Ok(Value::Null),
            ("pg_relation_filepath", _) => Ok(Value::Null),
            ("pg_relation_is_publishable", _) => {
                Ok(Value::Bool(number(args, 0).is_some_and(|oid| self.facts.directory().class(oid).is_some())))
            }
            ("pg_index_column_has_property", [_, _, Value::Text(property)]) => Ok(column_property(property)),
            ("pg_index_column_has_property", _) => Ok(Value::Null),
            _ => return None,
        })
    }

    fn setting(&self, name: &str, missing: Missing) -> Answer {
        /// Where there is no such setting, since nothing depends on it, but clients ask.
        const FIXED: [(&str, &str); 1] = [("default_table_access_method", "heap")];
        let own = self.facts.settings.iter().find(|(known, _)| known.eq_ignore_ascii_case(name));
        let fixed = || FIXED.iter().find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| *value);
        match (own.map(|(_, value)| value.as_str()).or_else(fixed), missing) {
            (Some(value), _) => Ok(text(value)),
            (None, Missing::IsNull) => Ok(Value::Null),
            (None, Missing::IsError) => {
                Err(SqlError::new("42704", format!("unrecognized configuration parameter \"{name}\"")))
            }
        }
    }

    /// `has_table_privilege` and its kin: every role may do everything with what exists.
    fn privilege(&self, name: &str, args: &[Value]) -> Option<Answer> {
        let kind = PRIVILEGES.iter().find(|kind| kind.function == name)?;
        Some(self.has_privilege(kind, args))
    }

    fn has_privilege(&self, kind: &Privileges, args: &[Value]) -> Answer {
        let (Some(Value::Text(privilege)), rest) = (args.last(), &args[..args.len().saturating_sub(1)]) else {
            return Ok(Value::Null);
        };
        check_privilege(kind, privilege)?;
        // A role may be named before the object.
        let rest = match rest {
            [role, object @ ..] if object.len() == kind.parts => {
                self.check_role(role)?;
                object
            }
            object => object,
        };
        let found = match (kind.object, rest.first()) {
            (Object::Relation, object) => self.relation_argument(object)?.is_some(),
            (Object::Schema, Some(Value::Text(name))) => self.read_schema(name).map(|_| true)?,
            (Object::Schema, Some(value)) => {
                data::as_oid(value).and_then(|oid| self.facts.directory().namespace_name(oid)).is_some()
            }
            (Object::Role, Some(role)) => self.check_role(role).map(|()| true)?,
            (_, object) => object.is_some(),
        };
        Ok(if found { Value::Bool(true) } else { Value::Null })
    }

    fn check_role(&self, role: &Value) -> Result<(), SqlError> {
        match role {
            Value::Text(name) if name != "public" && self.facts.role_oid(name).is_none() => {
                Err(SqlError::new("42704", format!("role \"{name}\" does not exist")))
            }
            _ => Ok(()),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Missing {
    IsError,
    IsNull,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Object {
    Relation,
    Schema,
    Role,
    Other,
}

struct Privileges {
    function: &'static str,
    object: Object,
    /// How many arguments name the object.
    parts: usize,
    known: &'static [&'static str],
}

const ON_TABLES: &[&str] = &["SELECT", "INSERT", "UPDATE", "DELETE", "TRUNCATE", "REFERENCES", "TRIGGER", "RULE"];
const ON_COLUMNS: &[&str] = &["SELECT", "INSERT", "UPDATE", "REFERENCES"];

const PRIVILEGES: [Privileges; 13] = [
    privileges("has_table_privilege", Object::Relation, 1, ON_TABLES),
    privileges("has_any_column_privilege", Object::Relation, 1, ON_COLUMNS),
    privileges("has_column_privilege", Object::Relation, 2, ON_COLUMNS),
    privileges("has_sequence_privilege", Object::Relation, 1, &["USAGE", "SELECT", "UPDATE"]),
    privileges("has_schema_privilege", Object::Schema, 1, &["CREATE", "USAGE"]),
    privileges("has_database_privilege", Object::Other, 1, &["CREATE", "CONNECT", "TEMPORARY", "TEMP"]),
    privileges("has_function_privilege", Object::Other, 1, &["EXECUTE"]),
    privileges("has_language_privilege", Object::Other, 1, &["USAGE"]),
    privileges("has_type_privilege", Object::Other, 1, &["USAGE"]),
    privileges("has_tablespace_privilege", Object::Other, 1, &["CREATE"]),
    privileges("has_server_privilege", Object::Other, 1, &["USAGE"]),
    privileges("has_foreign_data_wrapper_privilege", Object::Other, 1, &["USAGE"]),
    privileges("pg_has_role", Object::Role, 1, &["MEMBER", "USAGE"]),
];

const fn privileges(
    function: &'static str,
    object: Object,
    parts: usize,
    known: &'static [&'static str],
) -> Privileges {
    Privileges { function, object, parts, known }
}

fn check_privilege(kind: &Privileges, list: &str) -> Result<(), SqlError> {
    for privilege in list.split(',').map(str::trim) {
        let upper = privilege.to_uppercase();
        let bare = upper.strip_suffix(" WITH GRANT OPTION").or_else(|| upper.strip_suffix(" WITH ADMIN OPTION"));
        if !kind.known.contains(&bare.unwrap_or(&upper)) {
            return Err(SqlError::new("22023", format!("unrecognized privilege type: \"{privilege}\"")));
        }
    }
    Ok(())
}

fn number(args: &[Value], at: usize) -> Option<u32> {
    args.get(at).and_then(data::as_oid)
}

fn signed(args: &[Value], at: usize) -> Option<i64> {
    match args.get(at) {
        Some(Value::Int(n)) => Some(*n),
        _ => None,
    }
}

fn value(oid: u32) -> Value {
    Value::Int(oid.into())
}

/// `-` is the number 0, and digits are a number, whether anybody has it or not.
fn read_number_or(given: &str, read: impl Fn(&str) -> Result<u32, SqlError>) -> Result<u32, SqlError> {
    if given == "-" {
        return Ok(0);
    }
    if !given.is_empty() && given.bytes().all(|b| b.is_ascii_digit()) {
        let out_of_range = || SqlError::new("22003", format!("value \"{given}\" is out of range for type oid"));
        return given.parse().map_err(|_| out_of_range());
    }
    read(given)
}

fn read_or(given: &str, read: impl Fn(&str) -> Result<u32, SqlError>) -> Answer {
    read_number_or(given, read).map(value)
}

/// A name that is not even a name stays an error.
fn missing_is_null(found: Result<u32, SqlError>) -> Answer {
    match found {
        Ok(oid) => Ok(value(oid)),
        Err(error) if error.sqlstate == "42602" || error.sqlstate == "22003" => Err(error),
        Err(_) => Ok(Value::Null),
    }
}

/// A number that is nobody's is written as a number.
fn written(oid: u32, name: Option<String>) -> Answer {
    Ok(match name {
        _ if oid == 0 => text("-"),
        Some(name) => Value::Text(name),
        None => Value::Text(oid.to_string()),
    })
}

fn has_row(catalog: &str, oid: u32) -> bool {
    data::built_in(catalog).iter().any(|row| row[0] == value(oid))
}

fn description_of(oid: u32, class: Option<u32>) -> Value {
    if class == Some(PG_NAMESPACE) {
        return SCHEMA_COMMENTS.iter().find(|(schema, _)| *schema == oid).map_or(Value::Null, |(_, said)| text(said));
    }
    let fits = |row: &&Vec<Value>| row[0] == value(oid) && class.is_none_or(|class| row[1] == value(class));
    data::built_in("pg_description").iter().find(fits).map_or(Value::Null, |row| row[3].clone())
}

/// The last part of a name of `pg_catalog`; none where another schema is named.
fn system_name(given: &str) -> Result<Option<String>, SqlError> {
    let mut parts = split_name(given)?;
    let name = parts.pop();
    match &parts[..] {
        [] => Ok(name),
        [schema] => Ok(name.filter(|_| schema == "pg_catalog")),
        _ => Ok(None),
    }
}

fn read_function(given: &str) -> Result<u32, SqlError> {
    let name = system_name(given)?.unwrap_or_default();
    let mut found = data::functions().filter(|row| row.name == name);
    match (found.next(), found.next()) {
        (Some(row), None) => Ok(row.oid),
        (None, _) => Err(SqlError::new("42883", format!("function \"{given}\" does not exist"))),
        (Some(_), Some(_)) => Err(SqlError::new("42725", format!("more than one function named \"{given}\""))),
    }
}

fn read_procedure(given: &str) -> Result<u32, SqlError> {
    let missing = || SqlError::new("42883", format!("function \"{given}\" does not exist"));
    let Some((name, args)) = given.trim().strip_suffix(')').and_then(|given| given.split_once('(')) else {
        return Err(SqlError::new("22P02", "expected a left parenthesis"));
    };
    let name = system_name(name)?.unwrap_or_default();
    let args = args.split(',').map(str::trim).filter(|arg| !arg.is_empty());
    let args: Vec<u32> = args.map(parse_type).collect::<Result<_, _>>()?;
    data::functions().find(|row| row.name == name && row.args == args).map(|row| row.oid).ok_or_else(missing)
}

fn read_operator(given: &str) -> Result<u32, SqlError> {
    let (name, args) = match given.trim().strip_suffix(')').and_then(|given| given.split_once('(')) {
        Some((name, args)) => (name, Some(args)),
        None => (given, None),
    };
    let name = name.trim().strip_prefix("pg_catalog.").unwrap_or(name.trim());
    let side = |arg: &str| if arg.eq_ignore_ascii_case("none") { Ok(0) } else { parse_type(arg) };
    let args: Option<Vec<u32>> = args.map(|args| args.split(',').map(str::trim).map(side).collect()).transpose()?;
    let at = data::Positions::of("pg_operator");
    let fits = |row: &&Vec<Value>| {
        let sides = [at.oid(row, "oprleft"), at.oid(row, "oprright")];
        row[at.of_column("oprname")] == text(name) && args.as_ref().is_none_or(|args| args[..] == sides)
    };
    let mut found = data::built_in("pg_operator").iter().filter(fits);
    match (found.next(), found.next()) {
        (Some(row), None) => Ok(at.oid(row, "oid")),
        (None, _) => Err(SqlError::new("42883", format!("operator does not exist: {given}"))),
        (Some(_), Some(_)) => Err(SqlError::new("42725", format!("more than one operator named {given}"))),
    }
}

fn operator_name(oid: u32, with_sides: bool) -> Option<String> {
    let at = data::Positions::of("pg_operator");
    let rows = data::built_in("pg_operator");
    let row = rows.iter().find(|row| at.oid(row, "oid") == oid)?;
    let name = at.text(row, "oprname");
    if with_sides {
        let side = |column| match at.oid(row, column) {
            0 => "NONE".to_string(),
            ty => format_type(ty, None),
        };
        return Some(format!("{name}({},{})", side("oprleft"), side("oprright")));
    }
    let same = rows.iter().filter(|row| at.text(row, "oprname") == name).count();
    Some(if same == 1 { name.to_string() } else { format!("pg_catalog.{name}") })
}

/// A function's name, with its schema where the name alone would not find it.
fn unambiguous_name(row: &FunctionRow) -> String {
    let name = quote_identifier(row.name);
    let same = data::functions().filter(|other| other.name == row.name).count();
    if same == 1 { name } else { format!("pg_catalog.{name}") }
}

fn read_collation(given: &str) -> Result<u32, SqlError> {
    let name = system_name(given)?.unwrap_or_default();
    let row = data::built_in("pg_collation").iter().find(|row| row[1] == text(&name));
    let missing = || SqlError::new("42704", format!("collation \"{given}\" for encoding \"UTF8\" does not exist"));
    row.and_then(|row| data::as_oid(&row[0])).ok_or_else(missing)
}

fn collation_name(oid: u32) -> Option<String> {
    let row = data::built_in("pg_collation").iter().find(|row| row[0] == value(oid))?;
    if let Value::Text(name) = &row[1] { Some(quote_identifier(name)) } else { None }
}

/// Numbers of the encodings that a client can have heard of; only UTF-8 is spoken.
const ENCODINGS: [(i64, &str); 4] = [(0, "SQL_ASCII"), (UTF8, "UTF8"), (8, "LATIN1"), (24, "WIN1252")];

fn encoding_name(number: i64) -> &'static str {
    ENCODINGS.iter().find(|(known, _)| *known == number).map_or("", |(_, name)| name)
}

fn encoding_number(name: &str) -> i64 {
    let plain: String = name.chars().filter(char::is_ascii_alphanumeric).collect::<String>().to_uppercase();
    let plain = if plain == "UNICODE" { "UTF8".into() } else { plain };
    ENCODINGS.iter().find(|(_, known)| known.replace('_', "") == plain).map_or(-1, |(number, _)| *number)
}

/// Of a column of a B-tree.
fn column_property(property: &str) -> Value {
    match property.to_lowercase().as_str() {
        "asc" | "nulls_last" | "orderable" | "returnable" | "search_array" | "search_nulls" => Value::Bool(true),
        "desc" | "nulls_first" | "distance_orderable" => Value::Bool(false),
        _ => Value::Null,
    }
}

/// As `pg_size_pretty`: a unit is used up to ten thousand of it, and from kilobytes on it is rounded.
fn pretty_size(bytes: i64) -> String {
    const UNITS: [&str; 6] = ["bytes", "kB", "MB", "GB", "TB", "PB"];
    let mut size = bytes;
    for (at, unit) in UNITS.iter().enumerate() {
        let limit: u64 = if at == 0 { 10 * 1_024 } else { 20 * 1_024 - 1 };
        if at + 1 == UNITS.len() || size.unsigned_abs() < limit {
            // Sizes above bytes are held doubled, so that halving rounds.
            let whole = if at == 0 { size } else { (size + size.signum().max(if size < 0 { -1 } else { 1 })) / 2 };
            return format!("{whole} {unit}");
        }
        size /= if at == 0 { 1 << 9 } else { 1 << 10 };
    }
    String::new()
}
