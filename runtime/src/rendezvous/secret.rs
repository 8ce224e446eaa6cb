//! Secret of a job, which only its own processes know.

use super::failed;
use crate::error::Error;
use std::fmt;
use std::fs::OpenOptions;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

/// Bytes of a key, of a random number, and of a proof.
pub(crate) const BYTES: usize = 32;

/// The fewest bytes of a secret, without white space at its ends.
const SHORTEST: usize = 16;
/// The most bytes of a file with one.
const LONGEST: u64 = 4096;

/// A job's secret: at least 16 bytes, without the white space at its ends. It says who may join. It is proven by a key
/// exchange, and never sent, printed or logged: who listens, or stands in for a rank, learns nothing to guess it from, and
/// tries one guess with each connection. What ranks gather afterwards is authenticated, message by message, and not
/// encrypted: let nobody else read along on a network between hosts. The processes of one host who then connect to each
/// other are also asked by the system whether they are the same user's.
///
/// ```
/// use counterflow_runtime::rendezvous::Secret;
/// # use std::path::Path;
/// let known = Secret::of(b"hard to guess, and the same in all processes");
/// assert_eq!(format!("{known:?}, {:?}", Secret::random()?), "Secret(..), Secret(..)");
/// assert!(Secret::from_file(Path::new("no such file")).is_err());
/// # Ok::<(), counterflow_runtime::Error>(())
/// ```
#[derive(Clone)]
pub struct Secret {
    key: [u8; BYTES],
    /// Bytes that it was made of.
    length: usize,
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// Bytes that nobody can guess.
pub(crate) fn random() -> Result<[u8; BYTES], Error> {
    let mut bytes = [0; BYTES];
    let got = rustix::rand::getrandom(&mut bytes[..], rustix::rand::GetRandomFlags::empty());
    match got {
        Ok(BYTES) => Ok(bytes),
        _ => Err(failed(
            "the system gives no random numbers",
            "a secret needs them: look at /dev/urandom",
        )),
    }
}

impl Secret {
    /// Made of these bytes, without white space at their ends. They should be hard to guess. Fewer than 16 are refused by
    /// who joins; none are a job without a secret, which is legal within one host.
    pub fn of(bytes: &[u8]) -> Secret {
        let bytes = bytes.trim_ascii();
        Secret {
            key: blake3::derive_key("counterflow's secret of a job", bytes),
            length: bytes.len(),
        }
    }

    /// Rejects what anybody could guess. Within one host a job may have no secret.
    pub(super) fn must_be_long(&self, within_a_host: bool) -> Result<(), Error> {
        let none = self.length == 0;
        if self.length >= SHORTEST || none && within_a_host {
            return Ok(());
        }
        let what = match none {
            true => "a job of several hosts has no secret".to_owned(),
            false => format!("the job's secret has {} bytes", self.length),
        };
        Err(Error::Usage {
            what,
            legal: format!(
                "at least {SHORTEST} bytes without white space at their ends, best random ones"
            ),
        })
    }

    /// A new one.
    ///
    /// # Errors
    /// [`Error::Rendezvous`] if the system gives no random numbers.
    pub fn random() -> Result<Secret, Error> {
        random().map(|bytes| Secret::of(&bytes))
    }

    /// Made of what is in a file that only its owner, this process's user, can read.
    ///
    /// # Errors
    /// [`Error::Rendezvous`] if others can read it, if it has fewer than 16 bytes without white space at its ends, or more
    /// than 4096.
    pub fn from_file(path: &Path) -> Result<Secret, Error> {
        const HELP: &str =
            "write a line of random text there, and let only its owner read it (chmod 600)";
        let refused =
            |why: String| failed(format!("the secret in {}: {why}", path.display()), HELP);
        // What was opened is what is looked at and read, whatever becomes of the name. A pipe holds nobody up.
        let flags = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
        let file = OpenOptions::new().read(true).custom_flags(flags).open(path);
        let file = file.map_err(|error| refused(error.to_string()))?;
        let about = file
            .metadata()
            .map_err(|error| refused(error.to_string()))?;
        if !about.is_file() {
            return Err(refused("it is no file".into()));
        }
        if about.uid() != rustix::process::geteuid().as_raw() {
            return Err(refused("it belongs to another user".into()));
        }
        if about.mode() & 0o077 != 0 {
            return Err(refused("others can read it".into()));
        }
        let mut bytes = Vec::new();
        let read = file.take(LONGEST + 1).read_to_end(&mut bytes);
        read.map_err(|error| refused(error.to_string()))?;
        if bytes.len() as u64 > LONGEST {
            return Err(refused(format!("it has more than {LONGEST} bytes")));
        }
        let secret = Secret::of(&bytes);
        if secret.length < SHORTEST {
            return Err(refused(format!(
                "without white space at its ends, it has fewer than {SHORTEST} bytes"
            )));
        }
        Ok(secret)
    }

    /// Bytes that a point of a group is made of, which only who knows the secret can find.
    pub(super) fn point(&self) -> [u8; 2 * BYTES] {
        let mut hasher = blake3::Hasher::new_keyed(&self.key);
        hasher.update(b"counterflow's point of a secret");
        let mut bytes = [0; 2 * BYTES];
        hasher.finalize_xof().fill(&mut bytes);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_secret_is_long_or_within_one_host_none() {
        let long = |bytes: &[u8], within| Secret::of(bytes).must_be_long(within);
        for within in [true, false] {
            assert!(long(b"sixteen bytes ok", within).is_ok());
            let told = long(b" fifteen bytes! \n", within).expect_err("short");
            assert_eq!(told.to_string(), "the job's secret has 14 bytes");
        }
        let blank = "\n".repeat(20);
        assert!(long(blank.as_bytes(), true).is_ok());
        let told = long(blank.as_bytes(), false).expect_err("none");
        assert_eq!(told.to_string(), "a job of several hosts has no secret");
    }

    #[test]
    fn a_secret_is_not_printed_and_its_file_is_for_its_owner_alone() {
        assert_eq!(format!("{:?}", Secret::of(b"open sesame")), "Secret(..)");
        let dir = std::env::temp_dir().join(format!("counterflow-secret-{}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("a folder");
        let path = dir.join("secret");
        let wrote = |text: &str, mode| {
            std::fs::write(&path, text).expect("written");
            std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).expect("set");
            Secret::from_file(&path)
        };
        let long = "a line of random text";
        let secret = wrote(&format!("{long}\n"), 0o600).expect("read");
        let same = Secret::of(format!(" {long}\n\n").as_bytes());
        assert_eq!(secret.point(), same.point());
        assert_ne!(secret.point(), Secret::of(b"another line of text").point());
        let told = wrote(long, 0o644).expect_err("others read it").to_string();
        assert!(
            told.contains("others can read it") && !told.contains(long),
            "{told}"
        );
        assert!(wrote("short", 0o600).is_err());
        // Of white space nothing is left.
        for blank in ["\n".repeat(20), format!("short{}", " ".repeat(40))] {
            let told = wrote(&blank, 0o600).expect_err("no secret").to_string();
            assert!(
                told.ends_with("without white space at its ends, it has fewer than 16 bytes"),
                "{told}"
            );
        }
        assert!(wrote(&"long ".repeat(1000), 0o600).is_err());
        let pipe = dir.join("pipe");
        let made = rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RUSR);
        made.expect("a pipe");
        let told = Secret::from_file(&pipe).expect_err("no file").to_string();
        assert!(told.ends_with("it is no file"), "{told}");
        std::fs::remove_dir_all(&dir).expect("gone");
        assert!(Secret::from_file(&path).is_err());
    }
}
