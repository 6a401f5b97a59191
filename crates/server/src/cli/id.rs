//! `isles id`: makes and reads self-routing ids.

use super::files::read_placement;
use super::output::{Failure, Format, FormatArgument, Outcome, complain, say, say_json};
use isles_kernel::id::{IdError, PAR_URN_PREFIX, ResourceId, UniquePart};
use isles_kernel::names::RegionName;
use isles_kernel::placement::{
    CheckedId, IdCheckError, LocateError, Located, Placement, TypeName, TypeRegistry, TypeSpec,
};
use serde_json::json;
use std::path::{Path, PathBuf};

/// The longest shard key that is taken from the command line, in bytes.
pub(crate) const MAX_KEY_BYTES: usize = 4096;

#[derive(clap::Subcommand)]
pub(crate) enum IdMode {
    /// Make an id for a new record
    New(NewArguments),
    /// Read an id, and with a configuration check that it leads somewhere
    Parse(ParseArguments),
}

#[derive(clap::Args)]
pub(crate) struct NewArguments {
    /// The type of the record, such as session
    #[arg(long = "type", value_name = "TYPE")]
    type_name: String,
    /// The shard key; types with random keys need none
    #[arg(long)]
    key: Option<String>,
    /// The region of the record; the key's own if not given
    #[arg(long)]
    region: Option<String>,
    /// The placement configuration; the defaults if not given
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    format: FormatArgument,
}

#[derive(clap::Args)]
pub(crate) struct ParseArguments {
    /// An id, or a request uri that holds one
    id: String,
    /// The placement configuration to check against
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    format: FormatArgument,
}

impl IdMode {
    pub(crate) fn format(&self) -> Format {
        match self {
            IdMode::New(arguments) => arguments.format.format(),
            IdMode::Parse(arguments) => arguments.format.format(),
        }
    }
}

pub(crate) fn run(mode: IdMode) -> Result<Outcome, Failure> {
    match mode {
        IdMode::New(arguments) => new(&arguments),
        IdMode::Parse(arguments) => parse(&arguments),
    }
}

fn new(arguments: &NewArguments) -> Result<Outcome, Failure> {
    let placement = placement_or_defaults(arguments.config.as_deref(), arguments.format.format())?;
    let spec = type_spec(&placement, &arguments.type_name)?;
    // Version 7 is ordered by time within a process, so records made in order lie together.
    let uuid = uuid::Uuid::now_v7().to_string();
    let key = shard_key(spec, arguments.key.as_deref(), &uuid)?;
    let located = locate(&placement, spec, key, arguments.region.as_deref())?;
    let unique = UniquePart::new(&uuid).map_err(|fault| not_an_id(&fault))?;
    let minted = placement.mint(&spec.name, &located, unique);
    let id = minted.map_err(|fault| Failure::check(fault.to_string()).code("not_minted"))?;
    match arguments.format.format() {
        Format::Text => say(&id.to_string()),
        Format::Json => say_json(&described(&id, Some(spec), Some(&located)))?,
    }
    Ok(Outcome::Done)
}

fn placement_or_defaults(path: Option<&Path>, format: Format) -> Result<Placement, Failure> {
    if let Some(path) = path {
        return read_placement(path);
    }
    if format == Format::Text {
        complain("note: no configuration given, so the defaults hold");
    }
    Ok(Placement::defaults())
}

pub(crate) fn type_spec<'a>(placement: &'a Placement, name: &str) -> Result<&'a TypeSpec, Failure> {
    let registry = placement.registry();
    if registry.is_singleton(name) {
        let message = format!("{name} is a singleton and is not sharded");
        return Err(Failure::usage(message).code("singleton").field("type"));
    }
    let known = TypeName::new(name).ok().and_then(|name| registry.get(&name));
    known.ok_or_else(|| {
        let known: Vec<&str> = registry.types().map(|spec| spec.name.as_str()).collect();
        let hint = format!("the types are {}", known.join(", "));
        Failure::usage(format!("there is no type {name:?}")).code("unknown_type").field("type").hint(hint)
    })
}

/// A record with a random key is its own key. Any other is looked for by its key, so it needs the real one.
fn shard_key<'a>(spec: &TypeSpec, key: Option<&'a str>, uuid: &'a str) -> Result<&'a str, Failure> {
    match key {
        Some(key) => bounded_key(key),
        None if spec.key.as_str() == "uuid" => Ok(uuid),
        None => {
            let message = format!("type {} is keyed by {}", spec.name, spec.key);
            Err(Failure::usage(message).code("missing_key").field("key").hint("give the record's key with --key"))
        }
    }
}

