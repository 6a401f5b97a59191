//! Statements: one function for each shape, drawn by weight.

use super::expr::{Visible, expr, literal, value};
use super::{Compare, Generator, Kind, Statement, Table, Ty};
use crate::rng::Rng;

/// How deep expressions are nested.
const DEPTH: u32 = 3;

type Shape = fn(&mut Generator) -> (String, Compare);

/// Shapes, their names and how often they come.
const SHAPES: [(&str, u64, Shape); 27] = [
    ("expressions", 10, expressions),
    ("point", 8, point),
    ("filter", 10, filter),
    ("limit", 6, limit),
    ("aggregate", 8, aggregate),
    ("group", 10, group),
    ("distinct", 4, distinct),
    ("join on the key", 7, join_on_key),
    ("join on another column", 7, join_on_other),
    ("outer join", 6, outer_join),
    ("three tables", 3, three_tables),
    ("exists", 4, exists),
    ("in subquery", 4, in_subquery),
    ("scalar subquery", 4, scalar_subquery),
    ("derived table", 4, derived_table),
    ("cte", 4, cte),
    ("recursive", 1, recursive),
    ("set operation", 5, set_operation),
    ("window", 4, window),
    ("values", 2, values),
    ("series", 2, series),
    ("insert", 14, insert),
    ("upsert", 6, upsert),
    ("insert select", 2, insert_select),
    ("update", 9, update),
    ("delete", 4, delete),
    ("transaction", 6, transaction),
];

pub(super) fn next(generator: &mut Generator) -> Statement {
    let total = SHAPES.iter().map(|shape| shape.1).sum();
    let mut at = generator.rng.below(total);
    for (name, weight, shape) in SHAPES {
        if at < weight {
            let (sql, compare) = shape(generator);
            return Statement { sql, compare, shape: name };
        }
        at -= weight;
    }
    unreachable!("the weights add up to the total")
}

fn any_table(generator: &mut Generator) -> Table {
    generator.rng.pick(&generator.tables).clone()
}

/// The columns of a table under an alias.
fn columns(table: &Table, alias: &str) -> Vec<Visible> {
    table.columns.iter().map(|c| Visible { name: format!("{alias}.{}", c.name), ty: c.ty }).collect()
}

fn condition(rng: &mut Rng, visible: &[Visible]) -> String {
    expr(rng, Ty::Bool, visible, DEPTH)
}

fn targets(rng: &mut Rng, visible: &[Visible], count: u64) -> Vec<String> {
    (0..count)
        .map(|_| {
            let ty = *rng.pick(&Ty::ALL);
            expr(rng, ty, visible, DEPTH)
        })
        .collect()
}

/// `ORDER BY 1, 2, …`, over all columns, so that the order is one.
fn by_all(count: usize, rng: &mut Rng) -> String {
    let keys: Vec<String> = (1..=count)
        .map(|n| format!("{n}{}", rng.pick(&["", "", " DESC", " NULLS FIRST", " DESC NULLS LAST"])))
        .collect();
    format!("ORDER BY {}", keys.join(", "))
}

