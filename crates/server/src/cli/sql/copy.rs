//! COPY, whose rows come from and go to where this program is: a script, the terminal, a file, or its own standard
//! input and output.
//!
//! A statement that copies says STDIN or STDOUT. `\copy t from 'file'` is the same with a file of this machine.

use super::split;
use bytes::Bytes;
use futures::{SinkExt, StreamExt};
use std::io::{Read, Write};
use std::path::PathBuf;
use std::pin::pin;
use tokio_postgres::{Client, Error};

/// What ends rows that stand in a script or are typed.
pub(super) const END: &str = "\\.";

/// Bytes that are read and sent at once.
const CHUNK_BYTES: usize = 64 << 10;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Direction {
    In,
    Out,
}

/// Whether a statement copies, and which way.
pub(super) fn direction_of(statement: &str) -> Option<Direction> {
    let words = split::words(statement);
    if words.first().map(String::as_str) != Some("COPY") {
        return None;
    }
    let follows = |first: &str, second: &str| words.windows(2).any(|pair| pair[0] == first && pair[1] == second);
    match (follows("FROM", "STDIN"), follows("TO", "STDOUT")) {
        (true, _) => Some(Direction::In),
        (_, true) => Some(Direction::Out),
        _ => None,
    }
}

/// Where the rows of `\copy` are.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Place {
    File(PathBuf),
    Standard,
}

/// What a line that begins with `\copy` asks for: a statement, and where its rows are. None if it is not understood.
pub(super) fn command(line: &str) -> Option<(String, Direction, Place)> {
    let rest = line.trim().strip_prefix("\\copy")?.trim_end_matches(';');
    let (at, direction) = split::top_level(rest).into_iter().find_map(|(at, word)| match word.as_str() {
        "FROM" => Some((at, Direction::In)),
        "TO" => Some((at, Direction::Out)),
        _ => None,
    })?;
    let (what, after) = rest.split_at(at);
    let (word, standard) = match direction {
        Direction::In => ("FROM", "STDIN"),
        Direction::Out => ("TO", "STDOUT"),
    };
    let after = after.get(word.len()..)?.trim_start();
    let (place, options) = match after.strip_prefix('\'') {
        Some(quoted) => {
            let end = quoted.find('\'')?;
            (Place::File(quoted[..end].into()), &quoted[end + 1..])
        }
        None => {
            let end = after.find(char::is_whitespace).unwrap_or(after.len());
            let name = &after[..end];
            let standards = ["stdin", "stdout", "pstdin", "pstdout"];
            let is_standard = standards.iter().any(|known| name.eq_ignore_ascii_case(known));
            let place = if is_standard { Place::Standard } else { Place::File(name.into()) };
            (place, &after[end..])
        }
    };
    let is_named = place != Place::File(PathBuf::new()) && !what.trim().is_empty();
    is_named.then(|| (format!("COPY {} {word} {standard} {}", what.trim(), options.trim()), direction, place))
}

/// Why a copy did not come to its end.
pub(super) enum Fault {
    Server(Error),
    /// Of the file, or of this program's input and output.
    Local(std::io::Error),
}

impl From<Error> for Fault {
    fn from(error: Error) -> Fault {
        Fault::Server(error)
    }
}

impl From<std::io::Error> for Fault {
    fn from(fault: std::io::Error) -> Fault {
        Fault::Local(fault)
    }
}

/// Sends all that there is to read; tells how many rows it were. A fault of the reader leaves nothing of it.
pub(super) async fn send(client: &Client, statement: &str, mut from: impl Read) -> Result<u64, Fault> {
    let sink = client.copy_in::<_, Bytes>(statement).await?;
    let mut sink = pin!(sink);
    loop {
        let mut chunk = vec![0; CHUNK_BYTES];
        let length = from.read(&mut chunk)?;
        if length == 0 {
            return Ok(sink.finish().await?);
        }
        chunk.truncate(length);
        sink.send(chunk.into()).await?;
    }
}

/// Writes all that the server sends.
pub(super) async fn receive(client: &Client, statement: &str, mut to: impl Write) -> Result<(), Fault> {
    let stream = client.copy_out(statement).await?;
    let mut stream = pin!(stream);
    while let Some(chunk) = stream.next().await {
        to.write_all(&chunk?)?;
    }
    Ok(to.flush()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statements_that_copy_are_known_by_their_words() {
        let check = |statement: &str, expected| assert_eq!(direction_of(statement), expected, "{statement}");
        check("COPY t FROM stdin;", Some(Direction::In));
        check("-- rows\ncopy public.t (a, \"from stdin\") FROM STDIN WITH (FORMAT csv);", Some(Direction::In));
        check("COPY (SELECT 1 FROM t) TO STDOUT", Some(Direction::Out));
        check("COPY (SELECT 'x' FROM stdin) TO '/tmp/x'", None);
        check("SELECT 'COPY t FROM STDIN'", None);
        check("COPY t FROM '/tmp/from stdin'", None);
    }

    #[test]
    fn a_copy_with_a_file_is_one_with_the_standard_streams() {
        let check = |line: &str, statement: &str, direction, place| {
            assert_eq!(command(line), Some((statement.to_owned(), direction, place)), "{line}");
        };
        let file = |name: &str| Place::File(name.into());
        check("\\copy t from 'a b.csv' csv", "COPY t FROM STDIN csv", Direction::In, file("a b.csv"));
        check("\\copy t (a, b) FROM x.txt;", "COPY t (a, b) FROM STDIN ", Direction::In, file("x.txt"));
        let query = "\\copy (select * from t) to 'x' with (format csv)";
        check(query, "COPY (select * from t) TO STDOUT with (format csv)", Direction::Out, file("x"));
        check("\\copy t to stdout", "COPY t TO STDOUT ", Direction::Out, Place::Standard);
        for wrong in ["\\copy", "\\copy t", "\\copy t from", "\\copy t from 'x", "\\copy from 'x'"] {
            assert_eq!(command(wrong), None, "{wrong}");
        }
    }
}
