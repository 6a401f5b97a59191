//! A session's settings: `SET`, `SHOW`, `RESET`, as PostgreSQL has them.
//!
//!     SET        until the session ends, or taken back with its transaction
//!     SET LOCAL  until the transaction ends, whichever way
//!
//! Three states are kept: what holds now, what holds once the transaction has committed, and what held before it.
//! Savepoints keep the first two. Values are immutable maps behind a pointer, so keeping one costs nothing. What they
//! mean to statements ([`Meaning`]) is worked out once for each such map: reading the texts anew would cost more than a
//! short statement.
//!
//! A setting that PostgreSQL has and that changes no result here (`work_mem`, `jit`) is kept and shown. One that would
//! change results and does not is refused: a client that asks for `standard_conforming_strings = off` must not get
//! strings that mean something else. A name with a dot is the application's own.

use crate::database::{ServerFacts, Strategy};
use isles_engine::shard::Isolation;
use isles_kernel::error::SqlError;
use isles_kernel::names::TenantId;
use isles_kernel::placement::KNOWN_REGIONS;
use isles_sql::bind::procedure::SYSTEM_NAMESPACE;
use isles_sql::text;
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

type Result<T> = std::result::Result<T, SqlError>;
type Values = Arc<Held>;

/// Settings of the application's own, per session.
const MAX_CUSTOM: usize = 1_000;
/// Bytes of one value.
const MAX_VALUE_BYTES: usize = 64 << 10;

/// The version of PostgreSQL whose behaviour this is.
pub(crate) const SERVER_VERSION: &str = "15.12";
pub(crate) const SERVER_VERSION_NUM: &str = "150012";

pub(crate) use crate::roles::{TENANT, TENANT_LOCKED};
pub(crate) const NULL_TENANT: &str = "isles.null_tenant";
/// Whose rows of tenant tables statements read: the session's tenant's, or those of all, which an administrator may.
pub(crate) const TENANT_SCOPE: &str = "isles.tenant_scope";
/// Whether a statement that makes unique global indexes waits until it is known that rows are unique.
pub(crate) const WAIT_FOR_INDEXES: &str = "isles.wait_for_indexes";
const SCOPE_ALL: &str = "all";
/// How the database keeps tenants apart.
const STRATEGY: &str = "isles.strategy";
/// Where the client is: new records of stores with random keys are stored there.
pub const REGION: &str = "isles.region";
/// What the server around the database is.
const MAX_CONNECTIONS: &str = "max_connections";
const SSL: &str = "ssl";
/// The kind of tables that are made without one.
pub(crate) const DEFAULT_KIND: &str = "isles.default_kind";

/// What a setting takes.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Kind {
    Bool,
    /// A whole number in a range, without a unit.
    Int(i64, i64),
    Float(f64, f64),
    /// Milliseconds.
    Time,
    /// Kilobytes.
    Memory,
    /// One of these words.
    Word(&'static [&'static str]),
    /// Only this value: another one would change what statements mean.
    Only(&'static [&'static str]),
    Text,
    /// Names in a list.
    Names,
    DateStyle,
    TimeZone,
    Encoding,
    Isolation,
    Tenant,
    Region,
    /// It can be shown and not set.
    Fixed,
}

struct Known {
    name: &'static str,
    kind: Kind,
    default: &'static str,
}

const fn known(name: &'static str, kind: Kind, default: &'static str) -> Known {
    Known { name, kind, default }
}

const LEVELS: &[&str] =
    &["debug5", "debug4", "debug3", "debug2", "debug1", "debug", "log", "notice", "warning", "error"];
const ISOLATIONS: &[&str] = &["serializable", "repeatable read", "read committed", "read uncommitted"];
const MAX_INT: i64 = i32::MAX as i64;

