//! Statements over the wire: transactions, pipelines, portals, copies, cancels.

use crate::harness::{Heard, PATIENCE, Raw, Server, field, isles, message};
use std::time::{Duration, Instant};

fn query(sql: &str) -> Vec<u8> {
    message(b'Q', &[sql.as_bytes(), b"\0"].concat())
}

fn parse(name: &str, sql: &str) -> Vec<u8> {
    message(b'P', &[name.as_bytes(), b"\0", sql.as_bytes(), b"\0\0\0"].concat())
}

fn bind(portal: &str, statement: &str) -> Vec<u8> {
    message(b'B', &[portal.as_bytes(), b"\0", statement.as_bytes(), b"\0\0\0\0\0\0\0"].concat())
}

fn execute(portal: &str, rows: i32) -> Vec<u8> {
    message(b'E', &[portal.as_bytes(), b"\0", &rows.to_be_bytes()].concat())
}

fn sync() -> Vec<u8> {
    message(b'S', b"")
}

/// Parse, Bind, Execute of the unnamed statement.
fn run(sql: &str) -> Vec<u8> {
    [parse("", sql), bind("", ""), execute("", 0)].concat()
}

struct Answers {
    kinds: String,
    /// Texts of all values of all rows, null as `~`.
    values: Vec<String>,
    tags: Vec<String>,
    errors: Vec<String>,
    status: char,
}

/// Everything up to the next ReadyForQuery.
fn answers(raw: &mut Raw) -> Answers {
    let mut found = Answers { kinds: String::new(), values: vec![], tags: vec![], errors: vec![], status: '.' };
    for (kind, body) in raw.until(b'Z') {
        found.kinds.push(char::from(kind));
        match kind {
            b'D' => found.values.extend(values(&body)),
            b'C' => found.tags.push(String::from_utf8(body[..body.len() - 1].to_vec()).unwrap()),
            b'E' => found.errors.push(field(&body, b'C')),
            b'Z' => found.status = char::from(body[0]),
            _ => {}
        }
    }
    found
}

fn values(body: &[u8]) -> Vec<String> {
    let (mut rest, mut values) = (&body[2..], Vec::new());
    while let Some((length, after)) = rest.split_first_chunk::<4>() {
        let Ok(length) = usize::try_from(i32::from_be_bytes(*length)) else {
            values.push("~".to_owned());
            rest = after;
            continue;
        };
        values.push(String::from_utf8_lossy(&after[..length]).into_owned());
        rest = &after[length..];
    }
    values
}

fn ask(raw: &mut Raw, sql: &str) -> Answers {
    raw.send(&query(sql));
    answers(raw)
}

fn with_table(server: &Server) -> Raw {
    let mut raw = server.session();
    let made = ask(&mut raw, "create table t (id int primary key, name text)");
    assert_eq!((made.kinds.as_str(), made.tags), ("CZ", vec!["CREATE TABLE".to_owned()]));
    raw
}

#[test]
fn the_statements_of_a_query_stand_or_fall_together() {
    let server = Server::start(&[]);
    let mut raw = with_table(&server);
    let both = ask(&mut raw, "insert into t values (1, 'a'); select name from t");
    assert_eq!((both.kinds.as_str(), both.values), ("CTDCZ", vec!["a".to_owned()]));
    let broken = ask(&mut raw, "insert into t values (2, 'b'); insert into t values (1, 'c'); select 1");
    assert_eq!((broken.kinds.as_str(), broken.errors, broken.status), ("CEZ", vec!["23505".to_owned()], 'I'));
    assert_eq!(ask(&mut raw, "select count(*) from t").values, ["1"]);
    assert_eq!(ask(&mut raw, "select $1").errors, ["42P02"]);
    let misspelt = ask(&mut raw, "insert into t values (3, 'd'); selec 1");
    assert_eq!(misspelt.errors, ["42601"]);
    assert_eq!(ask(&mut raw, "select count(*) from t").values, ["1"]);
}

