//! Errors outside the pure stages, and their texts.

use crate::device::Device;
use counterflow_codegen::diag::Diagnostics;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::PathBuf;

/// Reason that something was not done. A rejection by a compiler stage keeps its diagnostics.
///
/// ```
/// use counterflow::{Communicator, Error};
///
/// let rank = &Communicator::emulated(1)?[0];
/// match rank.op(&counterflow::schedules::gemm()).up_to(64, 64, 7).build() {
///     Ok(op) => println!("{op:?}"),
///     // The compiler's report, with the schedule's lines.
///     Err(Error::Rejected(found)) => println!("{found}"),
///     // Nobody waits for a dead communicator: build a new one.
///     Err(Error::Stalled(_) | Error::Aborted { .. }) => {}
///     Err(other) => eprintln!("{}: {other}. {}", other.kind(), other.help().unwrap_or_default()),
/// }
/// # Ok::<(), Error>(())
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// A stage rejected the schedule, or the requested shape, world, type or choice.
    Rejected(Diagnostics),
    /// The request itself has no meaning.
    Usage {
        /// Request, with the value.
        what: String,
        /// Values that would be legal.
        legal: String,
    },
    /// A legal request that this machine cannot do in reasonable memory or time.
    TooLarge {
        /// Request, with the value and the limit.
        what: String,
        /// Advice on a request that fits.
        help: String,
    },
    /// The schedule ran, but the result is wrong.
    Wrong {
        /// Element that is wrong, its value and the right one.
        what: String,
        /// Command that shows it again.
        help: String,
    },
    /// The device is not there.
    NoDevice {
        /// Device that was asked for.
        device: Device,
        /// Reason that it cannot be used.
        why: String,
        /// Advice on how to get it.
        help: String,
    },
    /// Something that is not implemented yet.
    NotYet {
        /// Thing that is missing.
        what: String,
        /// Advice on what can be done today.
        help: String,
    },
    /// A compiler, tool or library of CUDA is missing or does not work.
    Toolkit {
        /// Tool, and what is wrong with it.
        what: String,
        /// Advice on how to get it.
        help: String,
    },
    /// The compiler rejected a kernel's text.
    Compile(Box<CompileError>),
    /// The driver rejected a call.
    Driver {
        /// Purpose of the call.
        what: String,
        /// The driver's name for the error.
        code: String,
        /// Advice on how to go on.
        help: String,
    },
    /// The ranks asked for different things in one collective call.
    Mismatch {
        /// Request of each rank.
        what: String,
        /// Advice on how to go on.
        help: String,
    },
    /// A rank waited longer than the limit. The communicator is dead, so that nothing continues with bad data.
    Stalled(Box<Stall>),
    /// A rank ended early, or somebody ended the communicator. It is dead, so that nobody waits for what never comes.
    Aborted {
        /// Rank, and why it ended.
        what: String,
        /// Advice on how to go on.
        help: String,
    },
    /// The ranks' processes did not find each other, or lost each other before they had a communicator.
    Rendezvous {
        /// Ranks, and what happened.
        what: String,
        /// Advice on how to go on.
        help: String,
    },
    /// An environment variable has a value that would make this hang, or that has no meaning.
    Environment {
        /// The variable's name.
        variable: &'static str,
        /// Value that it is set to, and its effect.
        what: String,
        /// Advice on the value to set.
        help: String,
    },
    /// A file could not be read or written, is not what it should be, or may be written by others.
    File {
        /// Path of the file.
        path: PathBuf,
        /// Reason that the system gives.
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
            Error::Aborted { .. } => "aborted",
            Error::Rendezvous { .. } => "rendezvous",
            Error::Environment { .. } => "environment",
            Error::File { .. } => "file",
        }
    }

    /// Advice on how to correct it, if the message does not say so.
    pub fn help(&self) -> Option<&str> {
        match self {
            Error::Rejected(_) | Error::Compile(_) => None,
            Error::File { .. } => Some(
                "see that the path is right, and that this process may use it and nobody else write it or the folders above; a broken file of ours may be deleted, and is made anew",
            ),
            Error::Stalled(stall) => Some(stall.help()),
            Error::Usage { legal: help, .. }
            | Error::TooLarge { help, .. }
            | Error::Wrong { help, .. }
            | Error::NoDevice { help, .. }
            | Error::NotYet { help, .. }
            | Error::Toolkit { help, .. }
            | Error::Driver { help, .. }
            | Error::Environment { help, .. }
            | Error::Rendezvous { help, .. }
            | Error::Aborted { help, .. }
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
            | Error::Aborted { what, .. }
            | Error::Rendezvous { what, .. }
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
            | Error::Rendezvous { .. }
            | Error::Aborted { .. }
            | Error::Stalled(_) => None,
        }
    }
}

/// The compiler rejected a text.
///
/// ```
/// use counterflow::Error;
/// use counterflow::error::{CompileError, Excerpt};
///
/// /// What an editor needs: file, line and message.
/// fn places(error: &Error) -> Vec<(String, u32, String)> {
///     let Error::Compile(compile) = error else { return Vec::new() };
///     let CompileError { excerpts, .. } = &**compile;
///     let place = |at: &Excerpt| (at.file.clone(), at.line, at.message.clone());
///     excerpts.iter().map(place).collect()
/// }
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CompileError {
    /// The source's name.
    pub name: String,
    /// The first errors, with their places.
    pub excerpts: Vec<Excerpt>,
    /// The compiler's whole log.
    pub log: String,
}

