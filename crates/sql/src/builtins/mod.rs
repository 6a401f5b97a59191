//! PostgreSQL's own catalogs of functions, operators, casts and types, as data.
//!
//! The binder resolves a name to PostgreSQL's number of what it means, by PostgreSQL's rules over PostgreSQL's own
//! candidates; whoever evaluates it is told the number. So the catalogs are PostgreSQL's, dumped and not written by
//! hand. The files beside this one are rows of a PostgreSQL 15, tab-separated as `psql -At` prints them; these
//! statements print them again:
//!
//!     functions.tsv
//!       select p.oid::bigint, proname, prokind, prorettype::bigint, proretset::int, proisstrict::int, provolatile,
//!         provariadic::bigint, pronargdefaults, coalesce(array_to_string(array(select x::bigint from
//!         unnest(proargtypes) with ordinality u(x,n) order by n),','),''), coalesce(case when proargmodes is not
//!         null then (select string_agg(coalesce(nullif(n,''),'column'||i)||':'||t::bigint, ',' order by i) from
//!         unnest(proargmodes, proallargtypes, proargnames) with ordinality u(m,t,n,i) where m in ('o','t','b'))
//!         end,''), coalesce(a.aggkind,''), coalesce(a.aggnumdirectargs::text,''), coalesce((select
//!         string_agg(n,',' order by i) from unnest(proargnames[1:pronargs]) with ordinality u(n,i)),''),
//!         coalesce(pg_get_expr(proargdefaults,0),'')
//!       from pg_proc p left join pg_aggregate a on a.aggfnoid=p.oid
//!       where p.oid<16384 and pronamespace='pg_catalog'::regnamespace order by proname collate "C", p.oid
//!     operators.tsv
//!       select o.oid::bigint, oprname, oprleft::bigint, oprright::bigint, oprresult::bigint, oprcode::oid::bigint,
//!         oprcom::bigint, oprnegate::bigint
//!       from pg_operator o where o.oid<16384 order by oprname collate "C", o.oid
//!     casts.tsv
//!       select castsource::bigint, casttarget::bigint, castfunc::bigint, castcontext, castmethod
//!       from pg_cast where oid<16384 order by 1,2
//!     types.tsv
//!       select t.oid::bigint, typname, typlen, typtype, typcategory, typispreferred::int, typelem::bigint,
//!         typarray::bigint, typdelim, typinput::oid::bigint, typoutput::oid::bigint, typsubscript::oid::bigint,
//!         typalign, typbyval::int, format_type(t.oid,null)
//!       from pg_type t where t.oid<16384 and typnamespace='pg_catalog'::regnamespace and typrelid=0 and not
//!         exists(select 1 from pg_type e where e.oid=t.typelem and e.typrelid<>0) order by 1
//!
//! A catalog that cannot be read is a broken build, so reading them panics; a test reads all of them.

mod format;

pub use format::{format_type, type_name};

use crate::types::{self, Oid};
use std::collections::HashMap;
use std::sync::OnceLock;

/// A row of `pg_proc`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Function {
    pub oid: Oid,
    pub name: &'static str,
    pub kind: FunctionKind,
    /// Types of the input parameters.
    pub args: Vec<Oid>,
    /// Names of the input parameters, where they have names.
    pub arg_names: Vec<&'static str>,
    pub returns: Oid,
    pub returns_set: bool,
    pub strict: bool,
    pub volatility: Volatility,
    /// The element type of a variadic last parameter.
    pub variadic: Option<Oid>,
    /// The defaults of the last parameters, as PostgreSQL prints them.
    pub defaults: Vec<&'static str>,
    /// The columns, of a function that returns a record of known shape.
    pub outputs: Vec<(&'static str, Oid)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FunctionKind {
    Scalar,
    Procedure,
    Window,
    Aggregate,
    /// `WITHIN GROUP`; so many of its arguments are direct.
    OrderedSet {
        direct: usize,
    },
    Hypothetical {
        direct: usize,
    },
}

