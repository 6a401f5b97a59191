//! What becomes of a record, decided without I/O.
//!
//! An operation reads a record, asks here, and writes the change on condition that the record's version is still the
//! one that was read; otherwise it reads again. So each decision is made of a record that nobody has changed meanwhile,
//! and it can be tested without any.
//!
//! ```text
//! rotate   the current token → its successor; the last one, within the grace window → the same successor;
//!          any other that was issued → replayed, and the family is revoked
//! poll     pending → authorization_pending, or slow_down and a longer interval; approved → once, the grant
//! ```

use super::place::Turn;
use super::record::{Outcome, Record};
use super::{MAX_VALUE_BYTES, Result};
use isles_kernel::error::SqlError;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// The largest limit of a counter.
pub const MAX_COUNT: u64 = 1_000_000_000;

/// What a poll that came too early adds to the interval (RFC 8628, 3.5).
const SLOW_DOWN_MICROS: i64 = 5_000_000;

/// The longest interval: one who polls without end is told to wait, not to wait for ever.
const MAX_INTERVAL_MICROS: i64 = 300_000_000;

/// What is written of a record. What is None stays as it is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Change {
    pub(super) value: Option<String>,
    pub(super) state: Option<String>,
    pub(super) expires_at: Option<i64>,
    pub(super) used_at: Option<i64>,
    pub(super) revoked_at: Option<i64>,
}

/// An answer, and what must be written before it is given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Decision<T> {
    pub(super) answer: T,
    pub(super) change: Option<Change>,
}

impl<T> Decision<T> {
    pub(super) fn only(answer: T) -> Decision<T> {
        Decision { answer, change: None }
    }

    pub(super) fn after(change: Change, answer: T) -> Decision<T> {
        Decision { answer, change: Some(change) }
    }
}

pub(super) fn written<T: Serialize>(state: &T) -> Result<String> {
    let text = serde_json::to_string(state)
        .map_err(|error| SqlError::new("XX000", format!("a state has no JSON form: {error}")))?;
    match text.len() <= MAX_VALUE_BYTES {
        true => Ok(text),
        false => Err(SqlError::new("54000", format!("a record's state has at most {MAX_VALUE_BYTES} bytes"))),
    }
}

pub(super) fn read<T: DeserializeOwned>(record: &Record) -> Result<T> {
    let text = record.state.as_deref().unwrap_or("null");
    serde_json::from_str(text).map_err(|error| {
        SqlError::new("XX001", format!("the state of {} is not what it should be: {error}", record.id))
    })
}

/// The tokens of a family.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Family {
    /// The number of the current token, from 1.
    number: u64,
    secret: String,
    previous: Option<String>,
    rotated_at: i64,
}

impl Family {
    pub(super) fn new(secret: String, now: i64) -> Family {
        Family { number: 1, secret, previous: None, rotated_at: now }
    }

    pub(super) fn turn(&self) -> Turn {
        Turn { number: self.number, secret: self.secret.clone() }
    }

    fn is_current(&self, turn: &Turn) -> bool {
        turn.number == self.number && same(&turn.secret, &self.secret)
    }

    fn is_last(&self, turn: &Turn) -> bool {
        turn.number + 1 == self.number && self.previous.as_deref().is_some_and(|last| same(&turn.secret, last))
    }
}

/// Compared without telling how much of it was right.
fn same(one: &str, other: &str) -> bool {
    subtle::ConstantTimeEq::ct_eq(one.as_bytes(), other.as_bytes()).into()
}

/// What a token of a family is at this moment. The family's id is as secret as its tokens are, since it is nowhere else:
/// who comes with an earlier number has had one of them.
pub(super) fn standing(record: &Record, turn: &Turn, now: i64) -> Result<Outcome> {
    let life = record.life(now);
    if life != Outcome::Ok {
        return Ok(life);
    }
    let family: Family = read(record)?;
    Ok(match () {
        () if family.is_current(turn) => Outcome::Ok,
        () if turn.number < family.number => Outcome::Replayed,
        () => Outcome::NotFound,
    })
}

/// The outcome of a rotation, and the token that is current after it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Rotated {
    pub(super) outcome: Outcome,
    pub(super) turn: Option<Turn>,
}

pub(super) fn rotate(
    record: &Record,
    turn: &Turn,
    (next, grace): (&str, i64),
    (now, expires_at): (i64, i64),
) -> Result<Decision<Rotated>> {
    let of = |outcome| Rotated { outcome, turn: None };
    let outcome = standing(record, turn, now)?;
    let family: Family = if matches!(outcome, Outcome::Ok | Outcome::Replayed) {
        read(record)?
    } else {
        return Ok(Decision::only(of(outcome)));
    };
    if outcome == Outcome::Replayed {
        if family.is_last(turn) && now - family.rotated_at < grace {
            return Ok(Decision::only(Rotated { outcome: Outcome::Ok, turn: Some(family.turn()) }));
        }
        return Ok(Decision::after(Change { revoked_at: Some(now), ..Change::default() }, of(Outcome::Replayed)));
    }
    let state =
        Family { number: family.number + 1, secret: next.into(), previous: Some(family.secret), rotated_at: now };
    let change =
        Change { state: Some(written(&state)?), expires_at: Some(expires_at.min(record.cap_at)), ..Change::default() };
    Ok(Decision::after(change, Rotated { outcome: Outcome::Ok, turn: Some(state.turn()) }))
}

