//! Plans: what runs on which shards, and what becomes of the rows.
//!
//!     Statement ──scope──► every tenant table carries its tenant ──route──► Target ──split──► fragments
//!
//! A plan says nothing of shards by name. A [`Target`] is resolved with the parameters and the routing of the moment
//! of execution, so a cached plan cannot send anybody to where a bucket was.
//!
//! A fragment is a bound tree, printed once for each engine that needs it.

mod aggregate;
pub(crate) mod build;
#[cfg(test)]
pub(crate) mod fixture;
pub(crate) mod functions;
mod lookup;
mod place;
mod probe;
mod query;
mod stage;
mod unique;
mod upsert;
pub(crate) mod walk;
mod write;

use crate::scope;
use crate::tree::{Context, Expr, Field, Statement};
use crate::types::Type;
use isles_kernel::error::SqlError;
use isles_kernel::names::GroupName;
use isles_kernel::schema::Table;
use isles_kernel::value::{DataType, Value};
use std::sync::{Arc, OnceLock};

/// Values of an input that another is read by. With more of them, all of the other is read.
pub const MAX_LOOKUP_VALUES: usize = 1_000;

/// What a plan depends on besides the statement. Routing is not among it: a plan outlives moves.
#[derive(Debug, Clone, Default)]
pub struct PlanContext {}

/// Plans a bound statement.
pub fn plan(statement: Statement, _context: &PlanContext) -> Result<Plan, SqlError> {
    write::refuse_writes_in_with(&statement)?;
    let statement = scope::scope(statement);
    let mut planner = query::Planner::new(walk::Largest::of(&statement).rel + 1);
    let plan = match statement {
        Statement::Query(query) => planner.query(query).map(Plan::Query),
        Statement::Insert(insert) => planner.insert(insert).map(Plan::Insert),
        Statement::Update(update) => planner.update(update),
        Statement::Delete(delete) => planner.delete(delete),
    }?;
    plan.prove()?;
    Ok(plan)
}

impl Plan {
    /// Refuses a plan in which a tenant table is used without its tenant.
    fn prove(&self) -> Result<(), SqlError> {
        self.fragments().into_iter().try_for_each(|fragment| scope::prove(&fragment.statement))
    }

    /// Whether any of it runs on the shard of the session's tenant.
    pub fn uses_tenant(&self) -> bool {
        match self {
            Plan::Query(plan) => plan.root.uses_tenant(),
            Plan::Insert(plan) => plan.uses_tenant(),
            Plan::Modify(plan) => of_tenant(&plan.target, &plan.touches),
            Plan::Rewrite(plan) => {
                let written = plan.target == InsertTarget::Tenant || plan.touches.contains(&Touch::Tenant);
                written || plan.rows.root.uses_tenant()
            }
        }
    }

    /// Everything that runs, inputs before what reads them.
    pub fn fragments(&self) -> Vec<&Fragment> {
        let mut found = Vec::new();
        match self {
            Plan::Query(plan) => plan.root.fragments(&mut found),
            Plan::Insert(plan) => {
                if let InsertRows::Query(query) = &plan.rows {
                    query.root.fragments(&mut found);
                }
                found.push(&plan.row);
                checked(&plan.unique, &mut found);
                if let Some(upsert) = &plan.upsert {
                    upsert.conflicts.iter().for_each(|conflict| conflict.root.fragments(&mut found));
                    found.extend(upsert.update.iter().flat_map(Plan::fragments));
                }
            }
            Plan::Modify(plan) => found.push(&plan.fragment),
            Plan::Rewrite(plan) => {
                plan.rows.root.fragments(&mut found);
                found.extend([&plan.delete, &plan.insert]);
                found.extend(&plan.update);
                checked(&plan.unique, &mut found);
            }
        }
        found
    }
}

fn checked<'a>(checks: &'a [UniqueCheck], found: &mut Vec<&'a Fragment>) {
    checks.iter().for_each(|check| check.rows.root.fragments(found));
}

fn of_tenant(target: &Target, touches: &[Touch]) -> bool {
    matches!(target, Target::Tenant) || touches.contains(&Touch::Tenant)
}

