//! The readers of what clients send inside of messages, under damaged bytes: values in text and binary form of every
//! type, and copies. A reader answers or complains, and never panics; what it answers is written back as itself.
//!
//! `ISLES_WIRE_CASES` is how many cases are run for each, `ISLES_WIRE_SEED` runs one.

use isles_sql::copy::{CopyFormat, CopyLimits, CopyOptions, Decoder};
use isles_sql::text::{self, Settings};
use isles_sql::types::{self, Oid, Type};

/// Cases of a run that nobody asked more of.
const CASES: u64 = 20_000;

/// A type, and values of it as PostgreSQL writes them.
const TEXTS: [(Oid, &[&str]); 22] = [
    (types::BOOL, &["t", "false"]),
    (types::INT2, &["-32768", "7"]),
    (types::INT4, &["2147483647", "-1"]),
    (types::INT8, &["-9223372036854775808", "0"]),
    (types::FLOAT4, &["1.5", "NaN", "-Infinity"]),
    (types::FLOAT8, &["-1e300", "0.1"]),
    (types::NUMERIC, &["-12345.67800", "1e40", "NaN", "0.0001"]),
    (types::TEXT, &["ü€𝄞", ""]),
    (types::VARCHAR, &["abc"]),
    (types::BYTEA, &["\\x00ff", "\\000abc"]),
    (types::DATE, &["2024-02-29", "infinity", "0001-01-01 BC"]),
    (types::TIME, &["23:59:59.999999", "24:00:00"]),
    (types::TIMESTAMP, &["1999-12-31 23:59:59.5", "-infinity"]),
    (types::TIMESTAMPTZ, &["2024-02-29 12:00:00+05:30", "2024-02-29 12:00:00 Europe/Paris"]),
    (types::INTERVAL, &["1 year 2 mons -3 days 04:05:06.7", "P1Y2M3DT4H5M6S", "-1-2 +3 -4:05:06"]),
    (types::UUID, &["a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"]),
    (types::JSON, &["{\"a\" : [1, null]}"]),
    (types::JSONB, &["{\"a\": [1, 2.50, true, \"\\u00fc\"]}"]),
    (types::INT4_ARRAY, &["{1,NULL,-3}", "{}"]),
    (types::TEXT_ARRAY, &["{a,\"b \\\"c\\\"\",NULL,\"\"}"]),
    (types::NUMERIC_ARRAY, &["{1.50,NULL}"]),
    (types::TIMESTAMPTZ_ARRAY, &["{\"2024-02-29 12:00:00+00\"}"]),
];

/// Bytes that are drawn from a seed: a step of SplitMix64.
struct Draw(u64);

impl Draw {
    fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.bits() % bound.max(1) as u64) as usize
    }

    fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len())]
    }

    /// Flips, cuts, lengthens, doubles, or sets numbers to their extremes.
    fn damage(&mut self, bytes: &mut Vec<u8>) {
        let at = self.below(bytes.len() + 1);
        match self.below(6) {
            0 => bytes.truncate(at),
            1 => {
                let more: Vec<u8> = (0..self.below(12)).map(|_| self.bits() as u8).collect();
                bytes.splice(at..at, more);
            }
            2 => {
                let again = bytes[at..].to_vec();
                bytes.extend(again);
            }
            3 => {
                let extreme = *self.pick(&[[0xff; 4], [0x7f, 0xff, 0xff, 0xff], [0x80, 0, 0, 0], [0; 4]]);
                bytes.iter_mut().skip(at).zip(extreme).for_each(|(to, byte)| *to = byte);
            }
            4 => {
                let digit = *self.pick(b"0123456789+-.:eE,{}\"\\ \0");
                bytes.insert(at, digit);
            }
            _ => {
                if let Some(byte) = bytes.get_mut(at) {
                    *byte ^= 1 << (self.bits() % 8);
                }
            }
        }
    }
}

fn seeds() -> std::ops::Range<u64> {
    let number = |variable: &str| {
        let text = std::env::var(variable).ok()?;
        let parsed = text.strip_prefix("0x").map_or_else(|| text.parse(), |digits| u64::from_str_radix(digits, 16));
        Some(parsed.unwrap_or_else(|_| panic!("{variable} is no number: {text}")))
    };
    match number("ISLES_WIRE_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("ISLES_WIRE_CASES").unwrap_or(CASES),
    }
}

/// Whoever panics says with which seed.
struct Telling(u64);

impl Drop for Telling {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("replay: cargo xtask fuzz wire --seed {:#x}", self.0);
        }
    }
}

