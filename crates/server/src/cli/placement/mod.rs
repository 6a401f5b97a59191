//! `isles placement`: placement configurations, in files and in force.
//!
//! In reading order: this file checks and explains files, without a server; [`remote`] asks a server for what is in force,
//! and changes it.

mod remote;

use super::files::{read_config, read_placement};
use super::id::{bounded_key, type_spec};
use super::output::{Failure, Format, FormatArgument, Outcome, block_on, complain, say, say_json};
use isles_kernel::id::InstanceName;
use isles_kernel::names::TenantId;
use isles_kernel::placement::{
    ConfigErrors, GenerationMap, GroupMap, Located, Placement, Timestamp, TypeName, TypeSpec, validate_change,
};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::time::SystemTime;

#[derive(clap::Subcommand)]
pub(crate) enum PlacementMode {
    /// Check a configuration, or a change of one, and list everything that is wrong
    Check(CheckArguments),
    /// Show the regions of each group, and where a key goes
    Explain(ExplainArguments),
    /// Show the generations that are in force, and when each may be removed
    Status(remote::OfTenant),
    /// Show the configuration that is in force
    Get(remote::OfTenant),
    /// Put another configuration in force
    Set(remote::SetArguments),
    /// Make a new generation; the one of now is still read
    Migrate(remote::MigrateArguments),
    /// Say whether a configuration may replace the one in force
    Validate(remote::FileArguments),
    /// Say which keys a configuration would move
    DryRun(remote::FileArguments),
    /// Show who changed the configuration, and when
    History(remote::HistoryArguments),
    /// Show how two configurations of the history differ
    Diff(remote::DiffArguments),
    /// Forget a generation that is expired or drained
    RemoveGeneration(remote::RemoveArguments),
}

#[derive(clap::Args)]
pub(crate) struct CheckArguments {
    /// The configuration to check
    file: PathBuf,
    /// The configuration that it would replace
    #[arg(long, value_name = "OLD_FILE")]
    against: Option<PathBuf>,
    /// The time of the change, in RFC 3339; now if not given
    #[arg(long, value_name = "INSTANT")]
    at: Option<Timestamp>,
    #[command(flatten)]
    format: FormatArgument,
}

#[derive(clap::Args)]
pub(crate) struct ExplainArguments {
    /// The configuration to explain
    file: PathBuf,
    /// A shard key to follow
    #[arg(long)]
    key: Option<String>,
    /// Follow the key for this type only
    #[arg(long = "type", value_name = "TYPE", requires = "key")]
    type_name: Option<String>,
    /// Name the instances of this tenant
    #[arg(long, requires = "key")]
    tenant: Option<String>,
    /// The time to look at, in RFC 3339; now if not given
    #[arg(long, value_name = "INSTANT")]
    at: Option<Timestamp>,
    #[command(flatten)]
    format: FormatArgument,
}

impl PlacementMode {
    pub(crate) fn format(&self) -> Format {
        let format = match self {
            PlacementMode::Check(arguments) => arguments.format,
            PlacementMode::Explain(arguments) => arguments.format,
            PlacementMode::Status(of) | PlacementMode::Get(of) => of.format,
            PlacementMode::Set(arguments) => arguments.change.of.format,
            PlacementMode::Migrate(arguments) => arguments.change.of.format,
            PlacementMode::Validate(arguments) | PlacementMode::DryRun(arguments) => arguments.of.format,
            PlacementMode::History(arguments) => arguments.of.format,
            PlacementMode::Diff(arguments) => arguments.of.format,
            PlacementMode::RemoveGeneration(arguments) => arguments.change.of.format,
        };
        format.format()
    }
}

pub(crate) fn run(mode: PlacementMode) -> Result<Outcome, Failure> {
    match mode {
        PlacementMode::Check(arguments) => check(&arguments),
        PlacementMode::Explain(arguments) => explain(&arguments),
        asked => block_on(ask(asked)),
    }
}

