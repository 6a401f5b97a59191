//! Starting and stopping, and what the configuration refuses.

use crate::harness::{Heard, Server, field, isles, message};

fn serve(arguments: &[&str]) -> (i32, String) {
    let output = isles().arg("serve").args(arguments).output().unwrap();
    (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
}

#[test]
fn a_folder_has_one_server() {
    let server = Server::start(&[]);
    let data = server.data.path().join("d");
    let (code, error) = serve(&["--data", data.to_str().unwrap(), "--listen", "127.0.0.1:0", "--http", "off"]);
    assert_eq!(code, 2);
    assert!(error.contains("open already"), "{error}");
}

#[cfg(unix)]
#[test]
fn the_first_role_s_password_is_kept_in_private() {
    use std::os::unix::fs::PermissionsExt;
    let server = Server::start(&[]);
    let file = std::fs::metadata(server.data.path().join("d/password")).unwrap();
    assert_eq!(file.permissions().mode() & 0o777, 0o600);
    assert!(server.url.contains(&server.password) && server.password.len() >= 20);
    server.check_alive();
}

/// The server says goodbye to who is idle, and its data can be opened again, with the same password.
#[cfg(unix)]
#[test]
fn told_to_stop_it_stops_in_order() {
    let mut server = Server::start(&[]);
    let mut idle = server.session();
    let (password, folder) = (server.password.clone(), tempfile::TempDir::new().unwrap());
    let data = std::mem::replace(&mut server.data, folder);
    assert_eq!(server.terminate(), 0);
    let Heard::Message(b'E', body) = idle.hear() else { panic!() };
    assert_eq!((field(&body, b'C').as_str(), field(&body, b'S').as_str()), ("57P01", "FATAL"));
    assert_eq!(idle.hear(), Heard::Closed);
    let again = Server::start_in(data, &[]);
    assert_eq!(again.password, password);
    let mut session = again.session();
    session.send(&message(b'S', b""));
    assert_eq!(session.kinds(1), "Z");
}

#[test]
fn what_cannot_be_served_is_refused_before_anything_is_opened() {
    let folder = tempfile::TempDir::new().unwrap();
    let config = folder.path().join("isles.toml");
    std::fs::write(&config, "listn = '127.0.0.1:1'\n").unwrap();
    let (code, error) = serve(&["--config", config.to_str().unwrap(), "--check-config"]);
    assert!(code == 1 && error.contains("listn"), "{error}");
    let (code, error) = serve(&["--listen", "0.0.0.0:0", "--check-config"]);
    assert!(code == 1 && error.contains("other machines") && error.contains("hint: "), "{error}");
    std::fs::write(&config, "listen = '127.0.0.1:0'\nhttp = 'off'\n").unwrap();
    let output = isles().args(["serve", "--check-config", "--config"]).arg(&config).output().unwrap();
    assert!(output.status.success());
    assert!(String::from_utf8(output.stdout).unwrap().starts_with("valid: the shards that are there, or 4 SQLite"));
}

#[test]
fn a_client_without_a_server_is_told_what_to_do() {
    let output = isles().args(["sql", "--url", "postgres://x:y@127.0.0.1:1/z", "-c", "select 1"]).output().unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(error.contains("isles serve"), "{error}");
}

/// Exit code 1 and the reason: the statement was wrong, and the server is there.
#[test]
fn a_wrong_statement_is_the_client_s_failure() {
    let server = Server::start(&[]);
    let output = isles().args(["sql", "--json", "--url", &server.url, "-c", "selec 1"]).output().unwrap();
    let error: serde_json::Value = serde_json::from_slice(&output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(error["error"]["code"].is_string());
}

/// I-44: the strategy is the database's from its first start on.
#[cfg(unix)]
#[test]
fn a_server_with_another_strategy_does_not_start() {
    let mut server = Server::start(&["--strategy", "adapter"]);
    let folder = tempfile::TempDir::new().unwrap();
    let data = std::mem::replace(&mut server.data, folder);
    assert_eq!(server.terminate(), 0);
    let path = data.path().join("d");
    let arguments = ["--data", path.to_str().unwrap(), "--listen", "127.0.0.1:0", "--http", "off"];
    let (code, error) = serve(&[&arguments[..], &["--strategy", "row"]].concat());
    assert_eq!(code, 2);
    assert!(["\"adapter\"", "\"row\"", "hint: "].iter().all(|part| error.contains(part)), "{error}");
    let (code, error) = serve(&["--strategy", "columns", "--check-config"]);
    assert!(code != 0 && error.contains("adapter"), "{error}");
    let again = Server::start_in(data, &[]);
    let mut session = again.session();
    session.send(&message(b'Q', b"SHOW isles.strategy\0"));
    let row = session.until(b'Z').into_iter().find(|(kind, _)| *kind == b'D').expect("a row").1;
    assert!(row.ends_with(b"adapter"));
}
