//! A tasks service for many tenants, in one file: a fragment, its commands, and a page that works offline.
//!
//!     cargo run -p isles --example tasks [folder]
//!
//! It prints the address to open. Two windows of one tenant show the same tasks; another tenant shows its own. The page
//! is plain JavaScript over `/tasks/_internal/snapshot`, `outbox` and `sync`; nothing in this file mentions shards but the
//! line that chooses the strategy.
//!
//! Whoever asks for a tenant's token here gets it: an application gives one to those who have logged in.

use axum::Router;
use axum::extract::{Path, State};
use axum::response::Html;
use axum::routing::get;
use isles_cluster::database::{Config, Database};
use isles_engine::env::TokioEnv;
use isles_fragments::adapter::isles::Isles;
use isles_fragments::error::{Code, refused};
use isles_fragments::schema::{ColumnType, Schema, column};
use isles_fragments::shard::{Shard, Strategy};
use isles_fragments::store::{Fragment, Store};
use isles_fragments::uow::Plan;
use isles_fragments::values::Values;
use isles_fragments::web::{SignedToken, mount};
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;

/// Shards of the database: tenants are spread over them.
const SHARDS: usize = 2;
/// The same at each start: a browser keeps what was not sent yet for the address that the page came from.
const PORT: u16 = 8417;
/// The page asks for another token when one has ended.
const TOKEN_TIME: Duration = Duration::from_secs(3_600);

/// The schema and the commands; a tenant is nowhere in sight.
fn tasks() -> isles_fragments::Result<Fragment> {
    let schema = Schema::build("tasks").table("task", |table| {
        table
            .column(column("title", ColumnType::String))
            .column(column("done", ColumnType::Bool))
            .column(column("rank", ColumnType::Bigint))
            .index("by_done", &["done"])
    });
    let fragment = Fragment::new(schema.finish()?).outbox();
    Ok(fragment.command("add", add).command("finish", finish).command("remove", remove))
}

fn add(input: &serde_json::Value) -> isles_fragments::Result<Plan<()>> {
    let (id, title) = (text(input, "id")?, text(input, "title")?);
    let rank = input["rank"].as_i64().unwrap_or(0);
    Ok(Plan::new().mutate(move |work, _| {
        let values = Values::new().set("title", title.as_str()).set("done", false).set("rank", rank);
        work.create_with_id("task", &id, values)
    }))
}

fn finish(input: &serde_json::Value) -> isles_fragments::Result<Plan<()>> {
    let id = text(input, "id")?;
    let done = input["done"].as_bool().ok_or_else(|| refused(Code::InvalidValue, "done is true or false"))?;
    Ok(Plan::new().mutate(move |work, _| work.update("task", &id, Values::new().set("done", done))))
}

fn remove(input: &serde_json::Value) -> isles_fragments::Result<Plan<()>> {
    let id = text(input, "id")?;
    Ok(Plan::new().mutate(move |work, _| work.delete("task", &id)))
}

fn text(input: &serde_json::Value, name: &str) -> isles_fragments::Result<String> {
    match input[name].as_str() {
        Some(text) if !text.trim().is_empty() => Ok(text.into()),
        _ => Err(refused(Code::InvalidValue, format!("the command needs a text \"{name}\""))),
    }
}

async fn page() -> Html<&'static str> {
    Html(include_str!("tasks.html"))
}

/// For the example only: an application checks who is asking.
async fn token(State(tokens): State<Arc<SignedToken>>, Path(tenant): Path<String>) -> isles_fragments::Result<String> {
    Ok(tokens.token(&Shard::named(tenant)?, TOKEN_TIME))
}

/// The service over a database in a folder, which is made if it is not there.
pub(crate) async fn service(folder: &str) -> Result<Router, Box<dyn std::error::Error>> {
    let database = Database::open(Config::sqlite(folder, SHARDS), Arc::new(TokioEnv::current())).await?;
    let adapter = Arc::new(Isles::new(database, "isles"));
    let (store, _) = Store::open(adapter, Some(Strategy::Row)).await?;
    store.register(tasks()?, None).await?;

    let tokens = Arc::new(SignedToken::new(uuid::Uuid::new_v4().as_bytes()));
    let routes = Router::new()
        .route("/", get(page))
        .route("/token/{tenant}", get(token))
        .with_state(tokens.clone())
        .nest("/tasks", mount(&store, Some(tokens), Router::new())?);
    Ok(routes)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = std::env::args().nth(1).unwrap_or_else(|| "tasks-data".into());
    let routes = service(&folder).await?;
    let listener = match TcpListener::bind((Ipv4Addr::LOCALHOST, PORT)).await {
        Ok(listener) => listener,
        Err(error) => {
            println!("port {PORT}: {error}; at another one, pages find nothing of what they kept");
            TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?
        }
    };
    println!("tasks are at http://{}/?tenant=acme", listener.local_addr()?);
    axum::serve(listener, routes).await?;
    Ok(())
}