/// No table: what fails, fails alike.
fn expressions(generator: &mut Generator) -> (String, Compare) {
    let count = generator.rng.range(1..5);
    let mut list = targets(&mut generator.rng, &[], count);
    if generator.rng.chance(1, 3) {
        let probes = [
            "1 / 0",
            "2147483647 + 1",
            "(32767::smallint + 1::smallint)",
            "9223372036854775807 + 1",
            "'x'::integer",
            "' 42 '::integer",
            "'2024-02-30'::date",
            "'1e400'::double precision",
            "5 % 0",
            "abs((-2147483648)::integer)",
            "1.5::numeric(2,1)",
            "99.9::numeric(2,1)",
            "'abcdef'::varchar(3)",
            "sqrt(-1)",
            "ln(0)",
            "'t'::boolean",
            "'maybe'::boolean",
            "chr(0)",
            "substr('abc', 0, -1)",
            "'infinity'::timestamp",
            "date '2024-01-31' + interval '1 month'",
            "(-7) / 2",
            "(-7) % 3",
            "7.0 / 3",
            "1::float8 / 3",
            "0.1::float8 + 0.2::float8",
            "'NaN'::float8 = 'NaN'::float8",
            "'NaN'::numeric > 1",
            "round(2.5)",
            "round(-2.5)",
            "round(2.5::float8)",
            "3.5::integer",
            "4.5::float8::integer",
            "1e20::numeric::bigint",
            "'a' || NULL",
            "NULL = NULL",
            "NULL AND false",
            "NULL OR true",
            "'10' > '9'",
            "10 > 9",
            "'a' < 'B'",
            "'abc' LIKE 'A%'",
            "- - 5",
            "2 ^ 3",
            "2 ^ -1",
            "!! 5",
            "@ (-5)",
            "5 !",
            "|/ 16.0",
            "'12:30'::time",
            "'24:00'::time",
            "'25:00'::time",
            "to_char(1234.5, '9,999.99')",
            "to_number('1,234', '9,999')",
            "nosuch(1)",
            "'a' + 1",
            "coalesce(1, 'x')",
            "greatest(1, 2.5)",
            "CASE WHEN true THEN 1 ELSE 1/0 END",
            "length(123)",
            "length('äöü')",
            "octet_length('äöü')",
            "'{1,2,3}'::int[]",
            "(ARRAY[1,2,3])[2]",
            "array_length(ARRAY[]::int[], 1)",
            "ARRAY[1,2] || 3",
            "'{a,\"b c\",NULL}'::text[]",
            "interval '1 day' * 1.5",
            "age(date '2024-03-01', date '2023-12-15')",
            "extract(week from date '2024-12-30')",
            "'a'::bytea",
            "power(10, 400)",
            "1.0::float4 / 3",
            "16777217::float4",
            "md5('')",
            "position('' in 'abc')",
            "split_part('a,b', ',', -1)",
            "lpad('abc', 2)",
            "trim(both 'x' from 'xxaxx')",
            "overlay('abcdef' placing 'Z' from 2 for 3)",
            "'{\"a\": 1}'::jsonb -> 'a'",
            "'{\"b\":1,\"a\":2}'::jsonb",
            "'{\"a\": [1,2]}'::json #>> '{a,1}'",
            "'[1, 2]'::jsonb @> '[1]'",
            "jsonb_typeof('null')",
            "1 = '1'",
            "1 IN (1, NULL)",
            "2 NOT IN (1, NULL)",
            "ROW(1, NULL) = ROW(1, NULL)",
            "(1, 2) < (1, NULL)",
            "width_bucket(5, 0, 10, 5)",
        ];
        list.push((*generator.rng.pick(&probes)).to_string());
    }
    (format!("SELECT {}", list.join(", ")), Compare::Strictly)
}

fn point(generator: &mut Generator) -> (String, Compare) {
    let table = any_table(generator);
    let rng = &mut generator.rng;
    let visible = columns(&table, "a");
    let key = &table.columns[0];
    let wanted = match rng.below(4) {
        0 => format!("a.k IN ({}, {})", literal(rng, key.ty), literal(rng, key.ty)),
        1 => format!("(a.k = {} OR a.k = {})", value(rng, key.ty), value(rng, key.ty)),
        _ => format!("a.k = {}", value(rng, key.ty)),
    };
    let more = if rng.chance(1, 3) { format!(" AND {}", condition(rng, &visible)) } else { String::new() };
    (format!("SELECT * FROM {} a WHERE {wanted}{more}", table.name), Compare::Rows)
}

fn filter(generator: &mut Generator) -> (String, Compare) {
    let table = any_table(generator);
    let rng = &mut generator.rng;
    let visible = columns(&table, "a");
    let count = rng.range(1..4);
    let list = targets(rng, &visible, count).join(", ");
    (format!("SELECT a.k, {list} FROM {} a WHERE {}", table.name, condition(rng, &visible)), Compare::Rows)
}

fn limit(generator: &mut Generator) -> (String, Compare) {
    let table = any_table(generator);
    let rng = &mut generator.rng;
    let visible = columns(&table, "a");
    let count = rng.range(1..4);
    let list = targets(rng, &visible, count);
    let order = by_all(list.len(), rng);
    let filter = if rng.chance(1, 2) { format!("WHERE {}", condition(rng, &visible)) } else { String::new() };
    let offset = if rng.chance(1, 2) { format!(" OFFSET {}", rng.below(6)) } else { String::new() };
    let sql =
        format!("SELECT {} FROM {} a {filter} {order} LIMIT {}{offset}", list.join(", "), table.name, rng.below(8));
    (sql, Compare::Ordered)
}

