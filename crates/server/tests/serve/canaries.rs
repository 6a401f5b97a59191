//! Nothing of a tenant is in any byte that the server sends to somebody else, whatever the protocol's way of asking.
//!
//!     victim    ── rows, records of stores and a name that are canaries ──► server
//!     intruders ── a locked role, another tenant, the null tenant, nobody ──► no canary in what they are sent
//!
//! What planning and the shards do against it is looked at without a server, with more statements and with each fence
//! taken away (`crates/cluster/tests/canaries`); here it is what lies above them: messages, portals, binary values,
//! cursors, COPY, errors, HTTP. The victim asks in the same ways, and finds its canaries in each.

use crate::harness::{Heard, Raw, Server, hello, message};
use isles_sim::rng::Rng;
use isles_sim::sqlgen::{Column, Generator, Kind, Table, Ty};
use serde_json::json;

/// What the victim's values look like as texts, in lower case. No other value does.
const CANARIES: [&str; 4] = ["canary", "770077", "7707-07-07", "7707 years"];
const VICTIM: &str = "Canary & Co";
/// Rows of the victim in each table.
const VICTIMS: u64 = 5;
/// Statements of each intruder.
const STATEMENTS: usize = 500;

/// A value that gives itself away.
fn canary(column: &Column, n: u64) -> String {
    match column.ty {
        Ty::Bool => "true".into(),
        Ty::Int2 => (7_700 + n).to_string(),
        Ty::Int4 => (770_077_000 + n).to_string(),
        Ty::Int8 => (770_077_007_700 + n).to_string(),
        Ty::Numeric => format!("770077.{n:03}"),
        Ty::Float8 => format!("77007700.{n}"),
        Ty::Text | Ty::Varchar => format!("'CANARY {n}'"),
        Ty::Date => "'7707-07-07'".into(),
        Ty::Timestamp | Ty::TimestampTz => format!("'7707-07-07 07:07:{n:02}'"),
        Ty::Interval => "'7707 years'".into(),
        Ty::Uuid => format!("'77007700-7700-7700-7700-7700770077{n:02}'"),
        Ty::Bytea => format!("'\\x7700770077{n:02}'"),
    }
}

fn canaries(table: &Table) -> String {
    let row = |n| table.columns.iter().map(|column| canary(column, n)).collect::<Vec<_>>().join(", ");
    let rows: Vec<String> = (0..VICTIMS).map(|n| format!("({})", row(n))).collect();
    format!("INSERT INTO {} VALUES {}", table.name, rows.join(", "))
}

/// Whether a canary is among these bytes, as a text or as a binary value.
fn has_canary(bytes: &[u8]) -> bool {
    let text = String::from_utf8_lossy(bytes).to_lowercase();
    let numbers = (0..VICTIMS).flat_map(|n| {
        let (four, eight) = (770_077_000 + n as i32, 770_077_007_700 + n as i64);
        [four.to_be_bytes().to_vec(), eight.to_be_bytes().to_vec()]
    });
    let finds = |number: Vec<u8>| bytes.windows(number.len()).any(|window| window == number);
    CANARIES.iter().any(|canary| text.contains(canary)) || numbers.into_iter().any(finds)
}

/// A connection, and how its transaction stands.
struct Caller {
    raw: Raw,
    status: u8,
}

fn text(value: &str) -> Vec<u8> {
    [value.as_bytes(), &[0]].concat()
}

/// Bind to a portal, with one parameter or none, and all results in one format.
fn bind(portal: &str, param: Option<&str>, format: i16) -> Vec<u8> {
    let mut body = [text(portal), text("")].concat();
    body.extend(0_i16.to_be_bytes());
    body.extend((param.iter().count() as i16).to_be_bytes());
    if let Some(value) = param {
        body.extend((value.len() as i32).to_be_bytes());
        body.extend(value.as_bytes());
    }
    body.extend(1_i16.to_be_bytes());
    body.extend(format.to_be_bytes());
    message(b'B', &body)
}

fn parse(sql: &str) -> Vec<u8> {
    message(b'P', &[text(""), text(sql), 0_i16.to_be_bytes().to_vec()].concat())
}

fn execute(portal: &str, rows: i32) -> Vec<u8> {
    message(b'E', &[text(portal), rows.to_be_bytes().to_vec()].concat())
}