/// What needs a server.
async fn ask(mode: PlacementMode) -> Result<Outcome, Failure> {
    match mode {
        PlacementMode::Check(arguments) => check(&arguments),
        PlacementMode::Explain(arguments) => explain(&arguments),
        PlacementMode::Status(of) => remote::status(&of).await,
        PlacementMode::Get(of) => remote::get(&of).await,
        PlacementMode::Set(arguments) => remote::set(&arguments).await,
        PlacementMode::Migrate(arguments) => remote::migrate(&arguments).await,
        PlacementMode::Validate(arguments) => remote::validate(&arguments).await,
        PlacementMode::DryRun(arguments) => remote::dry_run(&arguments).await,
        PlacementMode::History(arguments) => remote::history(&arguments).await,
        PlacementMode::Diff(arguments) => remote::diff(&arguments).await,
        PlacementMode::RemoveGeneration(arguments) => remote::remove(&arguments).await,
    }
}

fn instant(given: Option<Timestamp>) -> Result<Timestamp, Failure> {
    match given {
        Some(instant) => Ok(instant),
        None => Timestamp::try_from(SystemTime::now())
            .map_err(|fault| Failure::usage(format!("the clock cannot be read: {fault}")).code("clock")),
    }
}

// ---- check ----

fn check(arguments: &CheckArguments) -> Result<Outcome, Failure> {
    let format = arguments.format.format();
    let new = match Placement::from_json(&read_config(&arguments.file)?) {
        Ok(new) => new,
        Err(errors) => return wrong(&errors, "each line names the field to correct", format),
    };
    if let Some(path) = &arguments.against {
        let now = instant(arguments.at)?;
        if let Err(errors) = validate_change(&read_placement(path)?, &new, &[], now) {
            let hint = "a generation's mapping never changes: raise currentGeneration and keep the old one as it is";
            return wrong(&errors, hint, format);
        }
    }
    match format {
        Format::Text => say(&summary(&new)),
        Format::Json => say_json(&json!({
            "valid": true,
            "errors": [],
            "currentGeneration": new.current().generation(),
        }))?,
    }
    Ok(Outcome::Done)
}

fn summary(placement: &Placement) -> String {
    let map = placement.current();
    let types = map.types().count();
    let (generation, groups) = (map.generation().get(), map.groups().len());
    let previous = placement.previous().len();
    format!("valid: generation {generation}, {groups} groups, {types} types, {previous} previous generations")
}

/// Lists the errors. As JSON they are the answer, on standard output; as text they are errors like any other.
fn wrong(errors: &ConfigErrors, hint: &str, format: Format) -> Result<Outcome, Failure> {
    match format {
        Format::Json => say_json(&json!({ "valid": false, "errors": errors.errors() }))?,
        Format::Text => {
            errors.errors().iter().for_each(|error| complain(&format!("error: {error}")));
            complain(&format!("hint: {hint}"));
        }
    }
    Ok(Outcome::CheckFailed)
}

// ---- explain ----

fn explain(arguments: &ExplainArguments) -> Result<Outcome, Failure> {
    let now = instant(arguments.at)?;
    let placement = read_placement(&arguments.file)?;
    let tenant = arguments.tenant.as_deref().map(TenantId::new).transpose();
    let tenant = tenant.map_err(|fault| Failure::usage(fault.to_string()).code("bad_tenant").field("tenant"))?;
    let maps: Vec<&GenerationMap> = placement.generations().filter(|map| map.in_force(now)).collect();
    let routes = match arguments.key.as_deref() {
        Some(key) => routes(&placement, bounded_key(key)?, arguments.type_name.as_deref(), tenant.as_ref(), now)?,
        None => Vec::new(),
    };
    match arguments.format.format() {
        Format::Text => say(&in_text(&maps, arguments.key.as_deref(), &routes)),
        Format::Json => say_json(&json!({
            "generations": maps.iter().map(|map| generation_json(map)).collect::<Vec<_>>(),
            "key": arguments.key,
            "routes": routes.iter().map(Route::to_json).collect::<Vec<_>>(),
        }))?,
    }
    Ok(Outcome::Done)
}