/// In order of name, in lower case. `SHOW ALL` shows these.
const KNOWN: &[Known] = &[
    known("application_name", Kind::Text, ""),
    known("array_nulls", Kind::Only(&["on"]), "on"),
    known("backslash_quote", Kind::Word(&["safe_encoding", "on", "off"]), "safe_encoding"),
    known("bytea_output", Kind::Word(&["hex", "escape"]), "hex"),
    known("check_function_bodies", Kind::Bool, "on"),
    known("client_encoding", Kind::Encoding, "UTF8"),
    known("client_min_messages", Kind::Word(LEVELS), "notice"),
    known("constraint_exclusion", Kind::Word(&["partition", "on", "off"]), "partition"),
    known("datestyle", Kind::DateStyle, "ISO, MDY"),
    known("default_table_access_method", Kind::Text, "heap"),
    known("default_tablespace", Kind::Text, ""),
    known("default_text_search_config", Kind::Text, "pg_catalog.simple"),
    known("default_transaction_deferrable", Kind::Bool, "off"),
    known("default_transaction_isolation", Kind::Isolation, ""),
    known("default_transaction_read_only", Kind::Bool, "off"),
    known("effective_cache_size", Kind::Memory, "4194304"),
    known("enable_hashagg", Kind::Bool, "on"),
    known("enable_hashjoin", Kind::Bool, "on"),
    known("enable_indexscan", Kind::Bool, "on"),
    known("enable_mergejoin", Kind::Bool, "on"),
    known("enable_nestloop", Kind::Bool, "on"),
    known("enable_seqscan", Kind::Bool, "on"),
    known("enable_sort", Kind::Bool, "on"),
    known("escape_string_warning", Kind::Bool, "on"),
    known("extra_float_digits", Kind::Int(-15, 3), "1"),
    known("geqo", Kind::Bool, "on"),
    known("idle_in_transaction_session_timeout", Kind::Time, ""),
    known("idle_session_timeout", Kind::Time, "0"),
    known("in_hot_standby", Kind::Fixed, "off"),
    known("integer_datetimes", Kind::Fixed, "on"),
    known("intervalstyle", Kind::Word(&["postgres", "postgres_verbose", "sql_standard", "iso_8601"]), "postgres"),
    known("is_superuser", Kind::Fixed, "on"),
    known(DEFAULT_KIND, Kind::Word(&["hash", "tenant"]), "hash"),
    known(NULL_TENANT, Kind::Bool, "off"),
    known(REGION, Kind::Region, ""),
    known(STRATEGY, Kind::Fixed, "row"),
    known(TENANT, Kind::Tenant, ""),
    known(TENANT_LOCKED, Kind::Fixed, "off"),
    known(TENANT_SCOPE, Kind::Word(&["own", SCOPE_ALL]), "own"),
    known(WAIT_FOR_INDEXES, Kind::Bool, "on"),
    known("jit", Kind::Bool, "off"),
    known("lc_collate", Kind::Fixed, "C"),
    known("lc_ctype", Kind::Fixed, "C"),
    known("lc_messages", Kind::Only(&["C", ""]), "C"),
    known("lc_monetary", Kind::Only(&["C"]), "C"),
    known("lc_numeric", Kind::Only(&["C"]), "C"),
    known("lc_time", Kind::Only(&["C"]), "C"),
    known("lock_timeout", Kind::Time, "0"),
    known("maintenance_work_mem", Kind::Memory, "65536"),
    known(MAX_CONNECTIONS, Kind::Fixed, ""),
    known("max_identifier_length", Kind::Fixed, "63"),
    known("max_index_keys", Kind::Fixed, "32"),
    known("max_parallel_workers_per_gather", Kind::Int(0, 1024), "2"),
    known("max_prepared_transactions", Kind::Fixed, "0"),
    known("password_encryption", Kind::Only(&["scram-sha-256"]), "scram-sha-256"),
    known("plan_cache_mode", Kind::Word(&["auto", "force_generic_plan", "force_custom_plan"]), "auto"),
    known("quote_all_identifiers", Kind::Bool, "off"),
    known("random_page_cost", Kind::Float(0.0, f64::MAX), "4"),
    known("role", Kind::Text, "none"),
    known("row_security", Kind::Bool, "on"),
    known("search_path", Kind::Names, "\"$user\", public"),
    known("seed", Kind::Only(&["0"]), "0"),
    known("seq_page_cost", Kind::Float(0.0, f64::MAX), "1"),
    known("server_encoding", Kind::Fixed, "UTF8"),
    known("server_version", Kind::Fixed, SERVER_VERSION),
    known("server_version_num", Kind::Fixed, SERVER_VERSION_NUM),
    known("session_authorization", Kind::Text, ""),
    known("session_replication_role", Kind::Only(&["origin"]), "origin"),
    known(SSL, Kind::Fixed, "off"),
    known("standard_conforming_strings", Kind::Only(&["on"]), "on"),
    known("statement_timeout", Kind::Time, "0"),
    known("synchronize_seqscans", Kind::Bool, "on"),
    known("synchronous_commit", Kind::Only(&["on"]), "on"),
    known("temp_buffers", Kind::Memory, "8192"),
    known("timezone", Kind::TimeZone, "UTC"),
    known("transaction_deferrable", Kind::Bool, "off"),
    known("transaction_isolation", Kind::Isolation, ""),
    known("transaction_read_only", Kind::Bool, "off"),
    known("transform_null_equals", Kind::Only(&["off"]), "off"),
    known("wal_level", Kind::Fixed, "replica"),
    known("work_mem", Kind::Memory, "4096"),
    known("xmlbinary", Kind::Word(&["base64", "hex"]), "base64"),
    known("xmloption", Kind::Word(&["content", "document"]), "content"),
];