/// One aggregate over the visible columns.
fn aggregate_call(rng: &mut Rng, visible: &[Visible]) -> String {
    let of = |rng: &mut Rng, ty| expr(rng, ty, visible, 1);
    let call = match rng.below(22) {
        0 | 1 => "count(*)".into(),
        2 => format!("count({})", of(rng, Ty::Text)),
        3 => format!("count(DISTINCT {})", of(rng, Ty::Int4)),
        4 => format!("sum({})", of(rng, Ty::Int4)),
        5 => format!("sum({})", of(rng, Ty::Int8)),
        6 => format!("sum({})", of(rng, Ty::Numeric)),
        7 => format!("avg({})", of(rng, Ty::Int4)),
        8 => format!("avg({})", of(rng, Ty::Numeric)),
        9 => format!("min({})", of(rng, Ty::Text)),
        10 => format!("max({})", of(rng, Ty::Date)),
        11 => format!("min({})", of(rng, Ty::Numeric)),
        12 => format!("max({})", of(rng, Ty::Timestamp)),
        13 => format!("bool_or({})", of(rng, Ty::Bool)),
        14 => format!("bool_and({})", of(rng, Ty::Bool)),
        15 => format!("stddev({})", of(rng, Ty::Int4)),
        16 => format!("var_pop({})", of(rng, Ty::Numeric)),
        17 => format!("sum(DISTINCT {})", of(rng, Ty::Int4)),
        18 => {
            let text = of(rng, Ty::Text);
            format!("string_agg({text}, ',' ORDER BY {text})")
        }
        19 => {
            let number = of(rng, Ty::Int4);
            format!("array_agg({number} ORDER BY {number} DESC)")
        }
        20 => format!("max({})", of(rng, Ty::Interval)),
        _ => format!("max({})", of(rng, Ty::Int8)),
    };
    if rng.chance(1, 6) { format!("{call} FILTER (WHERE {})", expr(rng, Ty::Bool, visible, 1)) } else { call }
}

fn aggregate(generator: &mut Generator) -> (String, Compare) {
    let table = any_table(generator);
    let rng = &mut generator.rng;
    let visible = columns(&table, "a");
    let calls: Vec<String> = (0..rng.range(1..4)).map(|_| aggregate_call(rng, &visible)).collect();
    let filter = if rng.chance(2, 3) { format!("WHERE {}", condition(rng, &visible)) } else { String::new() };
    (format!("SELECT {} FROM {} a {filter}", calls.join(", "), table.name), Compare::Rows)
}

fn group(generator: &mut Generator) -> (String, Compare) {
    let table = any_table(generator);
    let rng = &mut generator.rng;
    let visible = columns(&table, "a");
    let keys: Vec<String> = (0..rng.range(1..3)).map(|_| rng.pick(&visible).name.clone()).collect();
    let calls: Vec<String> = (0..rng.range(1..3)).map(|_| aggregate_call(rng, &visible)).collect();
    let filter = if rng.chance(1, 2) { format!("WHERE {}", condition(rng, &visible)) } else { String::new() };
    let having = if rng.chance(1, 3) { format!("HAVING count(*) > {}", rng.below(3)) } else { String::new() };
    let all = keys.len() + calls.len();
    let list: Vec<String> = keys.iter().cloned().chain(calls).collect();
    let (tail, compare) = match rng.chance(1, 2) {
        true => (format!("{} LIMIT {}", by_all(all, rng), rng.below(10)), Compare::Ordered),
        false => (String::new(), Compare::Rows),
    };
    let sql = format!(
        "SELECT {} FROM {} a {filter} GROUP BY {} {having} {tail}",
        list.join(", "),
        table.name,
        keys.join(", ")
    );
    (sql, compare)
}

fn distinct(generator: &mut Generator) -> (String, Compare) {
    let table = any_table(generator);
    let rng = &mut generator.rng;
    let visible = columns(&table, "a");
    if rng.chance(1, 3) {
        let list = ["a.c0", "a.c1"];
        let rest: Vec<String> = visible.iter().map(|v| v.name.clone()).collect();
        let order: Vec<String> = ["a.c0".to_string()].into_iter().chain(rest).collect();
        let sql = format!(
            "SELECT DISTINCT ON (a.c0) {} FROM {} a ORDER BY {}",
            list.join(", "),
            table.name,
            order.join(", ")
        );
        return (sql, Compare::Rows);
    }
    let count = rng.range(1..3);
    let list = targets(rng, &visible, count);
    (format!("SELECT DISTINCT {} FROM {} a", list.join(", "), table.name), Compare::Rows)
}