/// Where one key of one type is, in one generation.
struct Route {
    type_name: TypeName,
    located: Located,
    instance: Option<InstanceName>,
}

impl Route {
    fn to_json(&self) -> Value {
        json!({
            "type": self.type_name,
            "generation": self.located.generation,
            "group": self.located.group,
            "space": self.located.space,
            "shard": self.located.bucket,
            "region": self.located.region,
            "instance": self.instance.as_ref().map(InstanceName::to_string),
        })
    }

    fn to_line(&self) -> String {
        let Located { generation, group, bucket, region, .. } = &self.located;
        let instance = self.instance.as_ref().map(|name| format!("  {name}")).unwrap_or_default();
        let (type_name, generation, group) = (self.type_name.as_str(), generation.to_string(), group.as_str());
        let (bucket, region) = (bucket.to_string(), region.as_str());
        format!("  {type_name:<12}{generation:<6}{group:<20}{bucket:<7}{region:<5}{instance}").trim_end().to_owned()
    }
}

/// The read path of the key, for one type or for all.
fn routes(
    placement: &Placement,
    key: &str,
    type_name: Option<&str>,
    tenant: Option<&TenantId>,
    now: Timestamp,
) -> Result<Vec<Route>, Failure> {
    let specs: Vec<&TypeSpec> = match type_name {
        Some(name) => vec![type_spec(placement, name)?],
        None => placement.registry().types().collect(),
    };
    let mut routes = Vec::new();
    for spec in specs {
        let path = placement.read_path(&spec.name, key, now);
        for located in path.map_err(|fault| Failure::check(fault.to_string()).code("not_placed"))? {
            let instance = tenant.map(|tenant| instance_name(tenant, spec, &located)).transpose()?;
            routes.push(Route { type_name: spec.name.clone(), located, instance });
        }
    }
    Ok(routes)
}

fn instance_name(tenant: &TenantId, spec: &TypeSpec, at: &Located) -> Result<InstanceName, Failure> {
    let name = InstanceName::new(tenant.clone(), at.region.clone(), spec.prefix.clone(), at.bucket, at.generation);
    name.map_err(|fault| Failure::check(fault.to_string()).code(fault.code()))
}

fn in_text(maps: &[&GenerationMap], key: Option<&str>, routes: &[Route]) -> String {
    let mut lines = Vec::new();
    for map in maps {
        let until = map.valid_until().map_or("current".to_owned(), |until| format!("read until {until}"));
        lines.push(format!("generation {} ({until})", map.generation().get()));
        lines.extend(map.groups().iter().map(group_line));
    }
    if let Some(key) = key {
        lines.push(format!("key {key:?}"));
        lines.extend(routes.iter().map(Route::to_line));
    }
    lines.join("\n")
}

fn group_line(group: &GroupMap) -> String {
    let members: Vec<&str> = group.members().iter().map(TypeName::as_str).collect();
    let ranges: Vec<String> =
        group.ranges().iter().map(|range| format!("{} {}-{}", range.region, range.first, range.last)).collect();
    let (space, count, members) = (group.space().as_str(), group.buckets().to_string(), members.join(" "));
    let salted = if group.salt().is_some() { " (salted)" } else { "" };
    format!("  {space:<20}{count:<7}{}  [{members}]{salted}", ranges.join(", "))
}

fn generation_json(map: &GenerationMap) -> Value {
    let group = |group: &GroupMap| {
        json!({
            "group": group.group(),
            "space": group.space(),
            "totalShards": group.buckets(),
            "salted": group.salt().is_some(),
            "members": group.members(),
            "regions": group.ranges(),
        })
    };
    json!({
        "generation": map.generation(),
        "validUntil": map.valid_until().map(|until| until.to_string()),
        "groups": map.groups().iter().map(group).collect::<Vec<_>>(),
    })
}
