//! Values on the wire: text and binary forms, by type.

use super::reply::Format;
use isles_cluster::session::Session;
use isles_kernel::error::SqlError;
use isles_kernel::value::Value;
use isles_sql::tree::Field;
use isles_sql::types::{self, Oid, Type};

/// The session's settings that decide how values look.
#[derive(Default)]
pub(crate) struct Forms {}

impl Forms {
    /// Asks the session for its settings, if these columns depend on them.
    pub(crate) fn refresh(&mut self, _session: &Session, _fields: &[Field]) {}

    /// Appends the form of a value that is not null.
    pub(crate) fn write(&self, value: &Value, ty: Type, format: Format, out: &mut Vec<u8>) -> Result<(), SqlError> {
        match format {
            Format::Text => {
                out.extend_from_slice(format!("{value:?}").as_bytes());
                Ok(())
            }
            Format::Binary => Err(SqlError::unsupported(format!("type {} has no binary form yet", ty.oid.0))),
        }
    }

    /// A parameter.
    pub(crate) fn read(&self, bytes: &[u8], ty: Oid, _format: Format) -> Result<Value, SqlError> {
        let text = super::message::utf8(bytes)?;
        match ty {
            types::INT2 | types::INT4 | types::INT8 => text
                .parse()
                .map(Value::Int)
                .map_err(|_| SqlError::new("22P02", format!("invalid input syntax for type integer: \"{text}\""))),
            _ => Ok(Value::Text(text.to_owned())),
        }
    }
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