/// Clients are told of these when they change, under these names.
const REPORTED: &[(&str, &str)] = &[
    ("application_name", "application_name"),
    ("client_encoding", "client_encoding"),
    ("DateStyle", "datestyle"),
    ("default_transaction_read_only", "default_transaction_read_only"),
    ("in_hot_standby", "in_hot_standby"),
    ("integer_datetimes", "integer_datetimes"),
    ("IntervalStyle", "intervalstyle"),
    ("is_superuser", "is_superuser"),
    ("server_encoding", "server_encoding"),
    ("server_version", "server_version"),
    ("session_authorization", "session_authorization"),
    ("standard_conforming_strings", "standard_conforming_strings"),
    ("TimeZone", "timezone"),
];

/// A setting's name as PostgreSQL spells it.
pub(crate) fn spelling(name: &str) -> &str {
    REPORTED.iter().find(|(_, setting)| *setting == name).map_or(name, |(spelled, _)| spelled)
}

/// Whose tenant a session acts for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Tenant {
    /// Nobody has said: statements on tenant tables are refused.
    Unset,
    /// The null tenant, chosen on purpose.
    None,
    Name(TenantId),
    /// All of them, to be read: an administrator has asked for it.
    Every,
}

fn find(name: &str) -> Option<&'static Known> {
    KNOWN.iter().find(|known| known.name == name)
}

fn unrecognized(name: &str) -> SqlError {
    SqlError::new("42704", format!("unrecognized configuration parameter \"{name}\""))
}

fn invalid(name: &str, value: &str) -> SqlError {
    SqlError::new("22023", format!("invalid value for parameter \"{name}\": \"{value}\""))
}

/// Values by name.
#[derive(Default)]
struct Held {
    texts: BTreeMap<String, String>,
    meaning: OnceLock<Arc<Meaning>>,
}

impl Clone for Held {
    /// Who clones is about to change something.
    fn clone(&self) -> Held {
        Held { texts: self.texts.clone(), meaning: OnceLock::new() }
    }
}

/// What the settings mean to a statement.
pub(crate) struct Meaning {
    /// What statements are planned differently for.
    pub(crate) plan_key: Arc<str>,
    /// The schemas of `search_path`, without quotes; those that do not exist, too.
    pub(crate) search_path: Vec<String>,
    pub(crate) tenant: Tenant,
    /// Tells apart who shares a server: the hash of the tenant's name, or of the role's where there is none.
    pub(crate) whose: u64,
    pub(crate) statement_timeout: Option<Duration>,
    pub(crate) lock_timeout: Option<Duration>,
    pub(crate) idle_timeout: Option<Duration>,
    /// How long a session without a transaction waits for its client.
    pub(crate) idle_session_timeout: Option<Duration>,
    /// The least of notices that the client is told, as a place in [`LEVELS`].
    least_notice: usize,
    /// The modes that a transaction has by itself.
    pub(crate) isolation: Isolation,
    pub(crate) read_only: bool,
    /// How values are read and written; a time zone may turn out to be none.
    values: Result<text::Settings>,
}

impl Meaning {
    fn of(texts: &BTreeMap<String, String>) -> Meaning {
        let raw = |name: &str| texts.get(name).map_or("", String::as_str);
        // Zero is none.
        let time = |name: &str| raw(name).parse().ok().filter(|ms| *ms > 0).map(Duration::from_millis);
        let search_path = search_path(raw("search_path"), raw("session_authorization"));
        let planned = ["timezone", "datestyle", "intervalstyle", DEFAULT_KIND, TENANT_SCOPE];
        Meaning {
            plan_key: format!("{}\n{}", planned.map(raw).join("\n"), search_path.join("\n")).into(),
            search_path,
            tenant: match raw(TENANT_SCOPE) {
                SCOPE_ALL => Tenant::Every,
                _ => tenant(raw(TENANT), raw(NULL_TENANT) == "on"),
            },
            whose: match raw(TENANT) {
                "" => hash(("role", raw("session_authorization"))),
                tenant => hash(("tenant", tenant)),
            },
            statement_timeout: time("statement_timeout"),
            lock_timeout: time("lock_timeout"),
            idle_timeout: time("idle_in_transaction_session_timeout"),
            idle_session_timeout: time("idle_session_timeout"),
            least_notice: level_of(raw("client_min_messages")),
            isolation: isolation_of(raw("default_transaction_isolation")).unwrap_or_default(),
            read_only: raw("default_transaction_read_only") == "on",
            values: values(raw),
        }
    }

    /// Whether the client wants to be told of notices of this severity.
    pub(crate) fn tells(&self, severity: &str) -> bool {
        level_of(&severity.to_ascii_lowercase()) >= self.least_notice
    }