/// A grant that somebody else must approve.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Grant {
    status: Status,
    interval_micros: i64,
    polled_at: Option<i64>,
    /// What the approval grants, as JSON.
    granted: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Status {
    Pending,
    Approved,
    Denied,
}

/// What a poll is told, in the words of RFC 8628.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Polled {
    /// Once.
    Granted(String),
    AuthorizationPending,
    /// And the interval is this many seconds from now on.
    SlowDown(u64),
    ExpiredToken,
    AccessDenied,
    /// Unknown, another client's, or granted before.
    InvalidGrant,
}

impl Polled {
    /// As the error of a token response; none if it is granted.
    pub fn error(&self) -> Option<&'static str> {
        Some(match self {
            Polled::Granted(_) => return None,
            Polled::AuthorizationPending => "authorization_pending",
            Polled::SlowDown(_) => "slow_down",
            Polled::ExpiredToken => "expired_token",
            Polled::AccessDenied => "access_denied",
            Polled::InvalidGrant => "invalid_grant",
        })
    }
}

impl Grant {
    pub(super) fn pending(interval_micros: i64) -> Grant {
        Grant { status: Status::Pending, interval_micros, polled_at: None, granted: None }
    }
}

/// Compares first and notes afterwards: a poll is too early when it comes within the interval after the last one, and
/// the first never is.
pub(super) fn poll(record: &Record, now: i64) -> Result<Decision<Polled>> {
    match record.life(now) {
        Outcome::Ok => {}
        Outcome::Expired => return Ok(Decision::only(Polled::ExpiredToken)),
        _ => return Ok(Decision::only(Polled::InvalidGrant)),
    }
    let grant: Grant = read(record)?;
    match (grant.status, &grant.granted) {
        (Status::Denied, _) => Ok(Decision::only(Polled::AccessDenied)),
        (Status::Approved, granted) => {
            let change = Change { used_at: Some(now), ..Change::default() };
            Ok(Decision::after(change, Polled::Granted(granted.clone().unwrap_or_else(|| "null".into()))))
        }
        (Status::Pending, _) => {
            let early = grant.polled_at.is_some_and(|last| now - last < grant.interval_micros);
            let more = if early { SLOW_DOWN_MICROS } else { 0 };
            let interval = (grant.interval_micros + more).min(MAX_INTERVAL_MICROS);
            let answer = match early {
                true => Polled::SlowDown(interval.unsigned_abs() / 1_000_000),
                false => Polled::AuthorizationPending,
            };
            let state = Grant { interval_micros: interval, polled_at: Some(now), ..grant };
            Ok(Decision::after(Change { state: Some(written(&state)?), ..Change::default() }, answer))
        }
    }
}

/// Approves a grant, or denies it. Only one that is pending can be.
pub(super) fn answer(record: &Record, granted: Option<&str>, now: i64) -> Result<Decision<Outcome>> {
    let life = record.life(now);
    if life != Outcome::Ok {
        return Ok(Decision::only(life));
    }
    let grant: Grant = read(record)?;
    if grant.status != Status::Pending {
        return Ok(Decision::only(Outcome::Conflict));
    }
    let status = if granted.is_some() { Status::Approved } else { Status::Denied };
    let state = Grant { status, granted: granted.map(str::to_owned), ..grant };
    Ok(Decision::after(Change { state: Some(written(&state)?), ..Change::default() }, Outcome::Ok))
}

