//! Rows, and the edits that a command shows of itself before the server has confirmed it.

use isles_kernel::sync::{Op, RowKey, RowVersion, Values};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A row as the replica has it.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Row {
    /// How often the server has changed it. An edit does not raise it.
    pub version: RowVersion,
    pub values: Values,
}

/// What a command is expected to do to one row. It is shown until the command's outcome is known, and never stored
/// among the server's rows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Edit {
    pub op: Op,
    pub key: RowKey,
    #[serde(default, skip_serializing_if = "Values::is_empty")]
    pub values: Values,
}

/// What edits make of rows: a row, or its absence.
pub(crate) type Overlay = BTreeMap<RowKey, Option<Row>>;

/// Plays an edit over the rows beneath. An update of a row that is gone shows nothing: the server will say what
/// becomes of the command.
pub(crate) fn play(edit: &Edit, base: &BTreeMap<RowKey, Row>, overlay: &mut Overlay) {
    let beneath = match overlay.get(&edit.key) {
        Some(shown) => shown.clone(),
        None => base.get(&edit.key).cloned(),
    };
    let shown = match (edit.op, beneath) {
        (Op::Delete, _) | (Op::Update, None) => None,
        (Op::Create, beneath) => {
            let version = beneath.map(|row| row.version).unwrap_or_default();
            Some(Row { version, values: edit.values.clone() })
        }
        (Op::Update, Some(mut row)) => {
            row.values.merge(&edit.values);
            Some(row)
        }
    };
    overlay.insert(edit.key.clone(), shown);
}
