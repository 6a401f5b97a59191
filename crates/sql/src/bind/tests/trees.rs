//! Trees in a compact form, statements of clients, and depth.

use super::super::MAX_DEPTH;
use super::{bound, bound_in, schema};
use crate::bind::BoundStatement;
use crate::parse;
use crate::tree::*;
use isles_kernel::value::Value;

/// The bound tree of a statement on one line: `#n` is a relation, `#n.k` a column of it, `f@oid` a call.
fn shown(sql: &str) -> String {
    match bound(sql).unwrap_or_else(|error| panic!("{sql}: {error}")).statement {
        BoundStatement::Rows(statement) => show_statement(&statement),
        other => format!("{other:?}"),
    }
}

fn show_statement(statement: &Statement) -> String {
    match statement {
        Statement::Query(query) => show_query(query),
        Statement::Insert(insert) => show_insert(insert),
        Statement::Update(update) => {
            let set: Vec<String> = update.assignments.iter().map(show_assignment).collect();
            format!(
                "update {}#{} set {}{}{}{}",
                update.target.relation.name,
                update.target.rel.0,
                set.join(", "),
                show_from(" from ", &update.from),
                optional(" where ", &update.filter),
                show_returning(&update.returning),
            )
        }
        Statement::Delete(delete) => format!(
            "delete {}#{}{}{}{}",
            delete.target.relation.name,
            delete.target.rel.0,
            show_from(" using ", &delete.using),
            optional(" where ", &delete.filter),
            show_returning(&delete.returning),
        ),
    }
}

fn show_insert(insert: &Insert) -> String {
    let column = |column: &InsertColumn| match column {
        InsertColumn::Source { at, .. } => format!("${at}"),
        InsertColumn::Default(expr) => show(expr),
    };
    let columns: Vec<String> = insert.columns.iter().map(column).collect();
    let source = match &insert.source {
        InsertSource::Defaults => "defaults".to_string(),
        InsertSource::Query(query) => show_query(query),
        InsertSource::Values(rows) => {
            let row = |row: &Vec<Option<Expr>>| format!("({})", list(row.iter().flatten()));
            format!("values {}", rows.iter().map(row).collect::<Vec<_>>().join(", "))
        }
    };
    let conflict = match &insert.conflict {
        None => String::new(),
        Some(conflict) => {
            let target = conflict.target.as_ref().map(|t| format!("({}) ", t.join(", "))).unwrap_or_default();
            let action = match &conflict.action {
                ConflictAction::Nothing => "nothing".to_string(),
                ConflictAction::Update { excluded, assignments, filter } => {
                    let set: Vec<String> = assignments.iter().map(show_assignment).collect();
                    format!("update excluded#{} set {}{}", excluded.0, set.join(", "), optional(" where ", filter))
                }
            };
            format!(" on conflict {target}{action}")
        }
    };
    let (name, rel) = (&insert.target.relation.name, insert.target.rel.0);
    format!("insert {name}#{rel} [{}] {source}{conflict}{}", columns.join(", "), show_returning(&insert.returning))
}

fn show_assignment(assignment: &Assignment) -> String {
    format!("{} = {}", assignment.column, show(&assignment.value))
}

fn show_returning(returning: &Option<Returning>) -> String {
    returning.as_ref().map(|r| format!(" returning {}", list(&r.targets))).unwrap_or_default()
}

fn list<'e>(exprs: impl IntoIterator<Item = &'e Expr>) -> String {
    exprs.into_iter().map(show).collect::<Vec<_>>().join(", ")
}

fn optional(before: &str, expr: &Option<Expr>) -> String {
    expr.as_ref().map(|expr| format!("{before}{}", show(expr))).unwrap_or_default()
}

fn show_from(before: &str, from: &[From]) -> String {
    match from {
        [] => String::new(),
        items => format!("{before}{}", items.iter().map(show_item).collect::<Vec<_>>().join(", ")),
    }
}

fn show_item(item: &From) -> String {
    match item {
        From::Relation(relation) => format!("{}#{}", relation.relation.name, relation.rel.0),
        From::Subquery { rel, query, lateral } => {
            format!("{}({})#{}", if *lateral { "lateral " } else { "" }, show_query(query), rel.0)
        }
        From::Cte { rel, cte, .. } => format!("cte{}#{}", cte.0, rel.0),
        From::Function(function) => format!("{}#{}", show(&function.call), function.rel.0),
        From::Join(join) => {
            let kind = format!("{:?}", join.kind).to_lowercase();
            format!("({} {kind} join {}{})", show_item(&join.left), show_item(&join.right), optional(" on ", &join.on))
        }
    }
}

