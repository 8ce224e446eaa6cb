//! A disk cache of machine code.
//!
//! An entry is a file named by the hash of source, options and compiler. A truncated or damaged file, or one of another
//! program, is a miss. An entry appears whole or not at all. Two processes that compile the same write the same bytes.
//!
//! Whoever may write an entry decides what runs on the GPU. So an entry counts only if it is [trusted](trust): a file
//! of this user or root, in a folder that nobody else may write. Anything else under its name is a miss.

use super::libraries::NVRTC;
use super::source::Source;
use crate::draft;
use crate::error::Error;
use crate::trust;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

/// The variable that moves the cache; `off` switches it off.
const VARIABLE: &str = "COUNTERFLOW_CACHE";
/// The first bytes of an entry. Changes with the format.
const MAGIC: &[u8; 16] = b"counterflow jit1";
/// The file that names the compiler that filled the cache, for use without a compiler.
const SEAL: &str = "compiler";
const HEAD: usize = 16 + 32 + 32 + 8;
/// The most bytes of an entry, many times those of the largest kernel.
const LONGEST: u64 = 64 << 20;
/// The most bytes of the file that names the compiler.
const LONGEST_SEAL: u64 = 4096;

/// A folder of compiled kernels.
///
/// To share a cache is to trust whoever may write it: its entries are code. Entries of this user and of root count, in a
/// folder that nobody else may write. So users share a cache that root filled; a folder that several of them may write is none.
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

