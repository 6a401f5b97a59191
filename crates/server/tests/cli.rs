//! The binary as people run it: arguments in, text and exit code out.

#![allow(clippy::unwrap_used)]

use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use tempfile::TempDir;

struct Answer {
    code: i32,
    out: String,
    err: String,
}

impl Answer {
    fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|fault| panic!("{fault}: {}", self.out))
    }

    fn error(&self) -> Value {
        let answer: Value = serde_json::from_str(&self.err).unwrap_or_else(|fault| panic!("{fault}: {}", self.err));
        answer["error"].clone()
    }
}

fn isles(arguments: &[&str]) -> Answer {
    let output = Command::new(env!("CARGO_BIN_EXE_isles")).args(arguments).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Answer { code: output.status.code().unwrap(), out: text(output.stdout), err: text(output.stderr) }
}

fn first() -> Value {
    json!({
        "version": 2,
        "currentGeneration": 1,
        "baseRegions": { "apac": 20, "enam": 40, "weur": 40 },
        "groups": {
            "user-client": { "totalShards": 64, "members": ["authcode", "refresh"] },
            "default": { "totalShards": 20, "members": [] }
        }
    })
}

fn second() -> Value {
    let mut config = first();
    config["currentGeneration"] = json!(2);
    config["groups"]["user-client"]["totalShards"] = json!(32);
    config["previousGenerations"] =
        json!([{ "generation": 1, "groups": first()["groups"], "validUntil": "2030-01-01T00:00:00Z" }]);
    config
}

struct Files(TempDir);

impl Files {
    fn new() -> Files {
        Files(TempDir::new().unwrap())
    }

    fn put(&self, name: &str, content: impl AsRef<[u8]>) -> String {
        let path: PathBuf = self.0.path().join(name);
        std::fs::write(&path, content).unwrap();
        path.to_str().unwrap().to_owned()
    }

    fn config(&self, name: &str, config: &Value) -> String {
        self.put(name, config.to_string())
    }

    fn path(&self) -> &Path {
        self.0.path()
    }
}

#[test]
fn a_new_id_parses_to_what_it_was_made_of() {
    let files = Files::new();
    let config = files.config("p.json", &first());
    let made = isles(&["id", "new", "--type", "refresh", "--key", "user1:client1", "--config", &config]);
    assert_eq!((made.code, made.err.as_str()), (0, ""));
    assert!(made.out.starts_with("g1:apac:57:rft_"), "{}", made.out);

    let parsed = isles(&["id", "parse", made.out.trim(), "--config", &config, "--json"]);
    assert_eq!(parsed.code, 0);
    let parsed = parsed.json();
    assert_eq!(parsed["type"], "refresh");
    assert_eq!(
        (&parsed["shard"], &parsed["region"], &parsed["group"]),
        (&json!(57), &json!("apac"), &json!("user-client"))
    );
}

#[test]
fn new_ids_are_distinct_and_say_when_the_defaults_hold() {
    let made = [(); 3].map(|()| isles(&["id", "new", "--type", "session"]));
    assert!(made.iter().all(|answer| answer.err == "note: no configuration given, so the defaults hold\n"));
    assert!(made[0].out != made[1].out && made[1].out != made[2].out && made[0].out != made[2].out);
}

#[test]
fn a_session_is_made_in_the_region_that_is_asked_for() {
    for region in ["apac", "enam", "weur"] {
        let made = isles(&["id", "new", "--type", "session", "--region", region, "--json"]);
        assert_eq!((made.code, made.err.as_str()), (0, ""));
        assert_eq!(made.json()["region"], region);
    }
    let nowhere = isles(&["id", "new", "--type", "session", "--region", "oc", "--json"]);
    assert_eq!((nowhere.code, nowhere.error()["code"].as_str()), (2, Some("empty_region")));
    let keyed = isles(&["id", "new", "--type", "par", "--key", "client456", "--region", "enam", "--json"]);
    assert_eq!((keyed.code, keyed.error()["code"].as_str()), (2, Some("other_region")));
}

#[test]
fn an_id_in_text() {
    let answer = isles(&["id", "parse", "g1:apac:3:ses_abc123-def456"]);
    let wanted =
        "generation  1\nregion      apac\nshard       3\ntype        ses (session)\nuuid        abc123-def456\n";
    assert_eq!((answer.code, answer.out.as_str()), (0, wanted));
}

#[test]
fn a_request_uri_is_read_as_its_id() {
    let answer = isles(&["id", "parse", "urn:ietf:params:oauth:request_uri:g1:apac:3:par_abc123-def456", "--json"]);
    assert_eq!(answer.json()["id"], "g1:apac:3:par_abc123-def456");
}

