//! What is to be moved: names, patterns, buckets, shares.
//!
//! Patterns and shares are resolved here, against what the server shows; the server checks again what comes of it.

use super::super::output::Failure;
use super::super::sql::show::Answered;
use super::super::tenants::server::{Server, literal};
use std::collections::BTreeSet;

#[derive(clap::Args)]
pub(super) struct UnitArguments {
    /// A tenant; or, with a % in it, a pattern of SQL. May be given several times
    #[arg(long, value_name = "NAME", conflicts_with_all = ["buckets", "share"])]
    tenant: Vec<String>,
    /// Buckets of a group, such as users/0-7,9
    #[arg(long, value_name = "GROUP/NUMBERS", conflicts_with = "share")]
    buckets: Option<String>,
    /// A share of the buckets that the source has of a group, such as users/25%
    #[arg(long, value_name = "GROUP/PERCENT")]
    share: Option<String>,
    /// The shard that shall have them
    #[arg(long, value_name = "SHARD")]
    to: Option<String>,
    /// The shard that has them; if not given, the routing tells
    #[arg(long, value_name = "SHARD")]
    from: Option<String>,
    /// What it is for
    #[arg(long, value_name = "TEXT")]
    description: Option<String>,
    /// Writers wait no longer than this when the target takes over, such as 500ms or 2s; else it is tried again
    #[arg(long, value_name = "TIME")]
    pause_limit: Option<String>,
    /// Cut over without comparing both sides
    #[arg(long)]
    no_verify: bool,
    /// Move also names that no tenant has yet
    #[arg(long)]
    unknown_tenants: bool,
}

impl UnitArguments {
    /// What follows `CREATE MOVE`.
    pub(super) async fn order(&self, server: &Server) -> Result<String, Failure> {
        let missing = |what: &str, hint: &str| Failure::usage(what).hint(hint);
        let to = self.to.as_ref().ok_or_else(|| missing("where to is not said", "name a shard with --to"))?;
        let (units, from) = if let Some(buckets) = &self.buckets {
            (format!("BUCKETS {}", literal(buckets)), self.from.clone())
        } else if let Some(share) = &self.share {
            let routes = server.query("SHOW ROUTES").await?;
            let (buckets, from) = share_of(&owned(&routes), share, self.from.as_deref(), to)?;
            (format!("BUCKETS {}", literal(&buckets)), Some(from))
        } else if self.tenant.is_empty() {
            return Err(missing("what is to be moved is not said", "give --tenant, --buckets or --share"));
        } else {
            let names: Vec<String> = self.tenants(server, to).await?.iter().map(|name| literal(name)).collect();
            (format!("TENANTS ({})", names.join(", ")), self.from.clone())
        };
        let from = from.map_or(String::new(), |shard| format!(" FROM {}", literal(&shard)));
        Ok(format!("OF {units}{from} TO {}", literal(to)))
    }

    /// What stands in `WITH`.
    pub(super) fn options(&self) -> String {
        let description = self.description.as_ref().map(|text| format!("description = {}", literal(text)));
        let pause = self.pause_limit.as_ref().map(|time| format!("pause_limit = {}", literal(time)));
        let verify = self.no_verify.then(|| "verify = off".to_owned());
        let unknown = self.unknown_tenants.then(|| "unknown_tenants".to_owned());
        [description, pause, verify, unknown].into_iter().flatten().collect::<Vec<_>>().join(", ")
    }

    /// The names, with those that patterns stand for.
    async fn tenants(&self, server: &Server, to: &str) -> Result<BTreeSet<String>, Failure> {
        let mut names = BTreeSet::new();
        for name in &self.tenant {
            if !name.contains('%') {
                names.insert(name.clone());
                continue;
            }
            let found = server.query(&format!("SHOW TENANTS LIKE {}", literal(name))).await?;
            let like: Vec<String> = on_source(&found, self.from.as_deref(), to);
            if like.is_empty() {
                let message = format!("no tenant that could be moved to {to} is like {name}");
                return Err(Failure::check(message)
                    .code("no_tenants")
                    .hint("isles tenants list shows names and shards"));
            }
            names.extend(like);
        }
        Ok(names)
    }
}

fn column(answered: &Answered, name: &str) -> Option<usize> {
    answered.columns.iter().flatten().position(|column| column == name)
}

/// Tenants that are on the source; or, if none is named, anywhere but on the target.
fn on_source(tenants: &Answered, from: Option<&str>, to: &str) -> Vec<String> {
    let (Some(name), Some(shard)) = (column(tenants, "tenant"), column(tenants, "shard")) else { return Vec::new() };
    let is_there = |shard: &str| from.map_or(shard != to, |from| shard == from);
    let rows = tenants.rows.iter().filter(|row| row[shard].as_deref().is_some_and(is_there));
    rows.filter_map(|row| row[name].clone()).collect()
}

