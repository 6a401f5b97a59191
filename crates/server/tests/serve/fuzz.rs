//! The protocol under mutated conversations: no panic, no hang, no place lost, and everyone else is served.
//!
//! A case begins as a valid conversation of all kinds of messages and is then damaged: bits flipped, bodies cut, joined,
//! lengthened, messages repeated, left out, exchanged, lengths and counts made wrong. It is drawn from its seed.
//! `ISLES_WIRE_CASES` is how many cases are run, `ISLES_WIRE_SEED` runs one.

use crate::harness::{Heard, Server, message};
use isles_sim::rng::Rng;
use isles_sim::rng::number_from_env as number;
use std::io::{Read, Write};
use std::time::Duration;

/// Cases of a run that nobody asked more of.
const CASES: u64 = 400;
/// After so many the server is looked at.
const BATCH: u64 = 40;
/// A server that says nothing for so long hangs: no statement of a case may take longer than a second.
const SILENCE: Duration = Duration::from_secs(20);

type Messages = Vec<(u8, Vec<u8>)>;

fn bytes_of(messages: &[(u8, Vec<u8>)]) -> Vec<u8> {
    messages.iter().flat_map(|(kind, body)| message(*kind, body)).collect()
}

fn query(sql: &str) -> (u8, Vec<u8>) {
    (b'Q', [sql.as_bytes(), b"\0"].concat())
}

fn parse(name: &str, sql: &str, types: &[u32]) -> (u8, Vec<u8>) {
    let types: Vec<u8> = types.iter().flat_map(|oid| oid.to_be_bytes()).collect();
    let count = (types.len() as u16 / 4).to_be_bytes();
    (b'P', [name.as_bytes(), b"\0", sql.as_bytes(), b"\0", &count, &types].concat())
}

fn bind(portal: &str, statement: &str, format: u16, params: &[Option<&[u8]>], results: u16) -> (u8, Vec<u8>) {
    let mut body = [portal.as_bytes(), b"\0", statement.as_bytes(), b"\0\0\x01"].concat();
    body.extend(format.to_be_bytes());
    body.extend((params.len() as u16).to_be_bytes());
    for param in params {
        body.extend(param.map_or(-1, |param| param.len() as i32).to_be_bytes());
        body.extend(param.unwrap_or_default());
    }
    body.extend([0, 1]);
    body.extend(results.to_be_bytes());
    (b'B', body)
}

fn execute(portal: &str, rows: i32) -> (u8, Vec<u8>) {
    (b'E', [portal.as_bytes(), b"\0", &rows.to_be_bytes()].concat())
}

const SYNC: (u8, Vec<u8>) = (b'S', Vec::new());