#[test]
fn transactions_are_told_and_failed_ones_wait_for_their_end() {
    let server = Server::start(&[]);
    let mut raw = with_table(&server);
    assert_eq!(ask(&mut raw, "begin").status, 'T');
    assert_eq!(ask(&mut raw, "insert into t values (1, 'a')").status, 'T');
    assert_eq!(ask(&mut raw, "selec").status, 'E');
    let refused = ask(&mut raw, "select 1");
    assert_eq!((refused.errors, refused.status), (vec!["25P02".to_owned()], 'E'));
    let ended = ask(&mut raw, "commit");
    assert_eq!((ended.tags, ended.status), (vec!["ROLLBACK".to_owned()], 'I'));
    assert_eq!(ask(&mut raw, "select count(*) from t").values, ["0"]);
}

#[test]
fn a_pipeline_up_to_its_sync_stands_or_falls_together() {
    let server = Server::start(&[]);
    let mut raw = with_table(&server);
    let (one, again) = (run("insert into t values (1, 'a')"), run("insert into t values (1, 'b')"));
    raw.send(&[&one[..], &again, &run("select 1"), &sync()].concat());
    let fallen = answers(&mut raw);
    assert_eq!((fallen.kinds.as_str(), fallen.errors), ("12C12EZ", vec!["23505".to_owned()]));
    assert_eq!(ask(&mut raw, "select count(*) from t").values, ["0"]);
    raw.send(&[&one[..], &sync(), &again, &sync()].concat());
    assert_eq!(answers(&mut raw).kinds, "12CZ");
    assert_eq!(answers(&mut raw).errors, ["23505"]);
    assert_eq!(ask(&mut raw, "select count(*) from t").values, ["1"]);
}

#[test]
fn a_portal_gives_as_many_rows_as_it_is_asked_for() {
    let server = Server::start(&[]);
    let mut raw = with_table(&server);
    ask(&mut raw, "insert into t values (1, 'a'), (2, 'b'), (3, null)");
    ask(&mut raw, "begin");
    let all = [parse("s", "select id, name from t order by id"), bind("p", "s")].concat();
    raw.send(&[&all[..], &execute("p", 2), &sync()].concat());
    let first = answers(&mut raw);
    assert_eq!((first.kinds.as_str(), first.values), ("12DDsZ", ["1", "a", "2", "b"].map(str::to_owned).to_vec()));
    raw.send(&[execute("p", 2), execute("p", 2), sync()].concat());
    let rest = answers(&mut raw);
    assert_eq!((rest.kinds.as_str(), rest.values), ("DCCZ", ["3", "~"].map(str::to_owned).to_vec()));
    assert_eq!(rest.tags, ["SELECT 1", "SELECT 0"]);
    ask(&mut raw, "commit");
    raw.send(&[execute("p", 2), sync()].concat());
    assert_eq!(answers(&mut raw).errors, ["34000"], "a portal dies with its transaction");
    raw.send(&[bind("", "s"), execute("", 1), sync(), execute("", 1), sync()].concat());
    assert_eq!(answers(&mut raw).kinds, "2DsZ");
    assert_eq!(answers(&mut raw).errors, ["34000"]);
}

#[test]
fn statements_and_portals_are_described_and_closed() {
    let server = Server::start(&[]);
    let mut raw = with_table(&server);
    let named = parse("s", "select name from t where id = $1");
    raw.send(&[&named[..], &message(b'D', b"Ss\0"), &message(b'C', b"Ss\0"), &bind("", "s"), &sync()].concat());
    let found = answers(&mut raw);
    assert_eq!((found.kinds.as_str(), found.errors), ("1tT3EZ", vec!["26000".to_owned()]));
    raw.send(&[&named[..], &named, &sync()].concat());
    assert_eq!(answers(&mut raw).errors, ["42P05"]);
    raw.send(&[bind("", "s"), sync()].concat());
    assert_eq!(answers(&mut raw).errors, ["08P01"], "it has a parameter");
    raw.send(&[parse("", "insert into t values (9, 'x')"), message(b'D', b"S\0"), sync()].concat());
    assert_eq!(answers(&mut raw).kinds, "1tnZ");
    raw.send(&[parse("", "select 1; select 2"), sync()].concat());
    assert_eq!(answers(&mut raw).errors, ["42601"]);
}