impl Caller {
    fn login(server: &Server, role: &str, password: &str) -> Caller {
        let mut raw = server.raw();
        raw.send(&hello(role));
        raw.prove(password).unwrap();
        let mut caller = Caller { raw, status: b'I' };
        caller.hear(None);
        caller
    }

    /// All that is sent up to ReadyForQuery; a COPY that wants rows is given this text.
    fn hear(&mut self, copied: Option<&str>) -> Vec<(u8, Vec<u8>)> {
        let mut heard = Vec::new();
        loop {
            let Heard::Message(kind, body) = self.raw.hear() else { panic!("the server has gone after {heard:?}") };
            if kind == b'G' {
                self.raw.send(&message(b'd', copied.unwrap_or_default().as_bytes()));
                self.raw.send(&message(b'c', b""));
            }
            heard.push((kind, body));
            if kind == b'Z' {
                self.status = heard.last().map_or(b'I', |(_, body)| body[0]);
                return heard;
            }
        }
    }

    fn simple(&mut self, sql: &str) -> Vec<(u8, Vec<u8>)> {
        self.simple_copying(sql, None)
    }

    fn simple_copying(&mut self, sql: &str, copied: Option<&str>) -> Vec<(u8, Vec<u8>)> {
        self.raw.send(&message(b'Q', &text(sql)));
        self.hear(copied)
    }

    fn must(&mut self, sql: &str) {
        let heard = self.simple(sql);
        let error = heard.iter().find(|(kind, _)| *kind == b'E');
        assert!(error.is_none(), "{sql}: {}", String::from_utf8_lossy(&error.unwrap().1));
    }

    fn extended(&mut self, sql: &str, param: Option<&str>, format: i16) -> Vec<(u8, Vec<u8>)> {
        let describe = message(b'D', b"P\0");
        let messages = [parse(sql), bind("", param, format), describe, execute("", 0), message(b'S', b"")];
        self.raw.send(&messages.concat());
        self.hear(None)
    }

    /// A portal that is read in two pieces.
    fn in_pieces(&mut self, sql: &str) -> Vec<(u8, Vec<u8>)> {
        let messages = [parse(sql), bind("p", None, 0), execute("p", 1), execute("p", 0), message(b'S', b"")];
        self.raw.send(&messages.concat());
        self.hear(None)
    }

    fn cursor(&mut self, sql: &str) -> Vec<(u8, Vec<u8>)> {
        let declare = format!("DECLARE c CURSOR FOR {sql}");
        let steps = ["BEGIN", &declare, "FETCH 1 FROM c", "FETCH ALL FROM c", "CLOSE c", "COMMIT"];
        steps.iter().flat_map(|step| self.simple(step)).collect()
    }

    fn within_savepoint(&mut self, sql: &str) -> Vec<(u8, Vec<u8>)> {
        let steps = ["BEGIN", "SAVEPOINT a", sql, "ROLLBACK TO a", sql, "COMMIT"];
        steps.iter().flat_map(|step| self.simple(step)).collect()
    }

    /// One of the ways in which a query can be asked.
    fn ask(&mut self, way: u64, sql: &str) -> Vec<(u8, Vec<u8>)> {
        match way {
            0 => self.simple(sql),
            1 => self.extended(sql, None, 0),
            2 => self.extended(sql, None, 1),
            3 => self.in_pieces(sql),
            4 => self.cursor(sql),
            5 => self.within_savepoint(sql),
            6 => self.simple(&format!("COPY ({sql}) TO STDOUT")),
            7 => self.simple(&format!("COPY ({sql}) TO STDOUT WITH (FORMAT binary)")),
            _ => self.simple(&format!("CREATE TEMP TABLE x AS {sql}; {sql}")),
        }
    }
}

/// Ways of [`Caller::ask`] in which the victim finds what it asks for.
const WAYS: u64 = 8;

/// What is looked at that shows names.
const SHOWN: [&str; 13] = [
    "SHOW ALL",
    "SHOW TABLES",
    "SHOW TENANT intruder",
    "SELECT * FROM pg_class",
    "SELECT * FROM pg_attribute",
    "SELECT * FROM pg_roles",
    "SELECT * FROM pg_settings",
    "SELECT * FROM pg_stat_activity",
    "SELECT * FROM pg_prepared_statements",
    "SELECT * FROM pg_stats",
    "SELECT * FROM information_schema.tables",
    "SELECT * FROM information_schema.columns",
    "SELECT * FROM information_schema.views",
];

struct Intruder<'a> {
    name: &'a str,
    caller: Caller,
    generator: Generator,
    rng: Rng,
    answered: usize,
}