#[test]
fn an_id_that_is_none_is_refused_with_its_part_at_fault() {
    let answer = isles(&["id", "parse", "g01:apac:3:ses_x"]);
    assert_eq!((answer.code, answer.out.as_str()), (1, ""));
    let wanted = "error: the generation is not a number in its shortest form\n\
                  hint: a generation is g1 to g999, without leading zeros\n";
    assert_eq!(answer.err, wanted);
    let error = isles(&["id", "parse", "g1:apac:3:ses_", "--json"]).error();
    assert_eq!((&error["code"], &error["field"]), (&json!("missing"), &json!("uuid")));
}

#[test]
fn an_id_that_leads_nowhere_is_refused() {
    let files = Files::new();
    let config = files.config("p.json", &first());
    for (id, code) in [
        ("g2:enam:0:ses_x", "unknown_generation"),
        ("g1:enam:20:ses_x", "out_of_range"),
        ("g1:apac:0:ses_x", "wrong_region"),
        ("g1:mars:0:ses_x", "unknown_region"),
        ("g1:enam:0:zzz_x", "unknown_type"),
    ] {
        let answer = isles(&["id", "parse", id, "--config", &config, "--json"]);
        assert_eq!((answer.code, answer.error()["code"].as_str()), (1, Some(code)), "{id}");
    }
}

#[test]
fn a_valid_configuration_passes_the_check() {
    let files = Files::new();
    let (old, new) = (files.config("old.json", &first()), files.config("new.json", &second()));
    let answer = isles(&["placement", "check", &old]);
    assert_eq!(
        (answer.code, answer.out.as_str()),
        (0, "valid: generation 1, 2 groups, 11 types, 0 previous generations\n")
    );
    let answer = isles(&["placement", "check", &new, "--against", &old, "--json"]);
    assert_eq!((answer.code, answer.json()), (0, json!({"valid": true, "errors": [], "currentGeneration": 2})));
}

#[test]
fn everything_that_is_wrong_is_listed() {
    let files = Files::new();
    let mut config = first();
    config["groups"]["user-client"]["totalShards"] = json!(0);
    config["baseRegions"]["apac"] = json!(30);
    config["groups"]["default"]["members"] = json!(["keymanager"]);
    let config = files.config("p.json", &config);
    let answer = isles(&["placement", "check", &config]);
    assert_eq!((answer.code, answer.out.as_str()), (1, ""));
    let wanted = "error: baseRegions: Region distribution must sum to 100, got 110\n\
                  error: groups.default.members[0]: keymanager is a singleton and can never be sharded\n\
                  error: groups.user-client.totalShards: must be an integer from 1 to 65536, got 0\n\
                  hint: each line names the field to correct\n";
    assert_eq!(answer.err, wanted);

    let answer = isles(&["placement", "check", &config, "--json"]);
    assert_eq!((answer.code, answer.err.as_str()), (1, ""));
    let answer = answer.json();
    assert_eq!(answer["valid"], false);
    assert_eq!(answer["errors"].as_array().unwrap().len(), 3);
    let wanted = json!({
        "field": "baseRegions",
        "code": "share_sum",
        "message": "Region distribution must sum to 100, got 110"
    });
    assert_eq!(answer["errors"][0], wanted);
}

#[test]
fn a_change_within_a_generation_fails_the_check() {
    let files = Files::new();
    let mut changed = first();
    changed["groups"]["default"]["salt"] = json!("s1");
    let (old, new) = (files.config("old.json", &first()), files.config("new.json", &changed));
    let answer = isles(&["placement", "check", &new, "--against", &old]);
    assert_eq!(answer.code, 1);
    assert!(
        answer.err.starts_with("error: groups.default.salt: the salt of generation 1 cannot change"),
        "{}",
        answer.err
    );
}

#[test]
fn a_generation_may_go_when_it_has_expired() {
    let files = Files::new();
    let mut trimmed = second();
    trimmed["previousGenerations"] = json!([]);
    let (old, new) = (files.config("old.json", &second()), files.config("new.json", &trimmed));
    let at = |instant: &str| isles(&["placement", "check", &new, "--against", &old, "--at", instant]).code;
    assert_eq!((at("2029-12-31T23:59:59Z"), at("2030-01-01T00:00:00Z")), (1, 0));
}

