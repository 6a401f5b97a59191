//! Writes a bound tree as one line of SQL, near enough to read. Relations are called by their numbers, so that a
//! misplaced column shows.

use isles_kernel::value::Value;
use isles_sql::builtins::format_type;
use isles_sql::tree::*;
use std::collections::HashMap;

pub(crate) fn statement(statement: &Statement) -> String {
    let mut sketch = Sketch::default();
    match statement {
        Statement::Query(query) => sketch.query(query),
        Statement::Insert(insert) => sketch.insert(insert),
        Statement::Update(update) => sketch.update(update),
        Statement::Delete(delete) => sketch.delete(delete),
    }
}

#[derive(Default)]
struct Sketch {
    columns: HashMap<RelId, Vec<String>>,
    ctes: HashMap<CteId, String>,
}

fn list(items: impl IntoIterator<Item = String>) -> String {
    items.into_iter().collect::<Vec<_>>().join(", ")
}

fn clause(word: &str, text: Option<String>) -> String {
    text.map_or(String::new(), |text| format!(" {word} {text}"))
}

fn alias(rel: RelId) -> String {
    format!("r{}", rel.0)
}

impl Sketch {
    fn query(&mut self, query: &Query) -> String {
        let with = self.with(&query.ctes);
        let body = match &query.body {
            Body::Select(select) => self.select(select),
            Body::Values(rows) => {
                let rows: Vec<String> = rows.iter().map(|row| format!("({})", self.exprs(row))).collect();
                format!("VALUES {}", list(rows))
            }
            Body::SetOp { op, all, left, right } => {
                let op = format!("{op:?}").to_uppercase();
                let all = if *all { " ALL" } else { "" };
                format!("({}) {op}{all} ({})", self.query(left), self.query(right))
            }
        };
        let order = |order: &OrderBy| {
            let OrderKey::Output(at) = order.key;
            let direction = if order.descending { " DESC" } else { "" };
            let nulls = if order.nulls_first { " NULLS FIRST" } else { "" };
            format!("{}{direction}{nulls}", at + 1)
        };
        let orders = (!query.order_by.is_empty()).then(|| list(query.order_by.iter().map(order)));
        let order = clause("ORDER BY", orders);
        let limit = clause(
            if query.with_ties { "LIMIT WITH TIES" } else { "LIMIT" },
            query.limit.as_ref().map(|e| self.expr(e)),
        );
        let offset = clause("OFFSET", query.offset.as_ref().map(|e| self.expr(e)));
        let lock = clause("FOR", query.lock.as_ref().map(|lock| format!("{:?}", lock.strength).to_uppercase()));
        format!("{with}{body}{order}{limit}{offset}{lock}")
    }

    fn with(&mut self, ctes: &[Cte]) -> String {
        let mut parts = Vec::new();
        for cte in ctes {
            self.ctes.insert(cte.id, cte.name.clone());
            parts.push(match &cte.body {
                CteBody::Query(query) => format!("{} AS ({})", cte.name, self.query(query)),
                CteBody::Recursive { start, step, all } => {
                    let union = if *all { "UNION ALL" } else { "UNION" };
                    format!("{} AS RECURSIVE ({} {union} {})", cte.name, self.query(start), self.query(step))
                }
                CteBody::Write(_) => "a write".into(),
            });
        }
        if parts.is_empty() { String::new() } else { format!("WITH {} ", list(parts)) }
    }

    fn select(&mut self, select: &Select) -> String {
        let from: Vec<String> = select.from.iter().map(|from| self.from(from)).collect();
        let from = clause("FROM", (!from.is_empty()).then(|| list(from)));
        let distinct = match &select.distinct {
            Distinct::No => String::new(),
            Distinct::All => "DISTINCT ".into(),
            Distinct::On(exprs) => format!("DISTINCT ON ({}) ", self.exprs(exprs)),
        };
        let filter = clause("WHERE", select.filter.as_ref().map(|e| self.expr(e)));
        let group = match &select.group_by {
            GroupBy::None => String::new(),
            GroupBy::Keys(keys) => format!(" GROUP BY ({})", self.exprs(keys)),
            GroupBy::Sets { keys, sets } => format!(" GROUP BY ({}) SETS {sets:?}", self.exprs(keys)),
        };
        let having = clause("HAVING", select.having.as_ref().map(|e| self.expr(e)));
        format!("SELECT {distinct}{}{from}{filter}{group}{having}", self.exprs(&select.targets))
    }

