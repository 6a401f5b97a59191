//! Row changes, as the change log records them.
//!
//! A [`Change`] says everything about one row's change: which row, of which table and unit, what it was and what it
//! became. So a reader needs neither the shard's schema of that time nor the row itself.
//!
//! A [`Record`] packs the changes of one commit of a shard, which may be many transactions: one insert into the log
//! for each disk flush. Table names stand once in its head.
//!
//! Invariants (docs/invariants.md):
//!   * I-29  the record of a commit holds exactly the changes of its committed transactions, in order
//!   * decoding any bytes returns changes or an error, never panics

use crate::names::{BucketId, GroupName, SchemaVersion, Seq, TenantId, TxnId};
use crate::schema::{GLOBAL_GROUP, Table, TableKind, Unit};
use crate::value::{Damaged, Decoder, Encoder, Value};
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Op {
    Insert,
    Update,
    Delete,
}

/// One row's change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    pub seq: Seq,
    pub txn: TxnId,
    pub schema: SchemaVersion,
    pub table: String,
    pub unit: Unit,
    pub op: Op,
    /// The row's physical key: after the change, or before it for a delete. An update that changes the key is
    /// recorded as a delete and an insert, so that a key's history is never under another key.
    pub key: Vec<Value>,
    pub before: Option<Vec<Value>>,
    pub after: Option<Vec<Value>>,
}

/// The layout of a record's body; raised when it changes.
const FORMAT: u8 = 1;

const OP_INSERT: u8 = 0;
const OP_UPDATE: u8 = 1;
const OP_DELETE: u8 = 2;

/// How rows of a table name their unit.
const UNIT_SHARED: u8 = 0;
const UNIT_BUCKET: u8 = 1;
const UNIT_TENANT: u8 = 2;

/// Collects the changes of one commit.
///
/// Transactions of a group share it: [`RecordBuilder::mark`] and [`RecordBuilder::rewind`] take back what a failed
/// statement, savepoint or transaction had recorded.
#[derive(Debug, Default)]
pub struct RecordBuilder {
    body: Encoder,
    /// Tables in the order of their first change; the body names them by their place here.
    tables: Vec<Head>,
    changes: u64,
}

#[derive(Debug)]
struct Head {
    name: String,
    unit: u8,
    group: String,
    key: Vec<usize>,
}

/// A place in a record to come back to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark {
    bytes: usize,
    changes: u64,
}

impl RecordBuilder {
    pub fn is_empty(&self) -> bool {
        self.changes == 0
    }

    /// How many changes the record holds.
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// The size of the changes so far.
    pub fn bytes(&self) -> usize {
        self.body.bytes.len()
    }

    pub fn mark(&self) -> Mark {
        Mark { bytes: self.body.bytes.len(), changes: self.changes }
    }

    /// Forgets what came after `mark`. Tables stay in the head: an unused name is harmless.
    pub fn rewind(&mut self, mark: Mark) {
        self.body.bytes.truncate(mark.bytes);
        self.changes = mark.changes;
    }

    /// Forgets all, tables too; memory is kept for the next commit.
    pub fn clear(&mut self) {
        self.body.bytes.clear();
        self.tables.clear();
        self.changes = 0;
    }

    /// The number of `table` in this record.
    pub fn table(&mut self, table: &Table) -> usize {
        if let Some(at) = self.tables.iter().position(|head| head.name == table.name) {
            return at;
        }
        self.tables.push(Head {
            name: table.name.clone(),
            unit: match table.kind {
                TableKind::Hash { .. } | TableKind::Global => UNIT_BUCKET,
                TableKind::Tenant => UNIT_TENANT,
                TableKind::Reference => UNIT_SHARED,
            },
            group: match &table.kind {
                TableKind::Hash { group, .. } => group.as_str().into(),
                TableKind::Global => GLOBAL_GROUP.into(),
                TableKind::Tenant | TableKind::Reference => String::new(),
            },
            key: table.key_positions(),
        });
        self.tables.len() - 1
    }

    /// Begins a change; the unit and then the images follow through the returned encoder. `txn` counts from the
    /// record's first transaction.
    pub fn begin(&mut self, table: usize, txn: u64, op: Op) -> &mut Encoder {
        self.changes += 1;
        self.body.varint(table as u64);
        self.body.varint(txn);
        self.body.bytes.push(match op {
            Op::Insert => OP_INSERT,
            Op::Update => OP_UPDATE,
            Op::Delete => OP_DELETE,
        });
        &mut self.body
    }