impl FunctionKind {
    pub fn is_aggregate(self) -> bool {
        matches!(self, FunctionKind::Aggregate | FunctionKind::OrderedSet { .. } | FunctionKind::Hypothetical { .. })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Volatility {
    Immutable,
    Stable,
    Volatile,
}

/// A row of `pg_operator`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Operator {
    pub oid: Oid,
    pub name: &'static str,
    /// None for a prefix operator.
    pub left: Option<Oid>,
    pub right: Oid,
    pub result: Oid,
    /// `oprcode`.
    pub function: Oid,
    pub commutator: Option<Oid>,
    pub negator: Option<Oid>,
}

/// A row of `pg_cast`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CastInfo {
    pub from: Oid,
    pub to: Oid,
    pub context: CastContext,
    pub method: CastMethod,
}

/// Where a cast applies by itself; each includes those before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum CastContext {
    Implicit,
    Assignment,
    Explicit,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CastMethod {
    Function(Oid),
    Binary,
    InOut,
}

/// A row of `pg_type`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TypeInfo {
    pub oid: Oid,
    pub name: &'static str,
    /// Bytes, or -1 for types of variable length and -2 for C strings.
    pub len: i16,
    pub kind: TypeKind,
    pub category: u8,
    pub preferred: bool,
    /// The element type of anything that can be subscripted.
    pub subscript: Option<Oid>,
    /// The element type of an array.
    pub element: Option<Oid>,
    pub array: Option<Oid>,
    pub delimiter: char,
    pub input: Oid,
    pub output: Oid,
    pub align: char,
    pub by_value: bool,
    /// As `format_type` shows it without a modifier.
    pub display: &'static str,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TypeKind {
    Base,
    Pseudo,
    Range,
    Multirange,
}

impl TypeInfo {
    /// `typtype`.
    pub fn kind_letter(&self) -> char {
        match self.kind {
            TypeKind::Base => 'b',
            TypeKind::Pseudo => 'p',
            TypeKind::Range => 'r',
            TypeKind::Multirange => 'm',
        }
    }
}

struct Catalog {
    functions: &'static [Function],
    functions_by_oid: HashMap<Oid, usize>,
    functions_by_name: HashMap<&'static str, Vec<&'static Function>>,
    operators: &'static [Operator],
    operators_by_oid: HashMap<Oid, usize>,
    operators_by_name: HashMap<&'static str, Vec<&'static Operator>>,
    casts: Vec<CastInfo>,
    casts_by_pair: HashMap<(Oid, Oid), usize>,
    types: Vec<TypeInfo>,
    types_by_oid: HashMap<Oid, usize>,
    types_by_name: HashMap<&'static str, usize>,
}

fn catalog() -> &'static Catalog {
    static CATALOG: OnceLock<&'static Catalog> = OnceLock::new();
    // Leaked, so that its own indexes can refer to it: there is one for the life of the process.
    CATALOG.get_or_init(|| Box::leak(Box::new(read())))
}

pub fn function(oid: Oid) -> Option<&'static Function> {
    catalog().functions_by_oid.get(&oid).map(|at| &catalog().functions[*at])
}

pub fn functions() -> &'static [Function] {
    catalog().functions
}

pub fn functions_named(name: &str) -> &'static [&'static Function] {
    catalog().functions_by_name.get(name).map_or(&[], Vec::as_slice)
}

pub fn operator(oid: Oid) -> Option<&'static Operator> {
    catalog().operators_by_oid.get(&oid).map(|at| &catalog().operators[*at])
}

pub fn operators() -> &'static [Operator] {
    catalog().operators
}

pub fn operators_named(name: &str) -> &'static [&'static Operator] {
    catalog().operators_by_name.get(name).map_or(&[], Vec::as_slice)
}