    fn from(&mut self, from: &From) -> String {
        match from {
            From::Relation(relation) => self.relation(relation),
            From::Subquery { rel, query, lateral } => {
                let lateral = if *lateral { "LATERAL " } else { "" };
                let text = self.query(query);
                self.name(*rel, query.columns.iter().map(|c| c.name.clone()));
                format!("{lateral}({text}) {}", alias(*rel))
            }
            From::Cte { rel, cte, columns } => {
                self.name(*rel, columns.iter().map(|c| c.name.clone()));
                format!("{} {}", self.ctes.get(cte).cloned().unwrap_or("?".into()), alias(*rel))
            }
            From::Function(function) => {
                let call = self.expr(&function.call);
                self.name(function.rel, function.columns.iter().map(|c| c.name.clone()));
                format!("{call} {}", alias(function.rel))
            }
            From::Join(join) => {
                let (left, right) = (self.from(&join.left), self.from(&join.right));
                let kind = format!("{:?}", join.kind).to_uppercase();
                let on = clause("ON", join.on.as_ref().map(|e| self.expr(e)));
                format!("({left} {kind} JOIN {right}{on})")
            }
        }
    }

    fn relation(&mut self, relation: &RelationRef) -> String {
        self.name(relation.rel, relation.relation.columns.iter().map(|c| c.name.clone()));
        format!("{} {}", relation.relation.name, alias(relation.rel))
    }

    fn name(&mut self, rel: RelId, columns: impl Iterator<Item = String>) {
        self.columns.insert(rel, columns.collect());
    }

    fn insert(&mut self, insert: &Insert) -> String {
        let with = self.with(&insert.ctes);
        let target = self.relation(&insert.target);
        let source = match &insert.source {
            InsertSource::Values(rows) => {
                let rows = rows.iter().map(|row| {
                    let row = row.iter().map(|e| e.as_ref().map_or("DEFAULT".into(), |e| self.expr(e)));
                    format!("({})", list(row.collect::<Vec<_>>()))
                });
                format!("VALUES {}", list(rows.collect::<Vec<_>>()))
            }
            InsertSource::Query(query) => self.query(query),
            InsertSource::Defaults => "DEFAULT VALUES".into(),
        };
        let conflict = insert.conflict.as_ref().map_or(String::new(), |conflict| self.conflict(insert, conflict));
        let returning = self.returning(&insert.returning);
        format!("{with}INSERT INTO {target} {source}{conflict}{returning}")
    }

    fn conflict(&mut self, insert: &Insert, conflict: &Conflict) -> String {
        let target = conflict.target.as_ref().map_or(String::new(), |names| format!(" ({})", names.join(", ")));
        match &conflict.action {
            ConflictAction::Nothing => format!(" ON CONFLICT{target} DO NOTHING"),
            ConflictAction::Update { excluded, assignments, filter } => {
                self.name(*excluded, insert.target.relation.columns.iter().map(|c| c.name.clone()));
                let set = self.assignments(&insert.target, assignments);
                let filter = clause("WHERE", filter.as_ref().map(|e| self.expr(e)));
                format!(" ON CONFLICT{target} DO UPDATE SET {set}{filter}")
            }
        }
    }

    fn assignments(&mut self, target: &RelationRef, assignments: &[Assignment]) -> String {
        let set = |a: &Assignment| format!("{} = {}", target.relation.columns[a.column].name, self.expr(&a.value));
        list(assignments.iter().map(set).collect::<Vec<_>>())
    }

    fn returning(&mut self, returning: &Option<Returning>) -> String {
        clause("RETURNING", returning.as_ref().map(|returning| self.exprs(&returning.targets)))
    }

    fn update(&mut self, update: &Update) -> String {
        let with = self.with(&update.ctes);
        let target = self.relation(&update.target);
        let from: Vec<String> = update.from.iter().map(|from| self.from(from)).collect();
        let from = clause("FROM", (!from.is_empty()).then(|| list(from)));
        let set = self.assignments(&update.target, &update.assignments);
        let filter = clause("WHERE", update.filter.as_ref().map(|e| self.expr(e)));
        format!("{with}UPDATE {target} SET {set}{from}{filter}{}", self.returning(&update.returning))
    }

    fn delete(&mut self, delete: &Delete) -> String {
        let with = self.with(&delete.ctes);
        let target = self.relation(&delete.target);
        let using: Vec<String> = delete.using.iter().map(|from| self.from(from)).collect();
        let using = clause("USING", (!using.is_empty()).then(|| list(using)));
        let filter = clause("WHERE", delete.filter.as_ref().map(|e| self.expr(e)));
        format!("{with}DELETE FROM {target}{using}{filter}{}", self.returning(&delete.returning))
    }

    fn exprs(&mut self, exprs: &[Expr]) -> String {
        list(exprs.iter().map(|expr| self.expr(expr)).collect::<Vec<_>>())
    }

    fn joined(&mut self, exprs: &[Expr], word: &str) -> String {
        let parts: Vec<String> = exprs.iter().map(|expr| self.expr(expr)).collect();
        format!("({})", parts.join(&format!(" {word} ")))
    }