fn show_query(query: &Query) -> String {
    let mut out = String::new();
    for cte in &query.ctes {
        let body = match &cte.body {
            CteBody::Query(query) => show_query(query),
            CteBody::Recursive { start, step, .. } => format!("{} then {}", show_query(start), show_query(step)),
            CteBody::Write(statement) => show_statement(statement),
        };
        out += &format!("with cte{} = ({body}) ", cte.id.0);
    }
    out += &match &query.body {
        Body::Select(select) => show_select(select),
        Body::Values(rows) => {
            let rows: Vec<String> = rows.iter().map(|row| format!("({})", list(row))).collect();
            format!("values {}", rows.join(", "))
        }
        Body::SetOp { op, all, left, right } => {
            let all = if *all { " all" } else { "" };
            format!("({}) {}{all} ({})", show_query(left), format!("{op:?}").to_lowercase(), show_query(right))
        }
    };
    let order = |order: &OrderBy| {
        let OrderKey::Output(at) = order.key;
        format!("{at}{}", if order.descending { " desc" } else { "" })
    };
    if !query.order_by.is_empty() {
        out += &format!(" order by {}", query.order_by.iter().map(order).collect::<Vec<_>>().join(", "));
    }
    out + &optional(" limit ", &query.limit) + &optional(" offset ", &query.offset)
}

fn show_select(select: &Select) -> String {
    let group = match &select.group_by {
        GroupBy::None => String::new(),
        GroupBy::Keys(keys) => format!(" group by ({})", list(keys)),
        GroupBy::Sets { keys, sets } => format!(" group by ({}) {sets:?}", list(keys)),
    };
    let distinct = match &select.distinct {
        Distinct::No => String::new(),
        Distinct::All => "distinct ".to_string(),
        Distinct::On(keys) => format!("distinct on ({}) ", list(keys)),
    };
    let (targets, from) = (list(&select.targets), show_from(" from ", &select.from));
    let (filter, having) = (optional(" where ", &select.filter), optional(" having ", &select.having));
    format!("select {distinct}{targets}{from}{filter}{group}{having}")
}

fn show(expr: &Expr) -> String {
    let negation = |negated: bool| if negated { "not " } else { "" };
    match &expr.kind {
        ExprKind::Const(Value::Text(text)) => format!("'{text}'"),
        ExprKind::Const(Value::Int(n)) => n.to_string(),
        ExprKind::Const(Value::Bool(b)) => b.to_string(),
        ExprKind::Const(Value::Null) => "null".into(),
        ExprKind::Const(Value::Numeric(n)) => format!("{n}n"),
        ExprKind::Const(value) => format!("{value:?}"),
        ExprKind::Param(at) => format!("${}", at + 1),
        ExprKind::Column { rel, column } => format!("#{}.{column}", rel.0),
        ExprKind::Call { function, display: Display::Operator(name), args } => match args.as_slice() {
            [left, right] => format!("({} {name}@{} {})", show(left), function.0, show(right)),
            args => format!("({name}@{} {})", function.0, list(args)),
        },
        ExprKind::Call { function, display: Display::Function(name), args } => {
            format!("{name}@{}({})", function.0, list(args))
        }
        ExprKind::Cast { arg, how } => {
            let how = match how {
                CastHow::Function(oid) => format!("@{}", oid.0),
                CastHow::Relabel => "~".into(),
                CastHow::InOut => "io".into(),
                CastHow::Modifier { explicit } => if *explicit { "mod!" } else { "mod" }.into(),
            };
            format!("{}::{}{how}", show(arg), crate::builtins::format_type(expr.ty))
        }
        ExprKind::And(args) => format!("and({})", list(args)),
        ExprKind::Or(args) => format!("or({})", list(args)),
        ExprKind::Not(arg) => format!("not({})", show(arg)),
        ExprKind::IsNull { arg, negated } => format!("({} is {}null)", show(arg), negation(*negated)),
        ExprKind::InList { arg, list: items, equal, negated } => {
            format!("({} {}in@{} ({}))", show(arg), negation(*negated), equal.0, list(items))
        }
        ExprKind::Case { arms, otherwise } => {
            let arms: Vec<String> = arms.iter().map(|(c, r)| format!("{} => {}", show(c), show(r))).collect();
            format!("case({}{})", arms.join(", "), optional(" else ", &otherwise.as_deref().cloned()))
        }
        ExprKind::Subquery(subquery) => {
            let query = show_query(&subquery.query);
            match &subquery.kind {
                SubqueryKind::Scalar => format!("({query})"),
                SubqueryKind::Exists { negated } => format!("{}exists({query})", negation(*negated)),
                SubqueryKind::In { left, negated, .. } => {
                    format!("({}) {}in ({query})", list(left), negation(*negated))
                }
                other => format!("{other:?}({query})"),
            }
        }
        ExprKind::Aggregate(aggregate) => {
            format!("{}@{}({})", aggregate.name, aggregate.function.0, list(&aggregate.args))
        }
        ExprKind::Subscript { array, index } => format!("{}[{}]", show(array), list(index)),
        ExprKind::Array(items) => format!("array[{}]", list(items)),
        ExprKind::Extreme { greatest, args } => {
            format!("{}({})", if *greatest { "greatest" } else { "least" }, list(args))
        }
        other => format!("{other:?}"),
    }
}