#[test]
fn copies_come_in_and_go_out() {
    let server = Server::start(&[]);
    let mut raw = with_table(&server);
    raw.send(&query("copy t from stdin; select count(*) from t"));
    assert_eq!(raw.kinds(1), "G");
    // Cut anywhere; Flush and Sync are ignored meanwhile.
    for piece in [&b"1\ta"[..], b"\n2\t\\", b"N\n"] {
        raw.send(&message(b'd', piece));
        raw.send(&[message(b'H', b""), sync()].concat());
    }
    raw.send(&message(b'c', b""));
    let done = answers(&mut raw);
    assert_eq!(
        (done.kinds.as_str(), done.values, &done.tags[0]),
        ("CTDCZ", vec!["2".to_owned()], &"COPY 2".to_owned())
    );

    raw.send(&query("copy (select id, name from t order by id) to stdout (format csv)"));
    let sent = raw.until(b'Z');
    let data: Vec<u8> = sent.iter().filter(|(kind, _)| *kind == b'd').flat_map(|(_, body)| body.clone()).collect();
    assert_eq!(String::from_utf8(data).unwrap(), "1,a\n2,\n");
    assert_eq!(sent.last().map(|(_, status)| status.clone()), Some(b"I".to_vec()));
}

#[test]
fn a_copy_that_fails_leaves_nothing_and_the_session_goes_on() {
    let server = Server::start(&[]);
    let mut raw = with_table(&server);
    raw.send(&query("copy t from stdin"));
    raw.send(&[message(b'd', b"1\ta\n"), message(b'f', b"no more\0")].concat());
    let given_up = answers(&mut raw);
    assert_eq!((given_up.kinds.as_str(), given_up.errors), ("GEZ", vec!["57014".to_owned()]));

    // The server's error; what the client still sends of the copy is ignored.
    raw.send(&query("copy t from stdin"));
    raw.send(&[message(b'd', b"x\ta\n"), message(b'd', b"2\tb\n"), message(b'c', b"")].concat());
    let wrong = answers(&mut raw);
    assert_eq!((wrong.kinds.as_str(), wrong.errors), ("GEZ", vec!["22P02".to_owned()]));
    assert_eq!(ask(&mut raw, "select count(*) from t").values, ["0"]);

    // By extended query everything up to Sync is skipped.
    raw.send(&[run("copy t from stdin"), message(b'd', b"1\n"), message(b'c', b""), sync()].concat());
    let wrong = answers(&mut raw);
    assert_eq!((wrong.kinds.as_str(), wrong.errors), ("12GEZ", vec!["22P04".to_owned()]));

    raw.send(&query("copy t from stdin"));
    assert_eq!(raw.kinds(1), "G");
    raw.send(&query("select 1"));
    assert_eq!(raw.rest(), "E.", "a query in the middle of a copy ends the connection");
}

