//! Values: what was written is read, bit for bit, by every way that leads out of a shard.

use crate::fixtures::World;
use crate::given::*;
use crate::random;
use isles_engine::shard::{Row, StoredRow};
use isles_kernel::change::Op;
use isles_kernel::interval::Interval;
use isles_kernel::schema::{Table, TableKind, Unit};
use isles_kernel::value::{DataType, Element, Value};
use isles_sim::rng::Rng;

pub(crate) fn column(ty: DataType) -> String {
    format!("c_{}", ty.postgres_name().replace(' ', "_").replace("[]", "_array"))
}

/// A table with a column of each type.
pub(crate) fn matrix() -> Table {
    let names: Vec<String> = DataType::ALL.iter().map(|ty| column(*ty)).collect();
    let columns = DataType::ALL.iter().zip(&names).map(|(ty, name)| (name.as_str(), *ty));
    let columns: Vec<(&str, DataType)> = [("id", INT8)].into_iter().chain(columns).collect();
    table("matrix", TableKind::Reference, &columns, &["id"])
}

fn types() -> Vec<DataType> {
    [INT8].into_iter().chain(DataType::ALL).collect()
}

/// Rows that hold every edge of every type, and random values.
pub(crate) fn matrix_rows() -> Vec<Row> {
    let edges: Vec<Vec<Value>> = DataType::ALL.iter().map(|ty| random::edges(*ty)).collect();
    let most = edges.iter().map(Vec::len).max().unwrap_or(0);
    let mut rng = Rng::new(1);
    let mut rows: Vec<Row> =
        (0..most).map(|at| edges.iter().map(|edges| edges.get(at).cloned().unwrap_or(Value::Null)).collect()).collect();
    rows.extend((0..random::rounds(40)).map(|_| {
        let value = |ty: &DataType| if rng.chance(1, 8) { Value::Null } else { random::value(&mut rng, *ty) };
        DataType::ALL.iter().map(value).collect()
    }));
    rows.iter_mut().zip(1i64..).for_each(|(row, id)| row.insert(0, Value::Int(id)));
    rows
}

pub(crate) fn stored(rows: &[Row]) -> Vec<StoredRow> {
    rows.iter().map(|values| StoredRow { unit: Unit::Shared, values: values.clone() }).collect()
}

/// Writes the rows through parameters.
pub(crate) async fn fill(db: &Db, rows: &[Row]) {
    let names: Vec<String> = ["id".to_string()].into_iter().chain(DataType::ALL.map(column)).collect();
    let places: Vec<String> = (1..=names.len()).map(|at| format!("${at}")).collect();
    let sql = format!("INSERT INTO matrix ({}) VALUES ({})", names.join(", "), places.join(", "));
    for row in rows {
        db.must(&sql, row.clone()).await;
    }
}

fn check_same(ways: &str, actual: &[Row], expected: &[Row]) {
    assert_eq!(actual.len(), expected.len(), "{ways}");
    for (actual, expected) in actual.iter().zip(expected) {
        for (at, (actual, expected)) in actual.iter().zip(expected).enumerate() {
            let ty = types()[at];
            // A megabyte of text in a panic helps nobody.
            let brief = |value: &Value| format!("{value:?}").chars().take(200).collect::<String>();
            assert!(actual == expected, "{ways} of {ty:?}: {} became {}", brief(expected), brief(actual));
        }
    }
}

pub(crate) async fn every_value_comes_back_as_it_was_written(world: World) {
    let db = world.shard_with(vec![matrix()]).await;
    let rows = matrix_rows();
    fill(&db, &rows).await;
    check_same("select", &db.query(&types(), "SELECT * FROM matrix ORDER BY id", vec![]).await, &rows);
}

pub(crate) async fn every_value_is_the_same_in_a_snapshot(world: World) {
    let db = world.shard_with(vec![matrix()]).await;
    let rows = matrix_rows();
    fill(&db, &rows).await;
    let seen: Vec<Row> = db.rows("matrix").await.into_iter().map(|row| row.values).collect();
    check_same("snapshot", &seen, &rows);
}

