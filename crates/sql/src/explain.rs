//! A plan as text and as JSON: which shards, what runs there, and what becomes of the rows.
//!
//!     Stage
//!       Input stage_1 (k1, p1)
//!         Shards: all of users
//!           SQL (sqlite): SELECT …
//!       SQL (sqlite): SELECT …
//!
//! A plan is first a tree of [`Entry`]s, so both forms say the same. How a fragment is written for an engine, and
//! what came of it when it ran, is for the caller to say ([`Detail`]).

use crate::plan::{
    Fragment, InsertPlan, InsertRows, InsertTarget, KeyExprs, Lookup, MAX_LOOKUP_VALUES, Merge, ModifyPlan, Node, Plan,
    Probe, ProbePart, QueryPlan, RewriteKind, RewritePlan, ShardsNode, StageNode, StageRows, Target, Touch,
    UniqueCheck, Upsert,
};
use crate::tree::{Context, Expr, ExprKind, Field};
use isles_kernel::error::SqlError;
use isles_kernel::names::GroupName;
use isles_kernel::schema::EVERY_TENANT_GROUP;
use isles_kernel::value::Value;
use std::fmt::Write;

/// Rows of an INSERT that are shown; the others are like them.
const SHOWN_ROWS: usize = 2;

/// Where a fragment was executed.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    Shard(String),
    /// For whoever does not see which.
    SomeShard,
    /// It merged what the shards gave, or ran the fragment itself.
    Router,
}

/// What a fragment did in one place, for EXPLAIN ANALYZE.
#[derive(Debug, Clone, PartialEq)]
pub struct Run {
    pub place: Place,
    pub rows: u64,
    pub ms: f64,
}

/// What the caller knows of a fragment.
pub trait Detail {
    /// Its text in each dialect that it is wanted in, with the dialect's name.
    fn texts(&self, fragment: &Fragment) -> Result<Vec<(String, String)>, SqlError>;

    /// Its runs; none unless it has been executed. A fragment is known by where it is in memory.
    fn runs(&self, fragment: &Fragment) -> Vec<Run>;

    /// What an index has found, or why it was not asked; none unless that is known. A probe is known by where it is in
    /// memory.
    fn found(&self, probe: &Probe) -> Vec<Entry> {
        let _ = probe;
        Vec::new()
    }
}

/// One thing that a plan says, and the things below it.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    pub name: String,
    pub value: String,
    /// Rows of what was executed, and milliseconds if they are told.
    pub took: Option<(u64, Option<f64>)>,
    pub below: Vec<Entry>,
}

impl Entry {
    pub fn new(name: impl Into<String>, value: impl Into<String>) -> Entry {
        Entry { name: name.into(), value: value.into(), took: None, below: Vec::new() }
    }

    /// What was executed, with its rows and its time.
    pub fn executed(name: impl Into<String>, rows: u64, ms: f64) -> Entry {
        Entry { took: Some((rows, Some(ms))), ..Entry::new(name, format!("{rows} rows, {ms:.3} ms")) }
    }

    /// The same without how long it took.
    pub fn timeless(self) -> Entry {
        let below = self.below.into_iter().map(Entry::timeless).collect();
        match self.took {
            Some((rows, _)) => Entry { took: Some((rows, None)), value: format!("{rows} rows"), below, ..self },
            None => Entry { below, ..self },
        }
    }

    fn with(mut self, below: Vec<Entry>) -> Entry {
        self.below = below;
        self
    }
}

/// A plan as lines of text.
pub fn text(plan: &Plan, detail: &dyn Detail) -> Result<Vec<String>, SqlError> {
    Ok(entries_text(&entries(plan, detail)?))
}

pub fn entries_text(entries: &[Entry]) -> Vec<String> {
    let mut lines = Vec::new();
    entries.iter().for_each(|entry| write_lines(entry, 0, &mut lines));
    lines
}

fn write_lines(entry: &Entry, depth: usize, lines: &mut Vec<String>) {
    let indent = "  ".repeat(depth);
    lines.push(match entry.value.as_str() {
        "" => format!("{indent}{}", entry.name),
        value => format!("{indent}{}: {value}", entry.name),
    });
    entry.below.iter().for_each(|below| write_lines(below, depth + 1, lines));
}

/// Entries as JSON: a list of objects with `name`, `value`, `below`, and for what was executed `rows` and `ms`.
pub fn entries_json(entries: &[Entry]) -> String {
    let mut out = String::new();
    write_json(entries, &mut out);
    out
}