/// Origin of a compiled kernel: the cache, or the compiler.
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

    /// Folder of the cache. None if it is off.
    pub fn dir(&self) -> Option<&Path> {
        self.dir.as_deref()
    }

    fn path(&self, key: &Key) -> Option<PathBuf> {
        let name = format!("{}.cubin", key.0.to_hex());
        self.dir.as_ref().map(|dir| dir.join(name))
    }

    fn seal_path(&self) -> Result<PathBuf, Error> {
        let dir = self.dir();
        dir.map(|dir| dir.join(SEAL))
            .ok_or_else(|| unsealed("the cache is off".into()))
    }

    /// Records which compiler filled it.
    pub(super) fn seal(&self, compiler: &str) -> Result<(), Error> {
        let path = self.seal_path()?;
        draft::write(&path, compiler.as_bytes())
            .map_err(|error| unsealed(format!("{}: {error}", path.display())))
    }

    /// Compiler that filled the cache, if somebody sealed it.
    pub(super) fn sealed_by(&self) -> Result<String, Error> {
        let path = self.seal_path()?;
        let read = trust::read(&path, LONGEST_SEAL);
        read.and_then(|bytes| String::from_utf8(bytes).map_err(io::Error::other))
            .map_err(|error| unsealed(format!("{}: {error}", path.display())))
    }

    /// The error if the cache has no intact entry and nothing can be compiled.
    pub(super) fn lacks(&self, key: &Key, name: &str) -> Error {
        let path = self.path(key).unwrap_or_default();
        unsealed(match trust::read(&path, LONGEST) {
            Ok(_) => format!("{}, which has {name}, is damaged", path.display()),
            Err(error) if error.kind() == ErrorKind::NotFound => format!(
                "{} has no {name} of this text and these options",
                self.dir().unwrap_or(Path::new("")).display()
            ),
            Err(error) => format!("{name}: {error}"),
        })
    }

    /// Machine code and log, if there is an intact entry.
    pub(super) fn get(&self, key: &Key) -> Option<(Vec<u8>, String)> {
        let bytes = trust::read(&self.path(key)?, LONGEST).ok()?;
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
        if bytes.len() as u64 > LONGEST {
            return Cached::Not(format!("{} bytes, above {LONGEST}", bytes.len()));
        }
        match draft::write(&path, &bytes) {
            Ok(()) => Cached::Stored,
            Err(error) => Cached::Not(format!("{}: {error}", path.display())),
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
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt, symlink};

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

    /// A file of as many bytes, which take no room on the disk.
    fn empty(path: &Path, bytes: u64) {
        let file = fs::File::create(path).expect("a file");
        file.set_len(bytes).expect("set");
    }

    fn pipe(path: &Path) {
        use rustix::fs::{CWD, Mode, mkfifoat};
        mkfifoat(CWD, path, Mode::RWXU).expect("a pipe");
    }

    #[test]
    fn links_pipes_devices_and_large_or_open_files_are_misses_at_once() {
        let cache = fresh("odd");
        assert_eq!(cache.put(&of("a"), b"code", "said"), Cached::Stored);
        let path = cache.path(&of("a")).expect("on");
        let beside = path.with_extension("beside");
        fs::rename(&path, &beside).expect("moved");
        type Put = fn(&Path, &Path);
        let odd: [(Put, &str); 5] = [
            (
                |path, good| symlink(good, path).expect("a link"),
                "it is a link",
            ),
            (
                |path, _| symlink("/dev/zero", path).expect("a link"),
                "it is a link",
            ),
            (|path, _| pipe(path), "it is no file"),
            (|path, _| empty(path, 3 << 30), "3221225472 bytes"),
            (
                |path, good| {
                    fs::copy(good, path).expect("copied");
                    fs::set_permissions(path, Permissions::from_mode(0o666)).expect("set");
                },
                "others may write it",
            ),
        ];
        for (put, why) in odd {
            put(&path, &beside);
            assert_eq!(cache.get(&of("a")), None, "{why}");
            let told = cache.lacks(&of("a"), "k").to_string();
            assert!(told.contains(why), "{told}");
            // It is written anew in place of that, and nothing is written through it.
            assert_eq!(
                cache.put(&of("a"), b"code", "said"),
                Cached::Stored,
                "{why}"
            );
            assert!(cache.get(&of("a")).is_some(), "{why}");
            assert!(path.symlink_metadata().expect("there").is_file());
            fs::remove_file(&path).expect("gone");
        }
        let _ = fs::remove_dir_all(cache.dir().expect("on"));
    }

    #[test]
    fn a_folder_that_others_may_write_is_no_cache() {
        let cache = fresh("open");
        assert_eq!(cache.put(&of("a"), b"code", ""), Cached::Stored);
        cache.seal("nvrtc").expect("sealed");
        let dir = cache.dir().expect("on");
        // Where others may add files, a folder for temporary files among them.
        for mode in [0o777, 0o1777, 0o757] {
            fs::set_permissions(dir, Permissions::from_mode(mode)).expect("set");
            assert_eq!(cache.get(&of("a")), None, "{mode:o}");
            let put = cache.put(&of("b"), b"code", "");
            assert!(
                matches!(&put, Cached::Not(why) if why.contains("others may write it")),
                "{put:?}"
            );
            for error in [cache.seal("nvrtc"), cache.sealed_by().map(drop)] {
                let told = error.expect_err("refused").to_string();
                assert!(told.contains("others may write it"), "{told}");
            }
        }
        fs::set_permissions(dir, Permissions::from_mode(0o755)).expect("set");
        assert!(cache.get(&of("a")).is_some());
        let _ = fs::remove_dir_all(dir);
    }

    #[test]
    fn a_seal_is_never_written_through_a_link_or_a_pipe() {
        let cache = fresh("through");
        assert_eq!(cache.put(&of("a"), b"code", ""), Cached::Stored);
        let dir = cache.dir().expect("on");
        let other = dir.join("other");
        fs::write(&other, "theirs").expect("written");
        symlink(&other, dir.join(SEAL)).expect("a link");
        assert!(cache.sealed_by().is_err());
        cache.seal("nvrtc 13.0").expect("written");
        assert_eq!(fs::read_to_string(&other).expect("read"), "theirs");
        assert_eq!(cache.sealed_by().expect("sealed"), "nvrtc 13.0");
        fs::remove_file(dir.join(SEAL)).expect("gone");
        pipe(&dir.join(SEAL));
        assert!(cache.sealed_by().is_err());
        cache.seal("nvrtc 13.0").expect("written");
        let _ = fs::remove_dir_all(dir);
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
