//! Coming in: authentication, TLS, limits.

use crate::harness::{Heard, Raw, Server, field, hello, isles, message};
use std::io::Read;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// I-56, I-58: a wrong password, a stranger and one who has tried too often hear the same.
#[test]
fn who_is_not_let_in_does_not_learn_why() {
    let server = Server::start(&[]);
    let attempt = |user: &str, password: &str| {
        let mut raw = server.raw();
        raw.send(&hello(user));
        raw.prove(password)
    };
    assert_eq!(attempt("isles", &server.password), Ok(()));
    let refused = Err(Some("28P01".to_owned()));
    assert_eq!(attempt("isles", "wrong"), refused);
    assert_eq!(attempt("nobody", "wrong"), refused);
    // Beyond the limit the right password is wrong, too, and later it is right again.
    let (done, tried) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::SeqCst) {
                assert_eq!(guess(&server), "28P01");
                tried.fetch_add(1, Ordering::SeqCst);
            }
        });
        while tried.load(Ordering::SeqCst) < 50 {
            std::thread::yield_now();
        }
        assert_eq!(attempt("isles", &server.password), refused);
        done.store(true, Ordering::SeqCst);
    });
    let begun = std::time::Instant::now();
    while attempt("isles", &server.password).is_err() {
        assert!(begun.elapsed() < crate::harness::PATIENCE);
        std::thread::sleep(std::time::Duration::from_millis(300));
    }
}

/// A proof without a password behind it, which costs nobody anything.
fn guess(server: &Server) -> String {
    let mut raw = server.raw();
    raw.send(&hello("isles"));
    raw.hear();
    let first = b"n,,n=,r=abcdef";
    raw.send(&message(b'p', &[b"SCRAM-SHA-256\0", &(first.len() as i32).to_be_bytes()[..], first].concat()));
    let Heard::Message(b'R', body) = raw.hear() else { panic!() };
    let text = String::from_utf8(body[4..].to_vec()).unwrap();
    let nonce = text.split(',').next().unwrap();
    let proof = format!("c=biws,{nonce},p={}=", "A".repeat(43));
    raw.send(&message(b'p', proof.as_bytes()));
    match raw.hear() {
        Heard::Message(b'E', body) => field(&body, b'C'),
        other => panic!("{other:?}"),
    }
}

/// I-56: the salt of a stranger is the same each time, as a role's is.
#[test]
fn a_stranger_has_one_salt() {
    let server = Server::start(&[]);
    let salt = |user: &str| {
        let mut raw = server.raw();
        raw.send(&hello(user));
        assert!(matches!(raw.hear(), Heard::Message(b'R', _)));
        let first = b"n,,n=,r=abcdef";
        let body = [b"SCRAM-SHA-256\0", &(first.len() as i32).to_be_bytes()[..], first].concat();
        raw.send(&message(b'p', &body));
        let Heard::Message(b'R', body) = raw.hear() else { panic!() };
        let text = String::from_utf8(body[4..].to_vec()).unwrap();
        let parts: Vec<String> = text.split(',').skip(1).map(str::to_owned).collect();
        parts.join(",")
    };
    assert_eq!(salt("eve"), salt("eve"));
    assert_ne!(salt("eve"), salt("mallory"));
    assert_eq!(salt("isles"), salt("isles"));
    assert!(salt("eve").ends_with("i=15000") && salt("isles").ends_with("i=15000"));
}

/// I-54: before authentication every message but an answer to the question is refused, without a word of SQL.
#[test]
fn nothing_is_done_for_strangers() {
    let server = Server::start(&[]);
    for kind in *b"QPBDCEHSdcfF" {
        let mut raw = server.raw();
        raw.send(&hello("isles"));
        assert!(matches!(raw.hear(), Heard::Message(b'R', _)));
        raw.send(&message(kind, b"S\0\0\0\0\0\0"));
        let Heard::Message(b'E', body) = raw.hear() else { panic!("{}", char::from(kind)) };
        assert_eq!((field(&body, b'C').as_str(), field(&body, b'S').as_str()), ("08P01", "FATAL"));
        assert_eq!(raw.hear(), Heard::Closed);
    }
    let mut large = server.raw();
    large.send(&hello("isles"));
    large.hear();
    large.send(b"p\x00\x10\x00\x00");
    assert_eq!(large.rest(), "E.");
}

