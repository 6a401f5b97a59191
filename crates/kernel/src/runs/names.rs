//! Types, ids, names of steps and events, and the key of a run.
//!
//! A run is named by its type and its id. The key that it is routed and stored by has the length of the type before it,
//! so that no two pairs have one key, whatever characters they have:
//!
//! ```text
//! type "payment", id "order:7"  →  7:payment/order:7
//! ```

use std::fmt;

/// Characters of a type's name: it stands in every key and in the name of every index shard.
pub const MAX_TYPE_CHARS: usize = 64;
/// Characters of a run's id.
pub const MAX_ID_CHARS: usize = 256;
/// Characters of a step's, an event's or an update's name, and of a key that tells events apart.
pub const MAX_NAME_CHARS: usize = 256;
/// Names of index shards begin so. No run may have such an id: it would read as one.
pub const RESERVED_PREFIX: &str = "__index:";

/// A name that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadName {
    #[error("the {what} is empty")]
    Empty { what: &'static str },
    #[error("the {what} has {chars} characters; {max} are allowed")]
    Long { what: &'static str, chars: usize, max: usize },
    #[error("the {what} has a character that is not allowed: {found:?}")]
    Character { what: &'static str, found: char },
    #[error("the {what} begins with {RESERVED_PREFIX}, which is reserved for index shards")]
    Reserved { what: &'static str },
}

fn check(what: &'static str, text: &str, max: usize) -> Result<(), BadName> {
    let chars = text.chars().count();
    if chars == 0 {
        return Err(BadName::Empty { what });
    }
    if chars > max {
        return Err(BadName::Long { what, chars, max });
    }
    if let Some(found) = text.chars().find(|c| c.is_control()) {
        return Err(BadName::Character { what, found });
    }
    if text.starts_with(RESERVED_PREFIX) {
        return Err(BadName::Reserved { what });
    }
    Ok(())
}

/// The name of a workflow: letters, digits, `_`, `-` and `.`, the first one a letter or a digit.
pub fn check_type(text: &str) -> Result<(), BadName> {
    check("type", text, MAX_TYPE_CHARS)?;
    if let Some(found) = text.chars().next().filter(|c| !c.is_ascii_alphanumeric()) {
        return Err(BadName::Character { what: "type", found });
    }
    match text.chars().find(|c| !(c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.'))) {
        Some(found) => Err(BadName::Character { what: "type", found }),
        None => Ok(()),
    }
}

pub fn check_id(text: &str) -> Result<(), BadName> {
    check("id", text, MAX_ID_CHARS)
}

/// The name of a step, an event or an update.
pub fn check_name(what: &'static str, text: &str) -> Result<(), BadName> {
    check(what, text, MAX_NAME_CHARS)
}

/// What a run is routed and stored by.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RunKey(String);

impl RunKey {
    pub fn new(kind: &str, id: &str) -> Result<RunKey, BadName> {
        check_type(kind)?;
        check_id(id)?;
        Ok(RunKey(format!("{}:{kind}/{id}", kind.len())))
    }

    /// Reads a key back.
    pub fn parse(text: &str) -> Option<RunKey> {
        let (length, rest) = text.split_once(':')?;
        let kind = rest.get(..length.parse().ok()?)?;
        let id = rest.get(kind.len()..)?.strip_prefix('/')?;
        let key = RunKey::new(kind, id).ok()?;
        (key.0 == text).then_some(key)
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    fn parts(&self) -> (&str, &str) {
        let (length, rest) = self.0.split_once(':').unwrap_or(("0", ""));
        let length = length.parse::<usize>().unwrap_or(0);
        (rest.get(..length).unwrap_or(""), rest.get(length + 1..).unwrap_or(""))
    }

    pub fn kind(&self) -> &str {
        self.parts().0
    }

    pub fn id(&self) -> &str {
        self.parts().1
    }
}

impl fmt::Display for RunKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.kind(), self.id())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// A5: no two pairs of type and id share a key, and no id names an index shard.
    #[test]
    fn a05_types_and_ids_have_namespaces_of_their_own() {
        let pairs = [("a", "b/c"), ("a", "b"), ("ab", "c"), ("a.b", "c"), ("a", "1:a/b")];
        let keys: std::collections::BTreeSet<_> =
            pairs.iter().map(|(kind, id)| RunKey::new(kind, id).unwrap()).collect();
        assert_eq!(keys.len(), pairs.len());
        for (kind, id) in pairs {
            let key = RunKey::new(kind, id).unwrap();
            assert_eq!((key.kind(), key.id()), (kind, id));
            assert_eq!(RunKey::parse(key.as_str()), Some(key));
        }
        assert_eq!(RunKey::new("a", "__index:payment:0"), Err(BadName::Reserved { what: "id" }));
        assert!(matches!(RunKey::new("a:b", "c"), Err(BadName::Character { found: ':', .. })));
    }

    #[test]
    fn bad_names_are_refused() {
        for (kind, id) in [("", "a"), ("a", ""), ("a b", "c"), ("_a", "c"), ("é", "c"), ("a", "b\n"), ("a", "b\0")] {
            assert!(RunKey::new(kind, id).is_err(), "{kind:?} {id:?}");
        }
        assert!(RunKey::new(&"a".repeat(64), &"é".repeat(256)).is_ok());
        assert!(RunKey::new(&"a".repeat(65), "a").is_err());
        assert!(RunKey::new("a", &"é".repeat(257)).is_err());
        for text in ["", "x", "1:", "1:a", "2:a/b", "01:a/b", "1:a/", "99999999999999999999:a/b"] {
            assert_eq!(RunKey::parse(text), None, "{text}");
        }
    }
}