impl InsertPlan {
    /// As [`Plan::uses_tenant`].
    pub fn uses_tenant(&self) -> bool {
        let rows = matches!(&self.rows, InsertRows::Query(query) if query.root.uses_tenant());
        rows || self.target == InsertTarget::Tenant || self.touches.contains(&Touch::Tenant)
    }
}

impl Node {
    fn uses_tenant(&self) -> bool {
        match self {
            Node::Shards(node) => of_tenant(&node.target, &node.touches),
            Node::Stage(node) => node.inputs.iter().filter_map(|input| input.rows.node()).any(Node::uses_tenant),
        }
    }

    fn fragments<'a>(&'a self, found: &mut Vec<&'a Fragment>) {
        match self {
            Node::Shards(node) => found.push(&node.fragment),
            Node::Stage(node) => {
                for input in &node.inputs {
                    if let StageRows::Lookup(lookup) = &input.rows {
                        found.push(&lookup.some.fragment);
                    }
                    input.rows.node().into_iter().for_each(|node| node.fragments(found));
                }
                found.push(&node.query);
            }
        }
    }
}

/// How a statement that reads or writes rows is carried out.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "a statement has one plan, which is kept behind a pointer")]
pub enum Plan {
    Query(QueryPlan),
    Insert(InsertPlan),
    Modify(ModifyPlan),
    Rewrite(RewritePlan),
}

impl Plan {
    /// Whether it goes to the shards in one step, and chooses them in the way that another one does.
    pub fn goes_where(&self, other: &Plan) -> bool {
        match (self, other) {
            (Plan::Query(one), Plan::Query(other)) => match (&one.root, &other.root) {
                (Node::Shards(one), Node::Shards(other)) => one.target.chooses_as(&other.target),
                _ => false,
            },
            (Plan::Modify(one), Plan::Modify(other)) => one.target.chooses_as(&other.target),
            (Plan::Insert(one), Plan::Insert(other)) => {
                matches!((&one.rows, &other.rows), (InsertRows::Values(_), InsertRows::Values(_)))
            }
            _ => false,
        }
    }
}

/// Rows out.
#[derive(Debug)]
pub struct QueryPlan {
    pub fields: Vec<Field>,
    pub root: Node,
    /// Whether rows are locked (`FOR UPDATE`): the shards are entered as writers.
    pub locks: bool,
}

#[derive(Debug)]
pub enum Node {
    Shards(Box<ShardsNode>),
    Stage(Box<StageNode>),
}

