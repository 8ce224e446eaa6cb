//! A disk cache of machine code.
//!
//! An entry is a file named by the hash of source, options and compiler. A truncated or damaged file, or one of another
//! program, is a miss. An entry is written to a temporary file and renamed, so readers see all or nothing. Two
//! processes that compile the same write the same bytes.

use super::libraries::NVRTC;
use super::source::Source;
use crate::draft;
use crate::error::Error;
use std::fs;
use std::path::{Path, PathBuf};

/// The variable that moves the cache; `off` switches it off.
const VARIABLE: &str = "COUNTERFLOW_CACHE";
/// The first bytes of an entry. Changes with the format.
const MAGIC: &[u8; 16] = b"counterflow jit1";
/// The file that names the compiler that filled the cache, for use without a compiler.
const SEAL: &str = "compiler";
const HEAD: usize = 16 + 32 + 32 + 8;

/// Where compiled kernels are kept.
///
/// ```
/// use counterflow::jit::Cache;
///
/// assert_eq!(Cache::at("kernels").dir(), Some("kernels".as_ref()));
/// assert_eq!(Cache::off().dir(), None);
/// let user = Cache::of_user();
/// println!("{:?}", user.dir());
/// assert_eq!(Cache::off().room()?, 0);
/// # Ok::<(), counterflow::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Cache {
    dir: Option<PathBuf>,
}

/// Where a compiled kernel came from.
///
/// ```
/// use counterflow::jit::{Cached, Compiled};
///
/// fn report(compiled: &Compiled) {
///     match &compiled.cached {
///         Cached::Hit => println!("from the cache"),
///         Cached::Stored => println!("compiled in {:?}", compiled.took),
///         Cached::Not(why) => println!("compiled, not cached: {why}"),
///     }
/// }
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Cached {
    /// From the cache.
    Hit,
    /// Compiled, and written to the cache.
    Stored,
    /// Compiled, but not cached, for this reason.
    Not(String),
}

/// Names an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Key(blake3::Hash);

/// The key of a source with these options and this compiler. Every part is preceded by its length, so that different
/// parts never give the same bytes.
pub(super) fn key(source: &Source<'_>, options: &[String], compiler: &str) -> Key {
    let mut hasher = blake3::Hasher::new();
    let mut part = |bytes: &[u8]| {
        hasher.update(&(bytes.len() as u64).to_le_bytes());
        hasher.update(bytes);
    };
    part(MAGIC);
    part(compiler.as_bytes());
    part(&(options.len() as u64).to_le_bytes());
    for option in options {
        part(option.as_bytes());
    }
    part(source.name.as_bytes());
    part(source.text.as_bytes());
    for (name, text) in source.headers {
        part(name.as_bytes());
        part(text.as_bytes());
    }
    Key(hasher.finalize())
}

impl Cache {
    /// The user's: `COUNTERFLOW_CACHE`, or the system's folder for caches.
    pub fn of_user() -> Cache {
        match std::env::var_os(VARIABLE) {
            Some(value) if value == "off" => Cache::off(),
            Some(value) if !value.is_empty() => Cache::at(value),
            _ => Cache {
                dir: directories::ProjectDirs::from("", "", "counterflow")
                    .map(|dirs| dirs.cache_dir().join("kernels")),
            },
        }
    }

    /// A cache in that folder, which is created on first use.
    pub fn at(dir: impl Into<PathBuf>) -> Cache {
        Cache {
            dir: Some(dir.into()),
        }
    }

    /// No cache: everything is compiled every time.
    pub const fn off() -> Cache {
        Cache { dir: None }
    }

    /// Its folder.
    pub fn dir(&self) -> Option<&Path> {
        self.dir.as_deref()
    }

    fn path(&self, key: &Key) -> Option<PathBuf> {
        let name = format!("{}.cubin", key.0.to_hex());
        self.dir.as_ref().map(|dir| dir.join(name))
    }

    /// Records which compiler filled it.
    pub(super) fn seal(&self, compiler: &str) -> Result<(), Error> {
        let Some(dir) = self.dir() else {
            return Err(unsealed("the cache is off".into()));
        };
        let written = fs::create_dir_all(dir).and_then(|()| fs::write(dir.join(SEAL), compiler));
        written.map_err(|error| unsealed(format!("{}: {error}", dir.join(SEAL).display())))
    }

    /// Which compiler filled it, if somebody sealed it.
    pub(super) fn sealed_by(&self) -> Result<String, Error> {
        let Some(dir) = self.dir() else {
            return Err(unsealed("the cache is off".into()));
        };
        fs::read_to_string(dir.join(SEAL))
            .map_err(|error| unsealed(format!("{}: {error}", dir.join(SEAL).display())))
    }

    /// The error if the cache has no intact entry and nothing can be compiled.
    pub(super) fn lacks(&self, key: &Key, name: &str) -> Error {
        let damaged = self.path(key).filter(|path| path.exists());
        unsealed(match damaged {
            Some(path) => format!("{}, which has {name}, is damaged", path.display()),
            None => format!(
                "{} has no {name} of this text and these options",
                self.dir().unwrap_or(Path::new("")).display()
            ),
        })
    }

    /// Machine code and log, if there is an intact entry.
    pub(super) fn get(&self, key: &Key) -> Option<(Vec<u8>, String)> {
        let bytes = fs::read(self.path(key)?).ok()?;
        let (head, body) = bytes.split_at_checked(HEAD)?;
        let (magic, rest) = head.split_at(16);
        let (name, rest) = rest.split_at(32);
        let (sum, length) = rest.split_at(32);
        let log = usize::try_from(u64::from_le_bytes(length.try_into().ok()?)).ok()?;
        let sound =
            magic == MAGIC && name == key.0.as_bytes() && sum == blake3::hash(body).as_bytes();
        let (log, cubin) = body.split_at_checked(log).filter(|_| sound)?;
        Some((cubin.to_vec(), String::from_utf8(log.to_vec()).ok()?))
    }

