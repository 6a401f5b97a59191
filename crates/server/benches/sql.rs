//! Isles beside PostgreSQL 15, with equal durability, in one run: figures are ratios, since machines differ.
//!
//! `cargo xtask bench sql [part…]`, of the parts point, insert, range, tcp, router, scatter, lookup and soak. pgbench
//! drives both with prepared statements, by the socket in their folders as it does by itself; `tcp` is `point` over
//! loopback. Rounds alternate between the two, so that a slow minute of the machine hits both, and the median of the
//! rounds is reported. CPU is that of the server's processes alone.
//!
//! The soak runs only when it is named: ten minutes of mixed load, whose memory should not grow.

#[path = "../tests/harness/mod.rs"]
mod harness;

use harness::{Server, Setup};
use isles_sim::pgserver::{PgOptions, PgServer};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Clients of pgbench, as the goal says.
const CLIENTS: u32 = 16;
/// Seconds of a round: long enough for caches to be warm most of the time.
const SECONDS: u32 = 5;
const ROUNDS: usize = 3;
const ACCOUNTS: u32 = 100_000;
/// Keys of the range table, each with ten rows.
const KEYS: u32 = 10_000;

/// Something pgbench can connect to.
struct Target {
    name: &'static str,
    url: String,
    /// The process whose CPU, with that of its children, counts.
    pid: u32,
}

struct Figure {
    per_second: f64,
    cpu_micros: f64,
}

fn main() {
    let wanted: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    let runs = |part: &str| wanted.is_empty() || wanted.iter().any(|name| name == part);
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    if ["point", "insert", "range", "tcp"].into_iter().any(runs) {
        runtime.block_on(embedded(&runs));
    }
    if runs("router") {
        runtime.block_on(router());
    }
    if runs("scatter") {
        runtime.block_on(scatter());
    }
    if runs("lookup") {
        runtime.block_on(lookup());
    }
    if wanted.iter().any(|name| name == "soak") {
        runtime.block_on(soak());
    }
}

async fn embedded(runs: &impl Fn(&str) -> bool) {
    let plain = PgServer::start(PgOptions::default());
    let isles = Server::start(Setup::Sqlite { shards: 4 }).await;
    let database = plain.create_database();
    let name = database.rsplit('/').next().expect("a database").to_owned();
    let tcp = [
        Target { name: "postgresql", url: database, pid: plain.pid() },
        Target { name: "isles", url: isles.url().to_string(), pid: isles.pid() },
    ];
    let targets = [
        Target { name: "postgresql", url: plain.socket_url(&name), pid: plain.pid() },
        Target { name: "isles", url: isles.socket_url(), pid: isles.pid() },
    ];
    for target in &tcp {
        load(target).await;
    }
    let point = format!("\\set aid random(1, {ACCOUNTS})\nSELECT abalance FROM accounts WHERE aid = :aid;\n");
    if runs("point") {
        report("point select by key", &measure(&targets, &point));
    }
    if runs("tcp") {
        report("the same over loopback", &measure(&tcp, &point));
    }
    if runs("insert") {
        let script = "\\set id random(1, 9000000000000000000)\nINSERT INTO entries (id, v) VALUES (:id, 'some text of usual length');\n";
        report("single-row insert", &measure(&targets, script));
    }
    if runs("range") {
        let script = format!("\\set k random(1, {KEYS})\nSELECT n, v FROM lines WHERE k = :k ORDER BY n LIMIT 10;\n");
        report("ten-row range of one key", &measure(&targets, &script));
    }
}

