//! Sequences: their options, with PostgreSQL's defaults and checks.

use super::draft::{Draft, Otherwise, no_column};
use super::text::strings;
use super::{DdlChange, Result};
use isles_kernel::error::SqlError;
use isles_kernel::schema::{SchemaChange, Sequence, plain_name};
use isles_kernel::value::DataType;
use pg_raw_parse::nodes::{self, DefElem};
use pg_raw_parse::{ConstValue, Node, list};

/// Whether a sequence is made or has a position already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Start {
    New,
    Existing,
}

/// What was said. The inner option is the argument: `NO MINVALUE` has none.
#[derive(Default)]
pub(super) struct Options {
    pub(super) name: Option<String>,
    ty: Option<DataType>,
    increment: Option<i64>,
    min: Option<Option<i64>>,
    max: Option<Option<i64>>,
    start: Option<i64>,
    pub(super) restart: Option<Option<i64>>,
    cycle: Option<bool>,
    owner: Option<Option<(String, String)>>,
}

/// The sequence of a serial or identity column.
pub(super) fn owned(name: &str, ty: DataType, table: &str, column: &str) -> Sequence {
    Sequence { owner: Some((table.into(), column.into())), ..plain(name, ty) }
}

fn plain(name: &str, ty: DataType) -> Sequence {
    Sequence { name: name.into(), start: 1, increment: 1, min: 1, max: range(ty).1, cycle: false, ty, owner: None }
}

fn range(ty: DataType) -> (i64, i64) {
    match ty {
        DataType::Int2 => (i16::MIN.into(), i16::MAX.into()),
        DataType::Int4 => (i32::MIN.into(), i32::MAX.into()),
        _ => (i64::MIN, i64::MAX),
    }
}

impl Options {
    pub(super) fn read(draft: &Draft<'_>, list: &list::NodeList) -> Result<Options> {
        let mut options = Options::default();
        for node in list {
            if let Node::DefElem(option) = node {
                options.take(draft, option)?;
            }
        }
        Ok(options)
    }

    fn take(&mut self, draft: &Draft<'_>, option: &DefElem) -> Result<()> {
        match option.defname().unwrap_or_default() {
            "as" => self.ty = Some(sequence_type(draft, option)?),
            "increment" => self.increment = Some(needed(option)?),
            "minvalue" => self.min = Some(number(option)?),
            "maxvalue" => self.max = Some(number(option)?),
            "start" => self.start = Some(needed(option)?),
            "restart" => self.restart = Some(number(option)?),
            "cycle" => self.cycle = Some(matches!(option.arg(), Node::Boolean(value) if value.boolval)),
            "owned_by" => self.owner = Some(owner(draft, option)?),
            "sequence_name" => self.name = Some(draft.new_name_of(&strings(option.arg()))?),
            // How many numbers a server takes at a time is the router's own affair.
            "cache" => {
                if needed(option)? < 1 {
                    return Err(SqlError::new("22023", "CACHE must be greater than zero"));
                }
            }
            other => return Err(SqlError::unsupported(format!("sequence option \"{other}\" is not supported"))),
        }
        Ok(())
    }

    /// The sequence with what was said.
    pub(super) fn applied(&self, base: Sequence, start: Start) -> Result<Sequence> {
        let mut sequence = base;
        let (old_type, ascending_before) = (sequence.ty, sequence.increment > 0);
        sequence.ty = self.ty.unwrap_or(sequence.ty);
        sequence.increment = self.increment.unwrap_or(sequence.increment);
        if sequence.increment == 0 {
            return Err(SqlError::new("22023", "INCREMENT must not be zero"));
        }
        let ascending = sequence.increment > 0;
        let (low, high) = range(sequence.ty);
        // Bounds that nobody chose follow the type and the direction.
        let fresh = start == Start::New || old_type != sequence.ty || ascending != ascending_before;
        let default_min = if ascending { 1 } else { low };
        let default_max = if ascending { high } else { -1 };
        sequence.min = match self.min {
            Some(given) => given.unwrap_or(default_min),
            None if fresh && (start == Start::New || sequence.min == range(old_type).0 || sequence.min == 1) => {
                default_min
            }
            None => sequence.min,
        };
        sequence.max = match self.max {
            Some(given) => given.unwrap_or(default_max),
            None if fresh && (start == Start::New || sequence.max == range(old_type).1 || sequence.max == -1) => {
                default_max
            }
            None => sequence.max,
        };
        sequence.start = match self.start {
            Some(start) => start,
            None if start == Start::New => {
                if ascending {
                    sequence.min
                } else {
                    sequence.max
                }
            }
            None => sequence.start,
        };
        sequence.cycle = self.cycle.unwrap_or(sequence.cycle);
        if let Some(owner) = &self.owner {
            sequence.owner = owner.clone();
        }
        check(&sequence)?;
        Ok(sequence)
    }
}