/// A fragment on the shards of its target, and its rows merged.
#[derive(Debug)]
pub struct ShardsNode {
    pub fragment: Fragment,
    pub target: Target,
    pub touches: Vec<Touch>,
    pub merge: Merge,
    /// Applied by the router, and only where more than one shard is asked: a fragment that runs on one shard alone has
    /// them in its own text too. So a fragment is printed with `LIMIT limit + offset`, and, when the target turns out
    /// to be one shard, the router still applies these to what it returns.
    pub limit: Option<Expr>,
    pub offset: Option<Expr>,
    /// Columns that go on; the fragment may have more, for merging alone, which come last.
    pub visible: usize,
    /// The fragment gives rows even where nothing matches (an aggregate without groups): when the target comes to no
    /// shard at all (its keys are null, or it is [`Target::Nowhere`]), any one shard is asked. Then it must answer as
    /// if it held nothing that the keys name, which it does.
    pub must_run: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Merge {
    /// In any order.
    Concat,
    /// Each shard's rows are ordered by these columns, and so is the whole.
    Ordered(Vec<MergeKey>),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MergeKey {
    pub column: usize,
    pub ty: Type,
    pub descending: bool,
    pub nulls_first: bool,
}

/// Inputs gathered into tables of a temporary database, and a query over them. A stage without inputs evaluates
/// expressions.
#[derive(Debug)]
pub struct StageNode {
    pub inputs: Vec<StageInput>,
    /// Its relations are all [`crate::tree::RelationSource::Staged`], by the inputs' names.
    pub query: Fragment,
}

#[derive(Debug)]
pub struct StageInput {
    /// The staged table's name.
    pub name: String,
    pub columns: Vec<Field>,
    pub rows: StageRows,
}

#[derive(Debug)]
pub enum StageRows {
    Node(Node),
    /// Those that match an input before it.
    Lookup(Box<Lookup>),
    /// A table of `pg_catalog` or `information_schema`, as `schema.name`.
    System(String),
}

impl StageRows {
    /// What gives all of them.
    pub fn node(&self) -> Option<&Node> {
        match self {
            StageRows::Node(node) => Some(node),
            StageRows::Lookup(lookup) => Some(&lookup.all),
            StageRows::System(_) => None,
        }
    }
}

/// Rows that are wanted only where a column of theirs equals one of an input before them, and of which the values of that
/// say where they are.
#[derive(Debug)]
pub struct Lookup {
    /// The input that has the values.
    pub input: String,
    /// The position of the column there.
    pub column: usize,
    /// The parameter of `some` that is an array of all its values, but for nulls. The client's is another one, or none.
    pub param: usize,
    /// Rows that have one of the values.
    pub some: Box<ShardsNode>,
    /// All rows, for more than [`MAX_LOOKUP_VALUES`].
    pub all: Node,
}

/// Which shards.
#[derive(Debug, Clone)]
pub enum Target {
    /// Any one: only reference tables are read.
    Any,
    /// The one that has stood in the list of shards for longest: locks on rows of reference tables are taken there.
    First,
    /// The one that has the global tables.
    Home,
    /// All that have buckets of the groups touched.
    All,
    /// All there are: a write to a reference table.
    Every,
    /// The shard of the session's tenant.
    Tenant,
    /// The shards of these keys. A key that has a null in it is nowhere.
    Keys { group: GroupName, keys: Vec<KeyExprs> },
    /// The shards that the entries of global indexes name; all that have buckets of the group where they cannot tell.
    Index(IndexTarget),
    /// No shard: the statement can match nothing (`WHERE false`). The fragment runs nowhere; a grouped one is a stage.
    Nowhere,
}

impl Target {
    fn chooses_as(&self, other: &Target) -> bool {
        match (self, other) {
            (Target::Keys { keys: one, .. }, Target::Keys { keys: other, .. }) => one.len() == other.len(),
            (Target::Index(one), Target::Index(other)) => {
                let indexes =
                    |target: &IndexTarget| target.any.iter().map(|probe| probe.key.clone()).collect::<Vec<_>>();
                indexes(one) == indexes(other)
            }
            _ => std::mem::discriminant(self) == std::mem::discriminant(other),
        }
    }
}

/// Shards that hold rows with certain keys, as the entries of global indexes say. The statement itself looks again at
/// what it finds there, so a shard too many is no harm.
///
/// Whether an index can be asked at all is not the plan's to know: it may be built or rebuilt while the plan is kept.
#[derive(Debug, Clone, PartialEq)]
pub struct IndexTarget {
    /// The group whose buckets the entries name.
    pub group: GroupName,
    /// What a row matches at least one of.
    pub any: Vec<Probe>,
}

/// Keys of one global index: equalities of its first parts, and a range of the part after these.
#[derive(Debug, Clone, PartialEq)]
pub struct Probe {
    pub table: String,
    /// The index's name.
    pub key: String,
    /// The table of its entries.
    pub entries: String,
    /// The parts of the index that `equal` and then `range` are about, in words.
    pub over: Vec<String>,
    pub equal: Vec<ProbePart>,
    pub range: Option<ProbeRange>,
}

/// What the key has in one of its parts. Integers of all sizes stand for each other, and so do texts with and without a
/// length.
#[derive(Debug, Clone, PartialEq)]
pub enum ProbePart {
    Null,
    /// One of these. One that turns out to be null is no key.
    Values(Vec<Expr>),
    /// An element of this array that is not null.
    Elements(Expr),
}

/// Bounds, and whether each is in the range itself. At least one is there. No null is in a range, and where a bound
/// turns out to be null, nothing is.
#[derive(Debug, Clone, PartialEq)]
pub struct ProbeRange {
    pub low: Option<(Expr, bool)>,
    pub high: Option<(Expr, bool)>,
}

/// The values of a shard key, computed before any row is read.
#[derive(Debug, Clone)]
pub enum KeyExprs {
    /// One for each column of the shard key.
    Row(Vec<Expr>),
    /// A shard key of one column: each element of this array.
    Elements(Expr),
}

/// What a fragment touches, for the claims that the shards check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Touch {
    /// Buckets of a group: those of the keys, or all that the shard has.
    Group(GroupName),
    Tenant,
    /// Reference tables.
    Shared,
    Global,
}

/// A bound statement, to be printed for an engine.
pub struct Fragment {
    pub statement: Statement,
    /// The columns it returns, hidden ones too.
    pub fields: Vec<Field>,
    /// Printed when they are first wanted, in [`Form::Whole`] and in [`Form::Owned`].
    pub(crate) whole: Texts,
    pub(crate) owned: Texts,
}

/// Which rows of hash tables a fragment takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// All that are there. Shards without strangers are asked in this form.
    Whole,
    /// Those of the buckets that the shard owns.
    Owned,
}

