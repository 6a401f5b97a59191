//! Results and errors of `isles sql`, for people and for programs.

use isles_sql::copy::{CopyFormat, CopyHeader, CopyOptions, Encoder};
use serde_json::{Value, json};
use tokio_postgres::error::{DbError, ErrorPosition};

/// What a statement answered.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Answered {
    /// None for a statement without rows.
    pub(crate) columns: Option<Vec<String>>,
    pub(crate) rows: Vec<Vec<Option<String>>>,
    pub(crate) tag: String,
}

impl Answered {
    /// Each row as an object. Columns that hold texts are named; everything else is a number where it reads as one.
    pub(crate) fn objects(&self, texts: &[&str]) -> Vec<Value> {
        let columns = self.columns.as_deref().unwrap_or_default();
        let value = |name: &str, text: &Option<String>| match text {
            None => Value::Null,
            Some(text) if texts.contains(&name) => json!(text),
            Some(text) => match serde_json::from_str(text) {
                Ok(Value::Number(number)) => Value::Number(number),
                _ => json!(text),
            },
        };
        let object = |row: &Vec<Option<String>>| {
            let pairs = columns.iter().zip(row).map(|(name, text)| (name.clone(), value(name, text)));
            Value::Object(pairs.collect())
        };
        self.rows.iter().map(object).collect()
    }
}

/// The widest that a column is padded to; longer values stand out of it.
const WIDTH_MAX: usize = 200;

/// As psql shows it.
pub(crate) fn table(answered: &Answered) -> String {
    let Some(columns) = &answered.columns else {
        return answered.tag.clone();
    };
    let lines_of = |text: &str| text.replace('\n', "\u{21b5}");
    let cells: Vec<Vec<String>> = answered
        .rows
        .iter()
        .map(|row| row.iter().map(|value| lines_of(value.as_deref().unwrap_or_default())).collect())
        .collect();
    let widths: Vec<usize> = columns
        .iter()
        .enumerate()
        .map(|(at, name)| {
            let widest = cells.iter().map(|row| width(&row[at])).max().unwrap_or(0);
            widest.max(width(name)).min(WIDTH_MAX)
        })
        .collect();
    let numbers: Vec<bool> = (0..columns.len()).map(|at| is_numeric(answered, at)).collect();
    let mut lines = vec![
        columns.iter().zip(&widths).map(|(name, width)| centered(name, *width)).collect::<Vec<_>>().join("|"),
        widths.iter().map(|width| "-".repeat(width + 2)).collect::<Vec<_>>().join("+"),
    ];
    for row in &cells {
        let cell = |at: usize| match numbers[at] {
            true => format!(" {}{} ", pad(&row[at], widths[at]), row[at]),
            false => format!(" {}{} ", row[at], pad(&row[at], widths[at])),
        };
        lines.push((0..row.len()).map(cell).collect::<Vec<_>>().join("|"));
    }
    let count = cells.len();
    let footer = if count == 1 { "(1 row)".to_owned() } else { format!("({count} rows)") };
    let shown: Vec<&str> = lines.iter().map(|line| line.trim_end()).collect();
    format!("{}\n{footer}\n", shown.join("\n"))
}

fn width(text: &str) -> usize {
    text.chars().count()
}

fn pad(text: &str, to: usize) -> String {
    " ".repeat(to.saturating_sub(width(text)))
}

fn centered(text: &str, to: usize) -> String {
    let room = to.saturating_sub(width(text));
    format!(" {}{text}{} ", " ".repeat(room / 2), " ".repeat(room - room / 2))
}

/// Numbers stand to the right. Types are not known here, so a column is numeric if all its values are.
fn is_numeric(answered: &Answered, at: usize) -> bool {
    let mut values = answered.rows.iter().filter_map(|row| row[at].as_deref()).peekable();
    values.peek().is_some() && values.all(|value| value.parse::<f64>().is_ok())
}

