//! The wire between a server and its replicas: golden JSON, strict reading, limits.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on shall say where")]

use isles_kernel::sync::*;
use proptest::prelude::*;
use serde_json::{Value, json};
use uuid::Uuid;

fn entry_id(number: u128) -> EntryId {
    EntryId(Uuid::from_u128(number))
}

fn cursor(version: u64) -> Cursor {
    match version {
        0 => Cursor::START,
        _ => Cursor::at(Version::new(version).unwrap(), entry_id(version.into())).unwrap(),
    }
}

fn values(json: Value) -> Values {
    serde_json::from_value(json).unwrap()
}

fn key(id: &str) -> RowKey {
    RowKey::new("tasks", "task", id).unwrap()
}

fn entry(version: u64) -> Entry {
    Entry {
        version: Version::new(version).unwrap(),
        id: entry_id(version.into()),
        prev: (version > 1).then(|| entry_id(u128::from(version) - 1)),
        at_ms: 1_700_000_000_000,
        request_id: None,
        mutations: vec![
            Mutation::new(Op::Create, key("a"), RowVersion(0), values(json!({"title": "x", "done": false}))).unwrap(),
        ],
    }
}

fn page(after: u64, to: u64, head: u64) -> OutboxPage {
    OutboxPage {
        partition: "p1".parse().unwrap(),
        entries: (after + 1..=to).map(entry).collect(),
        next: cursor(to),
        head: cursor(head),
        floor: Version::ZERO,
    }
}

/// Reads and writes without a change.
#[track_caller]
fn golden<T>(value: &T, expected: Value)
where
    T: serde::Serialize + for<'a> serde::Deserialize<'a> + PartialEq + std::fmt::Debug,
{
    assert_eq!(serde_json::to_value(value).unwrap(), expected);
    assert_eq!(&serde_json::from_value::<T>(expected).unwrap(), value);
}

#[test]
fn a_page_of_the_outbox_has_this_form() {
    let mut page = page(0, 1, 2);
    page.entries[0].request_id = Some(RequestId(Uuid::from_u128(9)));
    page.entries[0].mutations.push(Mutation::new(Op::Delete, key("b"), RowVersion(3), Values::default()).unwrap());
    golden(
        &page,
        json!({
            "partition": "p1",
            "entries": [{
                "version": 1,
                "id": "00000000-0000-0000-0000-000000000001",
                "prev": null,
                "at": 1_700_000_000_000_u64,
                "requestId": "00000000-0000-0000-0000-000000000009",
                "mutations": [
                    {"op": "create", "schema": "tasks", "table": "task", "externalId": "a", "version": 0,
                     "values": {"done": false, "title": "x"}},
                    {"op": "delete", "schema": "tasks", "table": "task", "externalId": "b", "version": 3},
                ],
            }],
            "next": "1.00000000000000000000000000000001",
            "head": "2.00000000000000000000000000000002",
            "floor": 0,
        }),
    );
}

#[test]
fn a_page_of_a_snapshot_has_this_form() {
    let row = SnapshotRow { key: key("a"), version: RowVersion(2), values: values(json!({"title": "x"})) };
    golden(
        &SnapshotPage {
            partition: "p1".parse().unwrap(),
            cursor: Cursor::START,
            rows: vec![row],
            next: Some("dGFzaw".parse().unwrap()),
        },
        json!({
            "partition": "p1",
            "cursor": "0",
            "rows": [{"schema": "tasks", "table": "task", "externalId": "a", "version": 2, "values": {"title": "x"}}],
            "next": "dGFzaw",
        }),
    );
}

fn request() -> SubmitRequest {
    SubmitRequest {
        request_id: RequestId(Uuid::from_u128(9)),
        partition: "p1".parse().unwrap(),
        cursor: cursor(1),
        commands: vec![Command {
            schema: "tasks".into(),
            name: "complete".into(),
            input: json!({"id": "a"}),
            reads: vec![key("a")],
            scopes: vec![Scope {
                schema: "tasks".into(),
                table: "task".into(),
                predicate: Predicate::All(vec![
                    Predicate::Eq("list".into(), json!("l1")),
                    Predicate::Not(Box::new(Predicate::Null("due".into()))),
                ]),
            }],
        }],
    }
}

#[test]
fn a_submitted_request_has_this_form() {
    golden(
        &request(),
        json!({
            "requestId": "00000000-0000-0000-0000-000000000009",
            "partition": "p1",
            "cursor": "1.00000000000000000000000000000001",
            "commands": [{
                "schema": "tasks",
                "name": "complete",
                "input": {"id": "a"},
                "reads": [{"schema": "tasks", "table": "task", "externalId": "a"}],
                "scopes": [{
                    "schema": "tasks",
                    "table": "task",
                    "where": {"all": [{"eq": ["list", "l1"]}, {"not": {"null": "due"}}]},
                }],
            }],
        }),
    );
}

