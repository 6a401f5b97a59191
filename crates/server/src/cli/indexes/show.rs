//! An index, as a server tells it.

use super::super::output::Failure;
use super::super::tenants::server::Server;
use serde_json::Value;

/// Columns of `SHOW INDEXES` that hold texts.
pub(super) const TEXTS: [&str; 7] = ["index", "table", "state", "waits_for", "error", "verified_at", "applied"];

/// A row of `SHOW INDEXES`.
pub(super) struct Index {
    pub(super) json: Value,
}

impl Index {
    fn of(mut json: Value) -> Index {
        for flag in ["unique", "used"] {
            json[flag] = Value::Bool(json[flag] == "t");
        }
        Index { json }
    }

    fn text(&self, name: &str) -> Option<&str> {
        self.json[name].as_str()
    }

    fn number(&self, name: &str) -> Option<u64> {
        self.json[name].as_u64()
    }

    pub(super) fn name(&self) -> &str {
        self.text("index").unwrap_or_default()
    }

    pub(super) fn state(&self) -> &str {
        self.text("state").unwrap_or_default()
    }

    pub(super) fn error(&self) -> Option<&str> {
        self.text("error")
    }

    pub(super) fn waits_for(&self) -> Option<&str> {
        self.text("waits_for")
    }

    /// Whether statements are led by it.
    pub(super) fn is_used(&self) -> bool {
        self.json["used"] == true
    }

    /// Rows that were counted, of so many.
    pub(super) fn rows(&self) -> (u64, Option<u64>) {
        (self.number("rows_built").unwrap_or(0), self.number("rows_total"))
    }

    /// Shards whose rows are in it, of so many.
    pub(super) fn shards(&self) -> (u64, u64) {
        (self.number("shards_built").unwrap_or(0), self.number("shards").unwrap_or(0))
    }

    /// How many shards a build has done, and what it waits for.
    pub(super) fn stage(&self) -> String {
        let (built, of) = self.shards();
        let waits = self.waits_for().map_or(String::new(), |what| format!(", waits for {what}"));
        format!("{}: {built} of {of} shards{waits}", self.state())
    }

    /// The same, with its rows.
    pub(super) fn progress(&self) -> String {
        match (self.number("rows_built"), self.number("rows_total")) {
            (None, _) => self.stage(),
            (Some(rows), Some(total)) => format!("{}, {rows} of {total} rows", self.stage()),
            (Some(rows), None) => format!("{}, {rows} rows", self.stage()),
        }
    }

    /// All that is known, for people.
    pub(super) fn lines(&self) -> String {
        let number = |name: &str| self.number(name).unwrap_or(0).to_string();
        let used = if self.is_used() { "" } else { ", not used" };
        let unique = if self.json["unique"] == true { " (unique)" } else { "" };
        let mut lines = vec![
            ("index", format!("{}{unique}", self.name())),
            ("table", self.text("table").unwrap_or_default().to_owned()),
            ("state", format!("{}{used}", self.progress())),
            (
                "lag",
                format!("{} changes, {} ms; {} additions pending", number("lag"), number("lag_ms"), number("pending")),
            ),
            ("lookups", number("lookups")),
        ];
        let verified = self.text("verified_at").map_or("never".to_owned(), |at| {
            format!("{at}, {} entries, {} differences", number("entries"), number("differences"))
        });
        lines.push(("verified", verified));
        lines.extend(self.text("applied").filter(|text| !text.is_empty()).map(|text| ("applied", text.to_owned())));
        lines.extend(self.error().map(|error| ("error", error.to_owned())));
        let lines: Vec<String> = lines.iter().map(|(name, value)| format!("{name:<9} {value}")).collect();
        lines.join("\n")
    }
}

pub(super) async fn indexes(server: &Server) -> Result<Vec<Index>, Failure> {
    let answered = server.query("SHOW INDEXES").await?;
    Ok(answered.objects(&TEXTS).into_iter().map(Index::of).collect())
}

pub(super) fn unknown(name: &str) -> Failure {
    Failure::check(format!("there is no global index \"{name}\"")).code("42704").hint("isles index list shows them")
}

pub(super) async fn find(server: &Server, name: &str) -> Result<Index, Failure> {
    let found = indexes(server).await?.into_iter().find(|index| index.name() == name);
    found.ok_or_else(|| unknown(name))
}