    /// Stores an entry. A failure is not an error: the kernel is compiled anyway.
    pub(super) fn put(&self, key: &Key, cubin: &[u8], log: &str) -> Cached {
        let Some(path) = self.path(key) else {
            return Cached::Not("the cache is off".into());
        };
        let mut body = Vec::with_capacity(log.len() + cubin.len());
        body.extend_from_slice(log.as_bytes());
        body.extend_from_slice(cubin);
        let mut bytes = Vec::with_capacity(HEAD + body.len());
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(key.0.as_bytes());
        bytes.extend_from_slice(blake3::hash(&body).as_bytes());
        bytes.extend_from_slice(&(log.len() as u64).to_le_bytes());
        bytes.extend_from_slice(&body);
        let draft = path.with_extension(format!("{}.tmp", draft::unique()));
        let written = path
            .parent()
            .map_or(Ok(()), fs::create_dir_all)
            .and_then(|()| fs::write(&draft, &bytes))
            .and_then(|()| fs::rename(&draft, &path));
        match written {
            Ok(()) => Cached::Stored,
            Err(error) => {
                let _ = fs::remove_file(&draft);
                Cached::Not(format!("{}: {error}", path.display()))
            }
        }
    }
}

fn unsealed(what: String) -> Error {
    Error::Toolkit {
        what: format!("without a compiler ({NVRTC}=off): {what}"),
        help: format!(
            "set {VARIABLE} to a folder that the same version of the program filled and sealed, or unset {NVRTC} to compile here"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fresh(name: &str) -> Cache {
        let dir =
            std::env::temp_dir().join(format!("counterflow-cache-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        Cache::at(dir)
    }

    fn of(text: &str) -> Key {
        key(&Source::new("k", text), &["--a".into()], "nvrtc 13.0")
    }

    #[test]
    fn what_was_put_is_got() {
        let cache = fresh("round");
        assert_eq!(cache.get(&of("a")), None);
        assert_eq!(cache.put(&of("a"), b"code", "said"), Cached::Stored);
        assert_eq!(cache.get(&of("a")), Some((b"code".to_vec(), "said".into())));
        assert_eq!(cache.get(&of("b")), None);
        let left = fs::read_dir(cache.dir().expect("on"))
            .expect("there")
            .count();
        assert_eq!(left, 1, "no draft stays");
        let _ = fs::remove_dir_all(cache.dir().expect("on"));
    }

    #[test]
    fn every_part_of_the_key_counts() {
        let source = Source::new("k", "text");
        let options = ["--a".to_owned(), "--b".to_owned()];
        let base = key(&source, &options, "1");
        assert_ne!(base, key(&Source::new("k", "text "), &options, "1"));
        assert_ne!(base, key(&Source::new("q", "text"), &options, "1"));
        assert_ne!(base, key(&source, &options[..1], "1"));
        assert_ne!(base, key(&source, &["--a--b".to_owned()], "1"));
        assert_ne!(base, key(&source, &options, "2"));
        assert_eq!(base, key(&source, &options, "1"));
    }

    #[test]
    fn damaged_and_foreign_entries_are_misses() {
        let cache = fresh("damage");
        assert_eq!(cache.put(&of("a"), b"code", "said"), Cached::Stored);
        let path = cache.path(&of("a")).expect("on");
        let good = fs::read(&path).expect("there");
        for cut in 0..good.len() {
            fs::write(&path, &good[..cut]).expect("written");
            assert_eq!(cache.get(&of("a")), None, "cut to {cut}");
        }
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 0x40;
            fs::write(&path, &bad).expect("written");
            assert_eq!(cache.get(&of("a")), None, "damaged at {at}");
        }
        let told = cache.lacks(&of("a"), "k").to_string();
        assert!(told.ends_with(".cubin, which has k, is damaged"), "{told}");
        let told = cache.lacks(&of("b"), "k").to_string();
        assert!(
            told.ends_with(" has no k of this text and these options"),
            "{told}"
        );
        // Another entry under this name.
        fs::write(cache.path(&of("b")).expect("on"), &good).expect("written");
        assert_eq!(cache.get(&of("b")), None);
        let _ = fs::remove_dir_all(cache.dir().expect("on"));
    }

    #[test]
    fn a_sealed_cache_names_its_compiler_and_an_open_one_says_what_to_do() {
        let cache = fresh("seal");
        let error = cache.sealed_by().expect_err("open");
        assert!(error.help().is_some_and(|help| help.contains(VARIABLE)));
        cache.seal("nvrtc 13.0 1 2").expect("written");
        assert_eq!(cache.sealed_by().expect("sealed"), "nvrtc 13.0 1 2");
        assert_eq!(Cache::off().seal("x").expect_err("off").kind(), "toolkit");
        let _ = fs::remove_dir_all(cache.dir().expect("on"));
    }

    #[test]
    fn an_unwritable_cache_says_why() {
        let cache = fresh("file");
        let dir = cache.dir().expect("on").to_path_buf();
        fs::write(&dir, "not a folder").expect("written");
        assert!(
            matches!(cache.put(&of("a"), b"code", ""), Cached::Not(why) if why.contains("cubin"))
        );
        let _ = fs::remove_file(dir);
        assert_eq!(Cache::off().get(&of("a")), None);
    }
}