#[test]
fn an_explanation_shows_every_generation_in_force() {
    let files = Files::new();
    let config = files.config("p.json", &second());
    let now = ["--at", "2029-01-01T00:00:00Z"];
    let key = ["--key", "user1:client1", "--type", "refresh", "--tenant", "acme:eu"];
    let answer = isles(&[&["placement", "explain", &config][..], &now, &key].concat());
    let rest = "challenge ciba credoffer device dpop par revocation session vprequest";
    let wanted = format!(
        "\
generation 2 (current)
  default-g2          20     enam 0-7, weur 8-15, apac 16-19  [{rest}]
  user-client-g2      32     enam 0-12, weur 13-25, apac 26-31  [authcode refresh]
generation 1 (read until 2030-01-01T00:00:00Z)
  default             20     enam 0-7, weur 8-15, apac 16-19  [{rest}]
  user-client         64     enam 0-25, weur 26-50, apac 51-63  [authcode refresh]
key \"user1:client1\"
  refresh     g2    user-client         25     weur   acme:eu:weur:rft:25:g2
  refresh     g1    user-client         57     apac   acme:eu:apac:rft:57
"
    );
    assert_eq!((answer.code, answer.err.as_str(), answer.out), (0, "", wanted));

    let later = ["--at", "2030-01-01T00:00:00Z", "--json"];
    let answer = isles(&[&["placement", "explain", &config][..], &later, &key].concat()).json();
    assert_eq!(answer["generations"].as_array().unwrap().len(), 1);
    assert_eq!(answer["routes"].as_array().unwrap().len(), 1);
    assert_eq!(answer["routes"][0]["instance"], "acme:eu:weur:rft:25:g2");
    assert_eq!(answer["generations"][0]["groups"][1]["regions"][0], json!({"region": "enam", "first": 0, "last": 12}));
}

#[test]
fn files_that_cannot_be_used_are_named_with_the_reason() {
    let files = Files::new();
    let missing = files.path().join("none.json").to_str().unwrap().to_owned();
    let cases = [
        (missing, 2, "unreadable_file", "there is no such file"),
        (files.path().to_str().unwrap().to_owned(), 2, "unreadable_file", "it is a directory"),
        (files.put("large.json", vec![b' '; (1 << 20) + 1]), 2, "file_too_large", "is larger than 1048576 bytes"),
        (files.put("latin.json", b"{\"a\":\"\xe9\"}"), 2, "not_utf8", "is not UTF-8 at byte 6"),
        (files.put("cut.json", "{\"version\":"), 1, "invalid_config", "EOF while parsing"),
    ];
    for (path, exit, code, reason) in &cases {
        let answer = isles(&["placement", "explain", path, "--json"]);
        let error = answer.error();
        assert_eq!((answer.code, error["code"].as_str()), (*exit, Some(*code)), "{path}");
        assert!(error["message"].as_str().unwrap().contains(reason), "{error}");
        assert!(error["message"].as_str().unwrap().contains(path.as_str()), "{error}");
        let text = isles(&["placement", "explain", path]);
        assert_eq!((text.code, text.out.as_str()), (*exit, ""));
        assert!(text.err.starts_with("error: ") && text.err.contains(reason), "{}", text.err);
    }
    let answer = isles(&["placement", "check", &cases[4].0, "--json"]);
    assert_eq!((answer.code, answer.json()["errors"][0]["code"].clone()), (1, json!("malformed")));
}

#[test]
fn wrong_arguments_are_usage_errors() {
    for arguments in [
        &["nothing"][..],
        &["id", "new"],
        &["id", "new", "--type", "nobody"],
        &["id", "new", "--type", "keymanager"],
        &["id", "new", "--type", "refresh"],
        &["id", "new", "--type", "session", "--region", "Mars!"],
        &["placement", "explain", "x.json", "--tenant", "a"],
        &["placement", "check", "x.json", "--at", "yesterday"],
    ] {
        let answer = isles(arguments);
        assert_eq!((answer.code, answer.out.as_str()), (2, ""), "{arguments:?}");
        assert!(answer.err.contains("error: "), "{}", answer.err);
        let json = isles(&[arguments, &["--json"]].concat());
        assert_eq!(json.code, 2);
        assert!(json.error()["message"].is_string() && json.error()["code"].is_string());
    }
    let long = "k".repeat(5000);
    assert_eq!(isles(&["id", "new", "--type", "par", "--key", &long]).code, 2);
}

#[test]
fn help_and_version_are_not_errors() {
    for arguments in
        [&["--help"][..], &["--version"], &["id", "new", "--help"], &["placement", "check", "--help", "--json"]]
    {
        let answer = isles(arguments);
        assert_eq!((answer.code, answer.err.as_str()), (0, ""), "{arguments:?}");
        assert!(!answer.out.is_empty());
    }
}

