//! Messages: every one in every state, in pieces, in nonsense, and cut off.

use crate::harness::{Heard, Raw, Server, field, hello, message};

/// A statement that is wrong in every language.
const WRONG: &[u8] = b"selec 1\0";

fn parse() -> Vec<u8> {
    message(b'P', &[b"s\0", WRONG, b"\0\0"].concat())
}

/// A message and the kinds of its answers in a session that is ready, and after an error of the extended query; there a
/// Sync follows it. `.` is the end of the connection.
fn every_message() -> Vec<(&'static str, Vec<u8>, &'static str, &'static str)> {
    vec![
        ("Query", message(b'Q', WRONG), "EZ", "Z"),
        ("Query, empty", message(b'Q', b"\0"), "IZ", "Z"),
        ("Query, unfinished", message(b'Q', b"select"), "EZ", "Z"),
        ("Query, not UTF-8", message(b'Q', b"\xff\0"), "EZ", "Z"),
        ("Parse", parse(), "EZ", "Z"),
        ("Parse, empty", message(b'P', b"e\0\0\0\0"), "1Z", "Z"),
        ("Parse, unfinished", message(b'P', b"s"), "EZ", "Z"),
        ("Bind, no such statement", message(b'B', b"\0none\0\0\0\0\0\0\0"), "EZ", "Z"),
        ("Bind, unfinished", message(b'B', b"\0"), "EZ", "Z"),
        ("Describe, no such statement", message(b'D', b"Snone\0"), "EZ", "Z"),
        ("Describe, no such portal", message(b'D', b"Pnone\0"), "EZ", "Z"),
        ("Describe, of what", message(b'D', b"Xnone\0"), "EZ", "Z"),
        ("Execute, no such portal", message(b'E', b"none\0\0\0\0\0"), "EZ", "Z"),
        ("Execute, unfinished", message(b'E', b"none\0"), "EZ", "Z"),
        ("Close, a statement", message(b'C', b"Snone\0"), "3Z", "Z"),
        ("Close, a portal", message(b'C', b"Pnone\0"), "3Z", "Z"),
        ("Close, unfinished", message(b'C', b""), "EZ", "Z"),
        ("Flush", message(b'H', b""), "Z", "Z"),
        ("Flush, too long", message(b'H', b"x"), "EZ", "Z"),
        ("Sync", message(b'S', b""), "ZZ", "ZZ"),
        ("Sync, too long", message(b'S', b"x"), "EZZ", "EZZ"),
        ("CopyData", message(b'd', b"x"), "Z", "Z"),
        ("CopyDone", message(b'c', b""), "Z", "Z"),
        ("CopyFail", message(b'f', b"why\0"), "Z", "Z"),
        ("FunctionCall", message(b'F', b"\0\0\0\x01"), "EZZ", "Z"),
        ("Terminate", message(b'X', b""), ".", "."),
        ("Terminate, too long", message(b'X', b"x"), ".", "."),
        ("Password", message(b'p', b"x\0"), "E.", "Z"),
        ("no such kind", message(b'z', b""), "E.", "E."),
        ("a negative length", b"Q\xff\xff\xff\xff".to_vec(), "E.", "E."),
        ("a length below its own", b"S\0\0\0\x03".to_vec(), "E.", "E."),
        ("too large", b"Q\x7f\0\0\0".to_vec(), "E.", "E."),
        ("too large for its kind", b"S\0\x10\0\0".to_vec(), "E.", "E."),
    ]
}

/// Whether a message ends with ReadyForQuery by itself.
fn is_simple(name: &str) -> bool {
    name.starts_with("Query") || name == "FunctionCall"
}

/// I-55: each message has one answer in each state.
#[test]
fn every_message_has_an_answer_in_every_state() {
    let server = Server::start(&[]);
    let sync = message(b'S', b"");
    for (name, bytes, ready, skipping) in every_message() {
        let mut raw = server.session();
        raw.send(&bytes);
        if !is_simple(name) || name == "FunctionCall" {
            raw.send(&sync);
        }
        assert_eq!(raw.kinds(ready.len()), ready, "{name}, when ready");

        let mut raw = server.session();
        raw.send(&message(b'D', b"Snone\0"));
        assert_eq!(raw_flushed(&mut raw), "E", "{name}");
        raw.send(&bytes);
        raw.send(&sync);
        assert_eq!(raw.kinds(skipping.len()), skipping, "{name}, when skipping");
    }
    server.check_alive();
    server.wait_until_alone();
}

