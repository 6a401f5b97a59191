//! What went wrong, by code: `{"error":{"code":"resync_required","message":"…"}}` with the HTTP status of the code.

use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Code {
    /// The request is not of the form it should have. The same request will never be accepted.
    InvalidRequest,
    /// The cursor or token is not of the form it should have.
    InvalidCursor,
    TooLarge,
    Unauthenticated,
    Forbidden,
    OutboxUnavailable,
    SyncUnavailable,
    SnapshotUnavailable,
    /// The caller's partition is not the one that the request was made for.
    WrongPartition,
    /// Too much has happened since the cursor to be checked. Nothing was done; catch up and submit anew.
    ClientFarBehind,
    /// The cursor is below the floor, or not in this log.
    ResyncRequired,
    /// The request id is on record with another body.
    RequestReused,
    TooManyRequests,
    /// Others were faster, time after time. Nothing was done; send the same again.
    WriteCongestion,
    Unavailable,
    Internal,
    /// A newer server's code: the HTTP status says what to do.
    #[serde(other)]
    Other,
}

impl Code {
    pub const ALL: [Code; 17] = [
        Code::InvalidRequest,
        Code::InvalidCursor,
        Code::TooLarge,
        Code::Unauthenticated,
        Code::Forbidden,
        Code::OutboxUnavailable,
        Code::SyncUnavailable,
        Code::SnapshotUnavailable,
        Code::WrongPartition,
        Code::ClientFarBehind,
        Code::ResyncRequired,
        Code::RequestReused,
        Code::TooManyRequests,
        Code::WriteCongestion,
        Code::Unavailable,
        Code::Internal,
        Code::Other,
    ];

    /// The HTTP status that a refusal with this code has.
    pub fn http_status(self) -> u16 {
        match self {
            Code::InvalidRequest | Code::InvalidCursor => 400,
            Code::Unauthenticated => 401,
            Code::Forbidden => 403,
            Code::OutboxUnavailable | Code::SyncUnavailable | Code::SnapshotUnavailable => 404,
            Code::WrongPartition | Code::ClientFarBehind => 409,
            Code::ResyncRequired => 410,
            Code::TooLarge => 413,
            Code::RequestReused => 422,
            Code::TooManyRequests => 429,
            Code::Internal | Code::Other => 500,
            Code::WriteCongestion | Code::Unavailable => 503,
        }
    }

    /// What an answer without a readable body means, as those of proxies.
    pub fn of_status(status: u16) -> Code {
        match status {
            401 => Code::Unauthenticated,
            403 => Code::Forbidden,
            413 => Code::TooLarge,
            429 => Code::TooManyRequests,
            502..=504 => Code::Unavailable,
            _ => Code::Internal,
        }
    }
}

/// An answer that is none.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Refusal {
    pub code: Code,
    /// Short, lower case, without a period.
    pub message: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    /// Not before this time has passed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_ms: Option<u64>,
}

#[derive(Serialize, Deserialize)]
struct Body {
    error: Refusal,
}

impl Refusal {
    pub fn new(code: Code, message: impl Into<String>) -> Refusal {
        Refusal { code, message: message.into(), hint: None, retry_after_ms: None }
    }

    pub fn with_hint(mut self, hint: impl Into<String>) -> Refusal {
        self.hint = Some(hint.into());
        self
    }

    pub fn with_retry_after_ms(mut self, ms: u64) -> Refusal {
        self.retry_after_ms = Some(ms);
        self
    }

    /// The body of the answer.
    pub fn body(&self) -> serde_json::Value {
        serde_json::json!({ "error": self })
    }

    /// Reads an answer that was not a success. Whatever it is, it means something.
    pub fn read(status: u16, body: &[u8]) -> Refusal {
        match serde_json::from_slice::<Body>(body) {
            Ok(Body { error }) if error.code != Code::Other => error,
            Ok(Body { error }) => Refusal { code: Code::of_status(status), ..error },
            Err(_) => Refusal::new(Code::of_status(status), format!("the server answered with status {status}")),
        }
    }
}
