//! What clients notice of moves, and what a copy costs everyone else. Latencies are ratios within one run.
//!
//! `cargo xtask bench moves [part…]`, of the parts
//!   * `sqlite`    a tenant between two SQLite files
//!   * `postgres`  between two PostgreSQL databases
//!   * `both`      between a SQLite file and a PostgreSQL database
//!   * `capture`   what statements cost before any move, and after one
//!
//! Clients work at 70 % of what the server can do, which is measured first, while the tenant goes there and back
//! twenty times. `ISLES_BENCH_ROUNDS` says how often instead. A client that sees an error, or a row that is not as it was
//! acknowledged, fails the run.

#[path = "../tests/harness/mod.rs"]
mod harness;
#[path = "../src/load/mod.rs"]
#[allow(dead_code, reason = "tests and the demo use more of it")]
mod load;

use harness::{Server, Setup};
use load::meter::{Sample, Spread, Whose, pauses};
use load::moving::{Moved, move_tenant};
use load::{Load, Outcome, Shape, World};
use std::time::Duration;

const ROUNDS: usize = 20;
const SHARE: f64 = 0.7;
const SHAPE: Shape = Shape { movers: 8, others: 8, still_rows: 20_000 };
const CAPACITY_TIME: Duration = Duration::from_secs(3);
/// Before each move nothing moves for so long, to compare with.
const QUIET: Duration = Duration::from_millis(700);
/// What a move leaves behind is not quiet yet.
const SETTLING: Duration = Duration::from_millis(200);

fn main() {
    let wanted: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    let runs = |part: &str| wanted.is_empty() || wanted.iter().any(|name| name == part);
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let mut is_exact = true;
    for (part, setup) in [
        ("sqlite", Setup::Sqlite { shards: 2 }),
        ("postgres", Setup::Postgres { shards: 2 }),
        ("both", Setup::Both { each: 1 }),
    ] {
        if runs(part) {
            is_exact &= runtime.block_on(there_and_back(part, setup));
        }
    }
    if runs("capture") {
        for (part, setup) in [("sqlite", Setup::Sqlite { shards: 2 }), ("postgres", Setup::Postgres { shards: 2 })] {
            is_exact &= runtime.block_on(capture(part, setup));
        }
    }
    assert!(is_exact, "clients saw errors, or rows that are not as they were acknowledged");
}

fn rounds() -> usize {
    std::env::var("ISLES_BENCH_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(ROUNDS)
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// A load at its share of the capacity.
async fn loaded(server: &Server, part: &str) -> (World, Load) {
    let world = World::make(server.url(), ("s0", "s1"), SHAPE).await.expect("a world");
    let load = Load::start(&world).await.expect("clients");
    let capacity = load.capacity(CAPACITY_TIME).await;
    load.pace(capacity * SHARE);
    println!("{part}: capacity {capacity:.0} statements/s, load {:.0}", capacity * SHARE);
    (world, load)
}

async fn there_and_back(part: &str, setup: Setup) -> bool {
    let server = Server::start(setup).await;
    let (world, load) = loaded(&server, part).await;
    let (mut moves, mut quiet) = (Vec::new(), Vec::new());
    for to in ["s1", "s0"].into_iter().cycle().take(2 * rounds()) {
        tokio::time::sleep(SETTLING).await;
        let began = load.origin().elapsed();
        tokio::time::sleep(QUIET).await;
        quiet.push((began, load.origin().elapsed()));
        moves.push(move_tenant(&world.admin, load.origin(), &world.mover, to, |_| {}).await.expect("a move"));
    }
    let outcome = load.finish(&world).await.expect("rows to compare");
    say_pauses(part, &outcome.samples, &moves);
    say_copies(part, &outcome.samples, &moves, &quiet);
    say_proof(part, &outcome);
    outcome.is_exact()
}

fn say_spread(what: &str, spread: Spread) {
    let Spread { count, p50, p99, max } = spread;
    println!("{what}: p50 {:.1} ms, p99 {:.1} ms, max {:.1} ms, of {count}", ms(p50), ms(p99), ms(max));
}

fn say_pauses(part: &str, samples: &[Sample], moves: &[Moved]) {
    let attempts: u64 = moves.iter().map(|moved| moved.attempts).sum();
    let times = Spread::of(moves.iter().map(|moved| moved.ended - moved.began));
    println!("{part}: {} moves in {attempts} attempts, {:.2} s each (p50)", moves.len(), times.p50.as_secs_f64());
    say_spread(&format!("{part}: pause of a client"), Spread::of(pauses(samples, moves)));
    say_spread(&format!("{part}: pause, as the server says"), Spread::of(moves.iter().map(|moved| moved.pause)));
}

/// What statements took while rows were copied, beside the same without a move.
fn say_copies(part: &str, samples: &[Sample], moves: &[Moved], quiet: &[(Duration, Duration)]) {
    let copying: Vec<_> = moves.iter().map(|moved| moved.copying).collect();
    for (name, whose) in [("the tenant that moves", Whose::Mover), ("other tenants", Whose::Other)] {
        let took = |spans: &[(Duration, Duration)]| {
            let ours = samples.iter().filter(|sample| sample.whose == whose);
            Spread::of(ours.filter(|s| spans.iter().any(|span| s.is_within(*span))).map(|s| s.took))
        };
        let (calm, busy) = (took(quiet), took(&copying));
        println!(
            "{part}: {name}, while rows are copied / quiet: p50 {:.2} / {:.2} ms, p99 {:.2} / {:.2} ms: {:.2} x",
            ms(busy.p50),
            ms(calm.p50),
            ms(busy.p99),
            ms(calm.p99),
            busy.p99.as_secs_f64() / calm.p99.as_secs_f64()
        );
    }
}

fn say_proof(part: &str, outcome: &Outcome) {
    let Outcome { writes, rows_expected, rows_found, errors, wrong, .. } = outcome;
    println!(
        "{part}: {writes} writes acknowledged, {rows_found} of {rows_expected} rows found, {wrong} wrong, {errors} errors"
    );
    outcome.texts.iter().take(10).for_each(|text| println!("  {text}"));
}

/// How long each part of this lasts: the statements before any move, and those after one.
const CAPTURE_TIME: Duration = Duration::from_secs(8);

/// Whether capture costs anything while no move runs: the same statements before any move ever, and after one.
async fn capture(part: &str, setup: Setup) -> bool {
    let server = Server::start(setup).await;
    let (world, load) = loaded(&server, part).await;
    let mut spans = Vec::new();
    for shards in [&["s1", "s0"][..], &[]] {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let began = load.origin().elapsed();
        tokio::time::sleep(CAPTURE_TIME).await;
        spans.push((began, load.origin().elapsed()));
        for to in shards {
            move_tenant(&world.admin, load.origin(), &world.mover, to, |_| {}).await.expect("a move");
        }
    }
    let outcome = load.finish(&world).await.expect("rows to compare");
    let took = |span| Spread::of(outcome.samples.iter().filter(|s| s.is_within(span)).map(|s| s.took));
    let (before, after) = (took(spans[0]), took(spans[1]));
    println!(
        "{part}: statements after a move / before any: p50 {:.3} / {:.3} ms: {:.2} x, p99 {:.2} / {:.2} ms: {:.2} x",
        ms(after.p50),
        ms(before.p50),
        after.p50.as_secs_f64() / before.p50.as_secs_f64(),
        ms(after.p99),
        ms(before.p99),
        after.p99.as_secs_f64() / before.p99.as_secs_f64()
    );
    say_proof(part, &outcome);
    outcome.is_exact()
}
