//! Tenants do not notice each other: several of them run their own statements side by side on one Isles, and each sees
//! what a PostgreSQL database of its own answers.
//!
//! All tables are tenant tables, and keys come from small pools, so tenants have the same keys all the time. What is
//! compared is what a client sees: rows, counts, and errors by their SQLSTATE where it says anything about rows.

use crate::compare::History;
use crate::harness::{Server, Setup};
use isles_sim::sqlgen::{Generator, Kind, TABLES};

/// The null tenant is one like any other.
const TENANTS: [Option<&str>; 3] = [Some("acme"), Some("Acme"), None];

pub(crate) async fn run(setup: Setup, seed: u64, statements: u64) -> Vec<History> {
    let server = Server::start(setup).await;
    let generator = Generator::over([Kind::Tenant; TABLES], seed);
    let owner = server.isles().await;
    for table in generator.tables() {
        owner.batch_execute(&table.create().0).await.expect("a table");
    }
    let histories = TENANTS.iter().enumerate().map(|(n, tenant)| {
        let (server, tables) = (&server, &generator);
        async move {
            let (isles, oracle) = (server.isles().await, Server::oracle().await);
            let choose = match tenant {
                Some(name) => format!("SET isles.tenant = '{name}'"),
                None => "SET isles.null_tenant = on".to_string(),
            };
            isles.batch_execute(&choose).await.expect("a tenant");
            for table in tables.tables() {
                oracle.batch_execute(&table.create().1).await.expect("a table");
            }
            let own = tables.beside(seed * 10 + n as u64);
            History::of_sessions(setup, seed, (&isles, &oracle), own, statements).await
        }
    });
    futures::future::join_all(histories).await
}
