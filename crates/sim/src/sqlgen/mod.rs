//! Random SQL that two databases can be compared on.
//!
//!     Generator::new(seed) → schema() → tables, once for each dialect
//!                          → statement() → one statement, and what may be compared of its answer
//!
//! PostgreSQL is the oracle: each statement runs on it and on Isles, and the answers must agree. So a statement is
//! made to have one right answer. Rows come in no order unless all columns are ordered by; `LIMIT` always has such an
//! order; sums of floats are of numbers that add up exactly in any order; nothing is random or depends on the clock.
//!
//! Data-dependent errors are a matter of evaluation order as soon as rows are filtered or joined, so they are provoked
//! only by statements over no table, and there they must agree too ([`Compare::Strictly`]).

mod expr;
mod statement;

use crate::rng::Rng;

/// The types that are generated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Ty {
    Bool,
    Int2,
    Int4,
    Int8,
    Numeric,
    Float8,
    Text,
    Varchar,
    Date,
    Timestamp,
    TimestampTz,
    Interval,
    Uuid,
    Bytea,
}

impl Ty {
    pub const ALL: [Ty; 14] = [
        Ty::Bool,
        Ty::Int2,
        Ty::Int4,
        Ty::Int8,
        Ty::Numeric,
        Ty::Float8,
        Ty::Text,
        Ty::Varchar,
        Ty::Date,
        Ty::Timestamp,
        Ty::TimestampTz,
        Ty::Interval,
        Ty::Uuid,
        Ty::Bytea,
    ];

    /// As a column is declared.
    fn declared(self) -> &'static str {
        match self {
            Ty::Bool => "boolean",
            Ty::Int2 => "smallint",
            Ty::Int4 => "integer",
            Ty::Int8 => "bigint",
            Ty::Numeric => "numeric(12,3)",
            Ty::Float8 => "double precision",
            Ty::Text => "text",
            Ty::Varchar => "varchar(40)",
            Ty::Date => "date",
            Ty::Timestamp => "timestamp",
            Ty::TimestampTz => "timestamptz",
            Ty::Interval => "interval",
            Ty::Uuid => "uuid",
            Ty::Bytea => "bytea",
        }
    }

    /// As a cast names it.
    fn cast(self) -> &'static str {
        match self {
            Ty::Numeric => "numeric",
            Ty::Varchar => "varchar",
            other => other.declared(),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Hash,
    Reference,
    Global,
    Tenant,
}

#[derive(Debug, Clone)]
pub struct Column {
    pub name: String,
    pub ty: Ty,
}

#[derive(Debug, Clone)]
pub struct Table {
    pub name: String,
    pub kind: Kind,
    pub columns: Vec<Column>,
    /// Positions of the primary key; it comes first.
    pub key: usize,
}

impl Table {
    /// The statement that makes it, on Isles and on plain PostgreSQL.
    pub fn create(&self) -> (String, String) {
        let columns: Vec<String> = self.columns.iter().map(|c| format!("{} {}", c.name, c.ty.declared())).collect();
        let key: Vec<&str> = self.columns[..self.key].iter().map(|c| c.name.as_str()).collect();
        let plain = format!("CREATE TABLE {} ({}, PRIMARY KEY ({}))", self.name, columns.join(", "), key.join(", "));
        let options = match self.kind {
            // Tables of one group whose first key column has one type are colocated by it.
            Kind::Hash => {
                format!("kind = 'hash', shard_by = '{}', \"group\" = 'g_{}'", key[0], group(&self.columns[0]))
            }
            Kind::Reference => "kind = 'reference'".to_string(),
            Kind::Global => "kind = 'global'".to_string(),
            Kind::Tenant => "kind = 'tenant'".to_string(),
        };
        (format!("{plain} WITH ({options})"), plain)
    }
}

fn group(column: &Column) -> &'static str {
    match column.ty {
        Ty::Int8 => "int8",
        Ty::Int4 => "int4",
        Ty::Text => "text",
        _ => "uuid",
    }
}

/// What must agree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compare {
    /// Rows as a set with multiplicity, the number of rows, and whether it fails; where both fail, nothing more.
    Rows,
    /// Also the order.
    Ordered,
    /// Also the SQLSTATE of an error.
    Strictly,
}

#[derive(Debug, Clone)]
pub struct Statement {
    pub sql: String,
    pub compare: Compare,
    /// What kind of statement it is, for counting.
    pub shape: &'static str,
}

/// Makes statements over tables of its own.
pub struct Generator {
    rng: Rng,
    tables: Vec<Table>,
    in_transaction: bool,
}

/// Enough for joins of each kind with each, few enough that statements often meet the same table.
pub const TABLES: usize = 6;

impl Generator {
    pub fn new(seed: u64) -> Generator {
        Generator::over([Kind::Hash, Kind::Hash, Kind::Hash, Kind::Reference, Kind::Global, Kind::Tenant], seed)
    }

    /// Over tables of these kinds.
    pub fn over(kinds: [Kind; TABLES], seed: u64) -> Generator {
        let mut rng = Rng::new(seed);
        let tables = (0..TABLES).map(|n| table(&mut rng, n, kinds[n])).collect();
        Generator { rng, tables, in_transaction: false }
    }

    /// Another one over the same tables, with statements of its own.
    pub fn beside(&self, seed: u64) -> Generator {
        Generator { rng: Rng::new(seed), tables: self.tables.clone(), in_transaction: false }
    }

    pub fn tables(&self) -> &[Table] {
        &self.tables
    }

    /// The next statement.
    pub fn statement(&mut self) -> Statement {
        statement::next(self)
    }
}

fn table(rng: &mut Rng, n: usize, kind: Kind) -> Table {
    let mut columns =
        vec![Column { name: "k".into(), ty: *rng.pick(&[Ty::Int8, Ty::Int8, Ty::Int4, Ty::Text, Ty::Uuid]) }];
    let key = if rng.chance(1, 3) {
        columns.push(Column { name: "k2".into(), ty: *rng.pick(&[Ty::Int4, Ty::Text]) });
        2
    } else {
        1
    };
    let more = rng.range(3..8);
    // Every table has an integer and a text, so that most expressions find a column.
    let mut types = vec![Ty::Int4, Ty::Text];
    types.extend((0..more).map(|_| *rng.pick(&Ty::ALL)));
    columns.extend(types.into_iter().enumerate().map(|(at, ty)| Column { name: format!("c{at}"), ty }));
    Table { name: format!("t{n}"), kind, columns, key }
}

impl Generator {
    /// Forgets an open transaction, if there is one: its statements have been rolled back.
    pub fn abandon_transaction(&mut self) -> bool {
        std::mem::take(&mut self.in_transaction)
    }
}