fn pair(generator: &mut Generator) -> (Table, Table, Vec<Visible>) {
    let (left, right) = (any_table(generator), any_table(generator));
    let visible = columns(&left, "a").into_iter().chain(columns(&right, "b")).collect();
    (left, right, visible)
}

/// An equality between a column of each side, of one type.
fn equality(rng: &mut Rng, left: &Table, right: &Table) -> Option<String> {
    let pairs: Vec<(usize, usize)> = (0..left.columns.len())
        .flat_map(|l| (0..right.columns.len()).map(move |r| (l, r)))
        .filter(|(l, r)| left.columns[*l].ty == right.columns[*r].ty)
        .collect();
    if pairs.is_empty() {
        return None;
    }
    let (l, r) = *rng.pick(&pairs);
    Some(format!("a.{} = b.{}", left.columns[l].name, right.columns[r].name))
}

fn join_on_key(generator: &mut Generator) -> (String, Compare) {
    let left = any_table(generator);
    let same: Vec<Table> = generator.tables.iter().filter(|t| t.columns[0].ty == left.columns[0].ty).cloned().collect();
    let right = generator.rng.pick(&same).clone();
    let visible: Vec<Visible> = columns(&left, "a").into_iter().chain(columns(&right, "b")).collect();
    let rng = &mut generator.rng;
    let list = targets(rng, &visible, 2).join(", ");
    let using = rng.chance(1, 4);
    let on = if using { "USING (k)".to_string() } else { "ON a.k = b.k".to_string() };
    let filter = if rng.chance(1, 2) { format!("WHERE {}", condition(rng, &visible)) } else { String::new() };
    (format!("SELECT {list} FROM {} a JOIN {} b {on} {filter}", left.name, right.name), Compare::Rows)
}

fn join_on_other(generator: &mut Generator) -> (String, Compare) {
    let (left, right, visible) = pair(generator);
    let rng = &mut generator.rng;
    let on = equality(rng, &left, &right).unwrap_or_else(|| "a.c0 = b.c0".into());
    let list = targets(rng, &visible, 2).join(", ");
    let sql = match rng.chance(1, 2) {
        true => {
            format!("SELECT {list} FROM {} a, {} b WHERE {on} AND {}", left.name, right.name, condition(rng, &visible))
        }
        false => format!("SELECT count(*), max(a.c0), min(b.c1) FROM {} a JOIN {} b ON {on}", left.name, right.name),
    };
    (sql, Compare::Rows)
}

fn outer_join(generator: &mut Generator) -> (String, Compare) {
    let (left, right, visible) = pair(generator);
    let rng = &mut generator.rng;
    let on = equality(rng, &left, &right).unwrap_or_else(|| "a.c0 = b.c0".into());
    let kind = *rng.pick(&["LEFT", "LEFT", "RIGHT", "FULL"]);
    // PostgreSQL has full joins on equalities alone.
    let more =
        if kind != "FULL" && rng.chance(1, 3) { format!(" AND {}", condition(rng, &visible)) } else { String::new() };
    let filter = if rng.chance(1, 2) { format!("WHERE {}", condition(rng, &visible)) } else { String::new() };
    let list = targets(rng, &visible, 2).join(", ");
    let sql =
        format!("SELECT a.k, b.k, {list} FROM {} a {kind} JOIN {} b ON {on}{more} {filter}", left.name, right.name);
    (sql, Compare::Rows)
}

fn three_tables(generator: &mut Generator) -> (String, Compare) {
    let (left, right, mut visible) = pair(generator);
    let third = any_table(generator);
    visible.extend(columns(&third, "c"));
    let rng = &mut generator.rng;
    let on = equality(rng, &left, &right).unwrap_or_else(|| "a.c0 = b.c0".into());
    let list = targets(rng, &visible, 2).join(", ");
    let sql = format!(
        "SELECT {list} FROM {} a JOIN {} b ON {on} LEFT JOIN {} c ON c.c0 = b.c0 WHERE {}",
        left.name,
        right.name,
        third.name,
        condition(rng, &visible)
    );
    (sql, Compare::Rows)
}