    /// The whole record, ready for the log.
    pub fn finish(&self, schema: SchemaVersion) -> Vec<u8> {
        let mut out = Encoder { bytes: Vec::with_capacity(self.body.bytes.len() + 64) };
        out.bytes.push(FORMAT);
        out.varint(schema.0);
        out.varint(self.tables.len() as u64);
        for head in &self.tables {
            out.blob(head.name.as_bytes());
            out.bytes.push(head.unit);
            out.blob(head.group.as_bytes());
            out.varint(head.key.len() as u64);
            head.key.iter().for_each(|at| out.varint(*at as u64));
        }
        out.bytes.extend_from_slice(&self.body.bytes);
        out.bytes
    }
}

/// Writes a row's unit, as [`RecordBuilder::begin`] wants it.
pub fn encode_unit(out: &mut Encoder, unit: &Unit) {
    match unit {
        Unit::Bucket(_, bucket) => out.varint(u64::from(bucket.0)),
        Unit::Tenant(None) => out.null(),
        Unit::Tenant(Some(tenant)) => out.value(&Value::text(tenant.as_str())),
        Unit::Shared => {}
    }
}

/// Reads a record's changes; the first has position `first` and the record's first transaction is `txn`.
pub fn decode_record(body: &[u8], first: Seq, txn: TxnId) -> Result<Vec<Change>, Damaged> {
    let mut input = Decoder::new(body);
    if input.byte()? != FORMAT {
        return Err(Damaged);
    }
    let schema = SchemaVersion(input.varint()?);
    let heads = decode_heads(&mut input)?;
    let mut changes = Vec::new();
    let mut seq = first;
    while !input.is_empty() {
        changes.push(decode_change(&mut input, &heads, schema, seq, txn)?);
        seq = seq.next();
    }
    Ok(changes)
}

fn decode_heads(input: &mut Decoder<'_>) -> Result<Vec<Head>, Damaged> {
    (0..input.varint()?).map(|_| decode_head(input)).collect()
}

fn decode_head(input: &mut Decoder<'_>) -> Result<Head, Damaged> {
    let name = input.str()?.to_string();
    let unit = input.byte()?;
    let group = input.str()?.to_string();
    let columns = input.varint()?;
    if columns > crate::schema::MAX_KEY_COLUMNS as u64 {
        return Err(Damaged);
    }
    let key = (0..columns).map(|_| usize::try_from(input.varint()?).map_err(|_| Damaged)).collect::<Result<_, _>>()?;
    Ok(Head { name, unit, group, key })
}

fn decode_change(
    input: &mut Decoder<'_>,
    heads: &[Head],
    schema: SchemaVersion,
    seq: Seq,
    txn: TxnId,
) -> Result<Change, Damaged> {
    let at = usize::try_from(input.varint()?).map_err(|_| Damaged)?;
    let head = heads.get(at).ok_or(Damaged)?;
    let txn = TxnId(txn.0.checked_add(input.varint()?).ok_or(Damaged)?);
    let op = match input.byte()? {
        OP_INSERT => Op::Insert,
        OP_UPDATE => Op::Update,
        OP_DELETE => Op::Delete,
        _ => return Err(Damaged),
    };
    let unit = decode_unit(input, head)?;
    let before = if op == Op::Insert { None } else { Some(input.row()?) };
    let after = if op == Op::Delete { None } else { Some(input.row()?) };
    let image = after.as_ref().or(before.as_ref()).ok_or(Damaged)?;
    let lead = match &unit {
        Unit::Tenant(tenant) => Some(Value::text(tenant.as_ref().map_or("", TenantId::as_str))),
        _ => None,
    };
    let columns = head.key.iter().map(|at| image.get(*at).cloned().ok_or(Damaged));
    let key = lead.into_iter().map(Ok).chain(columns).collect::<Result<_, _>>()?;
    Ok(Change { seq, txn, schema, table: head.name.clone(), unit, op, key, before, after })
}

