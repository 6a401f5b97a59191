//! The bound tree: a statement whose names and types are known.
//!
//!     text ──parse──► PostgreSQL's raw tree ──bind──► this ──plan──► fragments of this ──print──► SQL of an engine
//!
//! Binding is the only reader of the raw tree, and printing the only writer of SQL. In between a statement is this
//! tree, and whoever changes it (scoping, routing, splitting it into fragments) changes data and not text.
//!
//! Invariants:
//!   * Every expression has a type, and no type is `unknown`, `any` or polymorphic.
//!   * Every conversion is explicit: the arguments of a call have exactly the types of the function's parameters
//!     (for polymorphic ones: the resolved types), both sides of a set operation have equal column types, what is
//!     assigned to a column has the column's type and modifier.
//!   * Every relation of a statement has a [`RelId`] of its own, also across subqueries, so a column reference says
//!     all: whether it is an outer reference follows from where its relation is.
//!   * `*` is expanded, views are inlined, `USING` and `NATURAL` have become conditions, positions and aliases in
//!     `ORDER BY` and `GROUP BY` are resolved.
//!   * What the binder does not understand, it refuses. Nothing of the raw tree is dropped.

use crate::types::{Oid, Type};
use isles_kernel::names::GroupName;
use isles_kernel::schema::Table;
use isles_kernel::value::Value;
use std::sync::Arc;

/// A relation of a statement: one entry of a FROM clause, a table that is written to, a common table expression's use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RelId(pub u32);

/// A common table expression of a statement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CteId(pub u32);

/// A statement that reads or writes rows.
#[derive(Debug, Clone, PartialEq)]
pub enum Statement {
    Query(Query),
    Insert(Insert),
    Update(Update),
    Delete(Delete),
}