#[test]
fn answers_to_requests_have_this_form() {
    let applied = SubmitResponse {
        request_id: RequestId(Uuid::from_u128(9)),
        status: Status::Applied,
        duplicate: true,
        entry: Some(cursor(2)),
        conflicts: vec![],
        page: page(1, 1, 2),
    };
    golden(
        &applied,
        json!({
            "requestId": "00000000-0000-0000-0000-000000000009",
            "status": "applied",
            "duplicate": true,
            "entry": "2.00000000000000000000000000000002",
            "conflicts": [],
            "partition": "p1",
            "entries": [],
            "next": "1.00000000000000000000000000000001",
            "head": "2.00000000000000000000000000000002",
            "floor": 0,
        }),
    );
    let conflict = Conflict {
        command: 0,
        code: ConflictCode::ReadConflict,
        key: Some(key("a")),
        version: Some(Version::new(2).unwrap()),
        message: "the task has changed".into(),
    };
    let refused = SubmitResponse {
        status: Status::Conflict,
        duplicate: false,
        entry: None,
        conflicts: vec![conflict],
        page: page(1, 1, 1),
        ..applied
    };
    golden(
        &refused,
        json!({
            "requestId": "00000000-0000-0000-0000-000000000009",
            "status": "conflict",
            "duplicate": false,
            "entry": null,
            "conflicts": [{
                "command": 0,
                "code": "read_conflict",
                "key": {"schema": "tasks", "table": "task", "externalId": "a"},
                "version": 2,
                "message": "the task has changed",
            }],
            "partition": "p1",
            "entries": [],
            "next": "1.00000000000000000000000000000001",
            "head": "1.00000000000000000000000000000001",
            "floor": 0,
        }),
    );
}

#[test]
fn a_client_ignores_what_a_newer_server_adds() {
    let mut json = serde_json::to_value(page(0, 1, 1)).unwrap();
    json["hint"] = json!("new");
    json["entries"][0]["trace"] = json!(1);
    json["entries"][0]["mutations"][0]["column"] = json!([1]);
    assert_eq!(serde_json::from_value::<OutboxPage>(json).unwrap(), page(0, 1, 1));
    let code: ConflictCode = serde_json::from_value(json!("moon_phase")).unwrap();
    assert_eq!(code, ConflictCode::Other);
}

#[test]
fn an_unknown_kind_of_change_is_an_error() {
    let mut json = serde_json::to_value(page(0, 1, 1)).unwrap();
    json["entries"][0]["mutations"][0]["op"] = json!("truncate");
    assert!(serde_json::from_value::<OutboxPage>(json).is_err());
}

#[test]
fn the_shard_of_a_row_is_dropped_by_whoever_reads_it() {
    assert_eq!(values(json!({"_shard": "acme", "a": 1})), values(json!({"a": 1})));
}

#[test]
fn a_server_refuses_what_a_request_should_not_have() {
    let bytes = |json: Value| serde_json::to_vec(&json).unwrap();
    let good = serde_json::to_value(request()).unwrap();
    assert_eq!(SubmitRequest::read(&bytes(good.clone())).unwrap(), request());

    let broken = |change: fn(&mut Value)| {
        let mut json = good.clone();
        change(&mut json);
        SubmitRequest::read(&bytes(json)).unwrap_err().to_string()
    };
    assert!(broken(|json| json["shard"] = json!("acme")).contains("unknown field `shard`"));
    assert!(broken(|json| json["commands"][0]["scope"] = json!([])).contains("unknown field `scope`"));
    assert!(broken(|json| json["commands"] = json!([])).contains("1 to 100 commands"));
    assert!(broken(|json| json["requestId"] = json!("7")).contains("UUID"));
    assert!(broken(|json| json["cursor"] = json!("17")).contains("cursor"));
    assert!(broken(|json| json["partition"] = json!("a b")).contains("may not contain ' '"));
    assert!(broken(|json| json["commands"][0]["name"] = json!("")).contains("command 0"));
    let many = vec![good["commands"][0].clone(); MAX_COMMANDS + 1];
    let mut json = good.clone();
    json["commands"] = json!(many);
    assert!(matches!(SubmitRequest::read(&bytes(json)), Err(InvalidSubmit::Commands(101))));
    let large = vec![b' '; MAX_SUBMIT_BYTES + 1];
    assert!(matches!(SubmitRequest::read(&large), Err(InvalidSubmit::TooLarge(_))));
}

