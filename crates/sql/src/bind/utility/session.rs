//! Transactions, settings, prepared statements and cursors.

use super::super::ddl::text::{expression_text, statement_text};
use super::{
    Begin, Context, DeclareCursor, Discard, Fetch, FetchFrom, IndexStatement, IsolationLevel, SetScope, SetValue,
    ShowIsles, TransactionModes, Utility,
};
use isles_kernel::error::SqlError;
use pg_raw_parse::nodes::{self, DefElem};
use pg_raw_parse::raw::{self, DiscardMode, FetchDirection, TransactionStmtKind, VariableSetKind};
use pg_raw_parse::{ConstValue, Node};

type Result<T> = std::result::Result<T, SqlError>;

/// What the grammar writes for `ALL`.
const FETCH_ALL: i64 = i64::MAX;
/// Settings that are lists of names, which are kept quoted.
const NAME_LISTS: [&str; 3] = ["search_path", "temp_tablespaces", "session_preload_libraries"];

pub(super) fn transaction(statement: &nodes::TransactionStmt) -> Result<Utility> {
    let name = || statement.savepoint_name().unwrap_or_default().to_string();
    Ok(match statement.kind {
        TransactionStmtKind::TRANS_STMT_BEGIN => {
            Utility::Begin(Begin { modes: modes(statement.options())?, start: false })
        }
        TransactionStmtKind::TRANS_STMT_START => {
            Utility::Begin(Begin { modes: modes(statement.options())?, start: true })
        }
        TransactionStmtKind::TRANS_STMT_COMMIT => Utility::Commit { chain: statement.chain },
        TransactionStmtKind::TRANS_STMT_ROLLBACK => Utility::Rollback { chain: statement.chain },
        TransactionStmtKind::TRANS_STMT_SAVEPOINT => Utility::Savepoint { name: name() },
        TransactionStmtKind::TRANS_STMT_RELEASE => Utility::Release { name: name() },
        TransactionStmtKind::TRANS_STMT_ROLLBACK_TO => Utility::RollbackTo { name: name() },
        _ => return Err(SqlError::unsupported("two-phase commit by clients is not supported")),
    })
}

fn modes(options: &pg_raw_parse::list::NodeList) -> Result<TransactionModes> {
    let mut modes = TransactionModes::default();
    for option in options {
        let Node::DefElem(option) = option else { continue };
        match option.defname().unwrap_or_default() {
            "transaction_isolation" => modes.isolation = Some(isolation(&constant(option.arg()).unwrap_or_default())?),
            "transaction_read_only" => modes.read_only = Some(is_on(option)),
            "transaction_deferrable" => modes.deferrable = Some(is_on(option)),
            other => return Err(SqlError::unsupported(format!("transaction mode {other} is not supported"))),
        }
    }
    Ok(modes)
}

fn isolation(name: &str) -> Result<IsolationLevel> {
    match name {
        "read uncommitted" => Ok(IsolationLevel::ReadUncommitted),
        "read committed" => Ok(IsolationLevel::ReadCommitted),
        "repeatable read" => Ok(IsolationLevel::RepeatableRead),
        "serializable" => Ok(IsolationLevel::Serializable),
        other => {
            Err(SqlError::new("22023", format!("invalid value for parameter \"transaction_isolation\": \"{other}\"")))
        }
    }
}

fn is_on(option: &DefElem) -> bool {
    constant(option.arg()).is_some_and(|value| value != "0" && value != "false")
}

/// A constant of the grammar as a text.
fn constant(node: Node<'_>) -> Option<String> {
    match node {
        Node::A_Const(constant) => constant.val().and_then(|value| match value {
            ConstValue::Integer(n) => Some(n.to_string()),
            ConstValue::Float(text) | ConstValue::String(text) => Some(text.to_string()),
            ConstValue::Boolean(value) => Some(value.to_string()),
            _ => None,
        }),
        Node::Integer(n) => Some(n.ival.to_string()),
        Node::String(text) => text.sval().map(Into::into),
        _ => None,
    }
}

pub(super) fn set(statement: &nodes::VariableSetStmt) -> Result<Utility> {
    let name = statement.name().unwrap_or_default();
    let scope = if statement.is_local { SetScope::Local } else { SetScope::Session };
    let value = match statement.kind {
        VariableSetKind::VAR_RESET_ALL => return Ok(Utility::ResetAll),
        VariableSetKind::VAR_RESET => return Ok(Utility::Reset { name: setting_name(name) }),
        VariableSetKind::VAR_SET_MULTI => return set_transaction(name, statement),
        VariableSetKind::VAR_SET_CURRENT => return Err(SqlError::unsupported("SET … FROM CURRENT is not supported")),
        VariableSetKind::VAR_SET_DEFAULT => SetValue::Default,
        _ => SetValue::Text(setting_text(name, statement)?),
    };
    Ok(Utility::Set { name: setting_name(name), value, scope })
}