/// Buckets `first..=last` of a group, and who has them.
#[derive(Debug, PartialEq, Eq)]
struct Owned {
    group: String,
    first: u32,
    last: u32,
    shard: String,
}

fn owned(routes: &Answered) -> Vec<Owned> {
    let text = |row: &[Option<String>], name: &str| row.get(column(routes, name)?)?.clone();
    let one = |row: &Vec<Option<String>>| {
        Some(Owned {
            group: text(row, "group")?,
            first: text(row, "first")?.parse().ok()?,
            last: text(row, "last")?.parse().ok()?,
            shard: text(row, "shard")?,
        })
    };
    routes.rows.iter().filter_map(one).collect()
}

/// The last buckets that a shard has of a group, as many as a share says, rounded up; and the shard.
fn share_of(routes: &[Owned], share: &str, from: Option<&str>, to: &str) -> Result<(String, String), Failure> {
    let wrong = || Failure::usage(format!("\"{share}\" is no share of a group")).hint("write group/25%");
    let (group, percent) = share.split_once('/').ok_or_else(wrong)?;
    let percent: u64 = percent.trim_end_matches('%').parse().map_err(|_| wrong())?;
    if !(1..=100).contains(&percent) {
        return Err(Failure::usage("a share is between 1% and 100%"));
    }
    let of_group = || routes.iter().filter(|owned| owned.group == group);
    let owners: BTreeSet<&str> = of_group().map(|owned| owned.shard.as_str()).filter(|shard| *shard != to).collect();
    let source = match (from, owners.len()) {
        (Some(from), _) => from,
        (None, 1) => owners.first().copied().unwrap_or_default(),
        (None, 0) => return Err(no_buckets(group, "any other shard than the target")),
        (None, _) => {
            let names: Vec<&str> = owners.into_iter().collect();
            return Err(Failure::usage(format!("buckets of group {group} are on {}", names.join(", ")))
                .hint("name one of them with --from"));
        }
    };
    let numbers: Vec<u32> = of_group().filter(|o| o.shard == source).flat_map(|o| o.first..=o.last).collect();
    let count = (numbers.len() as u64 * percent).div_ceil(100) as usize;
    match numbers.get(numbers.len() - count..) {
        Some(last) if !last.is_empty() => {
            let text: Vec<String> = runs(last).iter().map(|(first, last)| format!("{first}-{last}")).collect();
            Ok((format!("{group}/{}", text.join(",")), source.to_owned()))
        }
        _ => Err(no_buckets(group, source)),
    }
}

fn no_buckets(group: &str, shard: &str) -> Failure {
    Failure::check(format!("no bucket of group {group} is on {shard}"))
        .code("no_buckets")
        .hint("isles sql -c 'SHOW ROUTES' shows groups and shards")
}

/// Numbers in order, joined where they follow each other.
fn runs(numbers: &[u32]) -> Vec<(u32, u32)> {
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for number in numbers {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == *number => *last = *number,
            _ => runs.push((*number, *number)),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    fn routes() -> Vec<Owned> {
        let one =
            |group: &str, first, last, shard: &str| Owned { group: group.into(), first, last, shard: shard.into() };
        vec![one("t", 0, 63, "s0"), one("u", 0, 3, "s0"), one("u", 4, 5, "s1"), one("u", 6, 7, "s0")]
    }

    #[test]
    fn a_share_is_of_what_the_source_has() {
        let share = |share: &str, from: Option<&str>, to: &str| share_of(&routes(), share, from, to).ok();
        let found = |buckets: &str, shard: &str| Some((buckets.to_owned(), shard.to_owned()));
        assert_eq!(share("t/25%", None, "s1"), found("t/48-63", "s0"));
        assert_eq!(share("t/1", None, "s1"), found("t/63-63", "s0"));
        assert_eq!(share("u/50%", Some("s0"), "s2"), found("u/3-3,6-7", "s0"));
        assert_eq!(share("u/100%", None, "s0"), found("u/4-5", "s1"), "the target has the others");
        assert_eq!(share("u/100%", None, "s2"), None, "two shards have some");
        for wrong in ["u", "u/", "u/0%", "u/101%", "u/x%", "v/10%"] {
            assert_eq!(share(wrong, None, "s1"), None, "{wrong}");
        }
        assert_eq!(share("u/10%", Some("s3"), "s1"), None);
    }

    #[test]
    fn patterns_stand_for_tenants_of_the_source() {
        let row = |name: Option<&str>, shard: &str| vec![name.map(Into::into), Some(shard.into())];
        let tenants = Answered {
            columns: Some(vec!["tenant".into(), "shard".into()]),
            rows: vec![row(Some("a"), "s0"), row(Some("b"), "s1"), row(Some("c"), "s2"), row(None, "s0")],
            tag: String::new(),
        };
        assert_eq!(on_source(&tenants, None, "s2"), ["a", "b"]);
        assert_eq!(on_source(&tenants, Some("s1"), "s2"), ["b"]);
    }
}
