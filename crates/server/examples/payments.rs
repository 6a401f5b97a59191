//! A server with workflows of its own: all of `isles`, which executes payments besides.
//!
//!     cargo run --example payments -- serve --data data
//!     cargo run --example payments -- runs create payment order-7 --input '{"amount": 5}'
//!     cargo run --example payments -- runs send payment order-7 --event approved --payload true
//!     cargo run --example payments -- runs wait payment order-7

use isles_workflows::error::Result;
use isles_workflows::{Context, Events, Options, Registry, WorkflowError};
use serde::{Deserialize, Serialize};
use std::process::ExitCode;
use std::time::Duration;

#[derive(Serialize, Deserialize)]
pub(crate) struct Order {
    pub(crate) amount: u64,
}

#[derive(Serialize, Deserialize)]
pub(crate) struct Receipt {
    pub(crate) charged: u64,
}

/// Charges, waits until somebody approves it, and ships. Those who listen are told how far it is.
async fn payment(ctx: Context, order: Order) -> Result<Receipt> {
    let charged = ctx.step("charge", move || async move { Ok(order.amount) }).await?;
    ctx.emit("progress", &"charged").await?;
    let day = Some(Duration::from_secs(86_400));
    let approved: bool = ctx.wait_for_event("approval", "approved", day).await?;
    ctx.emit("progress", &if approved { "approved" } else { "rejected" }).await?;
    if !approved {
        return Err(WorkflowError::non_retriable("the payment was rejected"));
    }
    ctx.step("ship", || async { Ok(()) }).await?;
    ctx.emit("progress", &"shipped").await?;
    Ok(Receipt { charged })
}

/// The workflows of this program.
pub(crate) fn registry() -> Result<Registry> {
    let mut registry = Registry::new();
    let events = Events::new().with::<bool>("approved");
    registry.register("payment", payment, Options { shards: 4, events, ..Options::default() })?;
    Ok(registry)
}

#[allow(dead_code, reason = "a test has a main of its own")]
fn main() -> ExitCode {
    match registry() {
        Ok(registry) => isles_server::run(registry),
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(2)
        }
    }
}