pub(crate) struct Certified {
    folder: tempfile::TempDir,
}

impl Certified {
    pub(crate) fn new() -> Certified {
        let folder = tempfile::TempDir::new().unwrap();
        let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned(), "127.0.0.1".to_owned()]).unwrap();
        std::fs::write(folder.path().join("cert.pem"), made.cert.pem()).unwrap();
        std::fs::write(folder.path().join("key.pem"), made.signing_key.serialize_pem()).unwrap();
        Certified { folder }
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    fn server(&self, more: &[&str]) -> Server {
        let (certificate, key) = (self.path("cert.pem"), self.path("key.pem"));
        Server::start(&[&["--tls-certificate", &certificate, "--tls-key", &key][..], more].concat())
    }
}

/// With TLS, and the channel bound: `isles sql` proves itself by SCRAM-SHA-256-PLUS.
#[test]
fn tls_with_a_certificate_of_our_own() {
    let certified = Certified::new();
    let server = certified.server(&["--require-tls"]);
    let url = server.url.replace("127.0.0.1", "localhost");
    let sql = |url: &str, ca: &str| {
        let output = isles().args(["sql", "--url", url, "--tls-ca", ca, "-c", "", "--json"]).output().unwrap();
        (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
    };
    let authority = certified.path("cert.pem");
    assert_eq!(sql(&format!("{url}?sslmode=require"), &authority), (0, String::new()));
    let (code, error) = sql(&format!("{url}?sslmode=disable"), &authority);
    assert!(code == 2 && error.contains("28000"), "{error}");
    let stranger = Certified::new();
    let (code, error) = sql(&format!("{url}?sslmode=require"), &stranger.path("cert.pem"));
    assert!(code == 2 && error.contains("unreachable"), "{error}");
}

/// I-53: a first packet in one segment with the request for encryption is not read.
#[test]
fn what_came_before_tls_is_not_used_after_it() {
    let certified = Certified::new();
    let server = certified.server(&[]);
    let request = [0, 0, 0, 8, 4, 210, 22, 47];
    let follower = hello("isles");
    for length in [1, 4, follower.len()] {
        let mut raw = server.raw();
        raw.send(&[&request[..], &follower[..length]].concat());
        let mut heard = Vec::new();
        raw.stream.read_to_end(&mut heard).unwrap_or_default();
        assert_eq!(heard, b"", "{length} bytes behind the request");
    }
    // In two segments, the second is no handshake.
    let mut raw = server.raw();
    raw.send(&request);
    let mut answer = [0];
    raw.stream.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"S");
    raw.send(&follower);
    let mut heard = Vec::new();
    raw.stream.read_to_end(&mut heard).unwrap_or_default();
    assert!(!heard.starts_with(b"R"));
    server.check_alive();
}

#[test]
fn without_a_certificate_encryption_is_declined() {
    let server = Server::start(&[]);
    let mut raw = server.raw();
    for request in [[0, 0, 0, 8, 4, 210, 22, 47], [0, 0, 0, 8, 4, 210, 22, 48]] {
        raw.send(&request);
        let mut answer = [0];
        raw.stream.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"N");
    }
    raw.send(&hello("isles"));
    assert_eq!(raw.prove(&server.password), Ok(()));
}

/// A version that is newer than ours is negotiated, and cancel keys have the length of the version.
#[test]
fn versions_and_their_keys() {
    let server = Server::start(&[]);
    for (minor, negotiated, key_bytes) in [(0u8, false, 4), (2, false, 32), (9, true, 32)] {
        let mut raw = server.raw();
        let mut packet = hello("isles");
        packet[7] = minor;
        raw.send(&packet);
        if negotiated {
            let heard = raw.hear();
            assert_eq!(heard, Heard::Message(b'v', [&196_610i32.to_be_bytes()[..], &[0; 4]].concat()));
        }
        raw.prove(&server.password).unwrap();
        let heard = raw.until(b'Z');
        let key = heard.iter().find(|(kind, _)| *kind == b'K').unwrap();
        assert_eq!(key.1.len(), 4 + key_bytes, "3.{minor}");
    }
}

