//! `isles sql` as people run it: from the command line, a file, standard input, and a terminal.

use crate::harness::{Heard, PATIENCE, Server, field, isles, message};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::process::{Command, Stdio};
use std::time::Instant;

struct Answer {
    code: i32,
    out: String,
    err: String,
}

fn answer(command: &mut Command, input: &str) -> Answer {
    let piped = || Stdio::piped();
    let mut process = command.stdin(piped()).stdout(piped()).stderr(piped()).spawn().unwrap();
    process.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = process.wait_with_output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Answer { code: output.status.code().unwrap(), out: text(output.stdout), err: text(output.stderr) }
}

/// The client of a server that it finds by its environment.
fn sql(server: &Server, arguments: &[&str], input: &str) -> Answer {
    answer(isles().arg("sql").args(arguments).env("ISLES_URL", &server.url), input)
}

fn done(server: &Server, arguments: &[&str], input: &str) -> String {
    let answer = sql(server, arguments, input);
    assert_eq!((answer.code, answer.err.as_str()), (0, ""), "{arguments:?}");
    answer.out
}

#[test]
fn statements_come_from_arguments_files_and_standard_input() {
    let server = Server::start(&[]);
    done(&server, &["-c", "CREATE TABLE t (id int PRIMARY KEY, v text)"], "");
    assert_eq!(
        done(&server, &["-c", "INSERT INTO t VALUES (1, 'a;b')", "-c", "SELECT 2 AS two"], ""),
        "INSERT 0 1\n two\n-----\n   2\n(1 row)\n\n"
    );
    let lines = done(&server, &["--json", "-c", "SELECT id, v, NULL AS n FROM t; DELETE FROM t"], "");
    let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(
        lines,
        [
            json!({"columns": ["id", "v", "n"], "rows": [["1", "a;b", null]], "tag": "SELECT 1"}),
            json!({"tag": "DELETE 1"}),
        ]
    );
    assert_eq!(done(&server, &["--csv"], "SELECT 1 AS a, 'x,y' AS b;\nSELECT 2"), "a,b\n1,\"x,y\"\n?column?\n2\n");
    let file = server.data.path().join("script.sql");
    std::fs::write(&file, "-- first\nINSERT INTO t VALUES (5, 'five');\n\nSELECT nonsense;\nDELETE FROM t;").unwrap();
    let failed = sql(&server, &["-f", file.to_str().unwrap()], "");
    assert_eq!((failed.code, failed.out.as_str()), (1, "INSERT 0 1\n"));
    assert!(failed.err.contains("42703"), "{}", failed.err);
    assert_eq!(done(&server, &["--csv", "-c", "SELECT v FROM t"], ""), "v\nfive\n", "the first error ends it");
}

/// As pg_dump writes them.
const DUMP: &str = "-- Data for Name: t
CREATE TABLE t (id int PRIMARY KEY, v text);

COPY public.t (id, v) FROM stdin;
1\tone
2\t\\N
3\tsemi;colon 'quote
\\.

-- Done
COPY t FROM STDIN WITH (FORMAT csv);
4,\"four, \"\"4\"\"\"
\\.
SELECT count(*) FROM t;
";

#[test]
fn rows_are_copied_in_and_out() {
    let server = Server::start(&[]);
    let path = |name: &str| server.data.path().join(name).to_str().unwrap().to_owned();
    std::fs::write(path("dump.sql"), DUMP).unwrap();
    let out = done(&server, &["-f", &path("dump.sql")], "");
    assert_eq!(out, "CREATE TABLE\nCOPY 3\nCOPY 1\n count\n-------\n     4\n(1 row)\n\n");
    let all = "1\tone\n2\t\\N\n3\tsemi;colon 'quote\n4\tfour, \"4\"\n";
    assert_eq!(done(&server, &["-c", "COPY (SELECT * FROM t ORDER BY id) TO STDOUT"], ""), all);
    assert_eq!(done(&server, &["-c", "COPY t FROM STDIN"], "5\tfive\n6\tsix\n"), "COPY 2\n");
    done(&server, &["-c", &format!("\\copy (SELECT id FROM t ORDER BY id) to '{}' csv header", path("ids.csv"))], "");
    assert_eq!(std::fs::read_to_string(path("ids.csv")).unwrap(), "id\n1\n2\n3\n4\n5\n6\n");
    std::fs::write(path("more.csv"), "id,v\n7,seven\n").unwrap();
    let script =
        format!("\\copy t from '{}' with (format csv, header)\nSELECT v FROM t WHERE id = 7;", path("more.csv"));
    assert_eq!(done(&server, &["--csv"], &script), "v\nseven\n");
    assert_eq!(done(&server, &["--json", "-c", "COPY t FROM STDIN"], "8\teight\n"), "{\"tag\":\"COPY 1\"}\n");

    for (arguments, input, says) in [
        (["-c", "COPY t FROM STDIN"], "9\tnine\n1\ttwice\n", "23505"),
        (["-c", "COPY t FROM STDIN"], "9\n", "22P04"),
        (["-c", "COPY t FROM STDIN; SELECT 1"], "", "several statements"),
        (["-c", "\\copy t from '/no/such/file'"], "", "cannot open"),
        (["-c", "\\copy t"], "", "\\copy needs"),
        (["-c", "COPY nosuch TO STDOUT"], "", "42P01"),
    ] {
        let failed = sql(&server, &arguments, input);
        assert!(failed.code == 1 && failed.err.contains(says), "{arguments:?}: {}", failed.err);
    }
    let failed = sql(&server, &[], "COPY t FROM STDIN;\n9\n\\.\nDELETE FROM t;");
    assert!(failed.code == 1 && failed.out.is_empty(), "rows are no statements: {}", failed.out);
    assert_eq!(
        done(&server, &["--csv", "-c", "SELECT count(*) FROM t"], ""),
        "count\n8\n",
        "a failed copy leaves nothing"
    );
}

