//! Moves that would even shards out: said, and carried out one after the other if asked to.

use super::super::client::ServerArguments;
use super::super::moves::carry_out_order;
use super::super::output::{Failure, Format, FormatArgument, Outcome, say, say_json};
use super::super::sql::show::{Answered, table};
use super::super::tenants::server::{Server, literal};
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
    let proposed = server.query(&format!("SHOW REBALANCE BY {}", arguments.by.word())).await?;
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
    let orders: Vec<String> = orders(&proposed).take(arguments.most.unwrap_or(usize::MAX)).collect();
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

/// What follows `CREATE MOVE`, for each proposal.
fn orders(proposed: &Answered) -> impl Iterator<Item = String> {
    proposed.rows.iter().filter_map(|row| {
        let [Some(kind), Some(what), Some(source), Some(target), ..] = &row[..] else { return None };
        let units = match kind.as_str() {
            "tenants" => {
                let names: Vec<String> = what.split(", ").map(literal).collect();
                format!("TENANTS ({})", names.join(", "))
            }
            _ => format!("BUCKETS {}", literal(what)),
        };
        Some(format!("OF {units} FROM {} TO {}", literal(source), literal(target)))
    })
}