/// One error with its place.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Excerpt {
    /// The file the error is in: the schedule's, or the generated text where that names no other.
    pub file: String,
    /// The line in that file.
    pub line: u32,
    /// The fault.
    pub message: String,
    /// The generated lines around it, with their numbers in the generated text.
    pub generated: Vec<(usize, String)>,
    /// Index of the line with the error.
    pub at: Option<usize>,
}

impl fmt::Display for CompileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "the compiler rejects the CUDA text of {}", self.name)?;
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

/// The report of a rank that gave up waiting: who waited, for what, and how far it was.
///
/// ```
/// use counterflow::{Error, Pending};
///
/// fn wait(done: &Pending) -> Result<(), Error> {
///     done.wait().inspect_err(|error| {
///         if let Error::Stalled(stall) = error {
///             eprintln!("rank {} waited for {}", stall.rank, stall.waited_on);
///             eprintln!("launches of each rank: {:?}", stall.enqueued);
///         }
///     })
/// }
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Stall {
    /// The rank that gave up first.
    pub rank: u32,
    /// The waiting role of the kernel, or the work of the host.
    pub role: String,
    /// Number of the CTA. None if the host or a stream waits.
    pub block: Option<u32>,
    /// Kernel that waits. None if the host or a stream waits.
    pub kernel: Option<String>,
    /// True if it waited for a barrier within a CTA, which no peer can keep waiting.
    pub within: bool,
    /// The counter or barrier, or what other ranks are to do.
    pub waited_on: String,
    /// Index of the cell or stage. None if it is no counter and no barrier of a kernel.
    pub index: Option<u32>,
    /// The value there. None if it could not be read in time: a fully occupied GPU may not answer.
    pub seen: Option<u64>,
    /// The value that would have ended the wait.
    pub wanted: u64,
    /// The schedule's line of the wait, if known.
    pub at: Option<String>,
    /// If it is in a group of a split: which ranks of the world that has.
    pub group: Option<String>,
    /// If a stream waits: in which of the rank's launches, counted from 1. Nothing that the rank enqueued behind it has
    /// begun.
    pub stands_in: Option<u64>,
    /// Number of launches that each rank has enqueued. Empty if no kernel or stream waited.
    pub enqueued: Vec<u64>,
    /// Refusals of ranks that have not launched since, with the reason.
    pub refused: Vec<String>,
}

impl Stall {
    fn help(&self) -> &'static str {
        if self.within {
            "this is a fault of the compiler: report it with the schedule and its variant; the GPU's context is dead, so start a new process"
        } else if let [first, rest @ ..] = &self.enqueued[..]
            && *first > 0
            && !rest.is_empty()
            && rest.iter().all(|other| other == first)
        {
            "every rank has enqueued as many launches, so a peer's stands behind something on its GPU: an event of the program's own that comes only after this launch (`Stream::wait`, another library's, or a tensor's hand-over), or another library's kernel that waits for its own peers. Let no rank's stream wait for another rank's, and build a new communicator; UB_TIMEOUT (seconds) sets the limit"
        } else {
            "a peer did not signal: did every rank launch, with the same shape? Build a new communicator; UB_TIMEOUT (seconds) sets the limit"
        }
    }
}

impl fmt::Display for Stall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Stall {
            rank,
            role,
            block,
            kernel,
            within: _,
            waited_on,
            index,
            seen,
            wanted,
            at,
            group,
            stands_in,
            enqueued,
            refused,
        } = self;
        write!(f, "rank {rank} waited too long: {role}")?;
        if let Some(block) = block {
            write!(f, " of CTA {block}")?;
        }
        if let Some(kernel) = kernel {
            write!(f, " in {kernel}")?;
        }
        match (seen, index) {
            (Some(seen), Some(index)) => {
                write!(f, " saw {seen} of {wanted} on {waited_on}[{index}]")?;
            }
            (None, Some(index)) => write!(f, " saw less than {wanted} on {waited_on}[{index}]")?,
            (Some(seen), None) => write!(f, " and saw {seen} of {wanted} {waited_on}")?,
            (None, None) => write!(f, " and saw fewer than {wanted} {waited_on}")?,
        }
        if let Some(at) = at {
            write!(f, " ({at})")?;
        }
        if let Some(launch) = stands_in {
            write!(f, ", in launch {launch}; nothing behind it has begun")?;
        }
        if !enqueued.is_empty() {
            let enqueued: Vec<String> = enqueued.iter().map(u64::to_string).collect();
            let enqueued = enqueued.join(", ");
            write!(f, "; launches enqueued, rank by rank: {enqueued}")?;
        }
        for refused in refused {
            write!(f, "; {refused}")?;
        }
        match group {
            Some(group) => write!(f, " ({group})"),
            None => Ok(()),
        }
    }
}

impl From<Diagnostics> for Error {
    fn from(found: Diagnostics) -> Self {
        Error::Rejected(found)
    }
}