/// A terminal of its own for a program; what it shows is read until some text comes.
#[cfg(unix)]
#[test]
fn the_prompt_answers_and_copies() {
    let server = Server::start(&[]);
    let client = format!("{} sql", env!("CARGO_BIN_EXE_isles"));
    let mut command = Command::new("script");
    command.args(["-qec", &client, "/dev/null"]).env("ISLES_URL", &server.url).env("HOME", server.data.path());
    let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let (mut input, mut output) = (process.stdin.take().unwrap(), process.stdout.take().unwrap());
    let mut shown = String::new();
    let begun = Instant::now();
    let mut until = |wanted: &str| {
        while !shown.contains(wanted) {
            assert!(begun.elapsed() < PATIENCE, "{wanted} is missing: {shown}");
            let mut bytes = [0; 4096];
            let length = output.read(&mut bytes).unwrap();
            assert!(length > 0, "{wanted} is missing: {shown}");
            shown.push_str(&String::from_utf8_lossy(&bytes[..length]));
        }
        // What comes behind it is looked at by the next one.
        let end = shown.find(wanted).map_or(0, |at| at + wanted.len());
        shown.drain(..end);
    };
    let mut types = |line: &str| input.write_all(format!("{line}\n").as_bytes()).unwrap();
    // A line is typed when the prompt waits for it: how a line has ended is what the terminal is told.
    const ENDED: &str = "\x1b[?2004l";
    for (prompt, line, answer) in [
        ("isles=> ", "CREATE TABLE t (id int PRIMARY KEY,", ENDED),
        ("isles-> ", "v text);", "CREATE TABLE\r\n"),
        ("isles=> ", "COPY t FROM STDIN WITH (FORMAT csv);", ENDED),
        (">> ", "1,one", ENDED),
        (">> ", "2,two", ENDED),
        (">> ", "\\.", "COPY 2"),
        ("isles=> ", "SELECT 40 + id AS n, v FROM t WHERE id = 2;", "42 | two"),
        ("isles=> ", "SELECT nonsense;", "42703"),
        ("isles=> ", "\\dt", "public"),
    ] {
        until(prompt);
        types(line);
        until(answer);
    }
    until("isles=> ");
    types("\\q");
    assert!(process.wait().unwrap().success());
}

#[test]
fn a_session_that_is_idle_too_long_is_ended_and_others_are_not() {
    let server = Server::start(&[]);
    let mut busy = server.session();
    let set = |text: &str| message(b'Q', &[text.as_bytes(), b"\0"].concat());
    busy.send(&set("SET idle_session_timeout = 100; BEGIN"));
    busy.until(b'Z');
    let mut idle = server.session();
    idle.send(&set("SET idle_session_timeout = 100"));
    idle.until(b'Z');
    let Heard::Message(b'E', body) = idle.hear() else { panic!("it is told") };
    assert_eq!((field(&body, b'C').as_str(), field(&body, b'S').as_str()), ("57P05", "FATAL"));
    assert_eq!(idle.hear(), Heard::Closed);
    busy.send(&set("COMMIT"));
    assert_eq!(busy.until(b'Z').last().map(|(kind, _)| *kind), Some(b'Z'), "a transaction is not idle in this way");
}

#[test]
fn what_is_shown_of_the_server_is_true() {
    let server = Server::start(&[]);
    assert_eq!(
        done(&server, &["--csv", "-c", "SHOW max_connections", "-c", "SHOW ssl"], ""),
        "max_connections\n500\nssl\noff\n"
    );
}
