//! What can go wrong outside the pure stages, and how it is told.

use crate::device::Device;
use counterflow_codegen::diag::Diagnostics;
use std::fmt;
use std::path::PathBuf;

/// Why something was not done. What a stage of the compiler refused keeps its diagnostics.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// A stage refused: the schedule, or the shape, world, type or choice it was asked for.
    Rejected(Diagnostics),
    /// The request itself has no meaning.
    Usage {
        /// What was asked, with the value.
        what: String,
        /// What would be legal.
        legal: String,
    },
    /// It would be legal, but is beyond what this machine can do in reasonable memory or time.
    TooLarge {
        /// What was asked, with the value and the limit.
        what: String,
        /// What would fit.
        help: String,
    },
    /// It ran, and the result is not what it should be.
    Wrong {
        /// Which element, what it is and what it should be.
        what: String,
        /// How to see it again.
        help: String,
    },
    /// The device is not there.
    NoDevice {
        /// Which.
        device: Device,
        /// Why not.
        why: String,
        /// What to do.
        help: String,
    },
    /// Something that is not built yet.
    NotYet {
        /// What.
        what: String,
        /// What can be done today.
        help: String,
    },
    /// A compiler, tool or library of CUDA is missing or does not work.
    Toolkit {
        /// Which, and what is wrong with it.
        what: String,
        /// How to get it.
        help: String,
    },
    /// The compiler refused a kernel's text.
    Compile(Box<CompileError>),
    /// The driver refused a call.
    Driver {
        /// What was wanted of it, and by which call.
        what: String,
        /// Its name for what went wrong.
        code: String,
        /// What to do.
        help: String,
    },
    /// The ranks asked for different things in one collective call.
    Mismatch {
        /// What each wanted.
        what: String,
        /// What to do.
        help: String,
    },
    /// A rank waited longer than the limit. The communicator is dead: nothing goes on with bad data.
    Stalled(Box<Stall>),
    /// A variable of the environment is set so that this would hang, or says nothing.
    Environment {
        /// The variable's name.
        variable: &'static str,
        /// What it is set to, and what that does.
        what: String,
        /// What to set it to.
        help: String,
    },
    /// A file could not be written.
    File {
        /// Which.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
}

impl Error {
    /// A stable word for what kind of error it is.
    pub const fn kind(&self) -> &'static str {
        match self {
            Error::Rejected(_) => "rejected",
            Error::Usage { .. } => "usage",
            Error::TooLarge { .. } => "too_large",
            Error::Wrong { .. } => "wrong",
            Error::NoDevice { .. } => "no_device",
            Error::NotYet { .. } => "not_yet",
            Error::Toolkit { .. } => "toolkit",
            Error::Compile(_) => "compile",
            Error::Driver { .. } => "driver",
            Error::Mismatch { .. } => "mismatch",
            Error::Stalled(_) => "stalled",
            Error::Environment { .. } => "environment",
            Error::File { .. } => "file",
        }
    }

    /// What would be right, if it is not part of the message.
    pub fn help(&self) -> Option<&str> {
        match self {
            Error::Rejected(_) | Error::File { .. } | Error::Compile(_) => None,
            Error::Stalled(_) => Some(Stall::HELP),
            Error::Usage { legal: help, .. }
            | Error::TooLarge { help, .. }
            | Error::Wrong { help, .. }
            | Error::NoDevice { help, .. }
            | Error::NotYet { help, .. }
            | Error::Toolkit { help, .. }
            | Error::Driver { help, .. }
            | Error::Environment { help, .. }
            | Error::Mismatch { help, .. } => Some(help),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Rejected(found) => found.fmt(f),
            Error::Usage { what, .. }
            | Error::TooLarge { what, .. }
            | Error::Wrong { what, .. } => f.write_str(what),
            Error::NoDevice { device, why, .. } => write!(f, "device {}: {why}", device.name()),
            Error::NotYet { what, .. } => write!(f, "not yet: {what}"),
            Error::Toolkit { what, .. }
            | Error::Mismatch { what, .. }
            | Error::Environment { what, .. } => f.write_str(what),
            Error::Compile(error) => error.fmt(f),
            Error::Driver { what, code, .. } => write!(f, "{what}: {code}"),
            Error::Stalled(stall) => stall.fmt(f),
            Error::File { path, source } => write!(f, "{}: {source}", path.display()),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Rejected(found) => Some(found),
            Error::File { source, .. } => Some(source),
            Error::Usage { .. }
            | Error::TooLarge { .. }
            | Error::Wrong { .. }
            | Error::NoDevice { .. }
            | Error::NotYet { .. }
            | Error::Toolkit { .. }
            | Error::Compile(_)
            | Error::Driver { .. }
            | Error::Mismatch { .. }
            | Error::Environment { .. }
            | Error::Stalled(_) => None,
        }
    }
}

