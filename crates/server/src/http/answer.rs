//! Results and errors as JSON.
//!
//! Values that JSON has are JSON's own: booleans, integers, finite floats, json. Everything else is PostgreSQL's text,
//! numeric too, which JSON's readers would round.

use crate::pg::reply::Format;
use crate::pg::values::Forms;
use axum::http::StatusCode;
use isles_kernel::error::SqlError;
use isles_kernel::value::Value;
use isles_sql::tree::Field;
use isles_sql::types;
use serde_json::json;

/// The HTTP status that an error has.
pub(crate) fn status_of(error: &SqlError) -> StatusCode {
    match (error.sqlstate, &error.sqlstate[..2]) {
        ("28000" | "28P01", _) => StatusCode::UNAUTHORIZED,
        ("42501", _) => StatusCode::FORBIDDEN,
        // Who comes to a quota shall come later; nobody else has to.
        ("53400", _) if error.retry_after_s.is_some() => StatusCode::TOO_MANY_REQUESTS,
        ("54000", _) => StatusCode::PAYLOAD_TOO_LARGE,
        ("57014", _) => StatusCode::REQUEST_TIMEOUT,
        // What a request names is not there, or is not in the state for it.
        ("42704", _) => StatusCode::NOT_FOUND,
        (_, "23" | "40" | "55") => StatusCode::CONFLICT,
        // A configuration that is invalid is the server's fault, and nobody can ask in another way.
        ("F0000", _) => StatusCode::INTERNAL_SERVER_ERROR,
        (_, "08" | "53" | "57") => StatusCode::SERVICE_UNAVAILABLE,
        (_, "58" | "XX") => StatusCode::INTERNAL_SERVER_ERROR,
        _ => StatusCode::BAD_REQUEST,
    }
}

/// An error with what there is to say of it, and nothing else.
pub(crate) fn error_json(error: &SqlError) -> serde_json::Value {
    let mut fields = json!({ "code": error.sqlstate, "message": error.message });
    for (name, text) in [
        ("detail", &error.detail),
        ("hint", &error.hint),
        ("context", &error.context),
        ("table", &error.table),
        ("column", &error.column),
        ("constraint", &error.constraint),
    ] {
        if let Some(text) = text {
            fields[name] = json!(text);
        }
    }
    if let Some(position) = error.position {
        fields["position"] = json!(position);
    }
    json!({ "error": fields })
}

/// Appends the columns of a result.
pub(crate) fn columns(fields: &[Field], out: &mut String) {
    let columns: Vec<serde_json::Value> = fields
        .iter()
        .map(|field| json!({ "name": field.name, "type": isles_sql::text::type_name(field.ty.oid) }))
        .collect();
    out.push_str(&serde_json::Value::Array(columns).to_string());
}

/// Appends a row as an array, on one line.
pub(crate) fn row(row: &[Value], fields: &[Field], forms: &Forms, out: &mut String) {
    out.push('[');
    for (at, (value, field)) in row.iter().zip(fields).enumerate() {
        if at > 0 {
            out.push(',');
        }
        match value {
            Value::Null => out.push_str("null"),
            Value::Bool(truth) => out.push_str(if *truth { "true" } else { "false" }),
            Value::Int(number) => out.push_str(&number.to_string()),
            _ => other(value, field, forms, out),
        }
    }
    out.push(']');
}

fn other(value: &Value, field: &Field, forms: &Forms, out: &mut String) {
    let mut bytes = Vec::new();
    forms.write(value, field.ty, Format::Text, &mut bytes);
    let text = String::from_utf8_lossy(&bytes);
    match (field.ty.oid, value) {
        // A line break in JSON is space between its parts; here it would end the line.
        (types::JSON | types::JSONB, _) => out.push_str(&text.replace(['\n', '\r'], " ")),
        (_, Value::Float(number)) if number.is_finite() => out.push_str(&text),
        _ => out.push_str(&serde_json::Value::from(&*text).to_string()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use isles_sql::types::Type;

    #[test]
    fn values_that_json_has_are_its_own() {
        let field = |oid| Field { name: "x".into(), ty: Type::of(oid) };
        let fields = [types::BOOL, types::INT8, types::TEXT, types::JSON, types::TEXT].map(field);
        let values = [
            Value::Bool(true),
            Value::Int(i64::MAX),
            Value::Text("a\"b\n".into()),
            Value::Json("{\"a\":\n1}".into()),
            Value::Null,
        ];
        let mut out = String::new();
        row(&values, &fields, &Forms::default(), &mut out);
        let parsed: serde_json::Value = serde_json::from_str(&out).unwrap();
        assert_eq!(parsed, json!([true, i64::MAX, "a\"b\n", {"a": 1}, null]));
        assert!(!out.contains('\n'));
    }

    #[test]
    fn errors_have_a_status_and_their_fields() {
        for (code, status) in [
            ("42601", 400),
            ("28P01", 401),
            ("23505", 409),
            ("53300", 503),
            ("XX000", 500),
            ("F0000", 500),
            ("55000", 409),
            ("42704", 404),
        ] {
            assert_eq!(status_of(&SqlError::new(code, "")).as_u16(), status);
        }
        let quota = SqlError::new("53400", "");
        assert_eq!(status_of(&quota).as_u16(), 503);
        assert_eq!(status_of(&quota.retry_after(std::time::Duration::from_secs(1))).as_u16(), 429);
        let error = SqlError::new("42601", "no").with_hint("yes").at(Some(3));
        let expected = json!({"error": {"code": "42601", "message": "no", "hint": "yes", "position": 3}});
        assert_eq!(error_json(&error), expected);
    }
}