impl Intruder<'_> {
    fn intrude(&mut self) {
        for n in 0..STATEMENTS {
            self.attempt(n);
            if self.caller.status == b'E' {
                self.generator.abandon_transaction();
                let heard = self.caller.simple("ROLLBACK");
                self.look("ROLLBACK", &heard);
            }
        }
        assert!(self.answered * 3 > STATEMENTS, "{}: hardly anything is answered: {}", self.name, self.answered);
    }

    fn attempt(&mut self, n: usize) {
        let table = self.rng.pick(self.generator.tables()).clone();
        let (name, key) = (&table.name, canary(&table.columns[0], self.rng.below(VICTIMS)));
        let in_transaction = self.caller.status != b'I';
        let (sql, heard) = match self.rng.below(12) {
            0 => {
                let sql = format!("SELECT * FROM {name} WHERE k = $1");
                let heard = self.caller.extended(&sql, Some(key.trim_matches('\'')), (n % 2) as i16);
                (format!("{sql} -- {key}"), heard)
            }
            1 => {
                let sql = format!("UPDATE {name} SET k = k WHERE k = {key} RETURNING *");
                (sql.clone(), self.caller.simple(&sql))
            }
            2 => {
                let sql = format!("INSERT INTO {name} SELECT * FROM {name} ON CONFLICT DO NOTHING RETURNING *");
                (sql.clone(), self.caller.extended(&sql, None, 1))
            }
            3 => {
                let sql = format!("COPY {name} FROM STDIN");
                let row = vec![key.trim_matches('\''); table.columns.len()].join("\t");
                (format!("{sql} {row}"), self.caller.simple_copying(&sql, Some(&format!("{row}\n"))))
            }
            4 => {
                let sql = SHOWN[n % SHOWN.len()].to_owned();
                (sql.clone(), self.caller.simple(&sql))
            }
            5 => {
                let sql = format!("EXPLAIN (VERBOSE, ANALYZE) SELECT * FROM {name}");
                (sql.clone(), self.caller.simple(&sql))
            }
            6 => {
                let sql = format!("SELECT * FROM {name} WHERE CAST({key} AS text)::int = 1");
                (sql.clone(), self.caller.simple(&sql))
            }
            7..=9 if !in_transaction => {
                let sql = format!("SELECT * FROM {name} UNION ALL SELECT * FROM v_{name}");
                let way = self.rng.below(WAYS + 1);
                (sql.clone(), self.caller.ask(way, &sql))
            }
            _ => {
                let sql = self.generator.statement().sql;
                (sql.clone(), self.caller.extended(&sql, None, (n % 2) as i16))
            }
        };
        self.answered += usize::from(heard.iter().any(|(kind, _)| *kind == b'C'));
        self.look(&sql, &heard);
    }

    /// No canary is in what was heard. An error may repeat what the intruder has written.
    fn look(&self, sql: &str, heard: &[(u8, Vec<u8>)]) {
        let is_own_word = has_canary(sql.as_bytes());
        for (kind, body) in heard.iter().filter(|(kind, _)| !(is_own_word && *kind == b'E')) {
            let text = String::from_utf8_lossy(body);
            assert!(!has_canary(body), "{} ran\n  {sql}\nand was sent {:?} {text}", self.name, char::from(*kind));
        }
    }
}

fn request(server: &Server, path: &str, (role, password): (&str, &str), headers: &str, body: &str) -> String {
    let length = body.len();
    server.http(&format!(
        "POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer {role}:{password}\r\n\
         {headers}Content-Length: {length}\r\n\r\n{body}"
    ))
}

/// Tables, views, and a record of a store, all the victim's. Returns the record's id.
fn people(server: &Server, generator: &Generator) -> String {
    let mut admin = Caller::login(server, "isles", &server.password);
    for sql in [
        "CREATE USER locked PASSWORD 'pw'",
        "ALTER ROLE locked SET isles.tenant = 'intruder'",
        "ALTER ROLE locked SET isles.tenant_locked = on",
        "CREATE USER owner PASSWORD 'pw'",
        "SELECT isles.create_preset('identity')",
    ] {
        admin.must(sql);
    }
    for table in generator.tables() {
        admin.must(&table.create().0);
        admin.must(&format!("CREATE VIEW v_{0} AS SELECT * FROM {0}", table.name));
    }
    admin.must(&format!("SET isles.tenant = '{VICTIM}'"));
    for table in generator.tables() {
        admin.must(&canaries(table));
    }
    for (n, tenant) in ["SET isles.tenant = 'intruder'", "SET isles.null_tenant = on"].iter().enumerate() {
        admin.must(tenant);
        for sql in generator.beside(n as u64).fill() {
            admin.must(&sql);
        }
    }
    let put = json!({ "value": { "user": "CANARY" }, "owner": "somebody" }).to_string();
    let header = format!("x-isles-tenant: {VICTIM}\r\n");
    let answer = request(server, "/stores/session/put", ("isles", &server.password), &header, &put);
    let body: serde_json::Value = serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap();
    body["id"].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned()
}