pub fn cast(from: Oid, to: Oid) -> Option<&'static CastInfo> {
    catalog().casts_by_pair.get(&(from, to)).map(|at| &catalog().casts[*at])
}

pub fn casts() -> &'static [CastInfo] {
    &catalog().casts
}

pub fn type_by_oid(oid: Oid) -> Option<&'static TypeInfo> {
    catalog().types_by_oid.get(&oid).map(|at| &catalog().types[*at])
}

pub fn types() -> &'static [TypeInfo] {
    &catalog().types
}

/// A type by its name in `pg_type` or by one that SQL has for it.
pub fn type_by_name(name: &str) -> Option<&'static TypeInfo> {
    let internal = SQL_NAMES.iter().find(|(sql, _)| *sql == name).map_or(name, |(_, internal)| internal);
    catalog().types_by_name.get(internal).map(|at| &catalog().types[*at])
}

/// What SQL calls the types, where `pg_type` has another word. `char` is `bpchar` in SQL, and PostgreSQL's own
/// one-byte type must be quoted, so it is not here: whoever reads SQL text knows of the quotes.
const SQL_NAMES: &[(&str, &str)] = &[
    ("int", "int4"),
    ("integer", "int4"),
    ("smallint", "int2"),
    ("bigint", "int8"),
    ("real", "float4"),
    ("float", "float8"),
    ("double precision", "float8"),
    ("decimal", "numeric"),
    ("dec", "numeric"),
    ("boolean", "bool"),
    ("character varying", "varchar"),
    ("char varying", "varchar"),
    ("character", "bpchar"),
    ("national character", "bpchar"),
    ("nchar", "bpchar"),
    ("bit varying", "varbit"),
    ("timestamp without time zone", "timestamp"),
    ("timestamp with time zone", "timestamptz"),
    ("time without time zone", "time"),
    ("time with time zone", "timetz"),
];

/// The type of arrays of this type.
pub fn array_of(element: Oid) -> Option<Oid> {
    type_by_oid(element)?.array
}

/// The type of the elements of this array type.
pub fn element_of(array: Oid) -> Option<Oid> {
    type_by_oid(array)?.element
}

fn read() -> Catalog {
    let functions: &'static [Function] = Vec::leak(rows(include_str!("functions.tsv")).map(read_function).collect());
    let operators: &'static [Operator] = Vec::leak(rows(include_str!("operators.tsv")).map(read_operator).collect());
    let casts: Vec<CastInfo> = rows(include_str!("casts.tsv")).map(read_cast).collect();
    let types: Vec<TypeInfo> = rows(include_str!("types.tsv")).map(read_type).collect();
    let mut functions_by_name: HashMap<_, Vec<_>> = HashMap::new();
    functions.iter().for_each(|f| functions_by_name.entry(f.name).or_default().push(f));
    let mut operators_by_name: HashMap<_, Vec<_>> = HashMap::new();
    operators.iter().for_each(|o| operators_by_name.entry(o.name).or_default().push(o));
    Catalog {
        functions_by_oid: functions.iter().enumerate().map(|(at, f)| (f.oid, at)).collect(),
        functions_by_name,
        functions,
        operators_by_oid: operators.iter().enumerate().map(|(at, o)| (o.oid, at)).collect(),
        operators_by_name,
        operators,
        casts_by_pair: casts.iter().enumerate().map(|(at, c)| ((c.from, c.to), at)).collect(),
        casts,
        types_by_oid: types.iter().enumerate().map(|(at, t)| (t.oid, at)).collect(),
        types_by_name: types.iter().enumerate().map(|(at, t)| (t.name, at)).collect(),
        types,
    }
}

