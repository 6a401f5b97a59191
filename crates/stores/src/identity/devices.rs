//! Grants that somebody else approves: device codes (RFC 8628) and CIBA.
//!
//! A device polls with its code, which is an id; a person enters the user code, which a global unique index leads to the
//! record. The first character of a user code says the region, so codes of different regions are different, and one
//! region is asked.

use crate::decide::{self, Polled};
use crate::{Address, Desk, Outcome, Put, Record, Reply, Result, place, spec};
use isles_kernel::error::SqlError;
use isles_kernel::names::TenantId;
use isles_kernel::placement::KNOWN_REGIONS;
use std::time::Duration;

/// Without those that are mistaken for others.
const ALPHABET: &[u8; 31] = b"23456789ABCDEFGHJKMNPQRSTUVWXYZ";
const CODE_CHARS: usize = 8;
/// Codes that are tried, before it must be something else.
const CODE_ATTEMPTS: usize = 8;
/// The shortest and the longest interval that a client may be told.
const INTERVALS: std::ops::RangeInclusive<u64> = 1..=60;

/// Which of the two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Device {
    Code,
    Ciba,
}

impl Device {
    /// The one that a store is of.
    pub fn of_store(name: &str) -> Option<Device> {
        [Device::Code, Device::Ciba].into_iter().find(|device| device.store() == name)
    }

    fn store(self) -> &'static str {
        match self {
            Device::Code => "device",
            Device::Ciba => "ciba",
        }
    }
}

/// What a device is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Started {
    pub device_code: String,
    /// `ABCD-EFGH`.
    pub user_code: String,
    pub interval: u64,
    pub record: Record,
}

/// A user code as it is stored: upper case, with its hyphen. None if it is none.
pub fn normalized_code(entered: &str) -> Option<String> {
    let code: Vec<u8> =
        entered.bytes().filter(|byte| !matches!(byte, b'-' | b' ')).map(|byte| byte.to_ascii_uppercase()).collect();
    let known = code.len() == CODE_CHARS && code.iter().all(|byte| ALPHABET.contains(byte));
    known.then(|| shown(&code))
}

fn shown(code: &[u8]) -> String {
    let text = String::from_utf8_lossy(code);
    format!("{}-{}", &text[..4], &text[4..])
}

/// A code whose first character says the region. A byte beyond the last whole alphabet is not used: with it some
/// characters would come more often.
fn code_of(mut random: impl FnMut() -> Result<[u8; 16]>, region: usize) -> Result<String> {
    let mut code = Vec::new();
    while code.len() < CODE_CHARS {
        for byte in random()? {
            let at = usize::from(byte);
            let usable = at < 256 / ALPHABET.len() * ALPHABET.len();
            let first = code.is_empty();
            let fits = !first || at % ALPHABET.len() % KNOWN_REGIONS.len() == region;
            if usable && fits && code.len() < CODE_CHARS {
                code.push(ALPHABET[at % ALPHABET.len()]);
            }
        }
    }
    Ok(shown(&code))
}

fn region_of(code: &str) -> Option<&'static str> {
    let at = ALPHABET.iter().position(|known| Some(*known) == code.bytes().next())?;
    Some(KNOWN_REGIONS[at % KNOWN_REGIONS.len()])
}