/// I-29
pub(crate) async fn every_value_is_the_same_in_the_change_log(world: World) {
    let db = world.shard_with(vec![matrix()]).await;
    let start = db.listen().await;
    let rows = matrix_rows();
    fill(&db, &rows).await;
    db.must("UPDATE matrix SET c_smallint = 7", vec![]).await;
    db.must("DELETE FROM matrix", vec![]).await;
    let mut updated = rows.clone();
    let at = matrix().position("c_smallint").expect("a column");
    updated.iter_mut().for_each(|row| row[at] = Value::Int(7));
    let changes = db.log_after(start).await;
    let images = |op: Op, after: bool| {
        let mut rows: Vec<Row> = changes
            .iter()
            .filter(|change| change.op == op)
            .map(|change| if after { change.after.clone() } else { change.before.clone() }.expect("an image"))
            .collect();
        rows.sort_by_key(|row| int(&row[0]));
        rows
    };
    check_same("insert", &images(Op::Insert, true), &rows);
    check_same("before of an update", &images(Op::Update, false), &rows);
    check_same("after of an update", &images(Op::Update, true), &updated);
    check_same("delete", &images(Op::Delete, false), &updated);
}

pub(crate) async fn every_value_is_the_same_after_an_import(world: World) {
    let db = world.shard_with(vec![matrix()]).await;
    let rows = matrix_rows();
    let count = db.import("matrix", stored(&rows), isles_engine::shard::ImportMode::Insert).await.unwrap();
    assert_eq!(count, rows.len() as u64);
    let seen: Vec<Row> = db.rows("matrix").await.into_iter().map(|row| row.values).collect();
    check_same("import", &seen, &rows);
}

pub(crate) async fn a_text_with_a_zero_byte_is_refused(world: World) {
    let db = world.shard().await;
    for text in ["\0", "a\0b"] {
        let error = db.run("INSERT INTO plans (id, name) VALUES (1, $1)", values![text]).await.unwrap_err();
        assert!(is_refusal(&error), "{error:?}");
        assert_eq!(&sqlstate(&error)[..2], "22", "{error:?}");
    }
    assert_eq!(db.count("plans").await, 0);
}

/// Nothing is ever silently changed to fit.
pub(crate) async fn a_value_that_does_not_fit_its_column_is_refused(world: World) {
    let refused = [
        (DataType::Int2, Value::Int(32_768)),
        (DataType::Int4, Value::Int(-2_147_483_649)),
        (DataType::Int8, Value::text("x")),
        (DataType::Bool, Value::text("maybe")),
        (DataType::Uuid, Value::Bytes(vec![1; 15])),
        (DataType::Time, Value::Time(86_400_000_001)),
        (DataType::Interval, Value::text("1 fortnight")),
        (DataType::Array(Element::Int4), Value::Array(vec![Value::Int(1 << 31)])),
        (DataType::Array(Element::Bool), Value::Array(vec![Value::text("maybe")])),
    ];
    check_refused(&world.shard_with(vec![matrix()]).await, &refused).await;
}

/// I-10: a row that one engine keeps and the other refuses could never move.
pub(crate) async fn what_the_other_engine_could_not_keep_is_refused(world: World) {
    let refused = [
        (DataType::Json, Value::Json("{".into())),
        (DataType::Json, Value::Json(String::new())),
        (DataType::Date, Value::Date(random::DATES.1 + 1)),
        (DataType::Date, Value::Date(random::DATES.0 - 1)),
        (DataType::Timestamp, Value::Timestamp(random::TIMESTAMPS.1 + 1)),
        (DataType::TimestampTz, Value::TimestampTz(random::TIMESTAMPS.0 - 1)),
    ];
    check_refused(&world.shard_with(vec![matrix()]).await, &refused).await;
}

async fn check_refused(db: &Db, refused: &[(DataType, Value)]) {
    for (ty, value) in refused {
        let sql = format!("INSERT INTO matrix (id, {}) VALUES (1, $1)", column(*ty));
        let error = db.run(&sql, vec![value.clone()]).await.expect_err(&format!("{value:?} in {ty:?}"));
        assert!(is_refusal(&error), "{value:?} in {ty:?}: {error:?}");
    }
    assert_eq!(db.count("matrix").await, 0);
}