/// What an error says before anybody asks for it: the server flushes when it has nothing left to read.
fn raw_flushed(raw: &mut Raw) -> String {
    raw.kinds(1)
}

/// The bytes of a session: everything a client sends but the proofs.
fn conversation() -> Vec<Vec<u8>> {
    vec![
        message(b'Q', WRONG),
        parse(),
        message(b'S', b""),
        message(b'P', b"e\0\0\0\0"),
        message(b'B', b"\0e\0\0\0\0\0\0\0"),
        message(b'D', b"P\0"),
        message(b'E', b"\0\0\0\0\0"),
        message(b'H', b""),
        message(b'C', b"Se\0"),
        message(b'S', b""),
        message(b'Q', b"\0"),
    ]
}

const ANSWERS: &str = "EZEZ12nI3ZIZ";

/// I-55: however the bytes are cut, the answers are the same.
#[test]
fn a_conversation_may_come_byte_by_byte() {
    let server = Server::start(&[]);
    let mut whole = server.session();
    whole.send(&conversation().concat());
    assert_eq!(whole.kinds(ANSWERS.len()), ANSWERS);

    let mut raw = server.raw();
    for byte in hello("isles") {
        raw.send(&[byte]);
    }
    raw.prove(&server.password).unwrap();
    raw.until(b'Z');
    for byte in conversation().concat() {
        raw.send(&[byte]);
    }
    assert_eq!(raw.kinds(ANSWERS.len()), ANSWERS);
}

/// I-55: a client that vanishes, at any byte, is gone for the server, too.
#[test]
fn a_client_may_vanish_at_any_byte() {
    let server = Server::start(&[]);
    let greeting = hello("isles");
    for cut in 0..=greeting.len() {
        server.raw().send(&greeting[..cut]);
    }
    let bytes = conversation().concat();
    for cut in (0..=bytes.len()).step_by(3) {
        let mut raw = server.session();
        raw.send(&bytes[..cut]);
    }
    server.wait_until_alone();
    server.check_alive();
}

#[test]
fn errors_say_what_and_how_bad() {
    let server = Server::start(&[]);
    let mut raw = server.session();
    raw.send(&message(b'D', b"Snone\0"));
    let Heard::Message(b'E', body) = raw.hear() else { panic!() };
    let fields: Vec<String> = b"SVCM".iter().map(|code| field(&body, *code)).collect();
    assert_eq!(fields, ["ERROR", "ERROR", "26000", "prepared statement \"none\" does not exist"]);
    raw.send(b"z\0\0\0\x04");
    let Heard::Message(b'E', body) = raw.hear() else { panic!() };
    assert_eq!((field(&body, b'S').as_str(), field(&body, b'C').as_str()), ("FATAL", "08P01"));
}

/// Seeded, so that a failure comes again.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }
}

/// I-55: noise, before and after authentication, neither stops the server nor stays in it.
#[test]
fn noise_does_not_stop_the_server() {
    let server = Server::start(&[]);
    let mut random = Random(0x15_1e5);
    for _ in 0..150 {
        let bytes: Vec<u8> = (0..random.below(300)).map(|_| random.next() as u8).collect();
        server.raw().send(&bytes);
    }
    for round in 0..60 {
        let mut messages = conversation();
        for _ in 0..=random.below(4) {
            let victim = random.below(messages.len());
            let at = random.below(messages[victim].len().max(1));
            match random.below(3) {
                0 => messages[victim].iter_mut().skip(at).take(1).for_each(|byte| *byte ^= 1 << random.below(8)),
                1 => messages[victim].truncate(at),
                _ => messages.swap(victim, 0),
            }
        }
        let mut raw = server.session();
        raw.send(&messages.concat());
        // Whatever it was, the server answers or waits for the rest of a message; it is not waited for.
        raw.stream.set_read_timeout(Some(std::time::Duration::from_millis(5))).unwrap();
        let mut heard = [0; 4096];
        let _ = std::io::Read::read(&mut raw.stream, &mut heard);
        if round % 20 == 0 {
            server.check_alive();
        }
    }
    server.wait_until_alone();
    server.check_alive();
}
