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
            Error::File { .. } => "file",
        }
    }

    /// What would be right, if it is not part of the message.
    pub fn help(&self) -> Option<&str> {
        match self {
            Error::Rejected(_) | Error::File { .. } => None,
            Error::Usage { legal: help, .. }
            | Error::TooLarge { help, .. }
            | Error::Wrong { help, .. }
            | Error::NoDevice { help, .. }
            | Error::NotYet { help, .. } => Some(help),
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
            | Error::NotYet { .. } => None,
        }
    }
}

impl From<Diagnostics> for Error {
    fn from(found: Diagnostics) -> Self {
        Error::Rejected(found)
    }
}
