//! Buckets as people write them: `users/0-7,9`.

use super::step::MoveError;
use super::units::{MAX_SPANS, Span, Units};
use crate::names::{BucketId, GroupName};

impl Units {
    /// Reads what [`Units`] of buckets are shown as.
    pub fn of_bucket_text(text: &str) -> Result<Units, MoveError> {
        let invalid = || MoveError::invalid(format!("\"{text}\" does not name buckets")).with_hint("write group/0-7,9");
        let (group, numbers) = text.split_once('/').ok_or_else(invalid)?;
        let group = GroupName::new(group.trim()).map_err(|error| MoveError::invalid(error.to_string()))?;
        if numbers.split(',').count() > MAX_SPANS {
            return Err(MoveError::invalid(format!("a plan moves at most {MAX_SPANS} ranges of buckets")));
        }
        let spans: Option<Vec<Span>> = numbers.split(',').map(span).collect();
        Ok(Units::buckets(group, spans.ok_or_else(invalid)?))
    }
}

/// `3` or `0-7`.
fn span(text: &str) -> Option<Span> {
    let number = |text: &str| text.trim().parse().ok().map(BucketId);
    match text.split_once('-') {
        None => number(text).map(Span::one),
        Some((first, last)) => {
            let span = Span { first: number(first)?, last: number(last)? };
            (span.first <= span.last).then_some(span)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_read_as_they_are_shown() {
        for (written, shown) in [
            ("users/0-7,9", "users/0-7,9"),
            ("users/9, 3 - 4 ,5", "users/3-5,9"),
            ("g/0", "g/0"),
            ("g/4294967295", "g/4294967295"),
        ] {
            assert_eq!(Units::of_bucket_text(written).map(|units| units.to_string()), Ok(shown.into()), "{written}");
        }
        for wrong in ["", "users", "users/", "/1", "users/a", "users/7-0", "users/1,,2", "users/-1", "g/4294967296"] {
            let refused = Units::of_bucket_text(wrong).expect_err(wrong);
            assert_eq!(refused.code, "INVALID_SPLIT", "{wrong}");
        }
        let many = format!("g/{}", vec!["1"; MAX_SPANS + 1].join(","));
        assert!(Units::of_bucket_text(&many).is_err());
    }
}
