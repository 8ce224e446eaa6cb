//! Transfer of a GPU's memory from one process to another: by a file descriptor, or by a fabric handle, which is a name.

use crate::error::Error;
use serde::{Deserialize, Serialize};
use std::os::fd::OwnedFd;

/// The variable that says which of them the processes use.
const VARIABLE: &str = "COUNTERFLOW_HANDLES";
/// Bytes of a fabric handle.
pub(crate) const FABRIC: usize = 64;

/// Form in which memory is handed over. All ranks of a communicator use the same.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(crate) enum Handles {
    /// Any two processes of a host can use them.
    #[default]
    Files,
    /// The platform must have them, and must let this process use them.
    Fabric,
}

impl Handles {
    /// Form that the variable asks for.
    ///
    /// # Errors
    /// [`Error::Usage`] for another word.
    pub fn wanted() -> Result<Handles, Error> {
        Handles::of(std::env::var(VARIABLE).ok().as_deref())
    }

    fn of(said: Option<&str>) -> Result<Handles, Error> {
        match said {
            None | Some("" | "files") => Ok(Handles::Files),
            Some("fabric") => Ok(Handles::Fabric),
            Some(other) => Err(Error::Usage {
                what: format!("{VARIABLE}={other}"),
                legal: "`files`, which is the default, or `fabric`".into(),
            }),
        }
    }

    pub fn told(self) -> &'static str {
        match self {
            Handles::Files => "file descriptors",
            Handles::Fabric => "fabric handles",
        }
    }
}

/// Some memory on its way to another process.
#[derive(Debug)]
pub(crate) enum Handed {
    File(OwnedFd),
    Fabric([u8; FABRIC]),
}

impl From<OwnedFd> for Handed {
    fn from(fd: OwnedFd) -> Handed {
        Handed::File(fd)
    }
}

impl Handed {
    /// Text and descriptor, as they travel.
    pub fn parts(self) -> (Option<Vec<u8>>, Option<OwnedFd>) {
        match self {
            Handed::File(fd) => (None, Some(fd)),
            Handed::Fabric(handle) => (Some(handle.to_vec()), None),
        }
    }

    /// Puts the two parts together again; `None` if the peer sent neither.
    pub fn of(text: Option<&[u8]>, fd: Option<OwnedFd>) -> Option<Handed> {
        let fabric = text.and_then(|text| text.try_into().ok());
        fabric.map(Handed::Fabric).or(fd.map(Handed::File))
    }
}

/// The refusal of a fabric handle: that the platform has them says nothing about whether this process may use them.
pub(crate) fn no_fabric(what: impl Into<String>, code: impl Into<String>) -> Error {
    Error::Driver {
        what: what.into(),
        code: code.into(),
        help: format!(
            "file descriptors do for the processes of a host: unset {VARIABLE}; fabric handles want NVIDIA's IMEX service \
             and a channel of it (/dev/nvidia-caps-imex-channels) that this process may open"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_variable_says_one_of_two() {
        assert_eq!(Handles::of(None).expect("a default"), Handles::Files);
        assert_eq!(Handles::of(Some("files")).expect("known"), Handles::Files);
        assert_eq!(Handles::of(Some("fabric")).expect("known"), Handles::Fabric);
        let refused = Handles::of(Some("imex")).expect_err("unknown");
        assert_eq!(refused.to_string(), "COUNTERFLOW_HANDLES=imex");
    }

    #[test]
    fn a_handle_of_another_length_is_none() {
        let sent = Handed::Fabric([7; FABRIC]).parts();
        assert!(matches!(
            Handed::of(sent.0.as_deref(), None),
            Some(Handed::Fabric(handle)) if handle == [7; FABRIC]
        ));
        assert!(Handed::of(Some(&[7; FABRIC - 1]), None).is_none());
        assert!(Handed::of(None, None).is_none());
    }
}