/// The ids of the matrix ordered by a column are those of `keys`, which are in order.
pub(crate) async fn order_by_a_column_is_postgresqls_order(world: World) {
    let db = world.shard_with(vec![matrix()]).await;
    let mut rng = Rng::new(2);
    for ty in random::ordered() {
        let keys = random::keys(&mut rng, ty, 20);
        let mut numbered: Vec<(i64, &Value)> = (1i64..).zip(&keys).collect();
        rng.shuffle(&mut numbered);
        db.must("DELETE FROM matrix", vec![]).await;
        for (id, key) in numbered {
            let sql = format!("INSERT INTO matrix (id, {}) VALUES ($1, $2)", column(ty));
            db.must(&sql, values![id, key.clone()]).await;
        }
        let ordered = db.query(&[INT8], &format!("SELECT id FROM matrix ORDER BY {}", column(ty)), vec![]).await;
        let ids: Vec<i64> = ordered.iter().map(|row| int(&row[0])).collect();
        assert_eq!(ids, (1..=keys.len() as i64).collect::<Vec<_>>(), "{ty:?}: {keys:?}");
    }
}

pub(crate) async fn equality_of_numerics_ignores_their_scale(world: World) {
    let db = world.shard_with(vec![matrix()]).await;
    for (id, text) in (1i64..).zip(["1", "1.0", "1.00", "1.01", "-1", "NaN"]) {
        db.must("INSERT INTO matrix (id, c_numeric) VALUES ($1, $2)", values![id, numeric(text)]).await;
    }
    let equal = |text: &str| {
        let param = numeric(text);
        let db = db.clone();
        async move { db.query(&[INT8], "SELECT id FROM matrix WHERE c_numeric = $1 ORDER BY id", vec![param]).await }
    };
    assert_eq!(equal("1.000").await, [values![1], values![2], values![3]]);
    assert_eq!(equal("NaN").await, [values![6]]);
    assert_eq!(equal("2").await, Vec::<Row>::new());
}

/// A month is 30 days and a day 24 hours, to whoever compares.
pub(crate) async fn intervals_compare_by_their_length(world: World) {
    let spans = table("spans", TableKind::Reference, &[("span", DataType::Interval)], &["span"]);
    let db = world.shard_with(vec![spans]).await;
    let interval = |months, days, micros| Value::Interval(Interval::new(months, days, micros));
    db.must("INSERT INTO spans (span) VALUES ($1)", vec![interval(1, 0, 0)]).await;
    let error = db.run("INSERT INTO spans (span) VALUES ($1)", vec![interval(0, 30, 0)]).await.unwrap_err();
    assert_eq!(sqlstate(&error), "23505");
    let longer = "SELECT span FROM spans WHERE span > $1";
    assert_eq!(db.query(&[DataType::Interval], longer, vec![interval(0, 29, 0)]).await, [[interval(1, 0, 0)]]);
    assert_eq!(db.must("DELETE FROM spans WHERE span = $1", vec![interval(0, 29, 86_400_000_000)]).await, 1);
}

pub(crate) async fn a_numeric_key_is_unique_by_value(world: World) {
    let prices = table("prices", TableKind::Reference, &[("price", DataType::Numeric)], &["price"]);
    let db = world.shard_with(vec![prices]).await;
    db.must("INSERT INTO prices (price) VALUES ($1)", vec![numeric("1.0")]).await;
    let error = db.run("INSERT INTO prices (price) VALUES ($1)", vec![numeric("1.00")]).await.unwrap_err();
    assert_eq!(sqlstate(&error), "23505");
    let deleted = db.must("DELETE FROM prices WHERE price = $1", vec![numeric("1")]).await;
    assert_eq!(deleted, 1);
}

/// Null equals nothing, and the empty text is not null.
pub(crate) async fn null_is_not_the_empty_text(world: World) {
    let db = world.shard().await;
    db.must("INSERT INTO users (_bucket, id, email) VALUES (1, 1, NULL), (2, 2, '')", vec![]).await;
    let ids = |condition: &'static str| {
        let db = db.clone();
        async move { db.query(&[INT8], &format!("SELECT id FROM users WHERE email {condition}"), vec![]).await }
    };
    assert_eq!(ids("IS NULL").await, [values![1]]);
    assert_eq!(ids("= ''").await, [values![2]]);
    assert_eq!(ids("<> ''").await, Vec::<Row>::new());
}
