//! tokio-postgres, which speaks the extended protocol and binary values only.

use crate::harness::{Server, Setup, connect};
use bytes::{Bytes, BytesMut};
use futures::{SinkExt, StreamExt, TryStreamExt, future, pin_mut};
use isles_sim::pgserver;
use std::error::Error;
use std::time::{Duration, SystemTime};
use tokio_postgres::binary_copy::{BinaryCopyInWriter, BinaryCopyOutStream};
use tokio_postgres::error::SqlState;
use tokio_postgres::types::{FromSql, IsNull, ToSql, Type, to_sql_checked};
use tokio_postgres::{Client, NoTls, SimpleQueryMessage};

type Done = Result<(), Box<dyn Error>>;

const LONG: &str = "SELECT count(*) FROM generate_series(1, 100000) a, generate_series(1, 100000) b";

/// A value's binary form, of any type.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Raw(Vec<u8>);

impl<'a> FromSql<'a> for Raw {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Raw, Box<dyn Error + Sync + Send>> {
        Ok(Raw(raw.to_vec()))
    }

    fn accepts(_: &Type) -> bool {
        true
    }
}

impl ToSql for Raw {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        out.extend_from_slice(&self.0);
        Ok(IsNull::No)
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    to_sql_checked!();
}

fn code(error: &tokio_postgres::Error) -> Option<&SqlState> {
    error.code()
}

async fn values_of_rust(client: &Client) -> Done {
    let row = client
        .query_one(
            "SELECT $1::bool, $2::int2, $3::int4, $4::int8, $5::float4, $6::float8, $7::text, $8::bytea, $9::int4[], \
             $10::text[], $11::timestamptz, $12::varchar(3), $13::text",
            &[
                &true,
                &-5_i16,
                &i32::MIN,
                &i64::MAX,
                &1.5_f32,
                &-1e300_f64,
                &"ü€𝄞",
                &&[0_u8, 255][..],
                &vec![Some(1), None],
                &vec!["a", "b, \"c\""],
                &(SystemTime::UNIX_EPOCH + Duration::from_micros(1_700_000_000_000_001)),
                &"abc",
                &None::<String>,
            ],
        )
        .await?;
    assert!(row.get::<_, bool>(0));
    assert_eq!((row.get::<_, i16>(1), row.get::<_, i32>(2), row.get::<_, i64>(3)), (-5, i32::MIN, i64::MAX));
    assert_eq!((row.get::<_, f32>(4), row.get::<_, f64>(5)), (1.5, -1e300));
    assert_eq!((row.get::<_, &str>(6), row.get::<_, &[u8]>(7)), ("ü€𝄞", &[0, 255][..]));
    assert_eq!(row.get::<_, Vec<Option<i32>>>(8), [Some(1), None]);
    assert_eq!(row.get::<_, Vec<String>>(9), ["a", "b, \"c\""]);
    let at: SystemTime = row.get(10);
    assert_eq!(at.duration_since(SystemTime::UNIX_EPOCH)?.as_micros(), 1_700_000_000_000_001);
    assert_eq!((row.get::<_, &str>(11), row.get::<_, Option<&str>>(12)), ("abc", None));
    Ok(())
}