    /// How values are read and written by a transaction that began at `now`.
    pub(crate) fn values(&self, now: i64) -> Result<text::Settings> {
        self.values.clone().map(|values| text::Settings { now, ..values })
    }
}

fn level_of(word: &str) -> usize {
    LEVELS.iter().position(|level| *level == word).unwrap_or_default()
}

fn hash(what: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    what.hash(&mut hasher);
    hasher.finish()
}

/// The names of a list, in which a comma or a capital stands only within quotes.
fn search_path(path: &str, user: &str) -> Vec<String> {
    let (mut names, mut name, mut quoted) = (Vec::new(), String::new(), false);
    let mut letters = path.chars().peekable();
    while let Some(letter) = letters.next() {
        match letter {
            '"' if quoted && letters.peek() == Some(&'"') => {
                letters.next();
                name.push('"');
            }
            '"' => quoted = !quoted,
            ',' if !quoted => names.push(std::mem::take(&mut name)),
            letter if quoted => name.push(letter),
            letter if letter.is_whitespace() => {}
            letter => name.push(letter.to_ascii_lowercase()),
        }
    }
    names.push(name);
    // The first role of a database is called as the system's schema is; what it creates is its own.
    let own = |name: String| match name == "$user" {
        true => Some(user).filter(|user| *user != SYSTEM_NAMESPACE).map(str::to_string),
        false => Some(name),
    };
    names.into_iter().filter(|name| !name.is_empty()).filter_map(own).collect()
}

fn tenant(name: &str, null: bool) -> Tenant {
    match TenantId::new(name) {
        _ if null => Tenant::None,
        Ok(name) => Tenant::Name(name),
        // The empty name, since others were checked when they were set.
        Err(_) => Tenant::Unset,
    }
}

fn values<'a>(raw: impl Fn(&str) -> &'a str) -> Result<text::Settings> {
    let mut values = text::Settings::default();
    for name in ["datestyle", "intervalstyle", "timezone", "bytea_output", "extra_float_digits"] {
        values.set(name, raw(name))?;
    }
    Ok(values)
}