#[test]
fn names_have_limits() {
    assert!(RowKey::new("", "t", "x".repeat(MAX_EXTERNAL_ID_CHARS)).is_ok());
    assert!(RowKey::new("", "t", "x".repeat(MAX_EXTERNAL_ID_CHARS + 1)).is_err());
    assert!(RowKey::new("", "", "x").is_err());
    assert!(RowKey::new("", "t", "").is_err());
    assert!(RowKey::new("", "t", "a\0").is_err());
    assert!("p".repeat(MAX_PARTITION_CHARS).parse::<PartitionId>().is_ok());
    assert!("p".repeat(MAX_PARTITION_CHARS + 1).parse::<PartitionId>().is_err());
    assert!("".parse::<PartitionId>().is_err());
    assert!(Version::new((1 << 53) - 1).is_ok());
    assert!(Version::new(1 << 53).is_err());
    let wide = |columns: usize| (0..columns).map(|n| (format!("c{n}"), json!(n))).collect();
    assert!(Values::new(wide(MAX_COLUMNS)).is_ok());
    assert!(Values::new(wide(MAX_COLUMNS + 1)).is_err());
}

#[test]
fn a_cursor_has_one_text() {
    for text in ["0", "1.00000000000000000000000000000001", "17.0123456789abcdef0123456789abcdef"] {
        assert_eq!(text.parse::<Cursor>().unwrap().to_string(), text);
    }
    let id = "00000000000000000000000000000001";
    let upper = "0123456789ABCDEF0123456789abcdef";
    for text in
        ["", "1", "00", "0.", &format!("0.{id}"), &format!("01.{id}"), &format!("+1.{id}"), &format!("1.{upper}")]
    {
        assert!(text.parse::<Cursor>().is_err(), "{text}");
    }
}

#[test]
fn a_page_that_continues_the_log_passes() {
    page(0, 0, 0).check(Cursor::START).unwrap();
    page(0, 3, 3).check(Cursor::START).unwrap();
    page(3, 5, 9).check(cursor(3)).unwrap();
    assert!(page(3, 5, 9).has_more());
    assert!(!page(3, 9, 9).has_more());
}

/// I-34: a log that begins anew is not taken for a continuation, not even when its numbers fit.
#[test]
fn another_log_is_noticed_by_its_ids() {
    let other = Cursor::at(Version::new(3).unwrap(), entry_id(77)).unwrap();
    assert!(matches!(page(3, 5, 9).check(other), Err(Broken::NotNext { .. })));
    assert!(matches!(page(0, 2, 2).check(cursor(3)), Err(Broken::NotNext { .. })));
    assert!(matches!(page(2, 4, 4).check(Cursor::START), Err(Broken::NotNext { .. })), "a gap");

    let shorter = OutboxPage { next: cursor(3), ..page(0, 0, 2) };
    assert!(matches!(shorter.check(cursor(3)), Err(Broken::Behind { .. })));
    let as_long = OutboxPage { next: other, ..page(0, 0, 3) };
    assert!(matches!(as_long.check(other), Err(Broken::Behind { .. })));
    let lies = OutboxPage { next: cursor(2), ..page(0, 3, 3) };
    assert!(matches!(lies.check(Cursor::START), Err(Broken::WrongEnd { .. })));
}

#[test]
fn queries_are_plain_text() {
    let query = OutboxQuery {
        after: Some(cursor(1)),
        limit: Some(9_999),
        wait_ms: Some(1 << 40),
        partition: Some("p1".parse().unwrap()),
    };
    assert_eq!(query.text(), "after=1.00000000000000000000000000000001&limit=9999&wait_ms=1099511627776&partition=p1");
    assert_eq!((query.entries(), query.wait()), (MAX_PAGE_ENTRIES, MAX_WAIT_MS));
    assert_eq!(OutboxQuery::default().text(), "after=0");
    assert_eq!(SnapshotQuery { limit: Some(0), ..SnapshotQuery::default() }.rows(), 1);
    assert_eq!(SnapshotQuery { limit: Some(7), ..SnapshotQuery::default() }.text(), "limit=7");
}

#[test]
fn a_refusal_is_read_whatever_it_is() {
    let refusal = Refusal::new(Code::ResyncRequired, "the log begins at 17").with_hint("take a snapshot");
    let body = serde_json::to_vec(&refusal.body()).unwrap();
    assert_eq!(
        refusal.body(),
        json!({"error": {"code": "resync_required", "message": "the log begins at 17", "hint": "take a snapshot"}})
    );
    assert_eq!(Refusal::read(410, &body), refusal);
    assert_eq!(Refusal::read(502, b"<html>").code, Code::Unavailable);
    let newer = br#"{"error":{"code":"of_tomorrow","message":"m"}}"#;
    assert_eq!(Refusal::read(429, newer).code, Code::TooManyRequests);
    for code in Code::ALL {
        let json = serde_json::to_value(code).unwrap();
        assert_eq!(serde_json::from_value::<Code>(json).unwrap(), code);
        assert!((400..600).contains(&code.http_status()));
    }
}

