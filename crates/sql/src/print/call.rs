//! What our functions inside of SQLite are told.
//!
//! A statement for SQLite calls `_pg(callee, arguments…)` for whatever SQLite has not, or has with another meaning.
//! The callee is a constant text that says what to do and with which types, since SQLite knows neither:
//!
//!     f177(23,23)23           function 177 of two int4, which gives an int4
//!     f2020(25,1114)1114      date_trunc; a `@` at the end says that the session's settings are one more argument
//!     c1705(1043)1700:655366  a cast by function 1705, to numeric(10,2)
//!     A2110D(701)701          an aggregate over distinct values
//!
//! The text is parsed once for each execution of a statement and not for each row.

use crate::tree::{CastHow, Quantifier};
use crate::types::{Oid, Type};
use std::fmt;

/// The scalar dispatchers: one for results that depend on their arguments alone, and one for those that do not.
pub const STEADY: &str = "_pg";
pub const VOLATILE: &str = "_pgv";
/// The aggregate dispatcher, also over windows.
pub const AGGREGATE: &str = "_agg";
/// The one value of a subquery that is used as an expression.
pub const ONE: &str = "_one";
/// Whether a bucket is among those of a bitmap: `_owns(bitmap, bucket)`.
pub const OWNS: &str = "_owns";
/// Whether a tenant is among residents: `_owns_tenant(residents, tenant)`.
pub const OWNS_TENANT: &str = "_owns_tenant";
/// Rows of a set-returning function: columns `c0`…, and `n`, which numbers them from 1. It is a table to SQLite, so its
/// name is one that no table of a client's can have.
pub const ROWS: &str = "_isles_rows";
/// Columns of [`ROWS`] and arguments it takes beside the callee. No built-in function has more.
pub const ROWS_COLUMNS: usize = 32;
pub const ROWS_ARGS: usize = 8;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Callee {
    pub op: Op,
    /// Types of the arguments that follow, without the settings.
    pub args: Vec<Oid>,
    pub result: Type,
    /// Whether the last argument is the session's settings.
    pub settings: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    Function(Oid),
    /// By an equality function, as the following ones.
    IsDistinct(Oid),
    NullIf(Oid),
    /// The first argument, in the list of the others.
    InList(Oid),
    OverArray(Quantifier, Oid),
    Greatest,
    Least,
    /// The arguments as elements.
    Array,
    Subscript,
    /// Which bounds are given.
    Slice {
        from: bool,
        to: bool,
    },
    /// A number of rows: null is all of them, a negative one an error.
    Limit,
    Offset,
    Cast(CastHow),
    Aggregate {
        function: Oid,
        how: Gather,
    },
    /// `ARRAY(SELECT …)`: as `array_agg`, but of no rows it is the empty array.
    ArrayOfRows,
}

/// How an aggregate takes its rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Gather {
    /// Equal ones, which follow each other, count once.
    pub distinct: bool,
    /// Rows leave the window again.
    pub moving: bool,
    /// `WITHIN GROUP`: so many of the arguments are direct.
    pub direct: Option<usize>,
}

impl fmt::Display for Callee {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_op(self.op, f)?;
        f.write_str("(")?;
        for (at, arg) in self.args.iter().enumerate() {
            write!(f, "{}{}", if at == 0 { "" } else { "," }, arg.0)?;
        }
        write!(f, "){}", self.result.oid.0)?;
        if self.result.modifier >= 0 {
            write!(f, ":{}", self.result.modifier)?;
        }
        if self.settings { f.write_str("@") } else { Ok(()) }
    }
}

fn write_op(op: Op, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match op {
        Op::Function(oid) => write!(f, "f{}", oid.0),
        Op::IsDistinct(oid) => write!(f, "d{}", oid.0),
        Op::NullIf(oid) => write!(f, "n{}", oid.0),
        Op::InList(oid) => write!(f, "i{}", oid.0),
        Op::OverArray(Quantifier::Any, oid) => write!(f, "y{}", oid.0),
        Op::OverArray(Quantifier::All, oid) => write!(f, "z{}", oid.0),
        Op::Greatest => f.write_str("g0"),
        Op::Least => f.write_str("l0"),
        Op::Array => f.write_str("a0"),
        Op::Subscript => f.write_str("s0"),
        Op::Slice { from, to } => write!(f, "p{}", u8::from(from) + 2 * u8::from(to)),
        Op::Limit => f.write_str("m0"),
        Op::Offset => f.write_str("o0"),
        Op::Cast(CastHow::Function(oid)) => write!(f, "c{}", oid.0),
        Op::Cast(CastHow::Relabel) => f.write_str("r0"),
        Op::Cast(CastHow::InOut) => f.write_str("x0"),
        Op::Cast(CastHow::Modifier { explicit }) => write!(f, "v{}", u8::from(explicit)),
        Op::ArrayOfRows => f.write_str("R0"),
        Op::Aggregate { function, how } => {
            write!(f, "A{}", function.0)?;
            f.write_str(if how.distinct { "D" } else { "" })?;
            f.write_str(if how.moving { "M" } else { "" })?;
            how.direct.map_or(Ok(()), |direct| write!(f, "G{direct}"))
        }
    }
}