fn set_transaction(name: &str, statement: &nodes::VariableSetStmt) -> Result<Utility> {
    let scope = match name {
        "TRANSACTION" => SetScope::Local,
        "SESSION CHARACTERISTICS" => SetScope::Session,
        other => return Err(SqlError::unsupported(format!("SET {other} is not supported"))),
    };
    Ok(Utility::SetTransaction { modes: modes(statement.args())?, scope })
}

/// Names of settings do not depend on case.
fn setting_name(name: &str) -> String {
    name.to_ascii_lowercase()
}

fn setting_text(name: &str, statement: &nodes::VariableSetStmt) -> Result<String> {
    let list = NAME_LISTS.contains(&setting_name(name).as_str());
    let mut parts = Vec::new();
    for arg in statement.args() {
        let Some(text) = constant(arg) else {
            return Err(SqlError::unsupported(format!("this value for \"{name}\" is not supported")));
        };
        parts.push(if list { super::super::ddl::text::identifier(&text) } else { text });
    }
    Ok(parts.join(", "))
}

pub(super) fn show(name: &str) -> Utility {
    match setting_name(name).as_str() {
        "all" => Utility::ShowAll,
        "shards" => Utility::ShowIsles(ShowIsles::Shards),
        "tables" => Utility::ShowIsles(ShowIsles::Tables),
        "routes" => Utility::ShowIsles(ShowIsles::Routes),
        "limits" => Utility::ShowIsles(ShowIsles::Limits),
        "indexes" => Utility::Index(IndexStatement::List),
        name => Utility::Show { name: name.into() },
    }
}

pub(super) fn discard(statement: &nodes::DiscardStmt) -> Utility {
    Utility::Discard(match statement.target {
        DiscardMode::DISCARD_PLANS => Discard::Plans,
        DiscardMode::DISCARD_SEQUENCES => Discard::Sequences,
        DiscardMode::DISCARD_TEMP => Discard::Temp,
        _ => Discard::All,
    })
}

pub(super) fn prepare(statement: &nodes::PrepareStmt, context: &Context<'_>) -> Result<Utility> {
    let mut types = Vec::new();
    for name in statement.argtypes() {
        types.push(context.expressions.named_type(name)?);
    }
    let name = statement.name().unwrap_or_default().to_string();
    Ok(Utility::Prepare { name, types, statement: statement_text(statement.query())? })
}

pub(super) fn execute(statement: &nodes::ExecuteStmt) -> Result<Utility> {
    let args = statement.params().iter().map(expression_text).collect::<Result<_>>()?;
    Ok(Utility::Execute { name: statement.name().unwrap_or_default().into(), args })
}

pub(super) fn declare(statement: &nodes::DeclareCursorStmt) -> Result<Utility> {
    let says = |option: u32| statement.options as u32 & option != 0;
    let scroll = match (says(raw::CURSOR_OPT_SCROLL), says(raw::CURSOR_OPT_NO_SCROLL)) {
        (true, false) => Some(true),
        (false, true) => Some(false),
        (false, false) => None,
        (true, true) => return Err(SqlError::new("42P11", "cannot specify both SCROLL and NO SCROLL")),
    };
    Ok(Utility::DeclareCursor(DeclareCursor {
        name: statement.portalname().unwrap_or_default().into(),
        query: statement_text(statement.query())?,
        scroll,
        hold: says(raw::CURSOR_OPT_HOLD),
        binary: says(raw::CURSOR_OPT_BINARY),
    }))
}

pub(super) fn fetch(statement: &nodes::FetchStmt) -> Utility {
    let count = statement.how_many;
    let along = |forward: bool, count: i64| match (forward, count) {
        (true, FETCH_ALL) => FetchFrom::ForwardAll,
        (false, FETCH_ALL) => FetchFrom::BackwardAll,
        (true, count) => FetchFrom::Forward(count.unsigned_abs()),
        (false, count) => FetchFrom::Backward(count.unsigned_abs()),
    };
    let from = match statement.direction {
        FetchDirection::FETCH_BACKWARD => along(count < 0, count),
        FetchDirection::FETCH_ABSOLUTE => FetchFrom::Absolute(count),
        FetchDirection::FETCH_RELATIVE => FetchFrom::Relative(count),
        _ => along(count >= 0, count),
    };
    let fetch = Fetch { cursor: statement.portalname().unwrap_or_default().into(), from };
    if statement.ismove { Utility::Move(fetch) } else { Utility::Fetch(fetch) }
}
