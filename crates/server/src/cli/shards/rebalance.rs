//! Moves that would even shards out: said, and carried out one after the other if asked to.

use super::super::client::ServerArguments;
use super::super::moves::carry_out_order;
use super::super::output::{Failure, Format, FormatArgument, Outcome, say, say_json};
use super::super::sql::show::{Answered, table};
use super::super::tenants::server::{Server, literal};
use isles_kernel::moves::Units;
use serde_json::json;

#[derive(clap::Args)]
pub(crate) struct RebalanceArguments {
    /// By what shards are weighed
    #[arg(long, value_enum, default_value_t = By::Rows)]
    by: By,
    /// Carry the moves out, one after the other
    #[arg(long)]
    run: bool,
    /// Carry out no more moves than these
    #[arg(long, value_name = "N", requires = "run")]
    most: Option<usize>,
    #[command(flatten)]
    server: ServerArguments,
    #[command(flatten)]
    pub(super) format: FormatArgument,
}

#[derive(clap::ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
enum By {
    /// Rows that are stored
    Rows,
    /// Buckets, whatever is in them
    Buckets,
    /// Statements of tenants since the server was started
    Load,
}

impl By {
    fn word(self) -> &'static str {
        match self {
            By::Rows => "rows",
            By::Buckets => "buckets",
            By::Load => "load",
        }
    }
}

pub(super) async fn run(arguments: &RebalanceArguments) -> Result<Outcome, Failure> {
    let server = Server::connect(&arguments.server).await?;
    let mut proposed = server.query(&format!("SHOW REBALANCE BY {}", arguments.by.word())).await?;
    let orders = take_orders(&mut proposed)?;
    let format = arguments.format.format();
    if !arguments.run {
        match format {
            Format::Json => say_json(&json!({ "proposals": proposed.objects(&["kind", "what", "source", "target"]) }))?,
            Format::Text if proposed.rows.is_empty() => say("the shards are even: nothing is to be moved"),
            Format::Text => {
                say(table(&proposed).trim_end());
                say("nothing was moved: --run carries this out");
            }
        }
        return Ok(Outcome::Done);
    }
    let orders = &orders[..orders.len().min(arguments.most.unwrap_or(usize::MAX))];
    for (n, order) in orders.iter().enumerate() {
        if format == Format::Text {
            say(&format!("move {} of {}: {order}", n + 1, orders.len()));
        }
        carry_out_order(&arguments.server, order, format).await?;
    }
    if orders.is_empty() && format == Format::Text {
        say("the shards are even: nothing was moved");
    }
    Ok(Outcome::Done)
}

/// What follows `CREATE MOVE`, for each proposal. The column that says it for programs goes; people need it not.
fn take_orders(proposed: &mut Answered) -> Result<Vec<String>, Failure> {
    let unknown = || {
        Failure::usage("the server's answer is not a list of proposals")
            .code("unknown_answer")
            .hint("the server and this program may be of different versions")
    };
    let columns = proposed.columns.as_mut().ok_or_else(unknown)?;
    let at = columns.iter().position(|name| name == "units").ok_or_else(unknown)?;
    columns.remove(at);
    let taken: Option<Vec<String>> = proposed.rows.iter_mut().map(|row| order(&row.remove(at)?, row)).collect();
    taken.ok_or_else(unknown)
}

fn order(units: &str, row: &[Option<String>]) -> Option<String> {
    let [_, _, Some(source), Some(target), ..] = row else { return None };
    let units: Units = serde_json::from_str(units).ok()?;
    let units = match &units {
        Units::Tenants { tenants } => {
            let names: Vec<String> = tenants.iter().map(|tenant| literal(tenant.as_str())).collect();
            format!("TENANTS ({})", names.join(", "))
        }
        Units::Buckets { .. } => format!("BUCKETS {}", literal(&units.to_string())),
    };
    Some(format!("OF {units} FROM {} TO {}", literal(source), literal(target)))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use isles_kernel::names::TenantId;

    /// A name may have in it what stands between names.
    #[test]
    fn tenants_are_told_apart_whatever_their_names_are() {
        let tenants = Units::tenants(["a, b", "c", "it's"].map(|name| TenantId::new(name).unwrap()));
        let row = ["tenants", "a, b, c, it's", "s0", "s1", "7"].map(|text| Some(text.to_owned()));
        let order = order(&serde_json::to_string(&tenants).unwrap(), &row).unwrap();
        assert_eq!(order, "OF TENANTS ('a, b', 'c', 'it''s') FROM 's0' TO 's1'");
    }
}