/// A client that vanishes inside of a transaction or a copy leaves nothing.
#[test]
fn what_was_not_committed_is_rolled_back_when_the_client_vanishes() {
    let server = Server::start(&[]);
    let mut raw = with_table(&server);
    let mut gone = server.session();
    ask(&mut gone, "begin");
    ask(&mut gone, "insert into t values (1, 'a')");
    drop(gone);
    let mut copying = server.session();
    copying.send(&query("copy t from stdin"));
    copying.send(&message(b'd', b"2\tb\n"));
    drop(copying);
    let begun = Instant::now();
    while ask(&mut raw, "insert into t values (1, 'mine'), (2, 'mine')").errors != Vec::<String>::new() {
        assert!(begun.elapsed() < PATIENCE);
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(ask(&mut raw, "select distinct name from t").values, ["mine"]);
}

/// Takes minutes and hardly any memory.
const LONG: &str =
    "with recursive r (n) as (select 1 union all select n + 1 from r where n < 1000000000) select count(*) from r";

/// I-57: the key of a session cancels what it runs; another key does not.
#[test]
fn a_statement_is_cancelled_with_its_own_key() {
    let server = Server::start(&[]);
    let mut raw = server.raw();
    raw.send(&crate::harness::hello("isles"));
    raw.prove(&server.password).unwrap();
    let heard = raw.until(b'Z');
    let key = heard.iter().find(|(kind, _)| *kind == b'K').unwrap().1.clone();
    raw.send(&query(LONG));
    let request = |contents: &[u8]| {
        let length = contents.len() as i32 + 8;
        let mut other = server.raw();
        other.send(&[&length.to_be_bytes()[..], &80_877_102i32.to_be_bytes(), contents].concat());
        assert_eq!(other.hear(), Heard::Closed);
    };
    let mut wrong = key.clone();
    wrong[7] ^= 1;
    request(&wrong);
    raw.stream.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    assert_eq!(raw.hear(), Heard::Closed, "it still runs");
    raw.stream.set_read_timeout(Some(PATIENCE)).unwrap();
    request(&key);
    let cancelled = answers(&mut raw);
    assert_eq!((cancelled.kinds.as_str(), cancelled.errors), ("EZ", vec!["57014".to_owned()]));
    assert_eq!(ask(&mut raw, "select 1").values, ["1"], "the next statement is not touched");
}

#[test]
fn a_client_that_vanishes_does_not_leave_its_statement_behind() {
    let server = Server::start(&[]);
    let mut raw = server.session();
    raw.send(&query(LONG));
    std::thread::sleep(Duration::from_millis(50));
    drop(raw);
    server.wait_until_alone();
}

#[tokio::test]
async fn values_travel_in_binary_form() {
    let server = Server::start(&[]);
    let (client, connection) = tokio_postgres::connect(&server.url, tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    let row = client
        .query_one(
            "select $1::int4 + 1, $2::text || 'b', $3::bool, $4::float8, null::text",
            &[&41i32, &"a", &true, &1.5f64],
        )
        .await
        .unwrap();
    assert_eq!((row.get::<_, i32>(0), row.get::<_, String>(1), row.get::<_, bool>(2)), (42, "ab".to_owned(), true));
    assert_eq!((row.get::<_, f64>(3), row.get::<_, Option<String>>(4)), (1.5, None));
}

#[test]
fn the_prompt_s_client_shows_tables() {
    let server = Server::start(&[]);
    let sql = |arguments: &[&str]| {
        let output = isles().args(["sql", "--url", &server.url]).args(arguments).output().unwrap();
        (
            output.status.code().unwrap(),
            String::from_utf8(output.stdout).unwrap(),
            String::from_utf8(output.stderr).unwrap(),
        )
    };
    let (code, out, _) = sql(&["-c", "select 1 as id, 'ann' as name union all select 20, null order by 1"]);
    assert_eq!((code, out.as_str()), (0, " id | name\n----+------\n  1 | ann\n 20 |\n(2 rows)\n\n"));
    let (_, out, _) = sql(&["--csv", "-c", "select 1 as a, 'x,y' as b"]);
    assert_eq!(out, "a,b\n1,\"x,y\"\n");
    let (code, _, error) = sql(&["-c", "select\n nothing"]);
    assert_eq!(code, 1);
    assert!(error.contains("42703") && error.contains("LINE 2:  nothing\n         ^"), "{error}");
}

#[test]
fn http_answers_with_rows_or_lines_or_undoes_what_is_too_large() {
    let server = Server::start(&[]);
    let post = |accept: &str, sql: &str, params: &str| {
        let body = format!("{{\"sql\":\"{sql}\",\"params\":{params}}}");
        let (length, password) = (body.len(), &server.password);
        let answer = server.http(&format!(
            "POST /sql HTTP/1.0\r\nAuthorization: Bearer isles:{password}\r\nAccept: {accept}\r\nContent-Length: {length}\r\n\r\n{body}"
        ));
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.split(' ').nth(1).unwrap().to_owned(), body.trim().to_owned())
    };
    let expected = r#"{"results":[{"columns":[{"name":"n","type":"integer"}],"rows":[[42]],"tag":"SELECT 1"}]}"#;
    assert_eq!(post("*/*", "select $1::int + 1 as n", "[41]"), ("200".to_owned(), expected.to_owned()));
    let (_, lines) = post("application/x-ndjson", "select 'a' as x; select 1 where false", "[]");
    let lines: Vec<&str> = lines.lines().collect();
    assert_eq!(lines[1..3], ["{\"row\":[\"a\"]}", "{\"tag\":\"SELECT 1\"}"]);
    assert_eq!(lines.last(), Some(&"{\"done\":true}"));
    assert_eq!(post("*/*", "create table h (id int primary key)", "[]").0, "200");
    let large = "insert into h select n from generate_series(1, 20000) n returning id";
    assert_eq!(post("*/*", large, "[]").0, "413");
    let (_, count) = post("*/*", "select count(*) from h", "[]");
    assert!(count.contains("[[0]]"), "{count}");
    assert_eq!(post("*/*", "begin", "[]").0, "400");
}