#[derive(Clone)]
pub(crate) struct Settings {
    /// What holds now.
    current: Values,
    /// What holds once the transaction has committed.
    session: Values,
    /// What held before the transaction; outside of one, None.
    before: Option<Values>,
    /// What a reset goes back to: defaults, and what the client said when it connected.
    defaults: Values,
    /// What the client has been told, and the values that it was taken from.
    reported: (BTreeMap<&'static str, String>, Option<Values>),
}

/// The settings of one moment.
#[derive(Clone)]
pub(crate) struct View(Values);

impl View {
    /// The value as `SHOW` shows it.
    pub(crate) fn show(&self, name: &str) -> Option<String> {
        let name = canonical(name);
        let value = self.0.texts.get(&name)?;
        Some(match find(&name).map(|known| known.kind) {
            Some(Kind::Time) => {
                with_unit(value, &[("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1_000)], "ms")
            }
            Some(Kind::Memory) => with_unit(value, &[("TB", 1 << 30), ("GB", 1 << 20), ("MB", 1 << 10)], "kB"),
            _ => value.to_string(),
        })
    }

    /// All settings with their values, in order of name.
    pub(crate) fn all(&self) -> Vec<(String, String)> {
        self.0.texts.keys().map(|name| (name.clone(), self.show(name).unwrap_or_default())).collect()
    }
}

/// What a savepoint goes back to.
#[derive(Clone)]
pub(crate) struct Mark {
    current: Values,
    session: Values,
}

impl Settings {
    /// `isolation` and `idle` are the database's own defaults.
    pub(crate) fn new(user: &str, isolation: Isolation, idle_ms: u64) -> Settings {
        let mut texts: BTreeMap<String, String> =
            KNOWN.iter().map(|known| (known.name.to_string(), known.default.to_string())).collect();
        let level = isolation_name(isolation);
        texts.insert("default_transaction_isolation".into(), level.into());
        texts.insert("transaction_isolation".into(), level.into());
        texts.insert("idle_in_transaction_session_timeout".into(), idle_ms.to_string());
        texts.insert("session_authorization".into(), user.into());
        let values = Arc::new(Held { texts, meaning: OnceLock::new() });
        Settings {
            current: values.clone(),
            session: values.clone(),
            before: None,
            defaults: values,
            reported: (BTreeMap::new(), None),
        }
    }

    /// What the session's role is.
    pub(crate) fn describe_role(&mut self, admin: bool, locked: bool) {
        let word = |on: bool| Some(if on { "on" } else { "off" }.to_string());
        self.put("is_superuser", word(admin), false);
        self.put(TENANT_LOCKED, word(locked), false);
    }

    /// What the session is told of its database.
    pub(crate) fn describe_database(&mut self, strategy: Strategy, server: ServerFacts) {
        self.put(STRATEGY, Some(strategy.name().into()), false);
        self.put(MAX_CONNECTIONS, Some(server.max_connections.to_string()), false);
        self.put(SSL, Some(on_off(server.tls).into()), false);
    }

    /// Takes what the client said when it connected as what a reset goes back to.
    pub(crate) fn settle_startup(&mut self) {
        self.defaults = self.session.clone();
    }

    /// The value as it is kept.
    fn raw(&self, name: &str) -> Option<&str> {
        self.current.texts.get(name).map(String::as_str)
    }

    pub(crate) fn meaning(&self) -> &Arc<Meaning> {
        self.current.meaning.get_or_init(|| Arc::new(Meaning::of(&self.current.texts)))
    }

    pub(crate) fn view(&self) -> View {
        View(self.current.clone())
    }

    /// The value as `SHOW` shows it.
    pub(crate) fn show(&self, name: &str) -> Option<String> {
        self.view().show(name)
    }

    pub(crate) fn show_or_fail(&self, name: &str) -> Result<String> {
        self.show(name).ok_or_else(|| unrecognized(name))
    }

    /// Sets a value for the session, or for the transaction alone.
    pub(crate) fn set(&mut self, name: &str, value: &str, local: bool) -> Result<()> {
        let name = canonical(name);
        let value = self.checked(&name, value)?;
        self.put(&name, Some(value.clone()), local);
        match name.as_str() {
            // The two say one thing, and the later one holds.
            TENANT if !value.is_empty() => self.put(NULL_TENANT, Some("off".into()), local),
            NULL_TENANT if value == "on" => self.put(TENANT, Some(String::new()), local),
            _ => {}
        }
        Ok(())
    }

    fn checked(&self, name: &str, value: &str) -> Result<String> {
        if value.len() > MAX_VALUE_BYTES {
            return Err(SqlError::new("54000", format!("a setting has at most {MAX_VALUE_BYTES} bytes")));
        }
        match find(name) {
            Some(known) => {
                let value = check(known, value)?;
                self.check_scope(name, &value)?;
                Ok(value)
            }
            None if !name.contains('.') => Err(unrecognized(name)),
            None if name.starts_with("isles.") => Err(unrecognized(name)),
            None if self.current.texts.len() >= KNOWN.len() + MAX_CUSTOM && !self.current.texts.contains_key(name) => {
                Err(SqlError::new("54000", format!("a session has at most {MAX_CUSTOM} settings of its own")))
            }
            None => Ok(value.to_string()),
        }
    }

    /// Whoever sets it, and however: a role's own settings and a connection's options come this way, too (I-41).
    fn check_scope(&self, name: &str, value: &str) -> Result<()> {
        if name != TENANT_SCOPE || value != SCOPE_ALL {
            return Ok(());
        }
        if self.raw("is_superuser") != Some("on") {
            let error = SqlError::new("42501", "permission denied to read the rows of all tenants");
            return Err(error.with_hint("a role that is an administrator may"));
        }
        match self.raw(STRATEGY) == Some(Strategy::Row.name()) {
            true => Ok(()),
            false => Err(SqlError::unsupported("each tenant has a shard of its own, and nothing reads all of them")
                .with_hint("set isles.tenant, and ask for each")),
        }
    }

    fn put(&mut self, name: &str, value: Option<String>, local: bool) {
        let change = |values: &mut Values| match &value {
            Some(value) => drop(changed(values).insert(name.to_string(), value.clone())),
            None => drop(changed(values).remove(name)),
        };
        change(&mut self.current);
        // Outside of a transaction LOCAL has no effect; whoever calls has warned.
        if !local {
            change(&mut self.session);
        } else if self.before.is_none() {
            self.current = self.session.clone();
        }
    }

    pub(crate) fn reset(&mut self, name: &str, local: bool) -> Result<()> {
        let name = canonical(name);
        match find(&name) {
            None if !name.contains('.') => return Err(unrecognized(&name)),
            Some(known) if known.kind == Kind::Fixed => return Err(fixed(&name)),
            _ => {}
        }
        let value = self.defaults.texts.get(&name).cloned();
        self.put(&name, value, local);
        Ok(())
    }

    pub(crate) fn reset_all(&mut self) {
        let keep =
            ["transaction_isolation", "transaction_read_only", "transaction_deferrable", "session_authorization"];
        let mut values = (*self.defaults).clone();
        for name in keep {
            if let Some(value) = self.current.texts.get(name) {
                values.texts.insert(name.into(), value.clone());
            }
        }
        self.current = Arc::new(values);
        self.session = self.current.clone();
    }

    pub(crate) fn begin(&mut self) {
        self.before.get_or_insert_with(|| self.session.clone());
    }

    pub(crate) fn mark(&self) -> Mark {
        Mark { current: self.current.clone(), session: self.session.clone() }
    }

    pub(crate) fn rewind(&mut self, mark: &Mark) {
        self.current = mark.current.clone();
        self.session = mark.session.clone();
    }

    pub(crate) fn commit(&mut self) {
        self.before = None;
        self.current = self.session.clone();
    }

    pub(crate) fn rollback(&mut self) {
        if let Some(before) = self.before.take() {
            self.session = before;
        }
        self.current = self.session.clone();
    }

    /// What a transaction is, shown for as long as it lasts.
    pub(crate) fn show_modes(&mut self, isolation: Isolation, read_only: bool) {
        self.put("transaction_isolation", Some(isolation_name(isolation).into()), true);
        self.put("transaction_read_only", Some(on_off(read_only).into()), true);
    }

    /// Reported settings that the client does not know yet.
    pub(crate) fn take_changes(&mut self) -> Vec<(String, String)> {
        let (told, from) = &mut self.reported;
        if from.as_ref().is_some_and(|from| Arc::ptr_eq(from, &self.current)) {
            return Vec::new();
        }
        let view = View(self.current.clone());
        *from = Some(self.current.clone());
        let mut changes = Vec::new();
        for (shown, name) in REPORTED {
            let value = view.show(name).unwrap_or_default();
            if told.get(shown) != Some(&value) {
                told.insert(shown, value.clone());
                changes.push(((*shown).to_string(), value));
            }
        }
        changes
    }

    pub(crate) fn is_on(&self, name: &str) -> bool {
        self.raw(name) == Some("on")
    }
}

/// The texts, to be changed: whatever was worked out from them goes.
fn changed(values: &mut Values) -> &mut BTreeMap<String, String> {
    let held = Arc::make_mut(values);
    held.meaning = OnceLock::new();
    &mut held.texts
}

/// Names are compared without case, and two have a second one.
fn canonical(name: &str) -> String {
    match name.to_ascii_lowercase().as_str() {
        "time zone" => "timezone".into(),
        "session characteristics" => "default_transaction_isolation".into(),
        lower => lower.into(),
    }
}

fn on_off(value: bool) -> &'static str {
    if value { "on" } else { "off" }
}

fn fixed(name: &str) -> SqlError {
    SqlError::new("55P02", format!("parameter \"{name}\" cannot be changed"))
}

fn check(known: &Known, value: &str) -> Result<String> {
    let bad = || invalid(known.name, value);
    match known.kind {
        Kind::Fixed => Err(fixed(known.name)),
        Kind::Bool => boolean(value)
            .map(|value| on_off(value).into())
            .ok_or_else(|| SqlError::new("22023", format!("parameter \"{}\" requires a Boolean value", known.name))),
        Kind::Int(low, high) => {
            let number: i64 = value.trim().parse().map_err(|_| bad())?;
            in_range(known.name, number, low, high).map(|number| number.to_string())
        }
        Kind::Float(low, high) => {
            let number: f64 = value.trim().parse().map_err(|_| bad())?;
            if (low..=high).contains(&number) { Ok(value.trim().to_string()) } else { Err(bad()) }
        }
        Kind::Time => {
            let units = [("us", 0.001), ("ms", 1.0), ("s", 1e3), ("min", 6e4), ("h", 3.6e6), ("d", 8.64e7)];
            let number = amount(value, &units).ok_or_else(bad)?;
            in_range(known.name, number, 0, MAX_INT).map(|number| number.to_string())
        }
        Kind::Memory => {
            let units = [("B", 1.0 / 1024.0), ("kB", 1.0), ("MB", 1024.0), ("GB", 1048576.0), ("TB", 1073741824.0)];
            let number = amount(value, &units).ok_or_else(bad)?;
            in_range(known.name, number, 0, MAX_INT).map(|number| number.to_string())
        }
        Kind::Word(words) => word(words, value).ok_or_else(|| with_words(bad(), words)),
        Kind::Only(words) => only(known.name, words, value),
        Kind::Text => Ok(value.to_string()),
        Kind::Names => Ok(value.to_string()),
        Kind::DateStyle => date_style(value).ok_or_else(bad),
        Kind::TimeZone => time_zone(value).ok_or_else(bad),
        Kind::Encoding => {
            // As PostgreSQL, by its letters and digits alone: asyncpg says 'utf-8' with the quotes.
            let name: String = value.chars().filter(char::is_ascii_alphanumeric).collect();
            match name.to_ascii_uppercase().as_str() {
                "UTF8" | "UNICODE" => Ok("UTF8".into()),
                _ => Err(SqlError::unsupported(format!("client encoding \"{value}\" is not supported"))
                    .with_hint("use UTF8")),
            }
        }
        Kind::Isolation => word(ISOLATIONS, value).ok_or_else(|| with_words(bad(), ISOLATIONS)),
        Kind::Tenant => match value.is_empty() {
            true => {
                Err(bad().with_hint("RESET isles.tenant unsets it; SET isles.null_tenant = on chooses the null tenant"))
            }
            false => {
                TenantId::new(value).map(|_| value.to_string()).map_err(|error| bad().with_detail(error.to_string()))
            }
        },
        Kind::Region => match value.is_empty() || KNOWN_REGIONS.contains(&value) {
            true => Ok(value.to_string()),
            false => Err(with_words(bad(), &KNOWN_REGIONS)),
        },
    }
}

fn with_words(error: SqlError, words: &[&str]) -> SqlError {
    error.with_hint(format!("Available values: {}.", words.join(", ")))
}

fn word(words: &[&str], value: &str) -> Option<String> {
    words.iter().find(|word| word.eq_ignore_ascii_case(value)).map(|word| (*word).to_string())
}

/// For settings of which only some values are true here.
fn only(name: &str, words: &[&'static str], value: &str) -> Result<String> {
    let same =
        |word: &&&str| word.eq_ignore_ascii_case(value) || (boolean(word).is_some() && boolean(word) == boolean(value));
    match words.iter().find(same) {
        Some(word) => Ok((*word).to_string()),
        None => Err(SqlError::unsupported(format!("parameter \"{name}\" can only be \"{}\"", words[0]))),
    }
}

fn boolean(value: &str) -> Option<bool> {
    let value = value.to_ascii_lowercase();
    let is = |word: &str, least: usize| value.len() >= least && word.starts_with(&value);
    match value.as_str() {
        "1" => Some(true),
        "0" => Some(false),
        _ if is("true", 1) || is("yes", 1) || value == "on" => Some(true),
        _ if is("false", 1) || is("no", 1) || is("off", 2) => Some(false),
        _ => None,
    }
}

fn in_range(name: &str, number: i64, low: i64, high: i64) -> Result<i64> {
    if (low..=high).contains(&number) {
        return Ok(number);
    }
    let message = format!("{number} is outside the valid range for parameter \"{name}\" ({low} .. {high})");
    Err(SqlError::new("22023", message))
}

/// A number with a unit, in the base unit. Without one it is in the base unit already.
fn amount(value: &str, units: &[(&str, f64)]) -> Option<i64> {
    let value = value.trim();
    let end = value.find(|c: char| !(c.is_ascii_digit() || ".-+".contains(c))).unwrap_or(value.len());
    let (number, unit) = value.split_at(end);
    let number: f64 = number.parse().ok()?;
    let factor = match unit.trim() {
        "" => 1.0,
        unit => units.iter().find(|(name, _)| *name == unit)?.1,
    };
    Some((number * factor).round_ties_even() as i64)
}

/// The largest unit that divides the value.
fn with_unit(value: &str, units: &[(&str, i64)], base: &str) -> String {
    match value.parse::<i64>() {
        Ok(0) | Err(_) => value.to_string(),
        Ok(number) => match units.iter().find(|(_, factor)| number % factor == 0) {
            Some((unit, factor)) => format!("{}{unit}", number / factor),
            None => format!("{number}{base}"),
        },
    }
}

/// `ISO`, an order, or both, in either order.
fn date_style(value: &str) -> Option<String> {
    let (mut style, mut order) = ("ISO", "MDY");
    for part in value.split(',').map(|part| part.trim().to_ascii_lowercase()) {
        match part.as_str() {
            "iso" => style = "ISO",
            "sql" => style = "SQL",
            "postgres" => style = "Postgres",
            "german" => (style, order) = ("German", "DMY"),
            "ymd" => order = "YMD",
            "mdy" | "us" | "noneuro" | "noneuropean" => order = "MDY",
            "dmy" | "euro" | "european" => order = "DMY",
            "default" => (style, order) = ("ISO", "MDY"),
            _ => return None,
        }
    }
    Some(format!("{style}, {order}"))
}

/// Names of the time zone database, and fixed offsets as PostgreSQL writes them. Whether a name exists is known to
/// whoever computes with it.
fn time_zone(value: &str) -> Option<String> {
    let name = value.trim();
    if name.eq_ignore_ascii_case("utc") || name.eq_ignore_ascii_case("zulu") {
        return Some(if name.len() == 3 { "UTC".into() } else { name.into() });
    }
    let known = |c: char| c.is_ascii_alphanumeric() || "/_+-:<>.".contains(c);
    (!name.is_empty() && name.chars().all(known)).then(|| name.to_string())
}

pub(crate) fn isolation_name(isolation: Isolation) -> &'static str {
    match isolation {
        Isolation::ReadCommitted => "read committed",
        Isolation::RepeatableRead => "repeatable read",
        Isolation::Serializable => "serializable",
    }
}

fn isolation_of(name: &str) -> Option<Isolation> {
    Some(match name {
        // As in PostgreSQL, nobody reads what is not committed.
        "read committed" | "read uncommitted" => Isolation::ReadCommitted,
        "repeatable read" => Isolation::RepeatableRead,
        "serializable" => Isolation::Serializable,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings() -> Settings {
        Settings::new("alice", Isolation::Serializable, 60_000)
    }

    #[test]
    fn known_names_are_in_order() {
        assert!(KNOWN.windows(2).all(|pair| pair[0].name < pair[1].name));
        assert!(REPORTED.iter().all(|(_, name)| find(name).is_some()));
    }

    #[test]
    fn values_are_checked_and_shown_as_postgresql_does() {
        let mut settings = settings();
        for (name, value, shown) in [
            ("statement_timeout", "5000", "5s"),
            ("statement_timeout", "1min", "1min"),
            ("statement_timeout", "1500", "1500ms"),
            ("lock_timeout", "0", "0"),
            ("work_mem", "4MB", "4MB"),
            ("work_mem", "1234", "1234kB"),
            ("extra_float_digits", "3", "3"),
            ("DateStyle", "German", "German, DMY"),
            ("DateStyle", "ymd", "ISO, YMD"),
            ("client_encoding", "utf-8", "UTF8"),
            ("client_encoding", "'utf-8'", "UTF8"),
            ("row_security", "f", "off"),
            ("standard_conforming_strings", "true", "on"),
            ("TimeZone", "Europe/Berlin", "Europe/Berlin"),
            ("myapp.user", "7", "7"),
        ] {
            settings.set(name, value, false).expect(name);
            assert_eq!(settings.show(name).as_deref(), Some(shown), "{name} = {value}");
        }
        for (name, value, code) in [
            ("nonsense", "1", "42704"),
            ("statement_timeout", "-1", "22023"),
            ("statement_timeout", "1 week", "22023"),
            ("server_version", "16", "55P02"),
            ("standard_conforming_strings", "off", "0A000"),
            ("client_encoding", "latin1", "0A000"),
            ("isles.tenant", "", "22023"),
            ("isles.region", "mars", "22023"),
            ("isles.other", "x", "42704"),
            ("default_transaction_isolation", "chaos", "22023"),
        ] {
            assert_eq!(settings.set(name, value, false).expect_err(name).sqlstate, code, "{name} = {value}");
        }
    }

    #[test]
    fn a_setting_lives_as_long_as_its_transaction_says() {
        let mut settings = settings();
        let zone = |settings: &Settings| settings.show("timezone").unwrap_or_default();
        settings.begin();
        settings.set("timezone", "A", false).expect("valid");
        let mark = settings.mark();
        settings.set("timezone", "B", true).expect("valid");
        assert_eq!(zone(&settings), "B");
        settings.rewind(&mark);
        assert_eq!(zone(&settings), "A");
        settings.set("timezone", "C", true).expect("valid");
        settings.commit();
        assert_eq!(zone(&settings), "A");
        settings.begin();
        settings.set("timezone", "D", false).expect("valid");
        settings.rollback();
        assert_eq!(zone(&settings), "A");
        settings.set("timezone", "E", true).expect("valid");
        assert_eq!(zone(&settings), "A", "LOCAL has no effect outside of a transaction");
    }

    #[test]
    fn a_tenant_is_unset_none_or_a_name() {
        let mut settings = settings();
        assert_eq!(settings.meaning().tenant, Tenant::Unset);
        settings.set(TENANT, "acme", false).expect("valid");
        assert_eq!(settings.meaning().tenant, Tenant::Name(TenantId::new("acme").expect("valid")));
        settings.set(NULL_TENANT, "on", false).expect("valid");
        assert_eq!(settings.meaning().tenant, Tenant::None);
        settings.set(TENANT, "acme", false).expect("valid");
        assert_ne!(settings.meaning().tenant, Tenant::None);
        settings.reset(TENANT, false).expect("valid");
        assert_eq!(settings.meaning().tenant, Tenant::Unset);
    }

    #[test]
    fn clients_are_told_of_changes_once() {
        let mut settings = settings();
        assert_eq!(settings.take_changes().len(), REPORTED.len());
        settings.set("timezone", "Asia/Tokyo", false).expect("valid");
        assert_eq!(settings.take_changes(), vec![("TimeZone".to_string(), "Asia/Tokyo".to_string())]);
        assert!(settings.take_changes().is_empty());
    }
}