/// A fragment's texts.
#[derive(Default)]
pub(crate) struct Texts {
    pub(crate) sqlite: OnceLock<Result<Arc<Printed>, SqlError>>,
    pub(crate) postgres: OnceLock<Result<Arc<Printed>, SqlError>>,
}

/// A statement in an engine's dialect.
#[derive(Debug, Clone, PartialEq)]
pub struct Printed {
    pub sql: Arc<str>,
    /// What to bind, in order.
    pub params: Vec<ParamSource>,
    /// The carriers of the result's columns.
    pub columns: Arc<[DataType]>,
    /// Whether it inserts, updates or deletes.
    pub writes: bool,
}

#[derive(Debug, Clone, PartialEq)]
pub enum ParamSource {
    /// The client's parameter n, from 0. It is of this type.
    Param(usize, Type),
    Context(Context, Type),
    Const(Value),
    /// The buckets of a group that the shard owns: a bytea whose bit b is set for bucket b, bit 0 the lowest of its first
    /// byte, as `get_bit` counts. It has a bit for each bucket of the group. Of the group of all tenants, the tenants that
    /// the shard owns, as the text of `isles_kernel::residents`.
    Buckets(GroupName),
}

impl Fragment {
    pub fn new(statement: Statement, fields: Vec<Field>) -> Fragment {
        Fragment { statement, fields, whole: Texts::default(), owned: Texts::default() }
    }
}

impl std::fmt::Debug for Fragment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Fragment").field("statement", &self.statement).finish_non_exhaustive()
    }
}

/// Rows in. The router computes each row whole, defaults included, finds its shard, and inserts it there.
#[derive(Debug)]
pub struct InsertPlan {
    pub table: Arc<Table>,
    pub rows: InsertRows,
    /// Inserts one row: parameter i is the table's column i, and the parameter after the last is the hidden column
    /// (`_bucket`, or `_shard`), if the table has one. `ON CONFLICT`, unless there is an `upsert`, and `RETURNING` are in
    /// it; parameters of the client's that these use follow, in the order of [`InsertPlan::extra`].
    pub row: Fragment,
    /// The client's parameters that come after the row's own.
    pub extra: Vec<(usize, Type)>,
    /// Columns that the router computes for each row of [`InsertRows::Query`], which has null there: `nextval` and
    /// other volatile defaults, which no shard may compute. Empty for values.
    pub defaults: Vec<(usize, Expr)>,
    /// Positions of the shard key's columns; empty unless the table is hashed.
    pub shard_key: Vec<usize>,
    pub target: InsertTarget,
    pub touches: Vec<Touch>,
    pub returning: Option<Vec<Field>>,
    /// The columns that identify a row for `ON CONFLICT DO UPDATE`, which may not touch a row twice (21000).
    pub conflict_key: Option<Vec<usize>>,
    /// The unique global indexes of the table.
    pub unique: Vec<UniqueCheck>,
    /// `ON CONFLICT` on a table that has unique global indexes: the router looks, and [`InsertPlan::row`] inserts.
    pub upsert: Option<Box<Upsert>>,
}