fn decode_unit(input: &mut Decoder<'_>, head: &Head) -> Result<Unit, Damaged> {
    match head.unit {
        UNIT_SHARED => Ok(Unit::Shared),
        UNIT_BUCKET => {
            let group = GroupName::new(head.group.clone()).map_err(|_| Damaged)?;
            let bucket = u32::try_from(input.varint()?).map_err(|_| Damaged)?;
            Ok(Unit::Bucket(group, BucketId(bucket)))
        }
        UNIT_TENANT => match input.value()? {
            Value::Null => Ok(Unit::Tenant(None)),
            Value::Text(name) => Ok(Unit::Tenant(Some(TenantId::new(name).map_err(|_| Damaged)?))),
            _ => Err(Damaged),
        },
        _ => Err(Damaged),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::{Column, TableKind};
    use crate::value::DataType;
    use proptest::prelude::*;

    fn notes() -> Table {
        Table {
            name: "notes".into(),
            kind: TableKind::Tenant,
            columns: vec![Column::new("body", DataType::Text), Column::new("id", DataType::Int8).not_null()],
            primary_key: vec!["id".into()],
            keys: vec![],
            foreign_keys: vec![],
            checks: vec![],
            primary_key_name: None,
            hidden_key: false,
        }
    }

    fn put(
        record: &mut RecordBuilder,
        txn: u64,
        tenant: Option<&str>,
        before: Option<&[Value]>,
        after: Option<&[Value]>,
    ) {
        let table = record.table(&notes());
        let op = match (before, after) {
            (None, _) => Op::Insert,
            (_, None) => Op::Delete,
            _ => Op::Update,
        };
        let out = record.begin(table, txn, op);
        encode_unit(out, &Unit::Tenant(tenant.map(|name| TenantId::new(name).expect("valid"))));
        before.into_iter().chain(after).for_each(|row| out.row(row));
    }

    #[test]
    fn a_record_tells_all_about_its_changes() {
        let mut record = RecordBuilder::default();
        let old = [Value::text("a"), Value::Int(1)];
        let new = [Value::text("b"), Value::Int(1)];
        put(&mut record, 0, Some("acme"), None, Some(&old));
        put(&mut record, 0, Some("acme"), Some(&old), Some(&new));
        put(&mut record, 1, None, Some(&new), None);
        let changes = decode_record(&record.finish(SchemaVersion(3)), Seq(10), TxnId(5)).expect("valid");
        let shown: Vec<_> =
            changes.iter().map(|c| (c.seq.0, c.txn.0, c.op, c.unit.to_string(), c.key.clone())).collect();
        let key = |tenant: &str| vec![Value::text(tenant), Value::Int(1)];
        assert_eq!(
            shown,
            vec![
                (10, 5, Op::Insert, "tenant acme".into(), key("acme")),
                (11, 5, Op::Update, "tenant acme".into(), key("acme")),
                (12, 6, Op::Delete, "the null tenant".into(), key("")),
            ]
        );
        assert_eq!(changes[1].before.as_deref(), Some(&old[..]));
        assert_eq!(changes[1].after.as_deref(), Some(&new[..]));
        assert_eq!(changes[0].schema, SchemaVersion(3));
    }

    #[test]
    fn what_was_rolled_back_is_not_in_the_record() {
        let mut record = RecordBuilder::default();
        put(&mut record, 0, None, None, Some(&[Value::Null, Value::Int(1)]));
        let mark = record.mark();
        put(&mut record, 1, None, None, Some(&[Value::Null, Value::Int(2)]));
        record.rewind(mark);
        put(&mut record, 1, None, None, Some(&[Value::Null, Value::Int(3)]));
        let changes = decode_record(&record.finish(SchemaVersion(1)), Seq(1), TxnId(1)).expect("valid");
        let keys: Vec<_> = changes.iter().map(|c| c.key[1].clone()).collect();
        assert_eq!(keys, vec![Value::Int(1), Value::Int(3)]);
        assert_eq!(record.changes(), 2);
    }

    proptest! {
        #[test]
        fn decoding_any_record_never_panics(bytes in any::<Vec<u8>>()) {
            let _ = decode_record(&bytes, Seq(1), TxnId(1));
        }

        #[test]
        fn a_damaged_record_never_panics(at in any::<prop::sample::Index>(), byte in any::<u8>()) {
            let mut record = RecordBuilder::default();
            put(&mut record, 0, Some("acme"), None, Some(&[Value::text("x"), Value::Int(1)]));
            let mut bytes = record.finish(SchemaVersion(1));
            let at = at.index(bytes.len());
            bytes[at] = byte;
            let _ = decode_record(&bytes, Seq(1), TxnId(1));
        }
    }
}