/// The same tables and rows on both; on Isles they are hash tables by their first column.
async fn load(target: &Target) {
    let client = harness::connect(&target.url).await;
    let shard_by = |column: &str| match target.name {
        "postgresql" => String::new(),
        _ => format!(" WITH (kind = 'hash', shard_by = '{column}')"),
    };
    let statements = [
        format!("CREATE TABLE accounts (aid int PRIMARY KEY, bid int, abalance int, filler text){}", shard_by("aid")),
        format!("INSERT INTO accounts SELECT n, n % 10, 0, repeat('x', 84) FROM generate_series(1, {ACCOUNTS}) n"),
        format!("CREATE TABLE entries (id bigint PRIMARY KEY, v text){}", shard_by("id")),
        format!("CREATE TABLE lines (k int, n int, v text, PRIMARY KEY (k, n)){}", shard_by("k")),
        format!(
            "INSERT INTO lines SELECT k, n, 'line' || n FROM generate_series(1, {KEYS}) k, generate_series(1, 10) n"
        ),
    ];
    for sql in statements {
        client.batch_execute(&sql).await.unwrap_or_else(|error| panic!("{} on {}: {error:?}", sql, target.name));
    }
    if target.name == "postgresql" {
        client.batch_execute("VACUUM ANALYZE").await.expect("vacuum");
    }
}

/// Seconds of the soak.
const SOAK_SECONDS: u64 = 600;

/// Point reads, ranges, inserts, updates, counts over all shards and transactions over several, side by side, with the
/// server's memory every half minute.
async fn soak() {
    let isles = Server::start(Setup::Sqlite { shards: 4 }).await;
    let target = Target { name: "isles", url: isles.url().to_string(), pid: isles.pid() };
    load(&target).await;
    let aid = format!("\\set aid random(1, {ACCOUNTS})\n\\set bid random(1, {ACCOUNTS})\n");
    let scripts = [
        (40, format!("{aid}SELECT abalance FROM accounts WHERE aid = :aid;\n")),
        (20, format!("\\set k random(1, {KEYS})\nSELECT n, v FROM lines WHERE k = :k ORDER BY n LIMIT 10;\n")),
        (20, "\\set id random(1, 9000000000000000000)\nINSERT INTO entries (id, v) VALUES (:id, 'text');\n".into()),
        (10, format!("{aid}UPDATE accounts SET abalance = abalance + 1 WHERE aid = :aid;\n")),
        (1, "SELECT bid, count(*), sum(abalance) FROM accounts GROUP BY bid ORDER BY bid;\n".into()),
        (
            2,
            format!(
                "{aid}BEGIN;\nUPDATE accounts SET abalance = abalance - 1 WHERE aid = :aid;\n\
                 UPDATE accounts SET abalance = abalance + 1 WHERE aid = :bid;\nCOMMIT;\n"
            ),
        ),
        // What is inserted goes again, so that the data does not grow either.
        (1, "DELETE FROM entries WHERE id IN (SELECT id FROM entries ORDER BY id LIMIT 200);\n".into()),
    ];
    let folder = tempfile::tempdir().expect("a folder");
    let mut command = Command::new(which("pgbench").expect("pgbench comes with PostgreSQL"));
    command.args(["-n", "-M", "prepared", "-c", &CLIENTS.to_string(), "-j", "2", "-T", &SOAK_SECONDS.to_string()]);
    command.args(["--max-tries=10"]);
    for (at, (weight, text)) in scripts.iter().enumerate() {
        let file = folder.path().join(format!("{at}.sql"));
        std::fs::write(&file, text).expect("written");
        command.arg("-f").arg(format!("{}@{weight}", file.display()));
    }
    let mut load = Running(command.arg(&target.url).stdout(Stdio::null()).spawn().expect("pgbench runs"));
    let began = Instant::now();
    while load.0.try_wait().expect("a child").is_none() {
        std::thread::sleep(Duration::from_secs(30));
        println!("soak {:4} s: {:.1} MiB resident", began.elapsed().as_secs(), resident_mib(target.pid));
    }
}

fn resident_mib(pid: u32) -> f64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or_default();
    line.split_whitespace().next().and_then(|kib| kib.parse::<f64>().ok()).unwrap_or(0.0) / 1024.0
}