fn write_json(entries: &[Entry], out: &mut String) {
    out.push('[');
    for (at, entry) in entries.iter().enumerate() {
        if at > 0 {
            out.push_str(", ");
        }
        out.push_str("{\"name\": ");
        write_string(&entry.name, out);
        match entry.took {
            Some((rows, ms)) => {
                // Writing to a string does not fail.
                let _ = write!(out, ", \"rows\": {rows}");
                let _ = ms.map(|ms| write!(out, ", \"ms\": {ms:.3}"));
            }
            None if !entry.value.is_empty() => {
                out.push_str(", \"value\": ");
                write_string(&entry.value, out);
            }
            None => {}
        }
        if !entry.below.is_empty() {
            out.push_str(", \"below\": ");
            write_json(&entry.below, out);
        }
        out.push('}');
    }
    out.push(']');
}

fn write_string(text: &str, out: &mut String) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            c if (c as u32) < 0x20 => {
                // Writing to a string does not fail.
                let _ = write!(out, "\\u{:04x}", c as u32);
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

/// What a plan says, in order.
pub fn entries(plan: &Plan, detail: &dyn Detail) -> Result<Vec<Entry>, SqlError> {
    match plan {
        Plan::Query(plan) => query(plan, detail),
        Plan::Insert(plan) => insert(plan, detail),
        Plan::Modify(plan) => modify(plan, detail),
        Plan::Rewrite(plan) => rewrite(plan, detail),
    }
}

fn query(plan: &QueryPlan, detail: &dyn Detail) -> Result<Vec<Entry>, SqlError> {
    let lock = plan.locks.then(|| Entry::new("Locks", "rows"));
    Ok(lock.into_iter().chain([node(&plan.root, detail)?]).collect())
}

fn node(node: &Node, detail: &dyn Detail) -> Result<Entry, SqlError> {
    match node {
        Node::Shards(node) => shards(node, detail),
        Node::Stage(node) => stage(node, detail),
    }
}

fn shards(node: &ShardsNode, detail: &dyn Detail) -> Result<Entry, SqlError> {
    let mut below = probes(&node.target, detail);
    below.extend(fragment(&node.fragment, detail)?);
    if let Merge::Ordered(keys) = &node.merge {
        let key = |key: &crate::plan::MergeKey| {
            let direction = if key.descending { " desc" } else { "" };
            let nulls = if key.nulls_first { " nulls first" } else { " nulls last" };
            format!("{}{direction}{nulls}", key.column + 1)
        };
        below.push(Entry::new("Merge", list(keys.iter().map(key))));
    }
    if let Some(limit) = &node.limit {
        below.push(Entry::new("Limit", value_text(limit)));
    }
    if let Some(offset) = &node.offset {
        below.push(Entry::new("Offset", value_text(offset)));
    }
    if node.visible < node.fragment.fields.len() {
        below.push(Entry::new("Visible", format!("{} of {} columns", node.visible, node.fragment.fields.len())));
    }
    if node.must_run {
        below.push(Entry::new("Must run", ""));
    }
    Ok(Entry::new("Shards", target_text(&node.target, &node.touches)).with(below))
}

fn stage(stage: &StageNode, detail: &dyn Detail) -> Result<Entry, SqlError> {
    let mut below = Vec::new();
    for input in &stage.inputs {
        let entry = Entry::new(format!("Input {} ({})", input.name, names(&input.columns)), "");
        below.push(match &input.rows {
            StageRows::Node(inner) => entry.with(vec![node(inner, detail)?]),
            StageRows::Lookup(lookup) => entry.with(self::lookup(stage, lookup, detail)?),
            StageRows::System(name) => entry.with(vec![Entry::new("System", name)]),
        });
    }
    below.extend(fragment(&stage.query, detail)?);
    Ok(Entry::new("Stage", "").with(below))
}

/// What is read by the values of an input, and what is where these are too many.
fn lookup(stage: &StageNode, lookup: &Lookup, detail: &dyn Detail) -> Result<Vec<Entry>, SqlError> {
    let input = stage.inputs.iter().find(|input| input.name == lookup.input);
    let column = input.and_then(|input| input.columns.get(lookup.column)).map_or("", |field| &field.name);
    let values = format!("${} are the values of {}.{column}", lookup.param + 1, lookup.input);
    let some = Entry::new("Lookup", values).with(vec![shards(&lookup.some, detail)?]);
    let all =
        Entry::new(format!("For more than {MAX_LOOKUP_VALUES} values"), "").with(vec![node(&lookup.all, detail)?]);
    Ok(vec![some, all])
}

fn fragment(fragment: &Fragment, detail: &dyn Detail) -> Result<Vec<Entry>, SqlError> {
    let text = |(dialect, sql): (String, String)| match dialect.as_str() {
        "" => Entry::new("SQL", sql),
        dialect => Entry::new(format!("SQL ({dialect})"), sql),
    };
    let mut entries: Vec<Entry> = detail.texts(fragment)?.into_iter().map(text).collect();
    let run = |run: Run| {
        let place = match run.place {
            Place::Router => "Router".to_string(),
            Place::Shard(shard) => format!("Shard {shard}"),
            Place::SomeShard => "Shard".to_string(),
        };
        Entry::executed(place, run.rows, run.ms)
    };
    entries.extend(detail.runs(fragment).into_iter().map(run));
    Ok(entries)
}

fn insert(plan: &InsertPlan, detail: &dyn Detail) -> Result<Vec<Entry>, SqlError> {
    let mut below = match &plan.rows {
        InsertRows::Values(rows) => {
            let row = |row: &Vec<Expr>| Entry::new("Row", list(row.iter().map(value_text)));
            vec![Entry::new("Rows", rows.len().to_string()).with(rows.iter().take(SHOWN_ROWS).map(row).collect())]
        }
        InsertRows::Query(rows) => vec![Entry::new("Rows", "").with(query(rows, detail)?)],
    };
    if !plan.defaults.is_empty() {
        below.push(Entry::new("Computed", list(plan.defaults.iter().map(|(at, _)| column_name(plan, *at)))));
    }
    if !plan.extra.is_empty() {
        below.push(Entry::new("Parameters", list(plan.extra.iter().map(|(param, _)| format!("${}", param + 1)))));
    }
    if let Some(key) = &plan.conflict_key {
        below.push(Entry::new("Conflict", list(key.iter().map(|at| column_name(plan, *at)))));
    }
    below.extend(fragment(&plan.row, detail)?);
    below.extend(unique(&plan.unique, detail)?);
    if let Some(plan) = &plan.upsert {
        below.extend(upsert(plan, detail)?);
    }
    Ok(vec![Entry::new(format!("Insert on {}", plan.table.name), insert_target(plan.target)).with(below)])
}

fn column_name(plan: &InsertPlan, at: usize) -> String {
    plan.table.columns.get(at).map_or_else(|| at.to_string(), |column| column.name.clone())
}

fn insert_target(target: InsertTarget) -> &'static str {
    match target {
        InsertTarget::Bucket => "the shard of each row's key",
        InsertTarget::Tenant => "the tenant's shard",
        InsertTarget::Every => "every shard",
        InsertTarget::Home => "home",
    }
}