/// What a counter says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Counted {
    pub allowed: bool,
    pub current: u64,
    pub limit: u64,
    /// When the window ends, in microseconds since 1970.
    pub reset_at: i64,
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const SECOND: i64 = 1_000_000;

    fn record(state: impl Serialize) -> Record {
        Record {
            id: "id".into(),
            owner: None,
            binding: None,
            value: "{}".into(),
            state: Some(written(&state).unwrap()),
            version: 1,
            created_at: 0,
            expires_at: 1_000 * SECOND,
            cap_at: 2_000 * SECOND,
            used_at: None,
            used_by: None,
            revoked_at: None,
            is_note: false,
        }
    }

    fn changed(record: &Record, change: Change) -> Record {
        Record {
            value: change.value.unwrap_or_else(|| record.value.clone()),
            state: change.state.or_else(|| record.state.clone()),
            version: record.version + 1,
            expires_at: change.expires_at.unwrap_or(record.expires_at),
            used_at: change.used_at.or(record.used_at),
            revoked_at: change.revoked_at.or(record.revoked_at),
            ..record.clone()
        }
    }

    fn turn(number: u64, secret: &str) -> Turn {
        Turn { number, secret: secret.into() }
    }

    fn rotated(record: &Record, by: &Turn, next: &str, now: i64) -> (Rotated, Record) {
        let decision = rotate(record, by, (next, 10 * SECOND), (now, now + 500 * SECOND)).unwrap();
        let after = decision.change.map_or_else(|| record.clone(), |change| changed(record, change));
        (decision.answer, after)
    }

    /// B33: who repeats a rotation within the window gets the same successor; later it is theft.
    #[test]
    fn a_repeated_rotation_is_forgiven_within_the_window() {
        let first = record(Family::new("a".into(), 0));
        let (answer, second) = rotated(&first, &turn(1, "a"), "b", SECOND);
        assert_eq!(answer.turn, Some(turn(2, "b")));
        let (again, same) = rotated(&second, &turn(1, "a"), "c", 10 * SECOND);
        assert_eq!((again.outcome, again.turn, &same), (Outcome::Ok, Some(turn(2, "b")), &second));
        let (late, dead) = rotated(&second, &turn(1, "a"), "c", 11 * SECOND);
        assert_eq!((late.outcome, dead.revoked_at), (Outcome::Replayed, Some(11 * SECOND)));
        assert_eq!(rotated(&dead, &turn(2, "b"), "d", 12 * SECOND).0.outcome, Outcome::Revoked);
    }

    /// A token two turns back is theft at once, and one that was never issued is nothing.
    #[test]
    fn reuse_of_an_older_token_revokes_the_family_and_a_forged_one_does_not() {
        let first = record(Family::new("a".into(), 0));
        let second = rotated(&first, &turn(1, "a"), "b", 1).1;
        let third = rotated(&second, &turn(2, "b"), "c", 2).1;
        assert_eq!(rotated(&third, &turn(1, "a"), "x", 3).0.outcome, Outcome::Replayed);
        for forged in [turn(3, "x"), turn(4, "c"), turn(u64::MAX, "c")] {
            let (answer, after) = rotated(&third, &forged, "x", 3);
            assert_eq!((answer.outcome, after.revoked_at), (Outcome::NotFound, None));
        }
        assert_eq!(rotated(&third, &turn(3, "c"), "d", 3).0.outcome, Outcome::Ok);
    }

    /// A rotation extends a family, and never beyond its cap.
    #[test]
    fn a_family_ends_at_its_cap() {
        let mut family = record(Family::new("0".into(), 0));
        let mut now = 0;
        for number in 1..10_u64 {
            now += 400 * SECOND;
            let (answer, after) = rotated(&family, &turn(number, &(number - 1).to_string()), &number.to_string(), now);
            if now < 2_000 * SECOND {
                assert_eq!(answer.outcome, Outcome::Ok, "at {now}");
                assert!(after.expires_at <= after.cap_at);
                family = after;
            } else {
                assert_eq!(answer.outcome, Outcome::Expired, "at {now}");
            }
        }
    }

    fn polled(record: &Record, now: i64) -> (Polled, Record) {
        let decision = poll(record, now).unwrap();
        let after = decision.change.map_or_else(|| record.clone(), |change| changed(record, change));
        (decision.answer, after)
    }

    /// B27: the first poll is not too fast, one exactly at the interval is not either, and each that is adds 5 seconds.
    #[test]
    fn polling_slows_down_by_five_seconds() {
        let device = record(Grant::pending(5 * SECOND));
        let (first, device) = polled(&device, 0);
        assert_eq!(first, Polled::AuthorizationPending);
        let (exact, device) = polled(&device, 5 * SECOND);
        assert_eq!(exact, Polled::AuthorizationPending);
        let (early, device) = polled(&device, 10 * SECOND - 1);
        assert_eq!(early, Polled::SlowDown(10));
        let (again, device) = polled(&device, 15 * SECOND);
        assert_eq!(again, Polled::SlowDown(15));
        assert_eq!(polled(&device, 30 * SECOND).0, Polled::AuthorizationPending);
    }

    /// B26: one success, then nothing.
    #[test]
    fn an_approved_grant_is_given_once() {
        let device = record(Grant::pending(5 * SECOND));
        let decision = answer(&device, Some("{\"sub\":\"u\"}"), 1).unwrap();
        let device = changed(&device, decision.change.unwrap());
        assert_eq!(answer(&device, None, 2).unwrap().answer, Outcome::Conflict);
        let (granted, device) = polled(&device, 3);
        assert_eq!(granted, Polled::Granted("{\"sub\":\"u\"}".into()));
        assert_eq!(polled(&device, 4).0, Polled::InvalidGrant);
    }

    #[test]
    fn a_denied_or_expired_grant_says_so() {
        let device = record(Grant::pending(5 * SECOND));
        assert_eq!(polled(&device, 1_000 * SECOND).0, Polled::ExpiredToken);
        assert_eq!(polled(&device, 1_000 * SECOND - 1).0, Polled::AuthorizationPending);
        let denied = changed(&device, answer(&device, None, 1).unwrap().change.unwrap());
        assert_eq!(polled(&denied, 2).0, Polled::AccessDenied);
    }
}