/// PostgreSQL shards behind Isles, beside PgBouncer and beside nothing.
async fn router() {
    let Some(bouncer) = which("pgbouncer") else {
        println!("router: pgbouncer is not installed; Debian's package is pgbouncer");
        return;
    };
    let plain =
        PgServer::start(PgOptions { settings: vec!["max_prepared_transactions=64".into()], ..PgOptions::default() });
    let database = plain.create_database();
    let shard = plain.create_database();
    let isles = Server::over(&[shard]).await;
    let folder = tempfile::tempdir().expect("a folder");
    let (bounce, bounce_url) = start_bouncer(&bouncer, folder.path(), &database);
    let targets = [
        Target { name: "postgresql", url: database, pid: plain.pid() },
        Target { name: "pgbouncer", url: bounce_url, pid: bounce.0.id() },
        Target { name: "isles", url: isles.url().to_string(), pid: isles.pid() },
    ];
    load(&targets[0]).await;
    load(&targets[2]).await;
    let script = format!("\\set aid random(1, {ACCOUNTS})\nSELECT abalance FROM accounts WHERE aid = :aid;\n");
    // PgBouncer passes prepared statements on only where a client keeps its connection, so that is how it pools here.
    report("point select through a router", &measure(&targets, &script));
    report("the same, with values in the text", &measure_with(&targets, &script, "simple"));
}

/// Kills its process when it goes.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start_bouncer(program: &Path, folder: &Path, database: &str) -> (Running, String) {
    let config: tokio_postgres::Config = database.parse().expect("a connection string");
    let port = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port").local_addr().expect("bound").port();
    let (user, name) = (config.get_user().unwrap_or("postgres"), config.get_dbname().expect("a database"));
    let users = folder.join("users.txt");
    std::fs::write(&users, format!("\"{user}\" \"\"\n")).expect("written");
    let text = format!(
        "[databases]\n{name} = host=127.0.0.1 port={} dbname={name}\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\n\
         auth_type = trust\nauth_file = {}\npool_mode = session\ndefault_pool_size = 16\nlogfile = {}\npidfile = {}\nunix_socket_dir =\n",
        config.get_ports()[0],
        users.display(),
        folder.join("log").display(),
        folder.join("pid").display()
    );
    let file = folder.join("pgbouncer.ini");
    std::fs::write(&file, text).expect("written");
    open_to_all(folder);
    let mut command = Command::new(program);
    // It refuses to run as root.
    // SAFETY: asks for a number.
    if unsafe { libc::geteuid() } == 0 {
        command.args(["-u", "postgres"]);
    }
    let child = command.arg(&file).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("pgbouncer starts");
    let running = Running(child);
    let until = Instant::now() + Duration::from_secs(10);
    while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
        assert!(Instant::now() < until, "pgbouncer does not listen");
        std::thread::sleep(Duration::from_millis(20));
    }
    (running, format!("postgres://{user}@127.0.0.1:{port}/{name}"))
}

fn open_to_all(folder: &Path) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o777)).expect("permissions");
}