fn exists(generator: &mut Generator) -> (String, Compare) {
    let (left, right, visible) = pair(generator);
    let rng = &mut generator.rng;
    let on = equality(rng, &left, &right).unwrap_or_else(|| "a.c0 = b.c0".into());
    let not = *rng.pick(&["", "NOT "]);
    let inner = format!("SELECT 1 FROM {} b WHERE {on} AND {}", right.name, condition(rng, &visible));
    (format!("SELECT a.k, a.c0 FROM {} a WHERE {not}EXISTS ({inner})", left.name), Compare::Rows)
}

fn in_subquery(generator: &mut Generator) -> (String, Compare) {
    let (left, right, _) = pair(generator);
    let rng = &mut generator.rng;
    let inner = columns(&right, "b");
    let not = *rng.pick(&["", "NOT "]);
    let filter = condition(rng, &inner);
    let sql = format!(
        "SELECT a.k, a.c1 FROM {} a WHERE a.c0 {not}IN (SELECT b.c0 FROM {} b WHERE {filter})",
        left.name, right.name
    );
    (sql, Compare::Rows)
}

fn scalar_subquery(generator: &mut Generator) -> (String, Compare) {
    let (left, right, visible) = pair(generator);
    let rng = &mut generator.rng;
    let on = equality(rng, &left, &right).unwrap_or_else(|| "a.c0 = b.c0".into());
    let call = aggregate_call(rng, &columns(&right, "b"));
    let filter = condition(rng, &visible[..left.columns.len()]);
    let sql =
        format!("SELECT a.k, (SELECT {call} FROM {} b WHERE {on}) FROM {} a WHERE {filter}", right.name, left.name);
    (sql, Compare::Rows)
}

fn derived_table(generator: &mut Generator) -> (String, Compare) {
    let (left, right, _) = pair(generator);
    let rng = &mut generator.rng;
    let inner = columns(&left, "a");
    let call = aggregate_call(rng, &inner);
    let sql = format!(
        "SELECT d.g, d.x, b.c1 FROM (SELECT a.c0 AS g, {call} AS x FROM {} a GROUP BY a.c0) d JOIN {} b ON b.c0 = d.g WHERE {}",
        left.name,
        right.name,
        condition(rng, &columns(&right, "b"))
    );
    (sql, Compare::Rows)
}

fn cte(generator: &mut Generator) -> (String, Compare) {
    let (left, right, _) = pair(generator);
    let rng = &mut generator.rng;
    let filter = condition(rng, &columns(&left, "a"));
    let word = *rng.pick(&["", "MATERIALIZED ", "NOT MATERIALIZED "]);
    let sql = format!(
        "WITH w AS {word}(SELECT a.c0 AS n, a.c1 AS s FROM {} a WHERE {filter}) SELECT w.n, w.s, b.k FROM w LEFT JOIN {} b ON b.c0 = w.n \
         UNION ALL SELECT n, s, NULL FROM w WHERE n > 3",
        left.name, right.name
    );
    (sql, Compare::Rows)
}

fn recursive(generator: &mut Generator) -> (String, Compare) {
    let table = any_table(generator);
    let steps = generator.rng.range(1..6);
    let sql = format!(
        "WITH RECURSIVE w(n, s) AS (SELECT 1, 'x' UNION ALL SELECT n + 1, s || 'y' FROM w WHERE n < {steps}) \
         SELECT w.n, w.s, count(a.k) FROM w LEFT JOIN {} a ON a.c0 = w.n GROUP BY w.n, w.s",
        table.name
    );
    (sql, Compare::Rows)
}

fn set_operation(generator: &mut Generator) -> (String, Compare) {
    let (left, right, _) = pair(generator);
    let rng = &mut generator.rng;
    let op = *rng.pick(&["UNION", "UNION ALL", "INTERSECT", "EXCEPT", "INTERSECT ALL", "EXCEPT ALL"]);
    let ty = *rng.pick(&[Ty::Int4, Ty::Text, Ty::Numeric, Ty::Date]);
    let (a, b) = (columns(&left, "a"), columns(&right, "b"));
    let sides = format!(
        "SELECT {}, a.c1 FROM {} a WHERE {} {op} SELECT {}, b.c1 FROM {} b",
        expr(rng, ty, &a, 1),
        left.name,
        condition(rng, &a),
        expr(rng, ty, &b, 1),
        right.name
    );
    match rng.chance(1, 3) {
        true => (format!("{sides} {} LIMIT {}", by_all(2, rng), rng.below(9)), Compare::Ordered),
        false => (sides, Compare::Rows),
    }
}

