//! What a run can be, and what it can become.
//!
//! ```text
//! created ─► running ⇄ sleeping, waiting
//!    │          │ ╲        │
//!    ▼          ▼  ╲       ▼
//!  paused ◄──────   completed, errored, terminated       these stay what they are
//! ```
//!
//! Terminal is terminal: nothing leads out of it, so a run that was ended cannot be brought back by a late message.
//! Restarting makes a new attempt of the whole run, with an empty journal; it is no transition.

use std::fmt;
use std::str::FromStr;

/// What a run is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Status {
    /// Nobody has executed it yet.
    Created,
    /// It is executed, or about to be.
    Running,
    /// It waits for a time.
    Sleeping,
    /// It waits for an event or another run.
    Waiting,
    /// It goes on when somebody resumes it.
    Paused,
    Completed,
    /// Its code has failed, or cannot be executed.
    Errored,
    /// Somebody has ended it.
    Terminated,
}

impl Status {
    pub const ALL: [Status; 8] = [
        Status::Created,
        Status::Running,
        Status::Sleeping,
        Status::Waiting,
        Status::Paused,
        Status::Completed,
        Status::Errored,
        Status::Terminated,
    ];

    pub fn is_terminal(self) -> bool {
        matches!(self, Status::Completed | Status::Errored | Status::Terminated)
    }

    /// Whether nobody executes it: it rests until something happens.
    pub fn is_at_rest(self) -> bool {
        self != Status::Running
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Status::Created => "created",
            Status::Running => "running",
            Status::Sleeping => "sleeping",
            Status::Waiting => "waiting",
            Status::Paused => "paused",
            Status::Completed => "completed",
            Status::Errored => "errored",
            Status::Terminated => "terminated",
        }
    }

    /// Whether a run may become something.
    pub fn may_become(self, next: Status) -> bool {
        match (self, next) {
            (from, _) if from.is_terminal() => false,
            (_, Status::Created) => false,
            // Only what is executed comes to an end by itself, or to a rest.
            (from, Status::Completed | Status::Sleeping | Status::Waiting) => from == Status::Running,
            (from, Status::Paused) => from != Status::Paused,
            (_, Status::Running | Status::Errored | Status::Terminated) => true,
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A word that names no status.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "there is no status \"{0}\"; there are created, running, sleeping, waiting, paused, completed, errored, terminated"
)]
pub struct UnknownStatus(pub String);

impl FromStr for Status {
    type Err = UnknownStatus;

    fn from_str(text: &str) -> Result<Status, UnknownStatus> {
        Status::ALL.into_iter().find(|status| status.as_str() == text).ok_or_else(|| UnknownStatus(text.into()))
    }
}

/// What somebody wants of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Control {
    Pause,
    Resume,
    Terminate,
}

impl Control {
    pub fn as_str(self) -> &'static str {
        match self {
            Control::Pause => "pause",
            Control::Resume => "resume",
            Control::Terminate => "terminate",
        }
    }
}

/// What becomes of a wish.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// The run is so already.
    Nothing,
    /// The run becomes this at once: nobody executes it.
    Become(Status),
    /// The one who executes it does it at the next step.
    AskExecutor,
    /// A wish that the executor has not seen yet is taken back.
    TakeBack,
    /// The run has ended.
    Refuse,
}

/// Whether the one who executes a run may still be alive. It counts only while the run is running.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Executor {
    Alive,
    /// Its lease has ended, and nobody has claimed the run since: there may never be anybody who does.
    Gone,
}

/// What becomes of a wish, given what the run is. `asked`: what its executor has been asked for and has not done yet.
pub fn decide(control: Control, status: Status, asked: Option<Control>, executor: Executor) -> Decision {
    if status.is_terminal() {
        let is_done = control == Control::Terminate && status == Status::Terminated;
        return if is_done { Decision::Nothing } else { Decision::Refuse };
    }
    match (control, status) {
        (Control::Pause, Status::Paused) => Decision::Nothing,
        (Control::Terminate, Status::Running) if executor == Executor::Gone => Decision::Become(Status::Terminated),
        // Who asked for the end gets the end.
        (Control::Pause, Status::Running) if asked == Some(Control::Terminate) => Decision::Nothing,
        (Control::Pause, Status::Running) if executor == Executor::Gone => Decision::Become(Status::Paused),
        (Control::Pause | Control::Terminate, Status::Running) => Decision::AskExecutor,
        (Control::Pause, _) => Decision::Become(Status::Paused),
        (Control::Terminate, _) => Decision::Become(Status::Terminated),
        (Control::Resume, Status::Paused) => Decision::Become(Status::Running),
        (Control::Resume, Status::Running) if asked == Some(Control::Pause) => Decision::TakeBack,
        (Control::Resume, _) => Decision::Nothing,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn terminal_is_terminal() {
        for from in Status::ALL.into_iter().filter(|status| status.is_terminal()) {
            assert!(Status::ALL.into_iter().all(|next| !from.may_become(next)), "{from}");
            for control in [Control::Pause, Control::Resume, Control::Terminate] {
                let decided = decide(control, from, None, Executor::Gone);
                assert!(matches!(decided, Decision::Refuse | Decision::Nothing), "{from} {control:?} {decided:?}");
            }
        }
    }

    #[test]
    fn every_decision_is_a_transition_that_there_is() {
        for status in Status::ALL {
            for control in [Control::Pause, Control::Resume, Control::Terminate] {
                for asked in [None, Some(Control::Pause), Some(Control::Terminate)] {
                    for executor in [Executor::Alive, Executor::Gone] {
                        match decide(control, status, asked, executor) {
                            Decision::Become(next) => assert!(status.may_become(next), "{status} to {next}"),
                            Decision::AskExecutor => assert_eq!((status, executor), (Status::Running, Executor::Alive)),
                            Decision::TakeBack => assert_eq!(status, Status::Running),
                            Decision::Nothing => {}
                            Decision::Refuse => assert!(status.is_terminal()),
                        }
                    }
                }
            }
        }
    }

    /// Who asked for the end gets the end, also if the executor that was asked is gone.
    #[test]
    fn nobody_waits_for_an_executor_that_is_gone() {
        for asked in [None, Some(Control::Pause), Some(Control::Terminate)] {
            let decided = decide(Control::Terminate, Status::Running, asked, Executor::Gone);
            assert_eq!(decided, Decision::Become(Status::Terminated));
        }
        let paused = decide(Control::Pause, Status::Running, None, Executor::Gone);
        assert_eq!(paused, Decision::Become(Status::Paused));
    }

    #[test]
    fn names_are_read_back() {
        for status in Status::ALL {
            assert_eq!(status.as_str().parse::<Status>().unwrap(), status);
        }
        assert!("done".parse::<Status>().is_err());
    }
}