    fn expr(&mut self, expr: &Expr) -> String {
        match &expr.kind {
            ExprKind::Const(value) => constant(value),
            ExprKind::Param(at) => format!("${}", at + 1),
            ExprKind::Context(context) => format!("<{context:?}>"),
            ExprKind::Column { rel, column } => {
                let name = self.columns.get(rel).and_then(|columns| columns.get(*column));
                format!("{}.{}", alias(*rel), name.map_or("???", String::as_str))
            }
            ExprKind::Hidden { rel, column } => format!("{}.{column}", alias(*rel)),
            ExprKind::Owned { group, bucket } => format!("<owned of {group}>({})", self.expr(bucket)),
            ExprKind::Call { display: Display::Operator(operator), args, .. } => match args.as_slice() {
                [arg] => format!("({operator} {})", self.expr(arg)),
                args => self.joined(args, operator),
            },
            ExprKind::Call { display: Display::Function(name), args, .. } => format!("{name}({})", self.exprs(args)),
            ExprKind::Cast { arg, .. } => format!("{}::{}", self.expr(arg), format_type(expr.ty)),
            ExprKind::And(parts) => self.joined(parts, "AND"),
            ExprKind::Or(parts) => self.joined(parts, "OR"),
            ExprKind::Not(arg) => format!("NOT {}", self.expr(arg)),
            ExprKind::IsNull { arg, negated } => {
                format!("{} IS {}NULL", self.expr(arg), if *negated { "NOT " } else { "" })
            }
            ExprKind::IsBool { arg, value, negated } => {
                format!("{} IS {}{value:?}", self.expr(arg), if *negated { "NOT " } else { "" })
            }
            ExprKind::IsDistinct { left, right, .. } => {
                format!("({} IS DISTINCT FROM {})", self.expr(left), self.expr(right))
            }
            ExprKind::Case { arms, otherwise } => {
                let mut out = "CASE".to_string();
                for (when, then) in arms {
                    out += &format!(" WHEN {} THEN {}", self.expr(when), self.expr(then));
                }
                out + &clause("ELSE", otherwise.as_ref().map(|e| self.expr(e))) + " END"
            }
            ExprKind::Coalesce(args) => format!("coalesce({})", self.exprs(args)),
            ExprKind::Extreme { greatest, args } => {
                format!("{}({})", if *greatest { "greatest" } else { "least" }, self.exprs(args))
            }
            ExprKind::NullIf { left, right, .. } => format!("nullif({}, {})", self.expr(left), self.expr(right)),
            ExprKind::InList { arg, list, negated, .. } => {
                format!("{} {}IN ({})", self.expr(arg), if *negated { "NOT " } else { "" }, self.exprs(list))
            }
            ExprKind::OverArray { quantifier, operator, left, array, .. } => {
                format!("({} {operator} {quantifier:?} ({}))", self.expr(left), self.expr(array))
            }
            ExprKind::Subquery(subquery) => self.subquery(subquery),
            ExprKind::Array(args) => format!("ARRAY[{}]", self.exprs(args)),
            ExprKind::Subscript { array, index } => format!("{}[{}]", self.expr(array), self.exprs(index)),
            ExprKind::Slice { array, .. } => format!("{}[:]", self.expr(array)),
            ExprKind::Row(args) => format!("ROW({})", self.exprs(args)),
            ExprKind::Aggregate(call) => self.aggregate(call),
            ExprKind::Window(call) => {
                let partition = self.exprs(&call.partition_by);
                let order = list(call.order_by.iter().map(|sort| self.expr(&sort.expr)).collect::<Vec<_>>());
                format!("{}({}) OVER (PARTITION {partition} ORDER {order})", call.name, self.exprs(&call.args))
            }
            ExprKind::Grouping(at) => format!("grouping{at:?}"),
        }
    }

    fn aggregate(&mut self, call: &Aggregate) -> String {
        let distinct = if call.distinct { "DISTINCT " } else { "" };
        let order = list(call.order_by.iter().map(|sort| self.expr(&sort.expr)).collect::<Vec<_>>());
        let order = clause("ORDER BY", (!order.is_empty()).then_some(order));
        let filter = clause("FILTER", call.filter.as_ref().map(|e| self.expr(e)));
        format!("{}({distinct}{}{order}){filter}", call.name, self.exprs(&call.args))
    }

    fn subquery(&mut self, subquery: &Subquery) -> String {
        let text = self.query(&subquery.query);
        match &subquery.kind {
            SubqueryKind::Scalar => format!("({text})"),
            SubqueryKind::Exists { negated } => format!("{}EXISTS ({text})", if *negated { "NOT " } else { "" }),
            SubqueryKind::In { left, negated, .. } => {
                format!("({}) {}IN ({text})", self.exprs(left), if *negated { "NOT " } else { "" })
            }
            SubqueryKind::Quantified { quantifier, left, operator, .. } => {
                format!("{} {operator} {quantifier:?} ({text})", self.expr(left))
            }
            SubqueryKind::Array => format!("ARRAY({text})"),
        }
    }
}

fn constant(value: &Value) -> String {
    match value {
        Value::Null => "NULL".into(),
        Value::Bool(b) => b.to_string(),
        Value::Int(n) => n.to_string(),
        Value::Numeric(n) => n.to_string(),
        Value::Text(text) => format!("'{text}'"),
        other => format!("{other:?}"),
    }
}