fn window(generator: &mut Generator) -> (String, Compare) {
    let table = any_table(generator);
    let rng = &mut generator.rng;
    let visible = columns(&table, "a");
    // The key makes the order one.
    let key: Vec<String> = visible[..table.key].iter().map(|v| v.name.clone()).collect();
    let order = format!("ORDER BY a.c0, {}", key.join(", "));
    let partition = *rng.pick(&["", "PARTITION BY a.c1 ", "PARTITION BY a.k ", "PARTITION BY a.c0 "]);
    let call = *rng.pick(&[
        "row_number()",
        "rank()",
        "dense_rank()",
        "lag(a.c0)",
        "lead(a.c1, 1)",
        "sum(a.c0)",
        "count(*)",
        "max(a.c1)",
        "first_value(a.c0)",
        "last_value(a.c0)",
        "avg(a.c0)",
        "ntile(3)",
        "percent_rank()",
    ]);
    let frame = match call {
        "sum(a.c0)" | "count(*)" | "max(a.c1)" | "last_value(a.c0)" => {
            *rng.pick(&["", " ROWS BETWEEN 1 PRECEDING AND CURRENT ROW", " ROWS UNBOUNDED PRECEDING"])
        }
        _ => "",
    };
    let sql = format!("SELECT {}, {call} OVER ({partition}{order}{frame}) FROM {} a", key.join(", "), table.name);
    (sql, Compare::Rows)
}

fn values(generator: &mut Generator) -> (String, Compare) {
    let rng = &mut generator.rng;
    let rows: Vec<String> =
        (0..rng.range(1..5)).map(|_| format!("({}, {})", literal(rng, Ty::Int4), literal(rng, Ty::Text))).collect();
    (
        format!("SELECT v.n, v.s || '!' FROM (VALUES {}) AS v(n, s) WHERE v.n > 1 OR v.s IS NOT NULL", rows.join(", ")),
        Compare::Rows,
    )
}

fn series(generator: &mut Generator) -> (String, Compare) {
    let table = any_table(generator);
    let rng = &mut generator.rng;
    let sql = match rng.below(3) {
        0 => format!(
            "SELECT g, count(a.k) FROM generate_series(1, {}) g LEFT JOIN {} a ON a.c0 = g GROUP BY g",
            rng.range(1..9),
            table.name
        ),
        1 => format!(
            "SELECT * FROM unnest(ARRAY[{}, {}, {}]) WITH ORDINALITY AS u(x, n)",
            literal(rng, Ty::Int4),
            literal(rng, Ty::Int4),
            literal(rng, Ty::Int4)
        ),
        _ => "SELECT d::date FROM generate_series(timestamp '2024-01-30', timestamp '2024-02-03', interval '1 day') d"
            .into(),
    };
    (sql, Compare::Rows)
}

fn row(rng: &mut Rng, table: &Table) -> String {
    let cell = |(at, column): (usize, &super::Column)| match at < table.key {
        true => value(rng, column.ty),
        false => literal(rng, column.ty),
    };
    let cells: Vec<String> = table.columns.iter().enumerate().map(cell).collect();
    format!("({})", cells.join(", "))
}

fn rows(rng: &mut Rng, table: &Table, count: u64) -> String {
    let rows: Vec<String> = (0..count).map(|_| row(rng, table)).collect();
    rows.join(", ")
}

fn insert(generator: &mut Generator) -> (String, Compare) {
    let table = any_table(generator);
    let rng = &mut generator.rng;
    let count = if rng.chance(1, 2) { 1 } else { rng.range(2..7) };
    let returning = if rng.chance(1, 3) { " RETURNING *" } else { "" };
    // Mostly without failing, so that the tables fill; but a duplicate key must fail whole, too.
    let conflict = if rng.chance(1, 4) { "" } else { " ON CONFLICT DO NOTHING" };
    (format!("INSERT INTO {} VALUES {}{conflict}{returning}", table.name, rows(rng, &table, count)), Compare::Rows)
}

fn upsert(generator: &mut Generator) -> (String, Compare) {
    let table = any_table(generator);
    let rng = &mut generator.rng;
    let key: Vec<&str> = table.columns[..table.key].iter().map(|c| c.name.as_str()).collect();
    let filter = if rng.chance(1, 3) { " WHERE t.c0 IS DISTINCT FROM excluded.c0" } else { "" };
    let returning = if rng.chance(1, 3) { " RETURNING t.c0, t.c1" } else { "" };
    let sql = format!(
        "INSERT INTO {} AS t VALUES {} ON CONFLICT ({}) DO UPDATE SET c0 = t.c0 + excluded.c0, c1 = excluded.c1{filter}{returning}",
        table.name,
        row(rng, &table),
        key.join(", ")
    );
    (sql, Compare::Rows)
}