/// A count and an ordered limit over eight shards, beside one SQLite file with the same rows.
async fn scatter() {
    const ROWS: u32 = 200_000;
    let isles = Server::start(Setup::Sqlite { shards: 8 }).await;
    let client = harness::connect(isles.url()).await;
    let create = "CREATE TABLE s (id int PRIMARY KEY, v int, w text) WITH (kind = 'hash', shard_by = 'id')";
    client.batch_execute(create).await.expect("created");
    let fill = format!("INSERT INTO s SELECT n, (n * 7919) % 1000003, 'text ' || n FROM generate_series(1, {ROWS}) n");
    client.batch_execute(&fill).await.expect("filled");
    let folder = tempfile::tempdir().expect("a folder");
    let file = rusqlite::Connection::open(folder.path().join("one.db")).expect("opened");
    file.execute_batch(&format!(
        "PRAGMA journal_mode=WAL; CREATE TABLE s (id INTEGER PRIMARY KEY, v INTEGER, w TEXT); \
         WITH RECURSIVE g(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM g WHERE n < {ROWS}) \
         INSERT INTO s SELECT n, (n * 7919) % 1000003, 'text ' || n FROM g"
    ))
    .expect("filled");
    for (name, sql) in [
        ("scatter count", "SELECT count(*) FROM s WHERE v % 3 = 0"),
        ("scatter ordered limit", "SELECT id, v FROM s ORDER BY v DESC, id LIMIT 10"),
    ] {
        let statement = client.prepare(sql).await.expect("prepared");
        let (mut ours, mut raw) = (Vec::new(), Vec::new());
        for _ in 0..20 {
            let began = Instant::now();
            client.query(&statement, &[]).await.expect("rows");
            ours.push(began.elapsed().as_secs_f64());
            let began = Instant::now();
            let mut prepared = file.prepare(sql).expect("prepared");
            let rows = prepared.query_map([], |row| row.get::<_, i64>(0)).expect("rows");
            assert!(rows.count() > 0, "rows come");
            raw.push(began.elapsed().as_secs_f64());
        }
        let (ours, raw) = (median(ours), median(raw));
        println!("{name:32} isles/sqlite {:5.2} x  ({:.2} ms, {:.2} ms)", raw / ours, ours * 1e3, raw * 1e3);
    }
}

/// Rows of a table that is looked up by its key, by a global index and on all shards.
const LOOKUP_ROWS: u64 = 20_000;
/// Looks of one kind in a round, and rounds.
const LOOKS: u64 = 300;
const LOOK_ROUNDS: u64 = 10;

/// One row by its shard key, by a global index, and from all shards, as one client waits for it.
async fn lookup() {
    const LOOKUPS: [(&str, &str); 3] = [
        ("by key", "SELECT note FROM users WHERE id = $1"),
        ("by index", "SELECT note FROM users WHERE email = $1"),
        ("from all", "SELECT note FROM users WHERE login = $1"),
    ];
    println!("one row of {LOOKUP_ROWS} over the wire, one client, us at the median");
    for shards in [4, 16, 64, 256] {
        let isles = Server::start(Setup::Sqlite { shards }).await;
        let client = harness::connect(isles.url()).await;
        for sql in [
            "CREATE TABLE users (id bigint PRIMARY KEY, email text, login text, note text) \
             WITH (kind = 'hash', shard_by = 'id', buckets = 256)",
            &format!(
                "INSERT INTO users SELECT n, 'user-' || n || '@example.com', 'user-' || n, 'note of usual length' \
                 FROM generate_series(1, {LOOKUP_ROWS}) n"
            ),
            "CREATE INDEX users_login ON users (login)",
            "CREATE INDEX users_email ON users (email) WITH (global = true)",
            "WAIT FOR INDEX users_email",
        ] {
            client.batch_execute(sql).await.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
        }
        let mut micros = Vec::new();
        for (_, sql) in LOOKUPS {
            micros.push((client.prepare(sql).await.expect("prepared"), Vec::new()));
        }
        // The first round opens readers and fills caches.
        for round in 0..=LOOK_ROUNDS {
            for (at, (statement, all)) in micros.iter_mut().enumerate() {
                for n in 0..LOOKS {
                    let id = ((n * 7_919 + round * 104_729) % LOOKUP_ROWS + 1) as i64;
                    let (email, login) = (format!("user-{id}@example.com"), format!("user-{id}"));
                    let params: [&(dyn tokio_postgres::types::ToSql + Sync); 3] = [&id, &email, &login];
                    let began = Instant::now();
                    let rows = client.query(&*statement, &params[at..=at]).await.expect("rows");
                    let took = began.elapsed().as_secs_f64() * 1e6;
                    assert_eq!(rows.len(), 1, "one row");
                    if round > 0 {
                        all.push(took);
                    }
                }
            }
        }
        let medians: Vec<f64> = micros.into_iter().map(|(_, all)| median(all)).collect();
        print!("{shards:>4} shards");
        LOOKUPS.iter().zip(&medians).for_each(|((name, _), median)| print!("  {name} {median:.0}"));
        println!("  index/key {:.2}  all/index {:.2}", medians[1] / medians[0], medians[2] / medians[1]);
    }
}