impl Desk<'_> {
    /// Starts a grant for a client.
    pub async fn start_device(
        &mut self,
        tenant: &TenantId,
        device: Device,
        (client, value): (&str, &str),
        (interval, ttl): (u64, Option<Duration>),
    ) -> Result<Started> {
        if !INTERVALS.contains(&interval) {
            return Err(SqlError::new("22023", "an interval is 1 to 60 seconds"));
        }
        let spec = self.stores.spec(device.store()).await?;
        let region = self.home_of(&spec, tenant, client)?;
        for _ in 0..CODE_ATTEMPTS {
            let stores = self.stores.clone();
            let user_code = code_of(|| stores.random(), region)?;
            let state = decide::written(&decide::Grant::pending(interval as i64 * 1_000_000))?;
            let put = Put {
                alias: Some(user_code.clone()),
                state: Some(state),
                ttl,
                ..Put::of(value).routed(client).bound(client)
            };
            if let Reply { outcome: Outcome::Ok, record: Some(record) } = self.put(tenant, device.store(), put).await? {
                return Ok(Started { device_code: record.id.clone(), user_code, interval, record });
            }
        }
        Err(SqlError::new("53400", "no free user code was found").with_hint("retry"))
    }

    /// The region of a client's grants, by its place in the list of regions.
    fn home_of(&self, spec: &spec::StoreSpec, tenant: &TenantId, client: &str) -> Result<usize> {
        let placement = self.stores.placement(tenant)?;
        let spots = place::of_key(spec, &placement, tenant, &Address::key(client), self.stores.now())?;
        let home = KNOWN_REGIONS.iter().position(|region| *region == spots[0].region);
        home.ok_or_else(|| SqlError::new("XX000", format!("region {} is not known", spots[0].region)))
    }

    /// What a person who enters a user code is shown.
    pub async fn find_device(&mut self, tenant: &TenantId, device: Device, user_code: &str) -> Result<Reply> {
        let Some(code) = normalized_code(user_code) else { return Ok(Reply::of(Outcome::NotFound)) };
        self.get_by_alias(tenant, device.store(), &code, region_of(&code)).await
    }

    /// Approves a grant by its user code, or denies it: once.
    pub async fn answer_device(
        &mut self,
        tenant: &TenantId,
        device: Device,
        user_code: &str,
        granted: Option<&str>,
    ) -> Result<Outcome> {
        let found = self.find_device(tenant, device, user_code).await?;
        let Some(record) = found.record else { return Ok(found.outcome) };
        let address = Address::id(record.id);
        let decide = |record: &Record, _: Option<&place::Turn>, now| decide::answer(record, granted, now);
        let answered = self.change((tenant, device.store(), &address), record.binding.as_deref(), decide).await?;
        Ok(answered.map_or(Outcome::NotFound, |(outcome, _)| outcome))
    }

    /// A device asks whether it was approved. Of any number that ask at once, one is granted.
    pub async fn poll_device(&mut self, tenant: &TenantId, device: Device, code: &str, client: &str) -> Result<Polled> {
        let address = Address::id(code);
        let polled = self
            .change((tenant, device.store(), &address), Some(client), |record, _, now| decide::poll(record, now))
            .await?;
        Ok(polled.map_or(Polled::InvalidGrant, |(polled, _)| polled))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_user_code_is_read_however_it_is_typed() {
        assert_eq!(normalized_code("abcd-efgh").as_deref(), Some("ABCD-EFGH"));
        assert_eq!(normalized_code("ABCD EFGH").as_deref(), Some("ABCD-EFGH"));
        for wrong in ["", "ABCD-EFG", "ABCD-EFGHJ", "ABCD-EFG0", "ABCD-EFGI", "ÄBCD-EFGH"] {
            assert_eq!(normalized_code(wrong), None, "{wrong}");
        }
    }

    /// B28: no character comes more often than another, but for the first, which says the region.
    #[test]
    fn user_codes_say_their_region_and_have_no_bias() {
        let mut seed = 1_u64;
        let mut random = || {
            let bytes: Vec<u8> = (0..16)
                .map(|_| {
                    seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    (seed >> 56) as u8
                })
                .collect();
            Ok(bytes.try_into().unwrap())
        };
        let mut counts = [0_u32; 31];
        for number in 0..20_000 {
            let region = number % KNOWN_REGIONS.len();
            let code = code_of(&mut random, region).unwrap();
            assert_eq!(region_of(&code), Some(KNOWN_REGIONS[region]));
            assert_eq!(normalized_code(&code), Some(code.clone()));
            for byte in code.bytes().skip(1).filter(|byte| *byte != b'-') {
                counts[ALPHABET.iter().position(|known| *known == byte).unwrap()] += 1;
            }
        }
        let mean = 20_000 * 7 / 31;
        assert!(counts.iter().all(|count| count.abs_diff(mean) < mean / 10), "{counts:?}");
    }
}
