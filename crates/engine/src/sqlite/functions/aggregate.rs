//! `_agg`, also over windows, and `_one`.
//!
//! An aggregate of no rows is never told its callee, so its result is null; the printer minds those that are not.

use super::{Call, Result, answer, arguments, bridge, c_name, callee_text, check, guarded, host, raise};
use crate::error::SqlError;
use isles_kernel::value::Value;
use isles_sql::print::call::{self, Op};
use rusqlite::ffi;
use std::cmp::Ordering;
use std::collections::VecDeque;
use std::ffi::{c_int, c_void};

/// # Safety
/// The handle is live, and `app` is a [`super::Host`] that outlives it.
pub(super) unsafe fn install(db: *mut ffi::sqlite3, flags: c_int, app: *mut c_void) -> rusqlite::Result<()> {
    let (agg, one) = (c_name(call::AGGREGATE)?, c_name(call::ONE)?);
    // SAFETY: the caller's promise; the functions treat `app` as the host that it is.
    unsafe {
        check(ffi::sqlite3_create_window_function(
            db,
            agg.as_ptr(),
            -1,
            flags,
            app,
            Some(step),
            Some(last_value),
            Some(current_value),
            Some(inverse),
            None,
        ))?;
        let (step, last) = (Some(one_step as super::ScalarFunction), Some(one_last as Finish));
        check(ffi::sqlite3_create_function_v2(db, one.as_ptr(), 1, flags, app, None, step, last, None))
    }
}

type Finish = unsafe extern "C" fn(*mut ffi::sqlite3_context);

/// An aggregate under way. SQLite keeps its address.
struct State {
    call: Call,
    fold: bridge::Fold,
    settings: String,
    /// The arguments of the row before, where equal ones count once.
    previous: Option<Vec<Value>>,
    /// The rows in the window, where rows leave it again.
    window: VecDeque<Vec<Value>>,
    /// Whether rows have left since the fold was made.
    stale: bool,
}

impl State {
    fn new(callee: &str) -> Result<State> {
        let call = Call::parse(callee)?;
        let fold = bridge::Fold::new(&call.callee)?;
        Ok(State { call, fold, settings: String::new(), previous: None, window: VecDeque::new(), stale: false })
    }

    fn take(&mut self, host: &super::Host, values: Vec<Value>) -> Result<()> {
        let Op::Aggregate { how, .. } = self.call.callee.op else { return self.add(host, &values) };
        if how.distinct {
            if self.is_repeated(&values)? {
                return Ok(());
            }
            self.previous = Some(values.clone());
        }
        if how.moving {
            if !self.stale {
                self.add(host, &values)?;
            }
            self.window.push_back(values);
            return Ok(());
        }
        self.add(host, &values)
    }

    fn add(&mut self, host: &super::Host, values: &[Value]) -> Result<()> {
        self.fold.add(&mut bridge::Session::new(host, &self.settings)?, values)
    }

