//! What is wrong with a configuration, field by field.

use serde::Serialize;
use std::fmt;

/// The rule that a field breaks. Programs branch on it; people read the message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrorCode {
    // The text.
    TooLarge,
    Malformed,
    // Any field.
    UnknownField,
    MissingField,
    WrongKind,
    DuplicateKey,
    OutOfRange,
    BadName,
    TooMany,
    // Regions.
    UnknownRegion,
    NegativeShare,
    ShareSum,
    TooFewBuckets,
    // Groups and types.
    TypeTaken,
    PrefixTaken,
    UnknownType,
    Singleton,
    DuplicateMember,
    MissingType,
    EmptyGroup,
    NotMember,
    KeyMismatch,
    ColocationOverride,
    ColocationSplit,
    SameKeyCount,
    SameKeySalt,
    GroupInUse,
    // Generations.
    GenerationOrder,
    BadTimestamp,
    NotRoutable,
    // Changes from one configuration to the next.
    GenerationFell,
    GenerationDropped,
    GenerationReused,
    MappingChanged,
    TypeChanged,
}

/// One field that breaks one rule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FieldError {
    /// Where: `groups.user-client.totalShards`, `previousGenerations[0].validUntil`; empty for the whole text.
    pub field: String,
    pub code: ErrorCode,
    pub message: String,
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.field.as_str() {
            "" => f.write_str(&self.message),
            field => write!(f, "{field}: {}", self.message),
        }
    }
}

/// Everything that is wrong, in the order of the configuration's sections. Never empty.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.iter().map(FieldError::to_string).collect::<Vec<_>>().join("\n"))]
pub struct ConfigErrors(Vec<FieldError>);

impl ConfigErrors {
    /// A single error.
    pub fn one(field: &str, code: ErrorCode, message: String) -> ConfigErrors {
        ConfigErrors(vec![FieldError { field: field.to_owned(), code, message }])
    }

    /// Ok when there is nothing to report.
    pub fn none_of(errors: Vec<FieldError>) -> Result<(), ConfigErrors> {
        match errors.is_empty() {
            true => Ok(()),
            false => Err(ConfigErrors(errors)),
        }
    }

    pub fn into_errors(self) -> Vec<FieldError> {
        self.0
    }

    pub fn errors(&self) -> &[FieldError] {
        &self.0
    }
}

/// How many characters of a key are shown in a path; a key may be as long as the file.
const MAX_SHOWN_KEY_CHARS: usize = 64;

/// The path of a key below `path`. A key that is not a plain name is quoted, so that no key can fake a path.
pub(super) fn at(path: &str, key: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    let short: String = key.chars().take(MAX_SHOWN_KEY_CHARS).collect();
    match (!short.is_empty() && short.chars().all(plain), path) {
        (true, "") => short,
        (true, _) => format!("{path}.{short}"),
        (false, _) => format!("{path}[{short:?}]"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_names_a_field_and_cannot_be_faked() {
        assert_eq!(at("", "version"), "version");
        assert_eq!(at("groups.user-client", "totalShards"), "groups.user-client.totalShards");
        assert_eq!(at("groups", "a.b"), "groups[\"a.b\"]");
        assert_eq!(at("groups", ""), "groups[\"\"]");
        assert_eq!(at("groups", &"x".repeat(1000)).len(), "groups.".len() + MAX_SHOWN_KEY_CHARS);
    }
}