fn modify(plan: &ModifyPlan, detail: &dyn Detail) -> Result<Vec<Entry>, SqlError> {
    let entry = Entry::new("Modify", target_text(&plan.target, &plan.touches));
    let mut below = probes(&plan.target, detail);
    below.extend(fragment(&plan.fragment, detail)?);
    Ok(vec![entry.with(below)])
}

fn rewrite(plan: &RewritePlan, detail: &dyn Detail) -> Result<Vec<Entry>, SqlError> {
    let kind = match plan.kind {
        RewriteKind::Update => "Rewrite (update)",
        RewriteKind::Delete => "Rewrite (delete)",
    };
    let mut below = vec![Entry::new("Rows", "").with(query(&plan.rows, detail)?)];
    below.push(Entry::new("Delete", "").with(fragment(&plan.delete, detail)?));
    if let Some(update) = &plan.update {
        below.push(Entry::new("Update", "").with(fragment(update, detail)?));
    }
    if plan.kind == RewriteKind::Update {
        below.push(Entry::new("Insert", insert_target(plan.target)).with(fragment(&plan.insert, detail)?));
    }
    below.extend(unique(&plan.unique, detail)?);
    Ok(vec![Entry::new(kind, plan.table.name.clone()).with(below)])
}

/// What is looked for in place of `ON CONFLICT`, and what is done to it.
fn upsert(plan: &Upsert, detail: &dyn Detail) -> Result<Vec<Entry>, SqlError> {
    let conflict = |conflict: &QueryPlan| Ok(Entry::new("On conflict with", "").with(query(conflict, detail)?));
    let mut below = plan.conflicts.iter().map(conflict).collect::<Result<Vec<_>, SqlError>>()?;
    below.push(match &plan.update {
        Some(update) => Entry::new("Do", "").with(entries(update, detail)?),
        None => Entry::new("Do", "nothing"),
    });
    Ok(below)
}

/// What is looked for before a row is written.
fn unique(checks: &[UniqueCheck], detail: &dyn Detail) -> Result<Vec<Entry>, SqlError> {
    checks.iter().map(|check| Ok(Entry::new("Unique", &check.key).with(query(&check.rows, detail)?))).collect()
}

