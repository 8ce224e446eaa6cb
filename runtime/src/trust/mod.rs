//! Trusted files: those that nobody but this process's user and root can change.
//!
//! A file counts if its owner is this user or root and nobody else may write it, and if the same holds for each folder
//! above it, up to the root of the file system. In a folder with the sticky bit, such as the one for temporary files,
//! others may add entries but replace none: it may stand above a folder of ours, and may hold no file that is read.
//! Links are followed only where their owner is trusted; a file that is read is never a link.
//!
//! Paths are looked at from the root on, and each step is trusted before the next is taken: nobody else can change
//! what was looked at.

mod groups;

use rustix::fs::{
    CWD, FileType, Mode, OFlags, RawMode, Stat, fstat, lgetxattr, lstat, openat, readlinkat,
};
use rustix::io::Errno;
use std::ffi::OsString;
use std::fs::{DirBuilder, File};
use std::io::{self, ErrorKind, Read};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Component, Path, PathBuf};

/// Links that one path may lead over, as many as the system follows.
const LINKS: usize = 40;
const STICKY: RawMode = 0o1000;
const OF_GROUP: RawMode = 0o020;
const OF_ALL: RawMode = 0o002;

/// The error of a path that is not trusted: which part of it, and why.
pub(crate) fn distrust(path: &Path, why: impl std::fmt::Display) -> io::Error {
    let text = format!("{} is not trusted: {why}", path.display());
    io::Error::new(ErrorKind::PermissionDenied, text)
}

/// Obstacle behind a name.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Within {
    /// A folder further up: it may be sticky.
    Above,
    /// The folder that has the file, or the file.
    Last,
}

/// User that trusts, by number.
#[derive(Clone, Copy)]
struct User(u32);

impl User {
    fn own() -> User {
        User(rustix::process::geteuid().as_raw())
    }

    /// Refuses what belongs to somebody else, or what somebody else may write.
    fn must_trust(self, path: &Path, about: &Stat, within: Within) -> io::Result<()> {
        let owner = about.st_uid;
        if owner != self.0 && owner != 0 {
            let why = format!(
                "it belongs to user {owner}; make a copy of your own, if you trust that user"
            );
            return Err(distrust(path, why));
        }
        let kind = FileType::from_raw_mode(about.st_mode);
        // Nobody writes a link: it is made anew, by who may write its folder.
        let sticky = within == Within::Above && about.st_mode & STICKY != 0;
        if kind == FileType::Symlink || sticky {
            return Ok(());
        }
        if about.st_mode & OF_ALL != 0 {
            return Err(distrust(path, "others may write it (`chmod go-w` it)"));
        }
        if about.st_mode & OF_GROUP != 0 && !groups::private(owner, about.st_gid) {
            return Err(distrust(
                path,
                "others may write it, by its group (`chmod go-w` it)",
            ));
        }
        // An access list hides behind the bits of the group.
        let listed = about.st_mode & OF_GROUP != 0
            && lgetxattr(path, c"system.posix_acl_access", &mut [0u8; 0]).is_ok();
        match listed {
            true => Err(distrust(
                path,
                "others may write it, by its access list (`setfacl -b` it)",
            )),
            false => Ok(()),
        }
    }

    /// The path without links, and what is there. Everything above it is trusted; the last part is not looked at.
    fn resolve(self, path: &Path) -> io::Result<(PathBuf, Stat)> {
        let path = std::path::absolute(path)?;
        let mut left: Vec<OsString> = parts(&path);
        let mut at = PathBuf::from("/");
        let mut about = lstat(&at)?;
        let mut links = 0;
        while let Some(part) = left.pop() {
            self.must_trust(&at, &about, Within::Above)?;
            if part == ".." {
                // No link leads here, so this is the folder above.
                at.pop();
                about = lstat(&at)?;
                continue;
            }
            let next = at.join(&part);
            about = lstat(&next).map_err(|why| named(&next, why))?;
            if FileType::from_raw_mode(about.st_mode) != FileType::Symlink {
                at = next;
                continue;
            }
            self.must_trust(&next, &about, Within::Above)?;
            links += 1;
            if links > LINKS {
                return Err(named(&next, Errno::LOOP));
            }
            let target = readlinkat(CWD, &next, Vec::new())?.into_bytes();
            let target = PathBuf::from(OsString::from_vec(target));
            if target.is_absolute() {
                at = PathBuf::from("/");
            }
            about = lstat(&at)?;
            left.extend(parts(&target));
        }
        Ok((at, about))
    }

