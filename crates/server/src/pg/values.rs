//! Values on the wire: text and binary forms, by type.

use super::message::utf8;
use super::reply::Format;
use isles_cluster::session::Session;
use isles_kernel::error::SqlError;
use isles_kernel::value::Value;
use isles_sql::system::SystemFunctions;
use isles_sql::text::{self, Settings};
use isles_sql::tree::Field;
use isles_sql::types::{self, Oid, Type};
use std::sync::Arc;

/// The settings that decide how values look and are read.
const NAMES: [&str; 5] = ["DateStyle", "IntervalStyle", "TimeZone", "bytea_output", "extra_float_digits"];

/// Types that look the same under all settings. Most columns are of these, and the session is not asked for them.
const PLAIN: [Oid; 12] = [
    types::BOOL,
    types::INT2,
    types::INT4,
    types::INT8,
    types::OID,
    types::TEXT,
    types::VARCHAR,
    types::BPCHAR,
    types::NAME,
    types::NUMERIC,
    types::UUID,
    types::JSONB,
];

/// How a session's values look.
#[derive(Default)]
pub(crate) struct Forms {
    settings: Settings,
    /// The names of objects, while there are values that stand for these.
    names: Option<Arc<dyn SystemFunctions>>,
}

impl Forms {
    /// Asks the session for its settings, if values of these types depend on them.
    pub(crate) fn refresh(&mut self, session: &Session, mut types: impl Iterator<Item = Oid> + Clone) {
        self.names = None;
        if types.clone().all(|oid| PLAIN.contains(&oid)) {
            return;
        }
        self.names = types.any(types::names_object).then(|| session.names());
        for name in NAMES {
            if let Some(value) = session.setting(name) {
                // The session has checked its settings; one that is not understood here leaves the default.
                let _ = self.settings.set(name, &value);
            }
        }
    }

    /// Appends the form of a value that is not null.
    pub(crate) fn write(&self, value: &Value, ty: Type, format: Format, out: &mut Vec<u8>) {
        match format {
            Format::Text => match self.named(value, ty.oid) {
                Some((text, oid)) => text::output(&text, Type::of(oid), &self.settings, out),
                None => text::output(value, ty, &self.settings, out),
            },
            Format::Binary => text::binary_out(value, ty.oid, out),
        }
    }

    /// The names that stand for numbers of objects, and what type these have.
    fn named(&self, value: &Value, oid: Oid) -> Option<(Value, Oid)> {
        let names = self.names.as_ref()?;
        let name = |ty: Oid, value: &Value| names.write(ty, value)?.ok();
        match value {
            Value::Array(members) => {
                let element = types::element_of(oid).filter(|_| types::names_object(oid))?;
                let named = |member: &Value| name(element, member).unwrap_or_else(|| member.clone());
                Some((Value::Array(members.iter().map(named).collect()), types::TEXT_ARRAY))
            }
            value => Some((name(oid, value)?, types::TEXT)),
        }
    }

    /// A parameter, in either form.
    pub(crate) fn read(&self, bytes: &[u8], oid: Oid, format: Format) -> Result<Value, SqlError> {
        match format {
            Format::Text => {
                let text = utf8(bytes)?;
                // A number stands for itself.
                let is_name = !text.bytes().all(|byte| byte.is_ascii_digit());
                let named = self.names.as_ref().filter(|_| is_name).and_then(|names| names.read(oid, text));
                named.unwrap_or_else(|| text::input(text, Type::of(oid), &self.settings))
            }
            Format::Binary => text::binary_in(bytes, oid),
        }
    }
}

/// The types of some columns.
pub(crate) fn types_of(fields: &[Field]) -> impl Iterator<Item = Oid> + Clone {
    fields.iter().map(|field| field.ty.oid)
}

/// The format of each of some values, from codes of which there are none, one for all, or one for each.
pub(crate) fn formats(codes: &[i16], count: usize) -> Result<Vec<Format>, SqlError> {
    let one = |code: &i16| match code {
        0 => Ok(Format::Text),
        1 => Ok(Format::Binary),
        other => Err(SqlError::new("22023", format!("unsupported format code: {other}"))),
    };
    match codes {
        [] => Ok(vec![Format::Text; count]),
        [all] => Ok(vec![one(all)?; count]),
        each => each.iter().map(one).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_for_none_one_and_each() {
        assert_eq!(formats(&[], 2), Ok(vec![Format::Text; 2]));
        assert_eq!(formats(&[1], 2), Ok(vec![Format::Binary; 2]));
        assert_eq!(formats(&[0, 1], 2), Ok(vec![Format::Text, Format::Binary]));
        assert_eq!(formats(&[2], 1).map_err(|error| error.sqlstate), Err("22023"));
    }
}