fn check(cases: &[(&str, &str)]) {
    for (sql, tree) in cases {
        assert_eq!(shown(sql), *tree, "{sql}");
    }
}

/// The statements that a parser of another database changed silently: nothing of them is lost here.
#[test]
fn nothing_of_a_statement_is_dropped() {
    check(&[
        ("DELETE FROM t WHERE a NOT IN (1,2)", "delete t#0 where (#0.0 not in@65 (1, 2))"),
        ("DELETE FROM t WHERE b NOT LIKE 'a%'", "delete t#0 where (#0.1 !~~@851 'a%')"),
        ("UPDATE t SET c = c - 10 WHERE a = 1", "update t#0 set 2 = (#0.2 -@181 10) where (#0.0 =@65 1)"),
        ("UPDATE t SET c = 1 FROM u WHERE t.a = u.a", "update t#0 set 2 = 1 from u#1 where (#0.0 =@65 #1.0)"),
        ("SELECT x.a FROM t x WHERE x.a = 1", "select #0.0 from t#0 where (#0.0 =@65 1)"),
        (
            "SELECT a FROM t WHERE (a=1 OR c=2) AND b='3'",
            "select #0.0 from t#0 where and(or((#0.0 =@65 1), (#0.2 =@65 2)), (#0.1 =@67 '3'))",
        ),
        ("SELECT a FROM t WHERE a = -5", "select #0.0 from t#0 where (#0.0 =@65 -5)"),
        ("SELECT a FROM t WHERE a = 10 - 5", "select #0.0 from t#0 where (#0.0 =@65 (10 -@181 5))"),
        ("SELECT a FROM t WHERE a + c > 5", "select #0.0 from t#0 where ((#0.0 +@177 #0.2) >@147 5)"),
        ("SELECT (a + 1) * 2 FROM t", "select ((#0.0 +@177 1) *@141 2) from t#0"),
        ("SELECT b || b FROM t", "select (#0.1 ||@1258 #0.1) from t#0"),
        ("SELECT a FROM t UNION SELECT a FROM u", "(select #0.0 from t#0) union (select #1.0 from u#1)"),
        ("SELECT t.a FROM t, u", "select #0.0 from t#0, u#1"),
        ("SELECT t.a FROM t CROSS JOIN u", "select #0.0 from (t#0 inner join u#1)"),
        (
            "INSERT INTO t VALUES (1, 'x', 2) ON CONFLICT (a) DO UPDATE SET b = excluded.b RETURNING a",
            "insert t#0 [$0, $1, $2] values (1, 'x', 2) on conflict (a) update excluded#1 set 1 = #1.1 returning #0.0",
        ),
        ("SELECT 'a /* x */ b', 'a--b'", "select 'a /* x */ b', 'a--b'"),
        (
            "SELECT count(DISTINCT a) FROM t WHERE NOT a = 1",
            "select count@2147(#0.0) from t#0 where not((#0.0 =@65 1)) group by ()",
        ),
    ]);
    for (sql, sqlstate) in [
        ("SELECT a FROM t LIMIT 10, 5", "42601"),
        ("SELECT a FROM t ORDER BY b COLLATE NOCASE", "0A000"),
        ("SELECT my_fn(a) FROM t", "42883"),
        ("SELECT 1; DELETE FROM t", "42601"),
    ] {
        assert_eq!(bound(sql).expect_err(sql).sqlstate, sqlstate, "{sql}");
    }
}