    fn folder(self, path: &Path) -> io::Result<PathBuf> {
        let (at, about) = self.resolve(path)?;
        if FileType::from_raw_mode(about.st_mode) != FileType::Directory {
            return Err(named(&at, Errno::NOTDIR));
        }
        self.must_trust(&at, &about, Within::Last)?;
        Ok(at)
    }

    fn file(self, path: &Path) -> io::Result<PathBuf> {
        let (at, about) = self.resolve(path)?;
        if FileType::from_raw_mode(about.st_mode) != FileType::RegularFile {
            return Err(distrust(&at, "it is no file"));
        }
        self.must_trust(&at, &about, Within::Last)?;
        self.folder(at.parent().unwrap_or(Path::new("/")))?;
        Ok(at)
    }

    fn open(self, path: &Path, most: u64) -> io::Result<File> {
        let folder = self.folder(parent(path))?;
        let name = path
            .file_name()
            .ok_or_else(|| distrust(path, "it is no file"))?;
        let path = folder.join(name);
        // A pipe is opened without waiting for who writes it.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = openat(CWD, &path, flags, Mode::empty()).map_err(|why| match why {
            Errno::LOOP => distrust(&path, "it is a link"),
            // A socket.
            Errno::NXIO => distrust(&path, "it is no file"),
            why => named(&path, why),
        })?;
        // What was opened is what is looked at, whatever becomes of the name.
        let about = fstat(&file)?;
        if FileType::from_raw_mode(about.st_mode) != FileType::RegularFile {
            return Err(distrust(&path, "it is no file"));
        }
        self.must_trust(&path, &about, Within::Last)?;
        let bytes = u64::try_from(about.st_size).unwrap_or(u64::MAX);
        match bytes <= most {
            true => Ok(file.into()),
            false => Err(too_long(&path, bytes, most)),
        }
    }
}

fn named(path: &Path, why: Errno) -> io::Error {
    let why = io::Error::from(why);
    io::Error::new(why.kind(), format!("{}: {why}", path.display()))
}

fn too_long(path: &Path, bytes: u64, most: u64) -> io::Error {
    distrust(
        path,
        format!("{bytes} bytes, and no such file has more than {most}"),
    )
}

/// The folder that has it.
pub(crate) fn parent(path: &Path) -> &Path {
    let parent = path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty());
    parent.unwrap_or(Path::new("."))
}

/// The names of a path, the first one last.
fn parts(path: &Path) -> Vec<OsString> {
    let parts = path.components().filter_map(|part| match part {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        Component::Prefix(_) | Component::RootDir | Component::CurDir => None,
    });
    let mut parts: Vec<OsString> = parts.collect();
    parts.reverse();
    parts
}

/// A file whose code this process may run, without links.
///
/// # Errors
/// [`ErrorKind::PermissionDenied`] with the part of the path that others may change; what the system says.
pub(crate) fn file(path: &Path) -> io::Result<PathBuf> {
    User::own().file(path)
}

/// A folder whose files count, without links. It is made if it is not there.
///
/// # Errors
/// As [`file`].
pub(crate) fn made(path: &Path) -> io::Result<PathBuf> {
    match User::own().folder(path) {
        // What is there of the path is trusted.
        Err(error) if error.kind() == ErrorKind::NotFound => {
            DirBuilder::new().recursive(true).mode(0o755).create(path)?;
            User::own().folder(path)
        }
        found => found,
    }
}

/// Checks that a folder takes files that count, or would once it is made. Nothing is made to find out.
///
/// # Errors
/// As [`file`].
pub(crate) fn takes(path: &Path) -> io::Result<()> {
    match User::own().folder(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        found => found.map(drop),
    }
}

/// Checks what stands above a folder that this process makes for itself alone.
///
/// # Errors
/// As [`file`].
pub(crate) fn above(path: &Path) -> io::Result<()> {
    let (at, about) = User::own().resolve(path)?;
    User::own().must_trust(&at, &about, Within::Above)
}

/// All of a file that has at most so many bytes. It is a file itself, no link to one.
///
/// # Errors
/// As [`file`]; a file that is longer.
pub(crate) fn read(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let file = User::own().open(path, most)?;
    let mut bytes = Vec::new();
    file.take(most + 1).read_to_end(&mut bytes)?;
    match bytes.len() as u64 <= most {
        true => Ok(bytes),
        // It grew meanwhile.
        false => Err(too_long(path, bytes.len() as u64, most)),
    }
}

#[cfg(test)]
mod tests;