impl Callee {
    pub fn parse(text: &str) -> Option<Callee> {
        let (text, settings) = text.strip_suffix('@').map_or((text, false), |rest| (rest, true));
        let (op, rest) = text.split_once('(')?;
        let (args, result) = rest.split_once(')')?;
        let args = args.split(',').filter(|arg| !arg.is_empty()).map(oid).collect::<Option<_>>()?;
        let (result, modifier) = match result.split_once(':') {
            Some((result, modifier)) => (oid(result)?, modifier.parse().ok()?),
            None => (oid(result)?, -1),
        };
        Some(Callee { op: parse_op(op)?, args, result: Type::with(result, modifier), settings })
    }
}

fn oid(text: &str) -> Option<Oid> {
    text.parse().ok().map(Oid)
}

fn parse_op(text: &str) -> Option<Op> {
    let digits = text.get(1..)?.find(|c: char| !c.is_ascii_digit()).map_or(text.len(), |at| at + 1);
    let number: u32 = text.get(1..digits)?.parse().ok()?;
    Some(match text.as_bytes()[0] {
        b'f' => Op::Function(Oid(number)),
        b'd' => Op::IsDistinct(Oid(number)),
        b'n' => Op::NullIf(Oid(number)),
        b'i' => Op::InList(Oid(number)),
        b'y' => Op::OverArray(Quantifier::Any, Oid(number)),
        b'z' => Op::OverArray(Quantifier::All, Oid(number)),
        b'g' => Op::Greatest,
        b'l' => Op::Least,
        b'a' => Op::Array,
        b's' => Op::Subscript,
        b'p' => Op::Slice { from: number & 1 != 0, to: number & 2 != 0 },
        b'm' => Op::Limit,
        b'o' => Op::Offset,
        b'c' => Op::Cast(CastHow::Function(Oid(number))),
        b'r' => Op::Cast(CastHow::Relabel),
        b'x' => Op::Cast(CastHow::InOut),
        b'v' => Op::Cast(CastHow::Modifier { explicit: number == 1 }),
        b'R' => Op::ArrayOfRows,
        b'A' => Op::Aggregate { function: Oid(number), how: parse_gather(&text[digits..])? },
        _ => return None,
    })
}

fn parse_gather(text: &str) -> Option<Gather> {
    let (flags, direct) = match text.split_once('G') {
        Some((flags, direct)) => (flags, Some(direct.parse().ok()?)),
        None => (text, None),
    };
    Some(Gather { distinct: flags.contains('D'), moving: flags.contains('M'), direct })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back() {
        let eq = Oid(65);
        let how = Gather { distinct: true, moving: true, direct: Some(1) };
        let ops = [
            Op::Function(eq),
            Op::IsDistinct(eq),
            Op::NullIf(eq),
            Op::InList(eq),
            Op::OverArray(Quantifier::Any, eq),
            Op::OverArray(Quantifier::All, eq),
            Op::Greatest,
            Op::Least,
            Op::Array,
            Op::Subscript,
            Op::Slice { from: true, to: false },
            Op::Slice { from: false, to: true },
            Op::Limit,
            Op::Offset,
            Op::Cast(CastHow::Function(eq)),
            Op::Cast(CastHow::Relabel),
            Op::Cast(CastHow::InOut),
            Op::Cast(CastHow::Modifier { explicit: true }),
            Op::Cast(CastHow::Modifier { explicit: false }),
            Op::ArrayOfRows,
            Op::Aggregate { function: eq, how },
            Op::Aggregate { function: eq, how: Gather::default() },
        ];
        for op in ops {
            for (args, modifier, settings) in [(vec![], -1, false), (vec![Oid(23), Oid(1007)], 655_366, true)] {
                let callee = Callee { op, args, result: Type::with(Oid(1700), modifier), settings };
                assert_eq!(Callee::parse(&callee.to_string()), Some(callee.clone()), "{callee}");
            }
        }
    }

    #[test]
    fn other_texts_are_not_read() {
        for text in ["", "f", "f1", "f1(", "é1()2", "f1(x)2", "f1()", "q1()2"] {
            assert_eq!(Callee::parse(text), None, "{text}");
        }
    }
}