    fn is_repeated(&self, values: &[Value]) -> Result<bool> {
        let Some(previous) = &self.previous else { return Ok(false) };
        for ((ty, old), new) in self.call.callee.args.iter().zip(previous).zip(values) {
            let same = match (old.is_null(), new.is_null()) {
                (false, false) => bridge::order(*ty, old, new)? == Ordering::Equal,
                (old, new) => old == new,
            };
            if !same {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn leave(&mut self) {
        self.window.pop_front();
        self.stale = true;
    }

    fn value(&mut self, host: &super::Host) -> Result<Value> {
        if self.stale {
            self.fold = bridge::Fold::new(&self.call.callee)?;
            let mut session = bridge::Session::new(host, &self.settings)?;
            for values in &self.window {
                self.fold.add(&mut session, values)?;
            }
            self.stale = false;
        }
        self.fold.value(&mut bridge::Session::new(host, &self.settings)?)
    }
}

/// Where SQLite keeps the address of the state of this aggregate; null if no row has come.
///
/// # Safety
/// The context is that of the running aggregate.
unsafe fn slot<'a>(context: *mut ffi::sqlite3_context, bytes: usize) -> Option<&'a mut *mut State> {
    // SAFETY: the caller's promise; SQLite gives zeroed memory of this size, or null.
    unsafe { ffi::sqlite3_aggregate_context(context, bytes as c_int).cast::<*mut State>().as_mut() }
}

unsafe extern "C" fn step(context: *mut ffi::sqlite3_context, count: c_int, args: *mut *mut ffi::sqlite3_value) {
    // SAFETY: SQLite gives a live context and `count` live values; the state is ours.
    unsafe {
        let args = std::slice::from_raw_parts(args, count as usize);
        let host = host(context);
        let Some(slot) = slot(context, size_of::<*mut State>()) else {
            return ffi::sqlite3_result_error_nomem(context);
        };
        let outcome = guarded(|| {
            let mut args = arguments(args);
            let callee = callee_text(&mut args)?;
            if slot.is_null() {
                *slot = Box::into_raw(Box::new(State::new(callee)?));
            }
            let state = &mut **slot;
            let Some((values, settings)) = state.call.arguments(args)? else { return Ok(()) };
            if state.settings.is_empty() {
                state.settings = settings.into();
            }
            state.take(host, values)
        });
        if let Err(error) = outcome {
            raise(context, host, error);
        }
    }
}

unsafe extern "C" fn inverse(context: *mut ffi::sqlite3_context, _: c_int, _: *mut *mut ffi::sqlite3_value) {
    // SAFETY: a state in the slot is ours and live.
    unsafe {
        if let Some(state) = slot(context, 0).and_then(|slot| slot.as_mut()) {
            state.leave();
        }
    }
}

unsafe extern "C" fn current_value(context: *mut ffi::sqlite3_context) {
    // SAFETY: a state in the slot is ours and live.
    unsafe {
        match slot(context, 0).and_then(|slot| slot.as_mut()) {
            Some(state) => answer(context, |host| state.value(host)),
            None => ffi::sqlite3_result_null(context),
        }
    }
}

unsafe extern "C" fn last_value(context: *mut ffi::sqlite3_context) {
    // SAFETY: the state is taken out of its slot, so it is freed once.
    unsafe {
        let state = slot(context, 0).map_or(std::ptr::null_mut(), |slot| std::mem::replace(slot, std::ptr::null_mut()));
        if state.is_null() {
            return ffi::sqlite3_result_null(context);
        }
        let mut state = Box::from_raw(state);
        answer(context, |host| state.value(host));
    }
}

unsafe extern "C" fn one_step(context: *mut ffi::sqlite3_context, _: c_int, args: *mut *mut ffi::sqlite3_value) {
    // SAFETY: SQLite gives a live context and one live value; the slot holds a copy that `one_last` frees.
    unsafe {
        let slot = ffi::sqlite3_aggregate_context(context, size_of::<*mut ffi::sqlite3_value>() as c_int);
        let Some(slot) = slot.cast::<*mut ffi::sqlite3_value>().as_mut() else {
            return ffi::sqlite3_result_error_nomem(context);
        };
        if slot.is_null() {
            *slot = ffi::sqlite3_value_dup(*args);
        } else {
            let error = SqlError::new("21000", "more than one row returned by a subquery used as an expression");
            raise(context, host(context), error);
        }
    }
}

unsafe extern "C" fn one_last(context: *mut ffi::sqlite3_context) {
    // SAFETY: as in `one_step`.
    unsafe {
        let slot = ffi::sqlite3_aggregate_context(context, 0).cast::<*mut ffi::sqlite3_value>().as_mut();
        let Some(slot) = slot.filter(|slot| !slot.is_null()) else { return ffi::sqlite3_result_null(context) };
        ffi::sqlite3_result_value(context, *slot);
        ffi::sqlite3_value_free(std::mem::replace(slot, std::ptr::null_mut()));
    }
}
