//! Statements about moves: operators' words, over the connection that they have.
//!
//! A statement that makes a plan or tells it something answers with the plan, as `SHOW MOVE` does. What it begins goes
//! on without the session: the plan is in the catalog, and its driver belongs to the database.

use super::plans::text_field;
use super::{Answer, Result, Rows, Session};
use crate::database::RoutingRecord;
use crate::moves::{Intent, Order};
use isles_kernel::error::SqlError;
use isles_kernel::moves::Plan;
use isles_kernel::routing::RoutingMove;
use isles_kernel::value::Value;
use isles_sql::bind::utility::{MoveOrder, MoveStatement, Utility};
use isles_sql::tree::Field;
use isles_sql::types::{FLOAT8, INT8, JSON, Oid, TIMESTAMPTZ, Type};

/// Versions of the routing that are shown.
const HISTORY: usize = 1_000;
/// 2000-01-01, from where timestamps count, in milliseconds since 1970.
const EPOCH_MS: i64 = 946_684_800_000;

fn field(name: &str, oid: Oid) -> Field {
    Field { name: name.into(), ty: Type::of(oid) }
}

/// The columns of a statement's answer.
pub(super) fn fields(statement: &MoveStatement) -> Vec<Field> {
    if *statement == MoveStatement::History {
        let (version, at) = (field("version", INT8), field("at", TIMESTAMPTZ));
        return vec![version, at, text_field("description"), text_field("changes")];
    }
    let mut fields: Vec<Field> =
        ["id", "source", "target", "what", "phase", "stage", "backfill", "tail", "verification"].map(text_field).into();
    fields.extend(["rows_copied", "lag"].map(|name| field(name, INT8)));
    fields.extend([field("pause_ms", FLOAT8), field("routing_version", INT8)]);
    fields.extend(["started", "updated"].map(|name| field(name, TIMESTAMPTZ)));
    fields.extend([text_field("error"), field("rows_expected", INT8)]);
    fields.extend(["rows_per_second", "eta_seconds"].map(|name| field(name, FLOAT8)));
    if *statement != MoveStatement::List {
        fields.push(field("plan", JSON));
    }
    fields
}

impl Session {
    pub(super) async fn plan(&mut self, statement: &MoveStatement) -> Result<Answer> {
        let rows = match statement {
            MoveStatement::List => self.database.moves().await?.iter().map(row).collect(),
            MoveStatement::Show { id } => vec![whole_row(&self.database.move_plan(id).await?)?],
            MoveStatement::History => self.database.routing_history(HISTORY).await?.iter().map(version_row).collect(),
            _ if self.in_block() || self.has_begun().await => {
                return Err(SqlError::new("25001", "moves cannot be changed inside a transaction block"));
            }
            MoveStatement::Create(order) => {
                let plan = self.database.order_move(ordered(order), Intent::of(order.dry_run)).await?;
                vec![whole_row(&plan)?]
            }
            MoveStatement::Alter { id, command, dry_run } => {
                vec![whole_row(&self.database.tell_move(id, *command, Intent::of(*dry_run)).await?)?]
            }
        };
        Ok(Answer::Rows(Rows::new(fields(statement), rows, statement.command_tag().into())))
    }

    /// Moves are about what everyone shares.
    pub(super) fn check_plan(&self, utility: &Utility) -> Result<()> {
        match utility {
            Utility::Plan(MoveStatement::List | MoveStatement::Show { .. } | MoveStatement::History) => {
                Err(SqlError::new("42501", "permission denied to see moves"))
            }
            _ => Err(SqlError::new("42501", "permission denied to move tenants and buckets")),
        }
    }
}

fn ordered(order: &MoveOrder) -> Order {
    let MoveOrder { source, target, units, description, options, dry_run: _ } = order.clone();
    Order { source, target, units, description, options }
}

fn number(n: u64) -> Value {
    Value::Int(i64::try_from(n).unwrap_or(i64::MAX))
}

/// A moment, given in milliseconds since 1970.
pub(super) fn time(millis: u64) -> Value {
    Value::TimestampTz(i64::try_from(millis).unwrap_or(i64::MAX / 1_000).saturating_sub(EPOCH_MS).saturating_mul(1_000))
}

fn word(status: &impl serde::Serialize) -> Value {
    // A status is one word in JSON.
    serde_json::to_value(status).ok().and_then(|word| word.as_str().map(Value::text)).unwrap_or(Value::Null)
}

/// A figure with one digit behind the point: it is about so much.
fn rounded(figure: Option<f64>) -> Value {
    figure.map_or(Value::Null, |figure| Value::Float((figure * 10.0).round() / 10.0))
}

/// What `SHOW MOVES` shows of a plan.
fn row(plan: &Plan) -> Vec<Value> {
    let known = |number: Option<u64>| number.map_or(Value::Null, self::number);
    let version = plan.rollback_version.or(plan.routing_version_cutover).map(|version| version.0);
    vec![
        Value::text(plan.id.as_str()),
        Value::text(plan.source_shard.as_str()),
        Value::text(plan.target_shard.as_str()),
        Value::Text(plan.units.to_string()),
        Value::text(plan.phase.name()),
        word(&plan.stage),
        word(&plan.backfill.status),
        word(&plan.tail.status),
        word(&plan.verification.status),
        number(plan.backfill.total_rows_copied),
        known(plan.tail.lag),
        plan.cutover.pause_micros.map_or(Value::Null, |micros| Value::Float(micros as f64 / 1_000.0)),
        known(version),
        time(plan.created_at),
        time(plan.updated_at),
        plan.error_message.as_deref().or(plan.cutover.aborted.as_deref()).map_or(Value::Null, Value::text),
        known(plan.backfill.rows_expected),
        rounded(plan.rows_per_second()),
        rounded(plan.eta_seconds()),
    ]
}

fn whole_row(plan: &Plan) -> Result<Vec<Value>> {
    let json = serde_json::to_string(plan);
    let json = json.map_err(|error| SqlError::new("XX000", format!("a plan has no JSON form: {error}")))?;
    let mut values = row(plan);
    values.push(Value::Json(json));
    Ok(values)
}

fn version_row(record: &RoutingRecord) -> Vec<Value> {
    let changes: Vec<String> = record.change.moves.iter().map(shown_move).collect();
    vec![
        number(record.version.0),
        time(record.timestamp),
        Value::text(record.description.as_str()),
        Value::Text(changes.join("; ")),
    ]
}

fn shown_move(change: &RoutingMove) -> String {
    match change {
        RoutingMove::Buckets { group, first, last, from, to } => format!("{group}/{first}-{last}: {from} to {to}"),
        RoutingMove::Pin { tenant, from, to } => format!("tenant {tenant}: {from} to {to}"),
        RoutingMove::Unpin { tenant, from, to } => format!("tenant {tenant}: {from} to {to}, with its bucket"),
        RoutingMove::AddGroup { group, .. } => format!("group {group} is new"),
        RoutingMove::DropGroup { group, .. } => format!("group {group} is gone"),
    }
}