pub(crate) fn bounded_key(key: &str) -> Result<&str, Failure> {
    match key.len() <= MAX_KEY_BYTES {
        true => Ok(key),
        false => {
            Err(Failure::usage(format!("the key is longer than {MAX_KEY_BYTES} bytes")).code("too_long").field("key"))
        }
    }
}

fn locate(placement: &Placement, spec: &TypeSpec, key: &str, region: Option<&str>) -> Result<Located, Failure> {
    let located = match region {
        None => placement.locate(&spec.name, key),
        Some(region) => {
            let bad = |fault: isles_kernel::names::NameError| Failure::usage(fault.to_string()).code("bad_region");
            placement.locate_in(&spec.name, key, &RegionName::new(region).map_err(bad)?)
        }
    };
    located.map_err(|fault| match &fault {
        LocateError::UnknownType { .. } | LocateError::Singleton { .. } => {
            Failure::usage(fault.to_string()).field("type")
        }
        LocateError::EmptyRegion { .. } => Failure::usage(fault.to_string())
            .code("empty_region")
            .field("region")
            .hint("isles placement explain shows the regions of each group"),
        LocateError::OtherRegion { .. } => Failure::usage(fault.to_string())
            .code("other_region")
            .field("region")
            .hint("leave --region out: a key that is looked up by hash settles its region"),
    })
}

fn parse(arguments: &ParseArguments) -> Result<Outcome, Failure> {
    let read = match arguments.id.starts_with(PAR_URN_PREFIX) {
        true => ResourceId::parse_request_uri(&arguments.id),
        false => ResourceId::parse(&arguments.id),
    };
    let id = read.map_err(|fault| not_an_id(&fault))?;
    let placement = arguments.config.as_deref().map(read_placement).transpose()?;
    let checked = placement
        .as_ref()
        .map(|placement| placement.check_id(&id))
        .transpose()
        .map_err(|fault| leads_nowhere(&fault))?;
    let built_in = TypeRegistry::built_in();
    let spec = checked.as_ref().map(|checked| checked.spec).or_else(|| built_in.by_prefix(id.prefix()));
    match arguments.format.format() {
        Format::Text => say(&in_lines(&id, spec, checked.as_ref())),
        Format::Json => say_json(&described(&id, spec, checked.as_ref().map(|checked| &checked.located)))?,
    }
    Ok(Outcome::Done)
}

fn not_an_id(fault: &IdError) -> Failure {
    Failure::check(fault.to_string()).code(fault.code()).field(fault.field().to_string()).hint(fault.hint())
}

fn leads_nowhere(fault: &IdCheckError) -> Failure {
    Failure::check(fault.to_string()).code(fault.code()).field(fault.field().to_string()).hint(fault.hint())
}

fn in_lines(id: &ResourceId, spec: Option<&TypeSpec>, checked: Option<&CheckedId<'_>>) -> String {
    let type_name = spec.map_or_else(|| "unknown".to_owned(), |spec| spec.name.to_string());
    let mut lines = vec![
        ("generation", id.generation().get().to_string()),
        ("region", id.region().to_string()),
        ("shard", id.bucket().to_string()),
        ("type", format!("{} ({type_name})", id.prefix())),
        ("uuid", id.unique().to_string()),
    ];
    if let Some(checked) = checked {
        lines.push(("group", checked.located.group.to_string()));
        let until = checked.valid_until.map(|until| until.to_string());
        lines.push(("read until", until.unwrap_or_else(|| "current generation".to_owned())));
    }
    let lines: Vec<String> = lines.into_iter().map(|(name, value)| format!("{name:<12}{value}")).collect();
    lines.join("\n")
}

fn described(id: &ResourceId, spec: Option<&TypeSpec>, located: Option<&Located>) -> serde_json::Value {
    json!({
        "id": id.to_string(),
        "generation": id.generation(),
        "region": id.region(),
        "shard": id.bucket(),
        "prefix": id.prefix(),
        "type": spec.map(|spec| &spec.name),
        "uuid": id.unique(),
        "group": located.map(|located| &located.group),
    })
}