/// A line of JSON; values are texts, as PostgreSQL writes them.
pub(crate) fn json_line(answered: &Answered) -> String {
    match &answered.columns {
        Some(columns) => json!({"columns": columns, "rows": answered.rows, "tag": answered.tag}),
        None => json!({"tag": answered.tag}),
    }
    .to_string()
}

/// As `COPY … TO STDOUT (FORMAT csv, HEADER)`.
pub(crate) fn csv(answered: &Answered) -> String {
    let Some(columns) = &answered.columns else {
        return String::new();
    };
    let options = CopyOptions { header: CopyHeader::Yes, ..CopyOptions::of(CopyFormat::Csv) };
    let Ok(encoder) = Encoder::new(options, columns.clone()) else {
        return String::new();
    };
    let mut out = Vec::new();
    encoder.begin(&mut out);
    for row in &answered.rows {
        let fields: Vec<Option<&[u8]>> = row.iter().map(|value| value.as_deref().map(str::as_bytes)).collect();
        encoder.row(&fields, &mut out);
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// An error with a mark at its place in the text, as psql shows it.
pub(crate) fn error(error: &DbError, sql: &str) -> String {
    let mut lines = vec![format!("{}:  {} ({})", error.severity(), error.message(), error.code().code())];
    if let Some(ErrorPosition::Original(position)) = error.position() {
        lines.extend(mark(sql, *position as usize));
    }
    for (word, text) in [("DETAIL", error.detail()), ("HINT", error.hint()), ("CONTEXT", error.where_())] {
        lines.extend(text.map(|text| format!("{word}:  {text}")));
    }
    lines.join("\n")
}

/// The line of a position (in characters, from 1), and a caret below it.
fn mark(sql: &str, position: usize) -> Vec<String> {
    let Some(at) = position.checked_sub(1) else {
        return Vec::new();
    };
    let mut before = 0;
    for (number, line) in sql.split('\n').enumerate() {
        let length = width(line);
        if at <= before + length {
            let label = format!("LINE {}: ", number + 1);
            let caret = " ".repeat(width(&label) + at - before);
            return vec![format!("{label}{line}"), format!("{caret}^")];
        }
        before += length + 1;
    }
    Vec::new()
}

pub(crate) fn error_json(error: &DbError) -> String {
    let mut fields = json!({"code": error.code().code(), "message": error.message()});
    for (name, text) in [("detail", error.detail()), ("hint", error.hint()), ("context", error.where_())] {
        if let Some(text) = text {
            fields[name] = json!(text);
        }
    }
    if let Some(ErrorPosition::Original(position)) = error.position() {
        fields["position"] = json!(position);
    }
    json!({ "error": fields }).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answered() -> Answered {
        let text = |text: &str| Some(text.to_owned());
        Answered {
            columns: Some(vec!["id".into(), "name".into()]),
            rows: vec![vec![text("1"), text("ann")], vec![text("20"), None]],
            tag: "SELECT 2".into(),
        }
    }

    #[test]
    fn a_table_as_psql_shows_it() {
        assert_eq!(table(&answered()), " id | name\n----+------\n  1 | ann\n 20 |\n(2 rows)\n");
        let done = Answered { tag: "CREATE TABLE".into(), ..Answered::default() };
        assert_eq!(table(&done), "CREATE TABLE");
    }

    #[test]
    fn for_programs() {
        assert_eq!(
            json_line(&answered()),
            r#"{"columns":["id","name"],"rows":[["1","ann"],["20",null]],"tag":"SELECT 2"}"#
        );
        assert_eq!(csv(&answered()), "id,name\n1,ann\n20,\n");
    }

    #[test]
    fn a_caret_under_the_place() {
        assert_eq!(mark("select\n \u{e4}, x y", 12), ["LINE 2:  \u{e4}, x y", "            ^"]);
        assert_eq!(mark("abc", 4), ["LINE 1: abc", "           ^"]);
        assert!(mark("abc", 40).is_empty());
    }
}
