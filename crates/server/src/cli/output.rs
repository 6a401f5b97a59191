//! How modes answer: text for people, JSON for programs, and failures as either.

use serde::Serialize;
use serde_json::{Value, json};
use std::io::Write;
use std::process::ExitCode;

/// What was checked is wrong.
const CHECK_FAILED: u8 = 1;

/// The command could not be carried out: wrong arguments, unreadable files.
const NOT_CARRIED_OUT: u8 = 2;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    Text,
    Json,
}

/// The argument that every mode has.
#[derive(clap::Args, Clone, Copy)]
pub(crate) struct FormatArgument {
    /// Answer in JSON, errors too
    #[arg(long)]
    json: bool,
}

impl FormatArgument {
    pub(crate) fn format(self) -> Format {
        if self.json { Format::Json } else { Format::Text }
    }
}

/// What became of a mode that was carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    Done,
    /// What is wrong with the thing that was checked has been said.
    CheckFailed,
}

impl Outcome {
    pub(crate) fn exit_code(self) -> ExitCode {
        match self {
            Outcome::Done => ExitCode::SUCCESS,
            Outcome::CheckFailed => ExitCode::from(CHECK_FAILED),
        }
    }
}

/// Why a mode did not do what it was asked.
#[derive(Debug)]
pub(crate) struct Failure {
    exit: u8,
    /// A stable name for programs.
    code: String,
    message: String,
    /// The part of the input at fault.
    field: Option<String>,
    /// What to do about it.
    hint: Option<String>,
}

impl Failure {
    pub(crate) fn usage(message: impl Into<String>) -> Failure {
        Failure { exit: NOT_CARRIED_OUT, code: "usage".to_owned(), message: message.into(), field: None, hint: None }
    }

    pub(crate) fn check(message: impl Into<String>) -> Failure {
        Failure { exit: CHECK_FAILED, code: "invalid".to_owned(), message: message.into(), field: None, hint: None }
    }

    pub(crate) fn code(self, code: impl Into<String>) -> Failure {
        Failure { code: code.into(), ..self }
    }

    pub(crate) fn field(self, field: impl Into<String>) -> Failure {
        Failure { field: Some(field.into()), ..self }
    }

    pub(crate) fn hint(self, hint: impl Into<String>) -> Failure {
        Failure { hint: Some(hint.into()), ..self }
    }

    /// Says before its reason what could not be done.
    pub(crate) fn within(self, what: &str) -> Failure {
        Failure { message: format!("{what}: {}", self.message), ..self }
    }

    pub(crate) fn has_code(&self, code: &str) -> bool {
        self.code == code
    }

    /// Whether the server was away.
    pub(crate) fn is_unreachable(&self) -> bool {
        self.code == "unreachable" || self.code.starts_with("57P")
    }

    /// Says it on standard error.
    pub(crate) fn report(self, format: Format) -> ExitCode {
        match format {
            Format::Json => complain(&json!({ "error": self.to_json() }).to_string()),
            Format::Text => {
                complain(&format!("error: {}", self.message));
                self.hint.iter().for_each(|hint| complain(&format!("hint: {hint}")));
            }
        }
        ExitCode::from(self.exit)
    }

    fn to_json(&self) -> Value {
        let mut error = json!({ "code": self.code, "message": self.message });
        for (key, value) in [("field", &self.field), ("hint", &self.hint)] {
            if let Some(value) = value {
                error[key] = json!(value);
            }
        }
        error
    }
}

/// Carries out a command that speaks with a server.
pub(crate) fn block_on(command: impl Future<Output = Result<Outcome, Failure>>) -> Result<Outcome, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(|fault| Failure::usage(fault.to_string()))?.block_on(command)
}

/// Writes an answer. A reader that went away is no failure of ours: `isles … | head` is usual.
pub(crate) fn say(text: &str) {
    let _ = writeln!(std::io::stdout(), "{text}");
}

/// Writes a value as JSON, on one line.
pub(crate) fn say_json(value: &impl Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string(value).map_err(|fault| Failure::usage(fault.to_string()).code("internal"))?;
    say(&text);
    Ok(())
}

/// Writes to standard error. There is nowhere to report that it is closed.
pub(crate) fn complain(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}