/// A unique global index that rows are added to. Whoever adds a row holds its key, looks for rows that have it, and only
/// then writes.
#[derive(Debug)]
pub struct UniqueCheck {
    /// The index's name.
    pub key: String,
    /// The table of its entries.
    pub entries: String,
    /// Rows that have the key of a row whose columns are the parameters: parameter i is the table's column i. It gives
    /// their primary keys, which for an update may be the row's own. A row whose key has a null in it, or that a partial
    /// index leaves out, finds nothing.
    pub rows: QueryPlan,
}

/// What `ON CONFLICT` does, one row at a time: it looks for rows in the way, and then either does to one of these what
/// `update` says, or inserts by [`InsertPlan::row`].
#[derive(Debug)]
pub struct Upsert {
    /// Rows that the new one conflicts with, for each unique key that is named, or that there is. Parameter i is the new
    /// row's column i. They give primary keys, by which `update` finds the row again.
    pub conflicts: Vec<QueryPlan>,
    /// What is done to such a row, with the fields of the insert's `RETURNING`; None for `DO NOTHING`. A
    /// [`Plan::Rewrite`] if it changes the key of a unique global index, and else a [`Plan::Modify`]. It gives no row
    /// where the condition of `DO UPDATE` does not hold; then nothing is done, and the new row is not inserted.
    ///
    /// Its parameters are those of [`InsertPlan::row`], and after them the primary key of the row in the way: the new
    /// row's columns, the hidden column's value (of the new row; it is not used), the client's that
    /// [`InsertPlan::extra`] names, and the key's columns in the order of the table's `primary_key`.
    pub update: Option<Plan>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InsertTarget {
    /// By the hash of the shard key.
    Bucket,
    Tenant,
    /// Every shard; `RETURNING` is taken from one.
    Every,
    Home,
}

#[derive(Debug)]
pub enum InsertRows {
    /// Whole rows in the table's column order, without any column reference.
    Values(Vec<Vec<Expr>>),
    /// A query whose fields are the columns of the table, in order; see also [`InsertPlan::defaults`].
    Query(QueryPlan),
}

/// An update or delete that each shard does by itself.
#[derive(Debug)]
pub struct ModifyPlan {
    pub fragment: Fragment,
    pub target: Target,
    pub touches: Vec<Touch>,
    pub returning: Option<Vec<Field>>,
    /// A reference table's copies all change; the count and `RETURNING` are one copy's.
    pub every: bool,
}

/// An update or delete that no shard can do by itself: it moves rows, or depends on rows of other shards. The rows
/// are read first, under the writers' locks, and then written by key.
#[derive(Debug)]
pub struct RewritePlan {
    pub table: Arc<Table>,
    /// Returns, for each row: its old columns whole, its new columns whole (an update), and the `RETURNING` values.
    /// Each row is there once, also when several rows of FROM match it.
    pub rows: QueryPlan,
    pub kind: RewriteKind,
    /// Deletes by key: parameters are the primary key's columns, then the hidden column's old value.
    pub delete: Fragment,
    /// As in [`InsertPlan`], without conflict and returning.
    pub insert: Fragment,
    /// Updates a row whose primary key stays as it is, and so is where it was: parameters are its new columns whole,
    /// then the primary key's, then the hidden column's value. To delete and insert it would set off what foreign
    /// keys do when a row is deleted. None for a delete, and for a table that is all key.
    pub update: Option<Fragment>,
    pub shard_key: Vec<usize>,
    pub target: InsertTarget,
    pub touches: Vec<Touch>,
    pub returning: Option<Vec<Field>>,
    /// The unique global indexes of the table, for an update, to be asked with a row's new columns.
    pub unique: Vec<UniqueCheck>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RewriteKind {
    Update,
    Delete,
}
