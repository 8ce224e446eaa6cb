//! End of a rank's process: its exit code or signal.

use rustix::process::WaitIdStatus;
use std::fmt;
use std::time::Duration;

/// The end of a rank's process.
#[derive(Clone, Copy)]
pub struct Ended {
    pub rank: u32,
    pub how: How,
    /// Since the job began.
    pub after: Duration,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum How {
    Exit(i32),
    Signal(i32),
}

impl How {
    pub fn of(status: &WaitIdStatus) -> How {
        let exit = status.exit_status().map(How::Exit);
        exit.unwrap_or(How::Signal(status.terminating_signal().unwrap_or_default()))
    }
}

impl Ended {
    /// Exit code as a shell has it: the program's, or 128 and the signal's number.
    pub fn code(self) -> u8 {
        let code = match self.how {
            How::Exit(code) => code,
            How::Signal(signal) => 128 + signal,
        };
        u8::try_from(code).unwrap_or(1)
    }
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (rank, seconds) = (self.rank, self.after.as_secs_f64());
        write!(f, "rank {rank} ended after {seconds:.1} s: ")?;
        match self.how {
            How::Exit(code) => write!(f, "exit code {code}"),
            How::Signal(signal) => match signal_hook::low_level::signal_name(signal) {
                Some(name) => write!(f, "{name}"),
                None => write!(f, "signal {signal}"),
            },
        }
    }
}
