//! Cursors: results kept in the router, with a place in them.
//!
//! A cursor's rows are gathered when it is declared, within the bounds of a statement. So it shows one moment, can go
//! back, and with `WITH HOLD` outlives its transaction without holding anything on a shard.

use super::plans::Prepared;
use isles_kernel::error::SqlError;
use isles_kernel::value::Value;
use isles_sql::bind::utility::FetchFrom;
use std::sync::Arc;

/// Cursors open at once in a session: each holds its rows in memory.
pub(crate) const MAX_CURSORS: usize = 100;
/// Rows of one.
pub(crate) const MAX_CURSOR_ROWS: usize = 1_000_000;

pub(crate) struct Cursor {
    /// What it reads.
    pub(crate) prepared: Arc<Prepared>,
    rows: Vec<Vec<Value>>,
    /// 0 is before the first row, n the n-th, and one more than all is after the last.
    at: usize,
    pub(crate) hold: bool,
    scroll: Option<bool>,
    /// Savepoints that were open when it was declared.
    pub(crate) depth: usize,
    /// It was declared by the open transaction, and goes if that is rolled back.
    pub(crate) fresh: bool,
}

impl Cursor {
    pub(crate) fn new(
        prepared: Arc<Prepared>,
        rows: Vec<Vec<Value>>,
        hold: bool,
        scroll: Option<bool>,
        depth: usize,
    ) -> Result<Cursor, SqlError> {
        if rows.len() > MAX_CURSOR_ROWS {
            return Err(SqlError::new("54000", format!("a cursor has at most {MAX_CURSOR_ROWS} rows")));
        }
        Ok(Cursor { prepared, rows, at: 0, hold, scroll, depth, fresh: false })
    }

    fn end(&self) -> usize {
        self.rows.len() + 1
    }

    fn row(&self, at: usize) -> Vec<Vec<Value>> {
        at.checked_sub(1).and_then(|at| self.rows.get(at)).cloned().into_iter().collect()
    }

    fn check_backward(&self) -> Result<(), SqlError> {
        match self.scroll {
            Some(false) => Err(SqlError::new("55000", "cursor can only scan forward")
                .with_hint("Declare it with SCROLL option to enable backward scan.")),
            _ => Ok(()),
        }
    }

    /// Moves, and returns the rows that it passed.
    pub(crate) fn fetch(&mut self, from: FetchFrom) -> Result<Vec<Vec<Value>>, SqlError> {
        match from {
            FetchFrom::Forward(0) | FetchFrom::Backward(0) | FetchFrom::Relative(0) => Ok(self.row(self.at)),
            FetchFrom::Forward(n) => Ok(self.forward(usize::try_from(n).unwrap_or(usize::MAX))),
            FetchFrom::ForwardAll => Ok(self.forward(usize::MAX)),
            FetchFrom::Backward(n) => self.backward(usize::try_from(n).unwrap_or(usize::MAX)),
            FetchFrom::BackwardAll => self.backward(usize::MAX),
            FetchFrom::Absolute(n) => {
                let at = if n < 0 { self.end() as i128 + i128::from(n) } else { i128::from(n) };
                self.go(at)
            }
            FetchFrom::Relative(n) => self.go(self.at as i128 + i128::from(n)),
        }
    }

    fn forward(&mut self, n: usize) -> Vec<Vec<Value>> {
        let first = self.at.min(self.rows.len());
        let last = first.saturating_add(n).min(self.rows.len());
        let rows = self.rows[first..last].to_vec();
        self.at = if last - first < n { self.end() } else { last };
        rows
    }

    fn backward(&mut self, n: usize) -> Result<Vec<Vec<Value>>, SqlError> {
        self.check_backward()?;
        let before = self.at.saturating_sub(1).min(self.rows.len());
        let first = before.saturating_sub(n);
        let rows: Vec<_> = self.rows[first..before].iter().rev().cloned().collect();
        self.at = if rows.len() < n { 0 } else { first + 1 };
        Ok(rows)
    }

    fn go(&mut self, at: i128) -> Result<Vec<Vec<Value>>, SqlError> {
        let at = at.clamp(0, self.end() as i128) as usize;
        if at < self.at {
            self.check_backward()?;
        }
        self.at = at;
        Ok(self.row(at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::database::schema::Edition;
    use crate::session::plans::Compiled;
    use isles_kernel::names::SchemaVersion;

    fn nothing() -> Prepared {
        Prepared {
            sql: "".into(),
            params: Vec::new(),
            fields: None,
            origins: Vec::new(),
            compiled: Compiled::Empty,
            beyond_tenant: None,
            tenant_use: crate::session::tenants::TenantUse::None,
            system_use: None,
            edition: Edition::Committed(SchemaVersion(0)),
            setting_key: "".into(),
        }
    }

    fn cursor(rows: i64) -> Cursor {
        let rows = (1..=rows).map(|n| vec![Value::Int(n)]).collect();
        Cursor::new(Arc::new(nothing()), rows, false, Some(true), 0).expect("small")
    }

    fn numbers(rows: Vec<Vec<Value>>) -> Vec<i64> {
        rows.into_iter().map(|row| if let [Value::Int(n)] = row[..] { n } else { panic!("{row:?}") }).collect()
    }

    /// As PostgreSQL answered the same moves.
    #[test]
    fn a_cursor_moves_as_postgresql_moves_it() {
        let mut cursor = cursor(5);
        for (from, expected) in [
            (FetchFrom::Forward(2), vec![1, 2]),
            (FetchFrom::Forward(0), vec![2]),
            (FetchFrom::Backward(1), vec![1]),
            (FetchFrom::Backward(1), vec![]),
            (FetchFrom::Forward(1), vec![1]),
            (FetchFrom::ForwardAll, vec![2, 3, 4, 5]),
            (FetchFrom::Forward(1), vec![]),
            (FetchFrom::Backward(2), vec![5, 4]),
            (FetchFrom::Absolute(2), vec![2]),
            (FetchFrom::Absolute(-1), vec![5]),
            (FetchFrom::Relative(-2), vec![3]),
            (FetchFrom::Absolute(0), vec![]),
            (FetchFrom::Absolute(9), vec![]),
            (FetchFrom::BackwardAll, vec![5, 4, 3, 2, 1]),
            (FetchFrom::Forward(1), vec![1]),
        ] {
            assert_eq!(numbers(cursor.fetch(from).expect("it may go back")), expected, "{from:?}");
        }
    }

    #[test]
    fn a_cursor_that_may_not_go_back_does_not() {
        let mut cursor = Cursor { scroll: Some(false), ..cursor(3) };
        cursor.fetch(FetchFrom::Forward(2)).expect("forward");
        assert_eq!(cursor.fetch(FetchFrom::Backward(1)).expect_err("backward").sqlstate, "55000");
    }
}