fn insert_select(generator: &mut Generator) -> (String, Compare) {
    let table = any_table(generator);
    let rng = &mut generator.rng;
    let fresh = |column: &super::Column| match column.ty {
        Ty::Int8 | Ty::Int4 => format!("a.{} + 1000", column.name),
        Ty::Text => format!("a.{} || '+'", column.name),
        _ => format!("a.{}", column.name),
    };
    let list: Vec<String> = table.columns.iter().map(fresh).collect();
    let filter = condition(rng, &columns(&table, "a"));
    let sql = format!(
        "INSERT INTO {0} SELECT {1} FROM {0} a WHERE a.c0 < 3 AND {filter} ON CONFLICT DO NOTHING",
        table.name,
        list.join(", ")
    );
    (sql, Compare::Rows)
}

fn update(generator: &mut Generator) -> (String, Compare) {
    let (table, other, _) = pair(generator);
    let rng = &mut generator.rng;
    let visible = columns(&table, "a");
    let value_of = |rng: &mut Rng, ty| expr(rng, ty, &visible, 1);
    let returning = if rng.chance(1, 3) { " RETURNING a.k, a.c0" } else { "" };
    let sql = match rng.below(8) {
        // The shard key moves the row.
        0 => format!(
            "UPDATE {} a SET k = {} WHERE a.k = {}{returning}",
            table.name,
            value(rng, table.columns[0].ty),
            value(rng, table.columns[0].ty)
        ),
        1 => format!(
            "UPDATE {} a SET c1 = b.m FROM (SELECT c0, max(c1) AS m FROM {} GROUP BY c0) b WHERE b.c0 = a.c0{returning}",
            table.name, other.name
        ),
        2 => format!(
            "UPDATE {} a SET c0 = c0 + 1 WHERE a.c0 IN (SELECT c0 FROM {} WHERE c0 < 5){returning}",
            table.name, other.name
        ),
        3 | 4 => format!(
            "UPDATE {} a SET c1 = {} WHERE a.k = {}{returning}",
            table.name,
            value_of(rng, Ty::Text),
            value(rng, table.columns[0].ty)
        ),
        _ => format!(
            "UPDATE {} a SET c0 = {}, c1 = {} WHERE {}{returning}",
            table.name,
            value_of(rng, Ty::Int4),
            value_of(rng, Ty::Text),
            condition(rng, &visible)
        ),
    };
    (sql, Compare::Rows)
}

fn delete(generator: &mut Generator) -> (String, Compare) {
    let (table, other, _) = pair(generator);
    let rng = &mut generator.rng;
    let visible = columns(&table, "a");
    let returning = if rng.chance(1, 3) { " RETURNING a.k" } else { "" };
    let sql = match rng.below(4) {
        0 => format!("DELETE FROM {} a USING {} b WHERE b.c0 = a.c0 AND b.c0 > 8{returning}", table.name, other.name),
        1 => format!("DELETE FROM {} a WHERE {} AND a.c0 > 5{returning}", table.name, condition(rng, &visible)),
        _ => format!("DELETE FROM {} a WHERE a.k = {}{returning}", table.name, value(rng, table.columns[0].ty)),
    };
    (sql, Compare::Rows)
}

fn transaction(generator: &mut Generator) -> (String, Compare) {
    let sql = match generator.in_transaction {
        true => *generator.rng.pick(&["COMMIT", "ROLLBACK", "COMMIT"]),
        false => "BEGIN",
    };
    generator.in_transaction = !generator.in_transaction;
    (sql.into(), Compare::Strictly)
}

impl Generator {
    /// Rows to begin with, so that the first statements find something.
    pub fn fill(&mut self) -> Vec<String> {
        let tables = self.tables.clone();
        let rng = &mut self.rng;
        tables
            .iter()
            .flat_map(|table| {
                let count = if table.kind == Kind::Hash { 6 } else { 4 };
                (0..count)
                    .map(|_| {
                        format!("INSERT INTO {} VALUES {} ON CONFLICT DO NOTHING", table.name, rows(rng, table, 5))
                    })
                    .collect::<Vec<_>>()
            })
            .collect()
    }
}