fn check(sequence: &Sequence) -> Result<()> {
    let wrong = |message: String| Err(SqlError::new("22023", message));
    let (low, high) = range(sequence.ty);
    let ty = sequence.ty.postgres_name();
    if sequence.max > high || sequence.max < low {
        return wrong(format!("MAXVALUE ({}) is out of range for sequence data type {ty}", sequence.max));
    }
    if sequence.min > high || sequence.min < low {
        return wrong(format!("MINVALUE ({}) is out of range for sequence data type {ty}", sequence.min));
    }
    if sequence.min >= sequence.max {
        return wrong(format!("MINVALUE ({}) must be less than MAXVALUE ({})", sequence.min, sequence.max));
    }
    if sequence.start < sequence.min {
        return wrong(format!("START value ({}) cannot be less than MINVALUE ({})", sequence.start, sequence.min));
    }
    if sequence.start > sequence.max {
        return wrong(format!("START value ({}) cannot be greater than MAXVALUE ({})", sequence.start, sequence.max));
    }
    Ok(())
}

fn number(option: &DefElem) -> Result<Option<i64>> {
    let text = match option.arg() {
        Node::None => return Ok(None),
        Node::Integer(n) => return Ok(Some(n.ival.into())),
        Node::Float(text) => text.fval().map(str::to_string),
        Node::A_Const(constant) => match constant.val() {
            Some(ConstValue::Integer(n)) => return Ok(Some(n.into())),
            Some(ConstValue::Float(text)) => Some(text.to_string()),
            _ => None,
        },
        _ => None,
    };
    match text.as_deref().map(str::parse::<i64>) {
        Some(Ok(n)) => Ok(Some(n)),
        _ => {
            let name = option.defname().unwrap_or_default();
            Err(SqlError::new("22003", format!("value of sequence option \"{name}\" is out of range for type bigint")))
        }
    }
}

fn needed(option: &DefElem) -> Result<i64> {
    number(option)?.ok_or_else(|| {
        let name = option.defname().unwrap_or_default();
        SqlError::new("42601", format!("{name} requires a numeric value"))
    })
}

fn sequence_type(draft: &Draft<'_>, option: &DefElem) -> Result<DataType> {
    let Node::TypeName(name) = option.arg() else { return Err(SqlError::new("42601", "AS requires a type")) };
    match draft.expressions().named_type(name)?.oid {
        crate::types::INT2 => Ok(DataType::Int2),
        crate::types::INT4 => Ok(DataType::Int4),
        crate::types::INT8 => Ok(DataType::Int8),
        _ => Err(SqlError::new("22023", "sequence type must be smallint, integer, or bigint")),
    }
}

fn owner(draft: &Draft<'_>, option: &DefElem) -> Result<Option<(String, String)>> {
    let mut names = strings(option.arg());
    if names == ["none"] {
        return Ok(None);
    }
    let Some(column) = names.pop().filter(|_| !names.is_empty()) else {
        let error = SqlError::new("42601", "invalid OWNED BY option");
        return Err(error.with_hint("Specify OWNED BY table.column or OWNED BY NONE."));
    };
    let table = draft.name_of(&names)?;
    if draft.table(&table)?.position(&column).is_none() {
        return Err(no_column(&table, &column));
    }
    Ok(Some((table, column)))
}

pub(super) fn create(draft: &mut Draft<'_>, statement: &nodes::CreateSeqStmt) -> Result<()> {
    super::refuse_temporary(statement.sequence())?;
    let name = draft.new_name(statement.sequence())?;
    if draft.schema.is_taken(&name) {
        return super::exists(draft, &name, Otherwise::of(statement.if_not_exists));
    }
    let options = Options::read(draft, statement.options())?;
    let sequence = options.applied(plain(&name, options.ty.unwrap_or(DataType::Int8)), Start::New)?;
    draft.push(SchemaChange::CreateSequence(sequence))
}

pub(super) fn alter(mut draft: Draft<'_>, statement: &nodes::AlterSeqStmt) -> Result<DdlChange> {
    let name = draft.name(statement.sequence())?;
    let Some(old) = draft.schema.sequences.get(&name).cloned() else {
        if statement.missing_ok {
            draft.notice(format!("relation \"{}\" does not exist, skipping", plain_name(&name)));
            return Ok(draft.finish("ALTER SEQUENCE"));
        }
        return Err(super::draft::no_relation(&name));
    };
    let options = Options::read(&draft, statement.options())?;
    let sequence = options.applied(old.clone(), Start::Existing)?;
    if let Some(restart) = options.restart {
        draft.restarts.push((name, restart.unwrap_or(sequence.start)));
    }
    if sequence != old {
        draft.push(SchemaChange::AlterSequence(sequence))?;
    }
    Ok(draft.finish("ALTER SEQUENCE"))
}