fn target_text(target: &Target, touches: &[Touch]) -> String {
    match target {
        Target::Any => "any".into(),
        Target::First => "first".into(),
        Target::Home => "home".into(),
        Target::All => format!("all of {}", list(touches.iter().filter_map(group_name))),
        Target::Every => "every".into(),
        Target::Tenant => "the tenant's".into(),
        Target::Nowhere => "none".into(),
        Target::Keys { group, keys } => {
            let group = group_text(group);
            match keys.as_slice() {
                [KeyExprs::Row(key)] => format!("1 of {group}, key {}", list(key.iter().map(value_text))),
                [KeyExprs::Elements(array)] => format!("some of {group}, keys in {}", value_text(array)),
                keys => format!("some of {group}, keys {}", list(keys.iter().map(key_text))),
            }
        }
        Target::Index(target) => format!("some of {}, by index", group_text(&target.group)),
    }
}

/// The group of all tenants has a name that nobody gave it.
fn group_text(group: &GroupName) -> &str {
    if group.as_str() == EVERY_TENANT_GROUP { "all tenants" } else { group.as_str() }
}

/// The indexes that say which shards.
fn probes(target: &Target, detail: &dyn Detail) -> Vec<Entry> {
    let Target::Index(target) = target else { return Vec::new() };
    let entry = |probe: &Probe| Entry::new("Index", probe_text(probe)).with(detail.found(probe));
    target.any.iter().map(entry).collect()
}

/// `users_city_age (city = 'Bonn', age > 30)`.
fn probe_text(probe: &Probe) -> String {
    let part = |(name, part): (&String, &ProbePart)| match part {
        ProbePart::Null => format!("{name} is null"),
        ProbePart::Values(values) => match values.as_slice() {
            [value] => format!("{name} = {}", value_text(value)),
            values => format!("{name} in ({})", list(values.iter().map(value_text))),
        },
        ProbePart::Elements(array) => format!("{name} in {}", value_text(array)),
    };
    let mut parts: Vec<String> = probe.over.iter().zip(&probe.equal).map(part).collect();
    if let (Some(range), Some(name)) = (&probe.range, probe.over.get(probe.equal.len())) {
        let bound = |sign: &str, bound: &Option<(Expr, bool)>| {
            let equal = |inclusive: bool| if inclusive { "=" } else { "" };
            bound.as_ref().map(|(value, inclusive)| format!("{name} {sign}{} {}", equal(*inclusive), value_text(value)))
        };
        parts.extend(bound(">", &range.low));
        parts.extend(bound("<", &range.high));
    }
    format!("{} ({})", probe.key, parts.join(", "))
}

fn key_text(key: &KeyExprs) -> String {
    match key {
        KeyExprs::Row(key) if key.len() == 1 => list(key.iter().map(value_text)),
        KeyExprs::Row(key) => format!("({})", list(key.iter().map(value_text))),
        KeyExprs::Elements(array) => format!("in {}", value_text(array)),
    }
}

fn group_name(touch: &Touch) -> Option<String> {
    match touch {
        Touch::Group(group) => Some(group_text(group).to_string()),
        Touch::Tenant | Touch::Shared | Touch::Global => None,
    }
}

/// An expression that has a value before rows are read, shortly.
fn value_text(expr: &Expr) -> String {
    match &expr.kind {
        ExprKind::Const(Value::Null) => "NULL".into(),
        ExprKind::Const(Value::Bool(b)) => b.to_string(),
        ExprKind::Const(Value::Int(n)) => n.to_string(),
        ExprKind::Const(Value::Float(x)) => x.to_string(),
        ExprKind::Const(Value::Numeric(n)) => n.to_string(),
        ExprKind::Const(Value::Text(text) | Value::Json(text)) => format!("'{}'", text.replace('\'', "''")),
        ExprKind::Const(other) => format!("{other:?}"),
        ExprKind::Param(at) => format!("${}", at + 1),
        ExprKind::Context(Context::Tenant) => "the tenant".into(),
        ExprKind::Context(context) => format!("{context:?}"),
        ExprKind::Cast { arg, .. } => value_text(arg),
        ExprKind::Call { display: crate::tree::Display::Operator(operator), args, .. } => {
            let args: Vec<String> = args.iter().map(value_text).collect();
            match args.as_slice() {
                [arg] => format!("{operator}{arg}"),
                args => args.join(&format!(" {operator} ")),
            }
        }
        ExprKind::Call { display: crate::tree::Display::Function(name), args, .. } => {
            format!("{name}({})", list(args.iter().map(value_text)))
        }
        ExprKind::Array(values) => format!("{{{}}}", list(values.iter().map(value_text))),
        _ => "…".into(),
    }
}

fn names(fields: &[Field]) -> String {
    list(fields.iter().map(|field| field.name.clone()))
}

fn list(items: impl Iterator<Item = String>) -> String {
    items.collect::<Vec<_>>().join(", ")
}