#[test]
fn conversions_are_explicit() {
    check(&[
        ("select id = 5 from users", "select (#0.0 =@474 5) from users#0"),
        ("select id in (1, 2) from users", "select (#0.0 in@467 (1, 2)) from users#0"),
        ("select age = balance from users", "select (#0.3::numeric@1740 =@1718 #0.6) from users#0"),
        ("select name = 'x' from users", "select (#0.2::text~ =@67 'x') from users#0"),
        ("select name in ('x', email) from users", "select (#0.2::text~ in@67 ('x', #0.1)) from users#0"),
        (
            "update orders set note = repeat('a', 9)",
            "update orders#0 set 6 = repeat@1622('a', 9)::character varying~::character varying(20)mod",
        ),
        (
            "insert into orders (user_id, note) values (1, 'far longer than the column allows')",
            "insert orders#0 [nextval@1574('orders_id_seq'), $0, 0.00n, 'new', null, null, $1] values (1, 'far longer than the column allows'::character varying(20)mod)",
        ),
        ("select 'abc'::varchar(2)", "select 'ab'"),
        ("update users set balance = 5 where id = $1", "update users#0 set 6 = 5.00n where (#0.0 =@467 $1)"),
        ("update users set name = email", "update users#0 set 2 = #0.1::character varying~::character varying(40)mod"),
        ("select 1 union select 2.5", "(select 1n) union (select 2.5n)"),
        (
            "(select a from t order by b) union all select id from users",
            "(select #2.0::bigint@481 from (select #0.0, #0.1 from t#0 order by 1)#2) union all (select #1.0 from users#1)",
        ),
    ]);
}

#[test]
fn defaults_are_put_in_place() {
    check(&[
        (
            "insert into orders (user_id) values (1), (2)",
            "insert orders#0 [nextval@1574('orders_id_seq'), $0, 0.00n, 'new', null, null, null] values (1), (2)",
        ),
        (
            "insert into orders (id, user_id, status) values (default, 1, default)",
            "insert orders#0 [$0, $1, 0.00n, $2, null, null, null] values (nextval@1574('orders_id_seq'), 1, 'new')",
        ),
        ("insert into t (b, a) select d, a from u", "insert t#0 [$1, $0, null] select #1.1, #1.0 from u#1"),
        ("select nextval('seq1')", "select nextval@1574('seq1')"),
    ]);
}

#[test]
fn names_find_their_relations() {
    check(&[
        (
            "select * from t join u using (a)",
            "select #0.0, #0.1, #0.2, #1.1, #1.2 from (t#0 inner join u#1 on (#0.0 =@65 #1.0))",
        ),
        ("select a from t right join u using (a)", "select #1.0 from (t#0 right join u#1 on (#0.0 =@65 #1.0))"),
        (
            "select a from t where exists (select 1 from u where u.a = t.a)",
            "select #0.0 from t#0 where exists(select 1 from u#1 where (#1.0 =@65 #0.0))",
        ),
        (
            "select a from t where a not in (select a from u)",
            "select #0.0 from t#0 where (#0.0) not in (select #1.0 from u#1)",
        ),
        (
            "with w as (select a from t) select x.a from w x, w y",
            "with cte0 = (select #0.0 from t#0) select #1.0 from cte0#1, cte0#2",
        ),
        ("select name from adults", "select #1.1 from (select #0.0, #0.2, #0.3 from users#0 where (#0.3 >=@150 18))#1"),
        ("select generate_series(1, 2)", "select #0.0 from generate_series@1067(1, 2)#0"),
        (
            "select unnest(tags), unnest(array[1]) from users",
            "select #0.7[((array_lower@2091(#0.7, 1) +@177 #1.0) -@181 1)], \
             array[1][((array_lower@2091(array[1], 1) +@177 #1.0) -@181 1)] from users#0, \
             generate_series@1067(1, greatest(array_length@2176(#0.7, 1), array_length@2176(array[1], 1)))#1",
        ),
        (
            "select b from t group by 1 order by count(*)",
            "select #0.1, count@2803() from t#0 group by (#0.1) order by 1",
        ),
        (
            "with recursive r(n) as (select 1 union all select n + 1 from r) select n from r",
            "with cte0 = (select 1 then select (#0.0 +@177 1) from cte0#0) select #2.0 from cte0#2",
        ),
        ("select (a, c) < (1, 2) from t", "select or((#0.0 <@66 1), and((#0.0 =@65 1), (#0.2 <@66 2))) from t#0"),
    ]);
}