#[track_caller]
fn matches(predicate: Value, row: Value) -> bool {
    let predicate: Predicate = serde_json::from_value(predicate).unwrap();
    predicate.check().unwrap();
    predicate.matches(&values(row))
}

#[test]
fn predicates_have_three_values() {
    let row = json!({"a": 5, "b": "x", "c": null, "big": 9_007_199_254_740_993_u64, "o": {"k": 1}, "t": true});
    for (predicate, expected) in [
        (json!({"all": []}), true),
        (json!({"any": []}), false),
        (json!({"eq": ["a", 5]}), true),
        (json!({"eq": ["a", 5.0]}), true),
        (json!({"eq": ["a", "5"]}), false),
        (json!({"ne": ["a", "5"]}), false),
        (json!({"eq": ["big", 9_007_199_254_740_992_u64]}), false),
        (json!({"gt": ["big", 9_007_199_254_740_992_u64]}), true),
        (json!({"lt": ["a", 5.5]}), true),
        (json!({"lte": ["a", 5]}), true),
        (json!({"gte": ["b", "y"]}), false),
        (json!({"in": ["b", ["w", "x"]]}), true),
        (json!({"in": ["b", []]}), false),
        (json!({"eq": ["o", {"k": 1}]}), true),
        (json!({"eq": ["t", true]}), true),
        (json!({"null": "c"}), true),
        (json!({"null": "none"}), true),
        (json!({"eq": ["c", null]}), false),
        (json!({"not": {"eq": ["c", 1]}}), false),
        (json!({"not": {"null": "c"}}), false),
        (json!({"any": [{"eq": ["c", 1]}, {"eq": ["a", 5]}]}), true),
        (json!({"not": {"all": [{"eq": ["c", 1]}, {"eq": ["a", 6]}]}}), true),
    ] {
        assert_eq!(matches(predicate.clone(), row.clone()), expected, "{predicate}");
    }
}

#[test]
fn what_enters_leaves_or_changes_within_a_scope_stands_against_a_command() {
    let mut command = request().commands.remove(0);
    let inside = values(json!({"list": "l1", "due": 1}));
    let outside = values(json!({"list": "l2", "due": 1}));
    let against = |command: &Command, id, before, after| command.against(&key(id), before, after);
    assert_eq!(against(&command, "a", None, Some(&outside)), Some(ConflictCode::ReadConflict));
    assert_eq!(against(&command, "b", None, Some(&inside)), Some(ConflictCode::ScopeConflict));
    assert_eq!(against(&command, "b", Some(&inside), None), Some(ConflictCode::ScopeConflict), "deleted");
    assert_eq!(against(&command, "b", Some(&inside), Some(&outside)), Some(ConflictCode::ScopeConflict), "moved out");
    assert_eq!(against(&command, "b", Some(&outside), Some(&outside)), None);
    command.scopes[0].table = "other".into();
    assert_eq!(against(&command, "b", None, Some(&inside)), None);
}

#[test]
fn predicates_have_limits() {
    let nested =
        |depth: usize| (1..depth).fold(Predicate::Null("a".into()), |inner, _| Predicate::Not(Box::new(inner)));
    assert!(nested(MAX_PREDICATE_DEPTH).check().is_ok());
    assert!(nested(MAX_PREDICATE_DEPTH + 1).check().is_err());
    let wide = |values: usize| Predicate::In("a".into(), vec![json!(1); values]);
    assert!(wide(MAX_PREDICATE_NODES - 1).check().is_ok());
    assert!(wide(MAX_PREDICATE_NODES).check().is_err());
    let unknown = json!({"like": ["a", "x%"]});
    assert!(serde_json::from_value::<Predicate>(unknown).is_err());
}

proptest! {
    /// Any bytes: a value or an error, never a panic (I-55).
    #[test]
    fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = SubmitRequest::read(&bytes);
        let _ = serde_json::from_slice::<OutboxPage>(&bytes);
        let _ = Refusal::read(500, &bytes);
        if let Ok(text) = std::str::from_utf8(&bytes) {
            let _ = text.parse::<Cursor>();
            let _ = text.parse::<PartitionId>();
        }
    }

    #[test]
    fn a_cursor_reads_back(version in 1..1_u64 << 53, id in any::<u128>()) {
        let cursor = Cursor::at(Version::new(version).unwrap(), entry_id(id)).unwrap();
        prop_assert_eq!(cursor.to_string().parse::<Cursor>().unwrap(), cursor);
    }
}
