//! Texts with values in them, whose plans are found by what is left without the values ([`isles_sql::lift`]).
//!
//!     text ─► lifted ─┬ not known: noted, and prepared as it is
//!                     ├ seen once: bound both ways; if both agree, the plan of the lifted text is kept
//!                     └ kept: that plan, with the values as its parameters
//!
//! A lifted text that comes once costs its scan and a note. One whose plan would go to other shards than that of the text
//! itself is left alone: a value can say more than a parameter, of which a partial index need not know what it is.

use super::plans::{Binding, Compiled, Planned, Prepared, compile, depends_on_time};
use super::settings::{Settings, Tenant};
use crate::database::Database;
use crate::database::schema::Edition;
use isles_kernel::names::SchemaVersion;
use isles_kernel::value::Value;
use isles_sql::bind;
use isles_sql::bind::BoundStatement;
use isles_sql::lift::{self, Lifted};
use isles_sql::parse;
use isles_sql::plan::{self, PlanContext};
use isles_sql::types::Oid;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Texts that are known. An application has some hundred; those with a constant that is not lifted come and go.
const MAX_TEXTS: usize = 1_000;

/// What a lifted text is known by.
#[derive(PartialEq, Eq, Hash)]
struct TextKey {
    text: String,
    /// The types that its parameters are declared with, by the kinds of its constants.
    types: Vec<Oid>,
    version: SchemaVersion,
    settings: Arc<str>,
}

/// What is known of it.
#[derive(Clone)]
enum Known {
    Seen,
    /// It does not mean the same, or its plan is another one.
    Refused,
    Kept(Arc<Prepared>),
}

#[derive(Default)]
pub(crate) struct Texts {
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    texts: HashMap<TextKey, (Known, u64)>,
    uses: u64,
}

impl Texts {
    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn get(&self, key: &TextKey) -> Option<Known> {
        let mut kept = self.kept();
        kept.uses += 1;
        let now = kept.uses;
        let (known, used) = kept.texts.get_mut(key)?;
        *used = now;
        Some(known.clone())
    }

    fn put(&self, key: TextKey, known: Known) {
        let mut kept = self.kept();
        if kept.texts.len() >= MAX_TEXTS {
            // The older half goes at once, so that the search for it is rare.
            let mut uses: Vec<u64> = kept.texts.values().map(|(_, used)| *used).collect();
            uses.sort_unstable();
            let middle = uses[uses.len() / 2];
            kept.texts.retain(|_, (_, used)| *used > middle);
        }
        let now = kept.uses;
        kept.texts.insert(key, (known, now));
    }
}

/// The statement of a text without its values, and the values; None if it is prepared as it is.
pub(crate) fn prepare(
    database: &Database,
    planned: &Planned<'_>,
    settings: &Settings,
    sql: &str,
) -> Option<(Arc<Prepared>, Vec<Value>)> {
    let Edition::Committed(version) = planned.edition else { return None };
    let meaning = settings.meaning();
    if meaning.tenant == Tenant::Every {
        return None;
    }
    let Lifted { text, constants } = lift::lift(sql)?;
    let types = constants.iter().map(lift::Constant::declared).collect();
    let key = TextKey { text, types, version, settings: meaning.plan_key.clone() };
    let prepared = match database.texts.get(&key) {
        Some(Known::Kept(prepared)) => prepared,
        Some(Known::Refused) => return None,
        None => {
            database.texts.put(key, Known::Seen);
            return None;
        }
        Some(Known::Seen) => {
            let made = make(database, planned, settings, sql, &key, &constants);
            let known = made.clone().map_or(Known::Refused, Known::Kept);
            database.texts.put(key, known);
            made?
        }
    };
    let values = meaning.values(super::known::now(&*database.env)).ok()?;
    let values = lift::read(&constants, &prepared.params, &values)?;
    Some((prepared, values))
}

/// Prepares a lifted text, if it means the same as the text itself and goes to the same shards.
fn make(
    database: &Database,
    planned: &Planned<'_>,
    settings: &Settings,
    sql: &str,
    key: &TextKey,
    constants: &[lift::Constant],
) -> Option<Arc<Prepared>> {
    if depends_on_time(&key.text) {
        return None;
    }
    let binding = Binding::new(database, planned, settings).ok()?;
    let context = binding.context();
    let text = bind::bind(&parse::parse_one(sql).ok()?, &context, &[]).ok()?;
    let lifted = bind::bind(&parse::parse_one(&key.text).ok()?, &context, &key.types).ok()?;
    let values = lift::read(constants, &lifted.params, context.settings)?;
    if !lift::agrees(&text, &lifted, &values) {
        return None;
    }
    let prepared = compile(database, planned, settings, &key.text, &key.types).ok()?;
    let (Compiled::Rows { plan, .. }, BoundStatement::Rows(statement)) = (&prepared.compiled, text.statement) else {
        return None;
    };
    let itself = plan::plan(*statement, &PlanContext::default()).ok()?;
    plan.goes_where(&itself).then(|| Arc::new(prepared))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(n: usize) -> TextKey {
        TextKey { text: n.to_string(), types: Vec::new(), version: SchemaVersion(1), settings: "".into() }
    }

    #[test]
    fn so_many_texts_are_known_and_no_more() {
        let texts = Texts::default();
        for n in 0..3 * MAX_TEXTS {
            assert!(texts.get(&key(n)).is_none());
            texts.put(key(n), Known::Seen);
            assert!(texts.kept().texts.len() <= MAX_TEXTS);
            // What is used stays.
            assert!(texts.get(&key(0)).is_some(), "after {n}");
        }
    }
}