/// A short demo, with the database kept in a folder; its steps.
fn demo(data: &str) -> Vec<Value> {
    let answer = isles(&["demo", "move", "--seconds", "0", "--engine", "sqlite", "--data", data, "--json"]);
    assert_eq!(answer.code, 0, "{}{}", answer.out, answer.err);
    answer.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Two shards that a demo has written to.
fn shards() -> Files {
    static DATA: OnceLock<Files> = OnceLock::new();
    let data = DATA.get_or_init(|| {
        let files = Files::new();
        demo(files.0.path().to_str().unwrap());
        files
    });
    let copy = Files::new();
    for shard in ["s0", "s1"] {
        let (from, to) = (data.0.path().join(shard), copy.0.path().join(shard));
        std::fs::create_dir(&to).unwrap();
        for file in std::fs::read_dir(from).unwrap().map(Result::unwrap) {
            std::fs::copy(file.path(), to.join(file.file_name())).unwrap();
        }
    }
    copy
}

#[test]
fn the_demo_moves_a_tenant_under_load_and_proves_that_nothing_is_lost() {
    let files = Files::new();
    let data = files.0.path().to_str().unwrap();
    let said = demo(data);
    let steps: Vec<&str> = said.iter().map(|step| step["step"].as_str().unwrap()).collect();
    assert_eq!(steps, ["shards", "load", "move", "move", "proof"]);
    assert_eq!((&said[2]["to"], &said[3]["to"]), (&json!("s1"), &json!("s0")));
    let proof = &said[4];
    assert_eq!((&proof["exact"], &proof["errors"], &proof["wrong"]), (&json!(true), &json!(0), &json!(0)));
    assert_eq!(proof["rowsFound"], proof["rowsExpected"]);
    assert!(proof["writes"].as_u64().unwrap() > 100 && proof["pauseMs"]["p99"].as_f64().unwrap() > 0.0, "{proof}");
    let again = isles(&["demo", "move", "--engine", "sqlite", "--data", data, "--json"]);
    assert_eq!((again.code, &again.error()["code"]), (2, &json!("not_empty")));
}

/// People without a terminal get lines, and a database that cannot be had is said to be.
#[test]
fn the_demo_speaks_plainly() {
    let answer = isles(&["demo", "move", "--seconds", "0", "--engine", "sqlite"]);
    assert_eq!(answer.code, 0, "{}{}", answer.out, answer.err);
    assert!(answer.out.contains("moved from s0 to s1") && answer.out.contains("errors   0"), "{}", answer.out);
    assert!(!answer.out.contains('\u{1b}'), "no signs for terminals: {}", answer.out);
    let nobody = ["demo", "move", "--engine", "postgres", "--postgres", "postgres://127.0.0.1:1/x", "--json"];
    assert_eq!(isles(&nobody).error()["field"], "postgres");
}

#[test]
fn verify_tells_a_sound_shard_from_a_damaged_one() {
    let files = shards();
    let data = files.0.path().to_str().unwrap();
    let sound = isles(&["verify", data]);
    assert_eq!(sound.code, 0, "{}", sound.err);
    assert_eq!(sound.out.lines().filter(|line| line.ends_with("all sound")).count(), 2, "{}", sound.out);
    let shard = files.0.path().join("s1/shard.db");
    let mut bytes = std::fs::read(&shard).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&shard, bytes).unwrap();
    let damaged = isles(&["verify", shard.to_str().unwrap(), "--json"]);
    assert_eq!(damaged.code, 1);
    assert_eq!((&damaged.json()["valid"], damaged.json()["badPages"].as_array().unwrap().len()), (&json!(false), 1));
    assert_eq!(isles(&["verify", data]).code, 1);
}

#[test]
fn verify_refuses_what_is_no_shard() {
    let files = Files::new();
    let text = files.put("notes.txt", "no shard");
    assert_eq!(isles(&["verify", &text]).code, 1);
    let empty = isles(&["verify", files.0.path().to_str().unwrap()]);
    assert_eq!((empty.code, empty.err.contains("shard.db")), (2, true), "{}", empty.err);
    assert_eq!(isles(&["verify", "/no/such/folder", "--json"]).error()["code"], "io");
}

#[test]
fn a_backup_is_a_whole_shard() {
    let files = shards();
    let (shard, copy) = (files.0.path().join("s0/shard.db"), files.0.path().join("copy.db"));
    let (shard, copy) = (shard.to_str().unwrap(), copy.to_str().unwrap());
    let backup = isles(&["backup", shard, "--to", copy, "--json"]);
    assert_eq!(backup.code, 0, "{}", backup.err);
    assert!(backup.json()["pages"].as_u64().unwrap() > 5);
    assert_eq!(isles(&["verify", copy]).code, 0);
    let again = isles(&["backup", shard, "--to", copy, "--json"]);
    assert!(again.error()["message"].as_str().unwrap().contains("exists already"));
    assert_eq!(isles(&["backup", "/no/such/shard.db", "--to", copy]).code, 2);
}