/// The same questions, asked by the victim: in each way there are canaries to be seen.
fn check_that_canaries_show(server: &Server, generator: &Generator, id: &str) {
    let mut victim = Caller::login(server, "isles", &server.password);
    victim.must(&format!("SET isles.tenant = '{VICTIM}'"));
    let name = &generator.tables()[0].name;
    for way in 0..WAYS {
        let heard = victim.ask(way, &format!("SELECT * FROM {name} UNION ALL SELECT * FROM v_{name}"));
        assert!(heard.iter().any(|(_, body)| has_canary(body)), "way {way} shows nothing");
    }
    let header = format!("x-isles-tenant: {VICTIM}\r\n");
    for (path, body) in asked_by_http(name, id) {
        let answer = request(server, path, ("isles", &server.password), &header, &body);
        assert!(has_canary(answer.as_bytes()), "{path} {body}: {answer}");
    }
}

fn asked_by_http(name: &str, id: &str) -> [(&'static str, String); 4] {
    [
        ("/sql", json!({ "sql": format!("SELECT * FROM {name}") }).to_string()),
        ("/sql", json!({ "sql": format!("SELECT v.* FROM v_{name} v") }).to_string()),
        ("/stores/session/get", json!({ "id": id }).to_string()),
        ("/stores/session/list_by_owner", json!({ "owner": "somebody" }).to_string()),
    ]
}

fn intrude_by_http(server: &Server, generator: &Generator, id: &str) {
    let guises = [
        ("locked", ""),
        ("owner", "x-isles-tenant: intruder\r\n"),
        ("owner", "x-isles-null-tenant: on\r\n"),
        ("owner", ""),
    ];
    for (role, header) in guises {
        for table in generator.tables() {
            for lines in ["", "Accept: application/x-ndjson\r\n"] {
                for (path, body) in asked_by_http(&table.name, id) {
                    let answer = request(server, path, (role, "pw"), &format!("{header}{lines}"), &body);
                    assert!(!has_canary(answer.as_bytes()), "{role} {header} {path} {body}: {answer}");
                }
            }
        }
    }
}

/// I-41, I-42: over PostgreSQL's protocol and HTTP, in whatever way it is asked.
#[test]
fn no_canary_is_in_any_byte_that_others_are_sent() {
    let server = Server::start(&["--shards", "2"]);
    let kinds = [Kind::Tenant, Kind::Tenant, Kind::Tenant, Kind::Tenant, Kind::Tenant, Kind::Tenant];
    let generator = Generator::over(kinds, 41);
    let id = people(&server, &generator);
    check_that_canaries_show(&server, &generator, &id);
    let intruders = [
        ("a locked role", "locked", "SELECT 1"),
        ("another tenant", "owner", "SET isles.tenant = 'intruder'"),
        ("the null tenant", "owner", "SET isles.null_tenant = on"),
        ("nobody", "owner", "SELECT 1"),
    ];
    for (n, (name, role, begin)) in (0..).zip(intruders) {
        let mut caller = Caller::login(&server, role, "pw");
        caller.must(begin);
        let generator = generator.beside(70 + n);
        let mut intruder = Intruder { name, caller, generator, rng: Rng::new(700 + n), answered: 0 };
        match name {
            // Hardly anything is.
            "nobody" => (0..STATEMENTS).for_each(|n| intruder.attempt_as_nobody(n)),
            _ => intruder.intrude(),
        }
    }
    intrude_by_http(&server, &generator, &id);
    check_that_canaries_show(&server, &generator, &id);
}

impl Intruder<'_> {
    fn attempt_as_nobody(&mut self, n: usize) {
        self.attempt(n);
        if self.caller.status == b'E' {
            self.generator.abandon_transaction();
            self.caller.must("ROLLBACK");
        }
    }
}