/// I-55: any bytes are a value or an error, in both forms; a value is read back from what it is written as.
#[test]
fn damaged_values_are_read_or_refused() {
    let settings = Settings::default();
    let (mut read, mut refused) = (0, 0);
    for seed in seeds() {
        let _telling = Telling(seed);
        let mut draw = Draw(seed);
        let (oid, texts) = *draw.pick(&TEXTS);
        let ty = Type::of(oid);
        let written = *draw.pick(texts);
        let sound = text::input(written, ty, &settings).expect("PostgreSQL wrote it");
        let mut binary = Vec::new();
        text::binary_out(&sound, oid, &mut binary);
        assert_eq!(text::binary_in(&binary, oid).as_ref(), Ok(&sound), "{oid:?}");
        let mut plain = Vec::new();
        text::output(&sound, ty, &settings, &mut plain);
        for _ in 0..=draw.below(4) {
            draw.damage(&mut binary);
            draw.damage(&mut plain);
        }
        match text::binary_in(&binary, oid) {
            Ok(value) => {
                let mut again = Vec::new();
                text::binary_out(&value, oid, &mut again);
                assert_eq!(text::binary_in(&again, oid), Ok(value), "{oid:?} {binary:?}");
                read += 1;
            }
            Err(error) => {
                assert_eq!(error.sqlstate.len(), 5);
                refused += 1;
            }
        }
        if let Ok(plain) = String::from_utf8(plain)
            && let Ok(value) = text::input(&plain, ty, &settings)
        {
            let mut again = Vec::new();
            text::output(&value, ty, &settings, &mut again);
            let again = String::from_utf8(again).expect("texts are UTF-8");
            assert_eq!(text::input(&again, ty, &settings), Ok(value), "{oid:?} {plain:?} became {again:?}");
        }
    }
    println!("{read} read, {refused} refused");
    assert!(seeds().end - seeds().start < 1_000 || read > 100 && refused > 100);
}

fn decoder(format: CopyFormat) -> Decoder {
    let names = vec!["a".to_string(), "b".to_string()];
    Decoder::new(CopyOptions::of(format), "t", names, CopyLimits { line_bytes: 1 << 20 }).expect("valid options")
}

/// All rows of some bytes, fed in pieces, or the code of the error.
fn copied(format: CopyFormat, bytes: &[u8], pieces: &mut dyn FnMut(usize) -> usize) -> Result<usize, &'static str> {
    let mut decoder = decoder(format);
    let (mut rows, mut rest) = (0, bytes);
    while !rest.is_empty() {
        let (piece, after) = rest.split_at(pieces(rest.len()).clamp(1, rest.len()));
        rows += decoder.feed(piece).map_err(|error| error.sqlstate)?.len();
        rest = after;
    }
    Ok(rows + decoder.finish().map_err(|error| error.sqlstate)?.len())
}

/// I-55: a copy is read or refused, and the same however it is cut.
#[test]
fn damaged_copies_are_read_or_refused_however_they_are_cut() {
    let mut binary = b"PGCOPY\n\xff\r\n\0\0\0\0\0\0\0\0\0".to_vec();
    for n in 0_u8..4 {
        binary.extend([0, 2, 0, 0, 0, 1, n, 0xff, 0xff, 0xff, 0xff]);
    }
    binary.extend([0xff, 0xff]);
    let sound: [(CopyFormat, Vec<u8>); 3] = [
        (CopyFormat::Binary, binary),
        (CopyFormat::Text, b"1\tone\n2\t\\N\n3\tt\\tab\\x41\\101\n\\.\n".to_vec()),
        (CopyFormat::Csv, b"1,one\n2,\n3,\"quo\"\"ted\nline\"\n".to_vec()),
    ];
    let (mut read, mut refused) = (0, 0);
    for seed in seeds() {
        let _telling = Telling(seed);
        let mut draw = Draw(seed ^ 0x5eed);
        let (format, bytes) = draw.pick(&sound);
        let mut bytes = bytes.clone();
        for _ in 0..draw.below(5) {
            draw.damage(&mut bytes);
        }
        let whole = copied(*format, &bytes, &mut |length| length);
        let cut = copied(*format, &bytes, &mut |length| 1 + draw.below(length));
        assert_eq!(whole, cut, "{format:?} of {bytes:?}");
        if whole.is_ok() { read += 1 } else { refused += 1 }
    }
    println!("{read} read, {refused} refused");
    assert!(seeds().end - seeds().start < 1_000 || read > 100 && refused > 100);
}