/// A column of a result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Field {
    pub name: String,
    pub ty: Type,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Query {
    pub ctes: Vec<Cte>,
    pub body: Body,
    pub order_by: Vec<OrderBy>,
    pub limit: Option<Expr>,
    pub offset: Option<Expr>,
    /// `FETCH FIRST … WITH TIES`.
    pub with_ties: bool,
    /// `FOR UPDATE` and its kin.
    pub lock: Option<Lock>,
    /// The visible columns. A select may have more targets than these: hidden ones, for `ORDER BY` alone, come last.
    pub columns: Vec<Field>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Cte {
    pub id: CteId,
    pub name: String,
    pub body: CteBody,
    pub columns: Vec<Field>,
    /// What was said: `MATERIALIZED`, `NOT MATERIALIZED`, or nothing.
    pub materialized: Option<bool>,
}

#[derive(Debug, Clone, PartialEq)]
pub enum CteBody {
    Query(Box<Query>),
    /// `WITH RECURSIVE`: `start UNION [ALL] step`, where `step` refers to the expression itself.
    Recursive {
        start: Box<Query>,
        step: Box<Query>,
        all: bool,
    },
    /// `WITH x AS (INSERT … RETURNING …)`.
    Write(Box<Statement>),
}

#[derive(Debug, Clone, PartialEq)]
pub enum Body {
    Select(Box<Select>),
    /// Rows of equal length; column i has the type of `Query::columns[i]`.
    Values(Vec<Vec<Expr>>),
    SetOp {
        op: SetOp,
        all: bool,
        left: Box<Query>,
        right: Box<Query>,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetOp {
    Union,
    Intersect,
    Except,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Select {
    pub distinct: Distinct,
    pub targets: Vec<Expr>,
    /// Cross-joined, in order; a later one may be lateral to earlier ones.
    pub from: Vec<From>,
    pub filter: Option<Expr>,
    pub group_by: GroupBy,
    pub having: Option<Expr>,
}

impl Select {
    /// Whether the rows are groups: there is a `GROUP BY`, a `HAVING` or an aggregate.
    pub fn is_grouped(&self) -> bool {
        self.group_by != GroupBy::None
    }
}

#[derive(Debug, Clone, PartialEq)]
pub enum Distinct {
    No,
    All,
    On(Vec<Expr>),
}

#[derive(Debug, Clone, PartialEq)]
pub enum GroupBy {
    /// Not grouped.
    None,
    /// One group for each combination of values; without keys, one group in all (also of no rows).
    Keys(Vec<Expr>),
    /// `ROLLUP`, `CUBE`, `GROUPING SETS`: the keys, and the sets as positions in them.
    Sets { keys: Vec<Expr>, sets: Vec<Vec<usize>> },
}

#[derive(Debug, Clone, PartialEq)]
pub struct OrderBy {
    pub key: OrderKey,
    pub descending: bool,
    pub nulls_first: bool,
}

#[derive(Debug, Clone, PartialEq)]
pub enum OrderKey {
    /// The n-th target of the select, or column of a set operation or VALUES, from 0. For a select this can be a
    /// hidden target.
    Output(usize),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LockStrength {
    KeyShare,
    Share,
    NoKeyUpdate,
    Update,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LockWait {
    Wait,
    NoWait,
    SkipLocked,
}

/// A row lock. `of` is empty for all relations of the select.
#[derive(Debug, Clone, PartialEq)]
pub struct Lock {
    pub strength: LockStrength,
    pub wait: LockWait,
    pub of: Vec<RelId>,
}

#[derive(Debug, Clone, PartialEq)]
pub enum From {
    Relation(RelationRef),
    Subquery {
        rel: RelId,
        query: Box<Query>,
        lateral: bool,
    },
    Cte {
        rel: RelId,
        cte: CteId,
        columns: Vec<Field>,
    },
    /// A function that returns rows: `unnest`, `generate_series`, …
    Function(FunctionRef),
    Join(Box<Join>),
}

/// A use of a stored or system relation.
#[derive(Debug, Clone, PartialEq)]
pub struct RelationRef {
    pub rel: RelId,
    pub relation: Arc<Relation>,
}

/// A table as the binder sees it: without hidden columns.
#[derive(Debug, Clone, PartialEq)]
pub struct Relation {
    /// `public`, `pg_catalog` or `information_schema`.
    pub schema: String,
    pub name: String,
    pub columns: Vec<RelationColumn>,
    pub source: RelationSource,
}

#[derive(Debug, Clone, PartialEq)]
pub struct RelationColumn {
    pub name: String,
    pub ty: Type,
    pub not_null: bool,
}

#[derive(Debug, Clone, PartialEq)]
pub enum RelationSource {
    /// A table on the shards.
    User(Arc<Table>),
    /// A table of `pg_catalog` or `information_schema`, whose rows the router knows.
    System,
    /// Rows that were gathered from the shards, in the stage. Only plans contain it.
    Staged,
}

#[derive(Debug, Clone, PartialEq)]
pub struct FunctionRef {
    pub rel: RelId,
    /// An [`ExprKind::Call`] of a set-returning function.
    pub call: Expr,
    pub columns: Vec<Field>,
    /// `WITH ORDINALITY`: the last column numbers the rows.
    pub ordinality: bool,
    pub lateral: bool,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Join {
    pub kind: JoinKind,
    pub left: From,
    pub right: From,
    /// None for a cross join.
    pub on: Option<Expr>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JoinKind {
    Inner,
    Left,
    Right,
    Full,
}

/// An expression and its type.
#[derive(Debug, Clone, PartialEq)]
pub struct Expr {
    pub kind: ExprKind,
    pub ty: Type,
}

#[derive(Debug, Clone, PartialEq)]
pub enum ExprKind {
    Const(Value),
    /// `$1` is 0.
    Param(usize),
    /// What the session knows, the same for a whole statement or transaction: bound when the statement is executed.
    Context(Context),
    /// Column `column` (from 0, hidden ones not counted) of a relation.
    Column {
        rel: RelId,
        column: usize,
    },
    /// The named hidden column of a table. Only scoping and planning make these.
    Hidden {
        rel: RelId,
        column: &'static str,
    },
    /// Whether the shard that runs this owns a bucket of a group, or a tenant, which stands for its bucket in the group of
    /// all tenants. Only the form of a fragment that keeps to owned buckets
    /// has these.
    Owned {
        group: GroupName,
        bucket: Box<Expr>,
    },
    /// A function or operator. `display` is the operator's symbol or the function's name, to print and to complain.
    Call {
        function: Oid,
        display: Display,
        args: Vec<Expr>,
    },
    /// A conversion to the expression's own type.
    Cast {
        arg: Box<Expr>,
        how: CastHow,
    },
    And(Vec<Expr>),
    Or(Vec<Expr>),
    Not(Box<Expr>),
    IsNull {
        arg: Box<Expr>,
        negated: bool,
    },
    /// `x IS [NOT] TRUE | FALSE | UNKNOWN`; `value` None for UNKNOWN.
    IsBool {
        arg: Box<Expr>,
        value: Option<bool>,
        negated: bool,
    },
    /// `a IS [NOT] DISTINCT FROM b`; `equal` is the equality function of their type.
    IsDistinct {
        left: Box<Expr>,
        right: Box<Expr>,
        equal: Oid,
        negated: bool,
    },
    /// `CASE WHEN c THEN r … ELSE e END`. `CASE x WHEN v` has become conditions `x = v` with `x` repeated, or, where
    /// `x` is volatile, is refused.
    Case {
        arms: Vec<(Expr, Expr)>,
        otherwise: Option<Box<Expr>>,
    },
    Coalesce(Vec<Expr>),
    /// `GREATEST` (true) or `LEAST`; nulls are ignored.
    Extreme {
        greatest: bool,
        args: Vec<Expr>,
    },
    NullIf {
        left: Box<Expr>,
        right: Box<Expr>,
        equal: Oid,
    },
    /// `x [NOT] IN (a, b, …)`, all of one type; `equal` is its equality function.
    InList {
        arg: Box<Expr>,
        list: Vec<Expr>,
        equal: Oid,
        negated: bool,
    },
    /// `x op ANY (array)` and `x op ALL (array)`.
    OverArray {
        quantifier: Quantifier,
        function: Oid,
        operator: String,
        left: Box<Expr>,
        array: Box<Expr>,
    },
    /// A subquery in an expression.
    Subquery(Box<Subquery>),
    /// `ARRAY[a, b]`; the elements have the element type.
    Array(Vec<Expr>),
    /// `array[i]`, `array[i][j]`.
    Subscript {
        array: Box<Expr>,
        index: Vec<Expr>,
    },
    /// `array[a:b]`, one dimension.
    Slice {
        array: Box<Expr>,
        from: Option<Box<Expr>>,
        to: Option<Box<Expr>>,
    },
    /// `ROW(a, b)`, where it is not compared (comparisons of rows have become comparisons of their parts).
    Row(Vec<Expr>),
    Aggregate(Box<Aggregate>),
    Window(Box<WindowCall>),
    /// `GROUPING(a, b)`: positions in the keys of the `GROUP BY`.
    Grouping(Vec<usize>),
}

/// How a call looked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Display {
    /// `a + b`, `- a`.
    Operator(String),
    Function(String),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CastHow {
    /// By this function of `pg_cast` or a length coercion; its extra arguments (modifier, explicit) are implied.
    Function(Oid),
    /// The representation is the same (`varchar` to `text`).
    Relabel,
    /// By way of text: the output form of one is the input form of the other.
    InOut,
    /// Applies the modifier of the expression's type to a value of that type already (`varchar(3)` of a `varchar`).
    /// `explicit` truncates or rounds silently where an assignment would be an error.
    Modifier { explicit: bool },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Quantifier {
    Any,
    All,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Subquery {
    pub kind: SubqueryKind,
    pub query: Query,
}

#[derive(Debug, Clone, PartialEq)]
pub enum SubqueryKind {
    /// One value; more than one row is an error (21000).
    Scalar,
    Exists {
        negated: bool,
    },
    /// `(a, b) [NOT] IN (SELECT …)`, also `= ANY`; one left expression and equality for each column.
    In {
        left: Vec<Expr>,
        equal: Vec<Oid>,
        negated: bool,
    },
    /// `x op ANY (SELECT …)`, `x op ALL (SELECT …)`.
    Quantified {
        quantifier: Quantifier,
        left: Expr,
        function: Oid,
        operator: String,
    },
    /// `ARRAY(SELECT …)`.
    Array,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Aggregate {
    pub function: Oid,
    pub name: String,
    /// Empty for `count(*)`. For an ordered-set aggregate, the direct arguments.
    pub args: Vec<Expr>,
    pub distinct: bool,
    pub order_by: Vec<SortExpr>,
    pub filter: Option<Expr>,
    /// `percentile_cont(…) WITHIN GROUP (ORDER BY …)`: `order_by` are the aggregated arguments.
    pub within_group: bool,
}

/// An ordering inside of an aggregate or a window.
#[derive(Debug, Clone, PartialEq)]
pub struct SortExpr {
    pub expr: Expr,
    pub descending: bool,
    pub nulls_first: bool,
}

#[derive(Debug, Clone, PartialEq)]
pub struct WindowCall {
    pub function: Oid,
    pub name: String,
    pub args: Vec<Expr>,
    /// Whether the function is an aggregate used over a window.
    pub aggregate: bool,
    pub filter: Option<Expr>,
    pub partition_by: Vec<Expr>,
    pub order_by: Vec<SortExpr>,
    pub frame: Option<Frame>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Frame {
    pub unit: FrameUnit,
    pub start: FrameBound,
    pub end: FrameBound,
    pub exclude: FrameExclude,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrameUnit {
    Rows,
    Range,
    Groups,
}

#[derive(Debug, Clone, PartialEq)]
pub enum FrameBound {
    UnboundedPreceding,
    Preceding(Expr),
    CurrentRow,
    Following(Expr),
    UnboundedFollowing,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrameExclude {
    Nothing,
    CurrentRow,
    Group,
    Ties,
}

/// What the router binds at execution.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Context {
    /// `now()`, `CURRENT_TIMESTAMP`: the transaction's start, timestamptz.
    TransactionTime,
    /// `statement_timestamp()`.
    StatementTime,
    /// `CURRENT_DATE`, in the session's time zone, date.
    Date,
    /// `LOCALTIMESTAMP`, timestamp.
    LocalTime,
    /// `LOCALTIME`, time.
    LocalTimeOfDay,
    CurrentUser,
    SessionUser,
    CurrentDatabase,
    CurrentSchema,
    /// `current_schemas(include_implicit)`, name[].
    CurrentSchemas(bool),
    BackendPid,
    /// The session's tenant, as `_tenant` stores it. Only scoping makes this.
    Tenant,
    /// The settings that functions read (time zone, date style, …) as one text, which `runtime` takes apart. Only
    /// printing for SQLite makes this: it is one more argument of the functions that depend on it.
    Settings,
    /// `current_setting(name, missing_ok)`, when the name is a constant.
    Setting {
        name: String,
        missing_ok: bool,
    },
}

#[derive(Debug, Clone, PartialEq)]
pub struct Insert {
    pub ctes: Vec<Cte>,
    pub target: RelationRef,
    /// For each column of the table, where its value comes from.
    pub columns: Vec<InsertColumn>,
    pub source: InsertSource,
    pub conflict: Option<Conflict>,
    /// Over `target`.
    pub returning: Option<Returning>,
}

#[derive(Debug, Clone, PartialEq)]
pub enum InsertColumn {
    /// Column n of the source, which has the table column's type already (assignment casts are in the source, or for
    /// a query in `cast`).
    Source { at: usize, cast: Option<Box<Expr>> },
    /// The column's default, bound; NULL when it has none. Identity columns have a `nextval` call here.
    Default(Expr),
}

#[derive(Debug, Clone, PartialEq)]
pub enum InsertSource {
    /// Rows of expressions, without columns of any relation. `None` is the word DEFAULT.
    Values(Vec<Vec<Option<Expr>>>),
    Query(Box<Query>),
    /// `DEFAULT VALUES`: one row, all defaults.
    Defaults,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Conflict {
    /// Names of the columns of the unique key or primary key that decides; none for any (`DO NOTHING` alone).
    pub target: Option<Vec<String>>,
    /// The arbiter's partial-index predicate, if one was written.
    pub target_filter: Option<Expr>,
    /// The name of the key that decides; none for the primary key, and where there is no `target`.
    pub key: Option<String>,
    pub action: ConflictAction,
}

#[derive(Debug, Clone, PartialEq)]
pub enum ConflictAction {
    Nothing,
    /// Expressions see the existing row as the target's relation, and the proposed one as `excluded`.
    Update {
        excluded: RelId,
        assignments: Vec<Assignment>,
        filter: Option<Expr>,
    },
}

/// `column = expr`; the expression has the column's type. The column is its position in the relation.
#[derive(Debug, Clone, PartialEq)]
pub struct Assignment {
    pub column: usize,
    pub value: Expr,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Update {
    pub ctes: Vec<Cte>,
    pub target: RelationRef,
    pub assignments: Vec<Assignment>,
    pub from: Vec<From>,
    pub filter: Option<Expr>,
    pub returning: Option<Returning>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Delete {
    pub ctes: Vec<Cte>,
    pub target: RelationRef,
    pub using: Vec<From>,
    pub filter: Option<Expr>,
    pub returning: Option<Returning>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Returning {
    pub targets: Vec<Expr>,
    pub columns: Vec<Field>,
}

impl Expr {
    pub fn new(kind: ExprKind, ty: impl Into<Type>) -> Expr {
        Expr { kind, ty: ty.into() }
    }
}