fn measure(targets: &[Target], script: &str) -> Vec<(&'static str, Figure)> {
    measure_with(targets, script, "prepared")
}

fn measure_with(targets: &[Target], script: &str, protocol: &str) -> Vec<(&'static str, Figure)> {
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), script).expect("written");
    let mut rounds: Vec<Vec<Figure>> = targets.iter().map(|_| Vec::new()).collect();
    for _ in 0..ROUNDS {
        for (target, figures) in targets.iter().zip(&mut rounds) {
            figures.push(pgbench(target, file.path(), protocol));
        }
    }
    let middle = |figures: Vec<Figure>| Figure {
        per_second: median(figures.iter().map(|figure| figure.per_second).collect()),
        cpu_micros: median(figures.iter().map(|figure| figure.cpu_micros).collect()),
    };
    targets.iter().map(|target| target.name).zip(rounds.into_iter().map(middle)).collect()
}

fn pgbench(target: &Target, script: &Path, protocol: &str) -> Figure {
    let program = which("pgbench").expect("pgbench comes with PostgreSQL");
    let before = cpu_seconds(target.pid);
    let output = Command::new(program)
        .args(["-n", "-M", protocol, "-c", &CLIENTS.to_string(), "-j", "2", "-T", &SECONDS.to_string(), "-f"])
        .arg(script)
        .arg(&target.url)
        .output()
        .expect("pgbench runs");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "pgbench on {}: {}", target.name, String::from_utf8_lossy(&output.stderr));
    let number = |label: &str| -> f64 {
        let line =
            text.lines().find_map(|line| line.strip_prefix(label)).unwrap_or_else(|| panic!("{label} in {text}"));
        let number: String = line.chars().take_while(|c| c.is_ascii_digit() || *c == '.').collect();
        number.parse().expect("a number")
    };
    let transactions = number("number of transactions actually processed: ");
    let cpu = cpu_seconds(target.pid) - before;
    Figure { per_second: number("tps = "), cpu_micros: cpu * 1e6 / transactions }
}

/// Seconds of CPU of a process and its children, the living and the dead.
fn cpu_seconds(pid: u32) -> f64 {
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    let own = stat(pid, 13..17);
    let theirs: f64 =
        children.split_whitespace().filter_map(|child| child.parse().ok()).map(|child| stat(child, 13..15)).sum();
    own + theirs
}

fn stat(pid: u32, fields: std::ops::Range<usize>) -> f64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let Some((_, rest)) = text.rsplit_once(") ") else { return 0.0 };
    // The fields after the name begin with the third.
    let numbers: Vec<f64> = rest.split_whitespace().map(|field| field.parse().unwrap_or(0.0)).collect();
    let ticks: f64 = fields.map(|field| numbers.get(field - 2).copied().unwrap_or(0.0)).sum();
    ticks / 100.0
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn which(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let known =
        std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten().map(|entry| entry.path().join("bin"));
    std::env::split_paths(&path)
        .chain(["/usr/sbin".into()])
        .chain(known)
        .map(|folder| folder.join(program))
        .find(|file| file.is_file())
}

/// Everything against the first target.
fn report(what: &str, figures: &[(&'static str, Figure)]) {
    let (base, first) = &figures[0];
    println!("{what:32} {base}: {:.0}/s, {:.1} us of CPU", first.per_second, first.cpu_micros);
    for (name, figure) in &figures[1..] {
        println!(
            "{:32} {name}: {:.2} x  ({:.0}/s, {:.1} us of CPU)",
            "",
            figure.per_second / first.per_second,
            figure.per_second,
            figure.cpu_micros
        );
    }
}