/// I-57: whoever asks for a cancel hears nothing, with any key.
#[test]
fn a_cancel_request_is_not_answered() {
    let server = Server::start(&[]);
    for contents in [&[0u8, 0, 0, 1, 1, 2, 3, 4][..], &[0; 36], &[0; 3]] {
        let mut raw = server.raw();
        let length = contents.len() as i32 + 8;
        raw.send(&[&length.to_be_bytes()[..], &80_877_102i32.to_be_bytes(), contents].concat());
        assert_eq!(raw.hear(), Heard::Closed);
    }
}

/// I-65: a place for everybody there is a place for, some kept for administrators, and 53300 for the rest.
#[test]
fn too_many_clients_are_told_so_at_once() {
    let folder = tempfile::TempDir::new().unwrap();
    let config = folder.path().join("isles.toml");
    std::fs::write(&config, "[limits]\nconnections = 2\nadmin_connections = 1\n").unwrap();
    let server = Server::start(&["--config", config.to_str().unwrap()]);
    let mut sessions: Vec<Raw> = (0..3).map(|_| server.session()).collect();
    let mut late = server.raw();
    late.send(&hello("isles"));
    late.prove(&server.password).unwrap();
    let Heard::Message(b'E', body) = late.hear() else { panic!() };
    assert_eq!(field(&body, b'C'), "53300");
    sessions.pop();
    drop(late);
    let begun = std::time::Instant::now();
    loop {
        let mut again = server.raw();
        again.send(&hello("isles"));
        again.prove(&server.password).unwrap();
        if again.until(b'Z').iter().any(|(kind, _)| *kind == b'Z') {
            break;
        }
        assert!(begun.elapsed() < crate::harness::PATIENCE);
    }
}

/// Clients of the same machine come in by a file, with the same proof; it goes with its server, and one that a killed
/// server has left is replaced.
#[test]
fn clients_of_the_same_machine_come_in_by_a_socket() {
    let server = Server::start(&[]);
    let socket = |server: &Server| server.data.path().join("d").join(format!(".s.PGSQL.{}", server.listen.port()));
    let psql = |server: &Server, password: &str| {
        let url = format!(
            "postgres://isles@/isles?host={}&port={}&sslmode=prefer",
            server.data.path().join("d").display(),
            server.listen.port()
        );
        let mut command = std::process::Command::new("psql");
        command.args([&url, "-Atc", "SELECT 40 + 2"]).env("PGPASSWORD", password).output().unwrap()
    };
    let answer = psql(&server, &server.password);
    assert_eq!(String::from_utf8_lossy(&answer.stdout).trim(), "42", "{}", String::from_utf8_lossy(&answer.stderr));
    let wrong = psql(&server, "wrong");
    assert!(String::from_utf8_lossy(&wrong.stderr).contains("password authentication failed"), "{wrong:?}");

    // Another server is not pushed aside.
    let other = tempfile::TempDir::new().unwrap();
    let taken = server.data.path().join("d");
    let refused = isles()
        .args(["serve", "--http", "off", "--listen", &format!("127.0.0.2:{}", server.listen.port()), "--data"])
        .arg(other.path().join("d"))
        .arg("--socket")
        .arg(&taken)
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&refused.stderr);
    assert!(refused.status.code() == Some(2) && error.contains("another server listens there"), "{error}");

    let path = socket(&server);
    assert!(path.exists());
    let mut server = server;
    let data = std::mem::replace(&mut server.data, tempfile::TempDir::new().unwrap());
    assert_eq!(server.terminate(), 0);
    assert!(!path.exists());
    let off = Server::start_in(data, &["--socket", "off"]);
    assert!(!socket(&off).exists());
    off.check_alive();
}

/// The file that a killed server has left is replaced.
#[test]
fn a_socket_that_nobody_answers_on_is_replaced() {
    let (folder, data) = (tempfile::TempDir::new().unwrap(), tempfile::TempDir::new().unwrap());
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let path = folder.path().join(format!(".s.PGSQL.{port}"));
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    assert!(std::os::unix::net::UnixStream::connect(&path).is_err());
    let mut process = isles()
        .args(["serve", "--json", "--http", "off", "--listen", &format!("127.0.0.1:{port}"), "--socket"])
        .arg(folder.path())
        .arg("--data")
        .arg(data.path().join("d"))
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(process.stdout.take().unwrap()), &mut line).unwrap();
    let answers = std::os::unix::net::UnixStream::connect(&path).is_ok();
    process.kill().unwrap();
    process.wait().unwrap();
    assert!(answers && line.contains(path.to_str().unwrap()), "{line}");
}