fn rows(file: &'static str) -> impl Iterator<Item = Vec<&'static str>> {
    file.lines().map(|line| line.split('\t').collect())
}

fn number<T: std::str::FromStr>(text: &str) -> T {
    text.parse().ok().expect("a number in the dumped catalog")
}

fn oid(text: &str) -> Oid {
    Oid(number(text))
}

fn some_oid(text: &str) -> Option<Oid> {
    Some(oid(text)).filter(|oid| oid.0 != 0)
}

fn list(text: &'static str, separator: &'static str) -> Vec<&'static str> {
    text.split(separator).filter(|part| !part.is_empty()).collect()
}

fn read_function(row: Vec<&'static str>) -> Function {
    let direct = || number(row[12]);
    Function {
        oid: oid(row[0]),
        name: row[1],
        kind: match (row[2], row[11]) {
            ("a", "o") => FunctionKind::OrderedSet { direct: direct() },
            ("a", "h") => FunctionKind::Hypothetical { direct: direct() },
            ("a", _) => FunctionKind::Aggregate,
            ("w", _) => FunctionKind::Window,
            ("p", _) => FunctionKind::Procedure,
            _ => FunctionKind::Scalar,
        },
        args: list(row[9], ",").into_iter().map(oid).collect(),
        arg_names: if row[13].is_empty() { Vec::new() } else { row[13].split(',').collect() },
        returns: oid(row[3]),
        returns_set: row[4] == "1",
        strict: row[5] == "1",
        volatility: match row[6] {
            "i" => Volatility::Immutable,
            "s" => Volatility::Stable,
            _ => Volatility::Volatile,
        },
        variadic: some_oid(row[7]),
        defaults: list(row[14], ", "),
        outputs: list(row[10], ",").into_iter().map(read_output).collect(),
    }
}

fn read_output(text: &'static str) -> (&'static str, Oid) {
    let (name, ty) = text.split_once(':').expect("a column of the dumped catalog has a type");
    (name, oid(ty))
}

fn read_operator(row: Vec<&'static str>) -> Operator {
    Operator {
        oid: oid(row[0]),
        name: row[1],
        left: some_oid(row[2]),
        right: oid(row[3]),
        result: oid(row[4]),
        function: oid(row[5]),
        commutator: some_oid(row[6]),
        negator: some_oid(row[7]),
    }
}

fn read_cast(row: Vec<&'static str>) -> CastInfo {
    CastInfo {
        from: oid(row[0]),
        to: oid(row[1]),
        context: match row[3] {
            "i" => CastContext::Implicit,
            "a" => CastContext::Assignment,
            _ => CastContext::Explicit,
        },
        method: match row[4] {
            "f" => CastMethod::Function(oid(row[2])),
            "b" => CastMethod::Binary,
            _ => CastMethod::InOut,
        },
    }
}

/// `array_subscript_handler`, which makes a type an array.
const ARRAY_HANDLER: Oid = Oid(6179);

fn read_type(row: Vec<&'static str>) -> TypeInfo {
    let subscript = some_oid(row[6]);
    TypeInfo {
        oid: oid(row[0]),
        name: row[1],
        len: number(row[2]),
        kind: match row[3] {
            "p" => TypeKind::Pseudo,
            "r" => TypeKind::Range,
            "m" => TypeKind::Multirange,
            _ => TypeKind::Base,
        },
        category: row[4].as_bytes()[0],
        preferred: row[5] == "1",
        subscript,
        element: subscript.filter(|_| oid(row[11]) == ARRAY_HANDLER),
        array: some_oid(row[7]),
        delimiter: row[8].chars().next().unwrap_or(','),
        input: oid(row[9]),
        output: oid(row[10]),
        align: row[12].chars().next().unwrap_or('c'),
        by_value: row[13] == "1",
        display: row[14],
    }
}

/// Whether a type stands for any type of some sort, and must be resolved before an expression has it.
pub fn is_polymorphic(oid: Oid) -> bool {
    is_polymorphic_first(oid) || is_polymorphic_compatible(oid)
}