#[test]
fn depth_is_bounded_on_a_small_stack() {
    /// What threads of an asynchronous runtime have.
    const STACK: usize = 2 << 20;
    let binds = |sql: String| {
        let thread = std::thread::Builder::new().stack_size(STACK);
        thread.spawn(move || bound(&sql).map(drop)).expect("a thread").join().expect("no overflow")
    };
    let operators = |n: usize| format!("select 1{}", " + 1".repeat(n));
    let nots = |n: usize| format!("select {}true", "not ".repeat(n));
    let queries = |n: usize| format!("select {}1{}", "(select ".repeat(n), ")".repeat(n));
    let from = |n: usize| format!("select * from {}t{}", "(select * from ".repeat(n), ") x".repeat(n));
    let unions = |n: usize| format!("select 1{}", " union all select 1".repeat(n));
    let joins = |n: usize| format!("select 1 from t x{}", " cross join lateral (select 1) y".repeat(n));
    let limits = |n: usize| format!("select 1 limit 1{}", " + 1".repeat(n));
    let unknown = |n: usize| format!("select xmlelement(name x, 1{})", " + 1".repeat(n));
    assert_eq!(binds(limits(20_000)).expect_err("too deep").sqlstate, "54001");
    assert_eq!(binds(unknown(20_000)).expect_err("refused").sqlstate, "0A000");
    for build in [&operators as &dyn Fn(usize) -> String, &nots, &queries, &from, &unions, &joins] {
        let deepest = (0..=MAX_DEPTH).rev().find(|n| {
            binds(build(*n)).is_ok_and(|()| true) || binds(build(*n)).is_err_and(|error| error.sqlstate == "42712")
        });
        assert!(deepest.is_some_and(|deepest| deepest >= 10), "{deepest:?}: {}", build(3));
        let error = binds(build(MAX_DEPTH * 20)).expect_err("too deep");
        assert!(error.sqlstate == "54001", "{error}: {}", build(3));
    }
}

/// Tables that those clients had, and a function of `information_schema`.
const KNOWN: [&str; 3] = ["relation \"rich\"", "relation \"plans\"", "function information_schema._pg_expandarray"];

/// A relation's name in braces stands for its oid.
fn numbered(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find('{') {
        let name = rest[at + 1..].find('}').map(|end| &rest[at + 1..at + 1 + end]);
        let is_name = |name: &&str| {
            name.starts_with(|c: char| c.is_ascii_alphabetic())
                && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
        };
        out += &rest[..at];
        match name.filter(is_name) {
            Some(name) => {
                out += "16384";
                rest = &rest[at + name.len() + 2..];
            }
            None => {
                out.push('{');
                rest = &rest[at + 1..];
            }
        }
    }
    out + rest
}

/// What clients ask of the catalogs binds, but for what is known to be missing.
#[test]
fn what_clients_ask_is_bound() {
    let schema = schema();
    let files = [
        include_str!("../../../tests/clients/psql.sql"),
        include_str!("../../../tests/clients/psycopg.sql"),
        include_str!("../../../tests/clients/asyncpg.sql"),
        include_str!("../../../tests/clients/django.sql"),
        include_str!("../../../tests/clients/sqlalchemy.sql"),
        include_str!("../../../tests/clients/others.sql"),
    ];
    let (mut count, mut wrong) = (0, Vec::new());
    for statement in files.iter().flat_map(|file| parse::split(&numbered(file)).expect("statements")) {
        count += 1;
        let rows = ["select", "with", "explain"].iter().any(|word| statement.to_lowercase().starts_with(word));
        if let Err(error) = bound_in(&schema, &statement)
            && rows
            && !KNOWN.iter().any(|known| error.message.starts_with(known))
        {
            wrong.push(format!("{error}\n{statement}\n"));
        }
    }
    assert!(count > 100);
    assert!(wrong.is_empty(), "{} of {count}:\n{}", wrong.len(), wrong.join("\n"));
}