/// The compiler refused a text.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CompileError {
    /// What the source is called.
    pub name: String,
    /// The first errors, with their places.
    pub excerpts: Vec<Excerpt>,
    /// All the compiler said.
    pub log: String,
}

/// One error with its place.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Excerpt {
    /// The file the error is in: the schedule's, or the generated text where that names no other.
    pub file: String,
    /// The line in that file.
    pub line: u32,
    /// What is wrong.
    pub message: String,
    /// The generated lines around it, with their numbers in the generated text.
    pub generated: Vec<(usize, String)>,
    /// Which of them it is.
    pub at: Option<usize>,
}

impl fmt::Display for CompileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "the compiler refuses the CUDA text of {}", self.name)?;
        for excerpt in &self.excerpts {
            writeln!(f, "{}:{}: {}", excerpt.file, excerpt.line, excerpt.message)?;
            for (number, line) in &excerpt.generated {
                let mark = if excerpt.at == Some(*number) {
                    '>'
                } else {
                    ' '
                };
                writeln!(f, "{mark}{number:5} | {line}")?;
            }
        }
        write!(f, "the compiler's log:\n{}", self.log.trim_end())
    }
}

/// What a rank that gave up waiting told: who waited, on what, and how far it was.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Stall {
    /// The rank that gave up first.
    pub rank: u32,
    /// Which of its roles.
    pub role: String,
    /// Which CTA; none where the host waits, or lets a stream wait.
    pub block: Option<u32>,
    /// The counter or barrier.
    pub waited_on: String,
    /// Which cell or stage of it.
    pub index: u32,
    /// What was there; none where it could not be read in time: a GPU that is full may not answer.
    pub seen: Option<u64>,
    /// What would have let it go on.
    pub wanted: u64,
    /// The schedule's line of the wait, where known.
    pub at: Option<String>,
    /// Where a stream stands: in which of the rank's launches, counted from 1. What the rank enqueued behind it has not
    /// begun.
    pub stands_in: Option<u64>,
    /// How many launches each rank has enqueued; empty where no kernel or stream waited.
    pub enqueued: Vec<u64>,
}

impl Stall {
    const HELP: &'static str = "a peer did not come: did every rank launch, with the same shape? The communicator must be built anew; UB_TIMEOUT (seconds) sets the limit";
}

impl fmt::Display for Stall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Stall {
            rank,
            role,
            block,
            waited_on,
            index,
            seen,
            wanted,
            at,
            stands_in,
            enqueued,
        } = self;
        write!(f, "rank {rank} waited too long: {role}")?;
        if let Some(block) = block {
            write!(f, " of CTA {block}")?;
        }
        match seen {
            Some(seen) => write!(f, " saw {seen} of {wanted} on {waited_on}[{index}]")?,
            None => write!(f, " saw less than {wanted} on {waited_on}[{index}]")?,
        }
        if let Some(at) = at {
            write!(f, " ({at})")?;
        }
        if let Some(launch) = stands_in {
            write!(f, ", in launch {launch}; nothing behind it has begun")?;
        }
        if enqueued.is_empty() {
            return Ok(());
        }
        let enqueued: Vec<String> = enqueued.iter().map(u64::to_string).collect();
        write!(
            f,
            "; launches enqueued, rank by rank: {}",
            enqueued.join(", ")
        )
    }
}

impl From<Diagnostics> for Error {
    fn from(found: Diagnostics) -> Self {
        Error::Rejected(found)
    }
}
