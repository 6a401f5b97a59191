//! Statements to a server, and its answers as texts.

use super::super::client::{Link, ServerArguments};
use super::super::output::Failure;
use super::super::sql::show::Answered;
use tokio_postgres::types::{Format, IsNull, ToSql, Type, to_sql_checked};
use tokio_postgres::{Client, SimpleQueryMessage};

/// A name as SQL writes it, whatever is in it.
pub(in crate::cli) fn identifier(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// A text as SQL writes it.
pub(in crate::cli) fn literal(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

pub(in crate::cli) struct Server {
    link: Link,
}

impl Server {
    pub(in crate::cli) async fn connect(arguments: &ServerArguments) -> Result<Server, Failure> {
        Ok(Server { link: arguments.connect().await? })
    }

    pub(in crate::cli) fn client(&self) -> &Client {
        &self.link.client
    }

    pub(in crate::cli) async fn run(&self, sql: &str) -> Result<(), Failure> {
        self.query(sql).await.map(drop)
    }

    /// One statement, and the rows that it gives, as PostgreSQL writes values.
    pub(in crate::cli) async fn query(&self, sql: &str) -> Result<Answered, Failure> {
        let messages = self.link.client.simple_query(sql).await.map_err(|error| refusal(&error))?;
        Ok(answered(messages))
    }

    /// Runs a statement, and hands on the details of what the server remarks meanwhile.
    pub(in crate::cli) async fn run_telling(&mut self, sql: &str, mut tell: impl FnMut(&str)) -> Result<(), Failure> {
        let Link { client, notices, .. } = &mut self.link;
        let mut answer = std::pin::pin!(client.simple_query(sql));
        loop {
            tokio::select! {
                biased;
                notice = notices.recv() => match notice {
                    Some(notice) => notice.detail().into_iter().for_each(&mut tell),
                    // The connection has ended; the answer says how.
                    None => return answer.await.map(drop).map_err(|error| refusal(&error)),
                },
                answer = &mut answer => return answer.map(drop).map_err(|error| refusal(&error)),
            }
        }
    }
}

fn answered(messages: Vec<SimpleQueryMessage>) -> Answered {
    let mut answered = Answered::default();
    for message in messages {
        match message {
            SimpleQueryMessage::RowDescription(columns) => {
                answered.columns = Some(columns.iter().map(|column| column.name().to_owned()).collect());
            }
            SimpleQueryMessage::Row(row) => {
                answered.rows.push((0..row.len()).map(|at| row.get(at).map(str::to_owned)).collect());
            }
            _ => {}
        }
    }
    answered
}

/// What the server refused, or that it is gone.
pub(in crate::cli) fn refusal(error: &tokio_postgres::Error) -> Failure {
    let Some(refusal) = error.as_db_error() else {
        return Failure::usage(format!("the connection has ended: {error}")).code("unreachable");
    };
    let message = match refusal.detail() {
        Some(detail) => format!("{}: {detail}", refusal.message()),
        None => refusal.message().to_owned(),
    };
    let failure = Failure::check(message).code(refusal.code().code());
    match refusal.hint() {
        Some(hint) => failure.hint(hint),
        None => failure,
    }
}

pub(in crate::cli) fn sqlstate(error: &tokio_postgres::Error) -> &str {
    error.code().map_or("", |code| code.code())
}

/// A parameter of any type, sent as the text that PostgreSQL writes for it: exact, whatever the type.
#[derive(Debug)]
pub(in crate::cli) struct Text<'a>(pub(in crate::cli) Option<&'a str>);

impl ToSql for Text<'_> {
    fn to_sql(&self, _: &Type, out: &mut bytes::BytesMut) -> Result<IsNull, Box<dyn std::error::Error + Sync + Send>> {
        match self.0 {
            Some(text) => {
                out.extend_from_slice(text.as_bytes());
                Ok(IsNull::No)
            }
            None => Ok(IsNull::Yes),
        }
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    fn encode_format(&self, _: &Type) -> Format {
        Format::Text
    }

    to_sql_checked!();
}