/// `anyelement` and its kin, whose actual types must agree.
pub fn is_polymorphic_first(oid: Oid) -> bool {
    matches!(
        oid,
        types::ANYELEMENT | types::ANYARRAY | types::ANYNONARRAY | types::ANYENUM | types::ANYRANGE | ANYMULTIRANGE
    )
}

/// `anycompatible` and its kin, whose actual types are brought to a common one.
pub fn is_polymorphic_compatible(oid: Oid) -> bool {
    matches!(
        oid,
        types::ANYCOMPATIBLE
            | types::ANYCOMPATIBLEARRAY
            | types::ANYCOMPATIBLENONARRAY
            | types::ANYCOMPATIBLERANGE
            | ANYCOMPATIBLEMULTIRANGE
    )
}

const ANYMULTIRANGE: Oid = Oid(4537);
const ANYCOMPATIBLEMULTIRANGE: Oid = Oid(4538);

#[cfg(test)]
mod tests {
    use super::{array_of, element_of, *};
    use crate::types::*;

    #[test]
    fn every_catalog_row_is_read() {
        assert_eq!(functions().len(), 3233);
        assert_eq!(operators().len(), 799);
        assert_eq!(casts().len(), 229);
        assert_eq!(types().len(), 185);
        for function in functions() {
            assert!(function.defaults.len() <= function.args.len(), "{}", function.name);
            assert!(function.arg_names.len() <= function.args.len(), "{}", function.name);
        }
    }

    #[test]
    fn functions_are_found_by_number_and_name() {
        let lower = function(Oid(870)).expect("lower(text)");
        assert_eq!((lower.name, lower.args.as_slice(), lower.returns), ("lower", &[TEXT][..], TEXT));
        assert!(lower.strict && lower.volatility == Volatility::Immutable);
        assert_eq!(functions_named("generate_series").len(), 8);
        let set = functions_named("jsonb_set")[0];
        assert_eq!((set.defaults.as_slice(), set.arg_names[3]), (&["true"][..], "create_if_missing"));
        let each = functions_named("json_each")[0];
        assert_eq!(each.outputs, [("key", TEXT), ("value", JSON)]);
        assert_eq!(functions_named("percentile_cont")[0].kind, FunctionKind::OrderedSet { direct: 1 });
        assert!(functions_named("no_such_function").is_empty());
    }

    #[test]
    fn operators_name_their_functions() {
        let add = operators_named("+").iter().find(|o| o.left == Some(INT4) && o.right == INT4).expect("int4 + int4");
        assert_eq!((add.function, add.result, add.commutator), (Oid(177), INT4, Some(add.oid)));
        let negative = operators_named("-").iter().find(|o| o.left.is_none() && o.right == INT4).expect("- int4");
        assert_eq!(negative.function, Oid(212));
    }

    #[test]
    fn casts_know_their_context() {
        assert_eq!(cast(INT4, INT8).map(|c| c.context), Some(CastContext::Implicit));
        assert_eq!(cast(INT8, INT4).map(|c| c.context), Some(CastContext::Assignment));
        assert_eq!(cast(VARCHAR, TEXT).map(|c| c.method), Some(CastMethod::Binary));
        assert_eq!(cast(TEXT, INT4), None);
    }

    #[test]
    fn types_are_found_by_any_of_their_names() {
        for (name, oid) in [
            ("int", INT4),
            ("int4", INT4),
            ("bigint", INT8),
            ("character varying", VARCHAR),
            ("double precision", FLOAT8),
            ("timestamp with time zone", TIMESTAMPTZ),
            ("jsonb", JSONB),
            ("_int4", INT4_ARRAY),
        ] {
            assert_eq!(type_by_name(name).map(|t| t.oid), Some(oid), "{name}");
        }
        assert_eq!(type_by_name("serial"), None);
        assert_eq!((array_of(TEXT), element_of(TEXT_ARRAY), element_of(TEXT)), (Some(TEXT_ARRAY), Some(TEXT), None));
    }
}