/// Valid conversations that together have every kind of message.
fn conversations() -> Vec<Messages> {
    let values = "SELECT $1::int, $2::text, $3::numeric, $4::timestamptz, $5::int[], $6::bytea, $7::uuid, $8::jsonb";
    let texts: [Option<&[u8]>; 8] = [
        Some(b"42"),
        Some("ü".as_bytes()),
        Some(b"-1.50"),
        Some(b"2024-02-29 12:00:00+01"),
        Some(b"{1,NULL,3}"),
        Some(b"\\x00ff"),
        Some(b"a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
        None,
    ];
    let binaries: [Option<&[u8]>; 8] = [
        Some(&[0, 0, 0, 42]),
        Some(b"text"),
        Some(&[0, 2, 0, 0, 0, 0, 0, 1, 0, 1, 0x13, 0x88]),
        Some(&[0, 2, 0xb0, 0xd5, 0xd4, 0xe9, 0x40, 0]),
        Some(&[0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 23, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 4, 0, 0, 0, 7]),
        Some(&[0, 255]),
        Some(&[7; 16]),
        Some(b"\x01{\"a\": 1}"),
    ];
    let mut binary_copy = b"PGCOPY\n\xff\r\n\0\0\0\0\0\0\0\0\0".to_vec();
    binary_copy.extend(b"\0\x02\0\0\0\x04\0\0\0\x09\0\0\0\x01x\xff\xff");
    vec![
        vec![query("SELECT id, v FROM t ORDER BY id; INSERT INTO t VALUES (1, 'one') ON CONFLICT DO NOTHING")],
        vec![
            parse("s", values, &[23, 25]),
            (b'D', b"Ss\0".to_vec()),
            bind("p", "s", 0, &texts, 0),
            (b'D', b"Pp\0".to_vec()),
            execute("p", 0),
            bind("q", "s", 1, &binaries, 1),
            execute("q", 1),
            (b'H', Vec::new()),
            (b'C', b"Pp\0".to_vec()),
            (b'C', b"Ss\0".to_vec()),
            SYNC,
        ],
        vec![
            query("BEGIN"),
            parse("", "SELECT id FROM t WHERE id > $1 ORDER BY id", &[]),
            bind("c", "", 0, &[Some(b"0")], 0),
            execute("c", 1),
            execute("c", 1),
            SYNC,
            query("SAVEPOINT a; ROLLBACK TO a"),
            query("ROLLBACK"),
        ],
        vec![
            query("COPY t FROM STDIN"),
            (b'd', b"1001\tfirst\n1002\tsec".to_vec()),
            (b'd', b"ond\n".to_vec()),
            (b'f', b"enough\0".to_vec()),
            query("COPY (SELECT * FROM t) TO STDOUT (FORMAT csv)"),
        ],
        vec![
            query("BEGIN; COPY t FROM STDIN (FORMAT binary)"),
            (b'd', binary_copy),
            (b'c', Vec::new()),
            query("ROLLBACK"),
        ],
        vec![
            (b'F', b"\0\0\0\x01\0\0\0\0\0\0".to_vec()),
            parse("", "", &[]),
            bind("", "", 0, &[], 0),
            execute("", 0),
            SYNC,
        ],
    ]
}

/// Damages one message or the order of some.
fn damage(messages: &mut Messages, rng: &mut Rng) {
    let at = rng.below(messages.len() as u64) as usize;
    let other = messages[rng.below(messages.len() as u64) as usize].clone();
    let body_at = |body: &Vec<u8>, rng: &mut Rng| rng.below(body.len() as u64 + 1) as usize;
    match rng.below(10) {
        0 => {
            let body = &mut messages[at].1;
            for _ in 0..1 + rng.below(4) {
                let place = body_at(body, rng);
                if let Some(byte) = body.get_mut(place) {
                    *byte ^= 1 << rng.below(8);
                }
            }
        }
        1 => {
            let end = body_at(&messages[at].1, rng);
            messages[at].1.truncate(end);
        }
        2 => {
            let (from, to) = (body_at(&other.1, rng), body_at(&messages[at].1, rng));
            messages[at].1.truncate(to);
            messages[at].1.extend(&other.1[from..]);
        }
        3 => {
            let more = (0..rng.below(200)).map(|_| rng.bits() as u8).collect::<Vec<u8>>();
            messages[at].1.extend(more);
        }
        4 => messages.insert(at, other),
        5 => {
            for _ in 0..rng.below(20) {
                messages.insert(at, messages[at].clone());
            }
        }
        6 if messages.len() > 1 => drop(messages.remove(at)),
        7 => messages[at].0 = *rng.pick(b"QPBDCEHSdcfFpX\0zR\xff"),
        8 => {
            let (place, extreme) =
                (body_at(&messages[at].1, rng), *rng.pick(&[[0xff; 4], [0x7f, 0xff, 0xff, 0xff], [0; 4]]));
            for (to, byte) in messages[at].1.iter_mut().skip(place).zip(extreme) {
                *to = byte;
            }
        }
        _ => rng.shuffle(messages),
    }
}

/// The bytes of a case.
fn case(seed: u64) -> Vec<u8> {
    let mut rng = Rng::new(seed);
    let mut messages: Messages = Vec::new();
    for _ in 0..1 + rng.below(3) {
        messages.extend(rng.pick(&conversations()).clone());
    }
    for _ in 0..rng.below(5) {
        damage(&mut messages, &mut rng);
    }
    let mut bytes = bytes_of(&messages);
    // Sometimes the frames themselves are damaged.
    if rng.chance(1, 4) && !bytes.is_empty() {
        let at = rng.below(bytes.len() as u64) as usize;
        match rng.below(3) {
            0 => bytes[at] ^= 1 << rng.below(8),
            1 => bytes.truncate(at),
            _ => drop(bytes.splice(at..at, (0..rng.below(40)).map(|_| rng.bits() as u8).collect::<Vec<u8>>())),
        }
    }
    bytes
}

/// Sends a case in pieces, says that there is no more, and hears the server out.
fn run(server: &Server, seed: u64) {
    let mut raw = server.session();
    raw.stream.set_read_timeout(Some(SILENCE)).unwrap();
    raw.send(&message(b'Q', b"SET statement_timeout = '1s'\0"));
    raw.until(b'Z');
    let bytes = case(seed);
    let mut rng = Rng::new(seed).fork("pieces");
    let mut reader = raw.stream.try_clone().unwrap();
    let hearing = std::thread::spawn(move || {
        let mut heard = Vec::new();
        reader.read_to_end(&mut heard).map(|_| heard)
    });
    let mut rest = &bytes[..];
    while !rest.is_empty() {
        let (piece, after) = rest.split_at((1 + rng.below(rest.len() as u64)) as usize);
        // A server that has had enough closes.
        if raw.stream.write_all(piece).is_err() {
            break;
        }
        rest = after;
    }
    let _ = raw.stream.shutdown(std::net::Shutdown::Write);
    match hearing.join().unwrap() {
        Ok(heard) => whole(&heard, seed),
        // Bytes that the server has not read when it closes make the end a reset.
        Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => {}
        Err(error) => panic!("the server hangs: {error}; replay: cargo xtask fuzz wire --seed {seed:#x}"),
    }
}

/// What the server sends is always whole messages.
fn whole(mut heard: &[u8], seed: u64) {
    while let Some(length) = heard.get(1..5) {
        let length = 1 + u32::from_be_bytes([length[0], length[1], length[2], length[3]]) as usize;
        heard = heard
            .get(length..)
            .unwrap_or_else(|| panic!("half a message; replay: cargo xtask fuzz wire --seed {seed:#x}"));
    }
    assert!(heard.is_empty(), "half a message; replay: cargo xtask fuzz wire --seed {seed:#x}");
}

/// I-55, F17: after each batch nobody has panicked, no place is lost, and a fresh client is served.
#[test]
fn mutated_conversations_harm_nobody() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("stderr");
    let server = Server::start_telling(std::fs::File::create(&log).unwrap());
    let mut keeper = server.session();
    keeper.send(&message(b'Q', b"CREATE TABLE t (id int PRIMARY KEY, v text)\0"));
    assert!(matches!(keeper.until(b'Z').first(), Some((b'C', _))));
    drop(keeper);
    let seeds = match number("ISLES_WIRE_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("ISLES_WIRE_CASES").unwrap_or(CASES),
    };
    for seed in seeds.clone() {
        run(&server, seed);
        if seed % BATCH == 0 || seed + 1 == seeds.end {
            server.wait_until_alone();
            let told = std::fs::read_to_string(&log).unwrap();
            assert!(!told.contains("panicked"), "by seed {seed:#x} or one shortly before:\n{told}");
            let mut fresh = server.session();
            fresh.send(&message(b'Q', b"SELECT count(*) FROM t\0"));
            let kinds: Vec<u8> = fresh.until(b'Z').into_iter().map(|(kind, _)| kind).collect();
            assert_eq!(kinds, b"TDCZ", "after seed {seed:#x}");
            fresh.send(&message(b'X', b""));
            assert_eq!(fresh.hear(), Heard::Closed);
        }
    }
}