/// The binary form of every type, as PostgreSQL has it, in both directions.
async fn binary_forms(client: &Client) -> Done {
    for (ty, literal) in [
        ("date", "2024-02-29"),
        ("date", "infinity"),
        ("time", "23:59:59.999999"),
        ("timestamp", "1999-12-31 23:59:59.5"),
        ("timestamptz", "2024-02-29 12:00:00+00"),
        ("interval", "1 year 2 mons -3 days 04:05:06.7"),
        ("numeric", "-12345.67800"),
        ("numeric", "0"),
        ("numeric", "1e40"),
        ("numeric", "NaN"),
        ("uuid", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
        ("json", "{\"a\" : [1, null]}"),
        ("jsonb", "{\"a\": [1, null]}"),
        ("bpchar", "ab "),
        ("int4[]", "{1,NULL,-3}"),
        ("text[]", "{a,\"b c\",NULL}"),
        ("numeric[]", "{1.50,NULL}"),
        ("timestamptz[]", "{2024-02-29 12:00:00+00}"),
        ("uuid[]", "{a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11}"),
        ("bool[]", "{t,f}"),
    ] {
        let first: Raw = client.query_one(&format!("SELECT '{literal}'::{ty}"), &[]).await?.get(0);
        let again = format!("SELECT $1::{ty}, $1::{ty}::text = '{literal}'::{ty}::text");
        let row = client.query_one(&again, &[&first]).await.map_err(|error| format!("{ty} {literal}: {error}"))?;
        assert_eq!((row.get::<_, Raw>(0), row.get::<_, bool>(1)), (first, true), "{ty} {literal}");
    }
    Ok(())
}

async fn statements_and_columns(client: &Client) -> Done {
    client.batch_execute("CREATE TABLE described (id int PRIMARY KEY, price numeric(8,2), at timestamptz)").await?;
    let statement = client.prepare("SELECT at, id, id + $1, price FROM described WHERE price > $2").await?;
    assert_eq!(statement.params(), [Type::INT4, Type::NUMERIC]);
    let class: u32 = client.query_one("SELECT 'described'::regclass::oid", &[]).await?.get(0);
    let columns: Vec<_> = statement.columns().iter().map(|c| (c.name(), c.table_oid(), c.column_id())).collect();
    let of = |number| (Some(class), Some(number));
    let expected = [("at", of(3)), ("id", of(1)), ("?column?", (None, None)), ("price", of(2))];
    assert_eq!(columns, expected.map(|(name, (table, column))| (name, table, column)));
    for n in 0..20 {
        client.execute("INSERT INTO described VALUES ($1, 1.5, now())", &[&n]).await?;
    }
    let typed =
        client.query_typed("SELECT id FROM described WHERE id < $1 ORDER BY id", &[(&3_i64, Type::INT8)]).await?;
    assert_eq!(typed.iter().map(|row| row.get::<_, i32>(0)).collect::<Vec<_>>(), [0, 1, 2]);
    let rows = client.simple_query("SELECT id FROM described WHERE id < 2 ORDER BY id; SELECT 'x'").await?;
    let texts = rows.iter().filter_map(|message| match message {
        SimpleQueryMessage::Row(row) => row.get(0),
        _ => None,
    });
    assert_eq!(texts.collect::<Vec<_>>(), ["0", "1", "x"]);
    Ok(())
}

async fn pipelines(client: &Client) -> Done {
    client.batch_execute("CREATE TABLE piped (id int PRIMARY KEY, v text)").await?;
    let insert = client.prepare("INSERT INTO piped VALUES ($1, $2)").await?;
    let numbers: Vec<i32> = (0..200).collect();
    let all = numbers.iter().map(|n| client.execute_raw(&insert, [n as &(dyn ToSql + Sync), &"v"]));
    assert_eq!(future::try_join_all(all).await?.iter().sum::<u64>(), 200);
    // One that fails does not take the others with it: each has a Sync of its own.
    let (one, two, three) = future::join3(
        client.query_one("SELECT count(*) FROM piped", &[]),
        client.execute(&insert, &[&7, &"twice"]),
        client.query_one("SELECT 42::int8", &[]),
    )
    .await;
    assert_eq!((one?.get::<_, i64>(0), three?.get::<_, i64>(0)), (200, 42));
    assert_eq!(code(&two.expect_err("a duplicate")), Some(&SqlState::UNIQUE_VIOLATION));
    Ok(())
}

async fn copies(client: &Client) -> Done {
    client.batch_execute("CREATE TABLE copied (id int PRIMARY KEY, v text, b bytea, f float8, a int4[])").await?;
    let types = [Type::INT4, Type::TEXT, Type::BYTEA, Type::FLOAT8, Type::INT4_ARRAY];
    let sink = client.copy_in("COPY copied FROM STDIN (FORMAT binary)").await?;
    let writer = BinaryCopyInWriter::new(sink, &types);
    pin_mut!(writer);
    for n in 0..1_000_i32 {
        let text = (n % 3 > 0).then(|| format!("n{n}"));
        let row: [&(dyn ToSql + Sync); 5] = [&n, &text, &vec![n as u8; 3], &(f64::from(n) / 8.0), &vec![n, -n]];
        writer.as_mut().write(&row).await?;
    }
    assert_eq!(writer.finish().await?, 1_000);
    let stream = client.copy_out("COPY (SELECT * FROM copied ORDER BY id) TO STDOUT (FORMAT binary)").await?;
    let rows: Vec<_> = BinaryCopyOutStream::new(stream, &types).try_collect().await?;
    assert_eq!(rows.len(), 1_000);
    for (n, row) in (0_i32..).zip(&rows) {
        assert_eq!(row.get::<i32>(0), n);
        assert_eq!(row.get::<Option<String>>(1), (n % 3 > 0).then(|| format!("n{n}")));
        assert_eq!((row.get::<&[u8]>(2), row.get::<f64>(3)), (&[n as u8; 3][..], f64::from(n) / 8.0));
        assert_eq!(row.get::<Vec<i32>>(4), [n, -n]);
    }
    let out = client.copy_out("COPY (SELECT id, v FROM copied WHERE id < 3 ORDER BY id) TO STDOUT").await?;
    let text: Vec<Bytes> = out.try_collect().await?;
    assert_eq!(text, [&b"0\t\\N\n"[..], b"1\tn1\n", b"2\tn2\n"]);
    let sink = client.copy_in("COPY copied (id, v) FROM STDIN").await?;
    pin_mut!(sink);
    sink.send(Bytes::from_static(b"5000\tx\nnot a number\ty\n")).await?;
    assert_eq!(code(&sink.finish().await.expect_err("bad")), Some(&SqlState::INVALID_TEXT_REPRESENTATION));
    // A copy that is dropped is undone.
    let sink = client.copy_in("COPY copied (id, v) FROM STDIN").await?;
    {
        pin_mut!(sink);
        sink.send(Bytes::from_static(b"6000\tx\n")).await?;
    }
    let count: i64 = client.query_one("SELECT count(*) FROM copied", &[]).await?.get(0);
    assert_eq!(count, 1_000);
    Ok(())
}

async fn portals_and_transactions(client: &mut Client) -> Done {
    client.batch_execute("CREATE TABLE held (id int PRIMARY KEY)").await?;
    let mut outer = client.transaction().await?;
    for n in 0..50 {
        outer.execute("INSERT INTO held VALUES ($1)", &[&n]).await?;
    }
    let inner = outer.transaction().await?;
    inner.execute("DELETE FROM held", &[]).await?;
    assert!(inner.execute("INSERT INTO nowhere VALUES (1)", &[]).await.is_err());
    inner.rollback().await?;
    let portal = outer.bind("SELECT id FROM held WHERE id >= $1 ORDER BY id", &[&5]).await?;
    let mut seen: Vec<i32> = Vec::new();
    loop {
        let rows = outer.query_portal(&portal, 7).await?;
        if rows.is_empty() {
            break;
        }
        seen.extend(rows.iter().map(|row| row.get::<_, i32>(0)));
    }
    assert_eq!(seen, (5..50).collect::<Vec<_>>());
    outer.commit().await?;
    let build = client.build_transaction().read_only(true).start().await?;
    let refused = build.execute("DELETE FROM held", &[]).await.expect_err("read only");
    assert_eq!(code(&refused), Some(&SqlState::READ_ONLY_SQL_TRANSACTION));
    build.rollback().await?;
    Ok(())
}

async fn cancels(client: &Client) -> Done {
    let token = client.cancel_token();
    // A request that comes before the statement hits nothing, so it is sent until one does.
    let cancel = async {
        loop {
            tokio::time::sleep(Duration::from_millis(100)).await;
            token.cancel_query(NoTls).await.expect("the server listens");
        }
    };
    let statement = client.prepare(LONG).await?;
    tokio::select! {
        ended = client.query_one(&statement, &[]) => {
            assert_eq!(code(&ended.expect_err("cancelled")), Some(&SqlState::QUERY_CANCELED));
        }
        () = cancel => {}
    }
    // The last request may be on its way still.
    while client.query_one("SELECT 1", &[]).await.is_err() {}
    // One who does not wait for an answer leaves nothing behind.
    drop(client.query_raw("SELECT n FROM generate_series(1, 10000) n", Vec::<i32>::new()).await?);
    let rows = client.query_raw("SELECT n FROM generate_series(1, 10000) n", Vec::<i32>::new()).await?;
    pin_mut!(rows);
    let mut count = 0;
    while let Some(row) = rows.next().await {
        count += i32::from(row?.get::<_, i32>(0) > 0);
    }
    assert_eq!(count, 10_000);
    Ok(())
}

async fn all(url: &str) -> Done {
    let mut client = connect(url).await;
    client.batch_execute("SET TimeZone = 'UTC'").await?;
    values_of_rust(&client).await?;
    binary_forms(&client).await?;
    statements_and_columns(&client).await?;
    pipelines(&client).await?;
    copies(&client).await?;
    portals_and_transactions(&mut client).await?;
    cancels(&client).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokio_postgres_does_with_isles_what_it_does_with_postgresql() {
    all(&pgserver::shared().create_database()).await.unwrap();
    for setup in [Setup::Sqlite { shards: 3 }, Setup::Postgres { shards: 2 }] {
        println!("{setup:?}");
        let server = Server::start(setup).await;
        all(server.url()).await.unwrap();
    }
}
