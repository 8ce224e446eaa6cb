//! What only a job's own processes know.

use super::failed;
use crate::error::Error;
use std::fmt;
use std::fs::OpenOptions;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

/// Bytes of a key, of a random number, and of a proof.
pub(crate) const BYTES: usize = 32;

/// Bytes of a file with a secret.
const SHORTEST: u64 = 16;
const LONGEST: u64 = 4096;

/// A job's secret. It is proven by challenge and response, and never sent, printed or logged. It says who may join. What
/// ranks gather afterwards is not encrypted: let nobody else read along on a network between hosts. The processes of one
/// host who then connect to each other are also asked by the system whether they are the same user's.
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
pub struct Secret([u8; BYTES]);

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
    /// Made of these bytes, which should be hard to guess.
    pub fn of(bytes: &[u8]) -> Secret {
        Secret(blake3::derive_key("counterflow's secret of a job", bytes))
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
    /// [`Error::Rendezvous`] if others can read it, or if it has fewer than 16 bytes or more than 4096.
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
        if !(SHORTEST..=LONGEST).contains(&(bytes.len() as u64)) {
            return Err(refused(format!("not {SHORTEST} to {LONGEST} bytes")));
        }
        Ok(Secret::of(bytes.trim_ascii()))
    }

    /// What proves that somebody who was asked with these random numbers knows the secret.
    pub(crate) fn proof(&self, role: &str, parts: &[&[u8]]) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        for part in [role.as_bytes()].iter().chain(parts) {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part);
        }
        hasher.finalize()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

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
        let parts: [&[u8]; 1] = [b"x"];
        assert_eq!(
            secret.proof("a", &parts),
            Secret::of(long.as_bytes()).proof("a", &parts)
        );
        assert_ne!(secret.proof("a", &parts), secret.proof("b", &parts));
        let told = wrote(long, 0o644).expect_err("others read it").to_string();
        assert!(
            told.contains("others can read it") && !told.contains(long),
            "{told}"
        );
        assert!(wrote("short", 0o600).is_err());
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
