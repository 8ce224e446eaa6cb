//! Files that appear whole, in place of what was there, or not at all.
//!
//! A file is written without a name and gets one when it is complete, so a process that is killed, or a disk that is
//! full, leaves nothing behind. Where a name has to be there earlier, the file is locked, and the next writer takes
//! away those of processes that ended.

use crate::trust;
use rustix::fs::{
    AtFlags, CWD, FlockOperation, Mode, OFlags, flock, fstat, linkat, openat, renameat, statat,
    unlinkat,
};
use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Begin and end of the name of a file that is not in its place yet.
const BESIDE: [&str; 2] = [".counterflow-", ".new"];
/// Nobody but the user writes it.
const MODE: Mode = Mode::from_raw_mode(0o644);

/// Writes a file, and its folder if there is none, in a folder that this process [trusts](trust).
///
/// # Errors
/// [`io::ErrorKind::PermissionDenied`] for a folder that others may write; what the system says. Nothing is changed then.
pub(crate) fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let folder = trust::made(trust::parent(path))?;
    let name = path
        .file_name()
        .ok_or_else(|| trust::distrust(path, "it is no file"))?;
    sweep(&folder);
    let (path, beside) = (folder.join(name), folder.join(beside()));
    let written = match nameless(&folder)? {
        Some(file) => filled(file, bytes).and_then(|file| placed(&file, &path, &beside)),
        None => locked(&beside)
            .and_then(|file| filled(file, bytes))
            .and_then(|_file| Ok(renameat(CWD, &beside, CWD, &path)?)),
    };
    if written.is_err() {
        // It has the name of a file that nobody else writes, or none.
        let _ = unlinkat(CWD, &beside, AtFlags::empty());
    }
    written
}

/// Keeps every other program from the file of that name that asks for the same, until this is dropped. The lock is a file beside it,
/// since the file itself is replaced.
///
/// # Errors
/// As [`write`]; [`io::ErrorKind::TimedOut`] where another program has it for seconds.
pub(crate) fn alone(path: &Path) -> io::Result<File> {
    const LIMIT: Duration = Duration::from_secs(5);
    let folder = trust::made(trust::parent(path))?;
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let lock = folder.join(format!("{name}.lock"));
    let file = openat(CWD, &lock, flags, Mode::RUSR | Mode::WUSR)?;
    let end = Instant::now() + LIMIT;
    loop {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(file.into()),
            Err(Errno::WOULDBLOCK) if Instant::now() < end => {
                std::thread::sleep(Duration::from_millis(5));
            }
            Err(Errno::WOULDBLOCK) => {
                let held = format!("another program holds {}", lock.display());
                return Err(io::Error::new(io::ErrorKind::TimedOut, held));
            }
            // A file system without locks: the last writer wins.
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => return Ok(file.into()),
            Err(why) => return Err(why.into()),
        }
    }
}

fn beside() -> String {
    let [start, end] = BESIDE;
    format!("{start}{}{end}", unique())
}

/// A file without a name, locked. None where the file system has no such files.
fn nameless(folder: &Path) -> io::Result<Option<File>> {
    let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
    match openat(CWD, folder, flags, MODE) {
        Ok(file) => {
            // A file system without locks has nothing swept.
            let _ = flock(&file, FlockOperation::NonBlockingLockExclusive);
            Ok(Some(file.into()))
        }
        Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::NOENT | Errno::INVAL) => Ok(None),
        Err(why) => Err(why.into()),
    }
}

/// A new file of that name, locked.
fn locked(path: &Path) -> io::Result<File> {
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
    loop {
        let file = openat(CWD, path, flags, MODE)?;
        let _ = flock(&file, FlockOperation::LockExclusive);
        // Somebody may have swept it before it was locked.
        if fstat(&file)?.st_nlink > 0 {
            return Ok(file.into());
        }
    }
}

fn filled(mut file: File, bytes: &[u8]) -> io::Result<File> {
    file.write_all(bytes)?;
    // Some file systems find only now that they are full.
    file.sync_all()?;
    Ok(file)
}

/// Gives a file its name. Where another has it, that one is replaced.
fn placed(file: &File, path: &Path, beside: &Path) -> io::Result<()> {
    let own = format!("/proc/self/fd/{}", file.as_raw_fd());
    match linkat(CWD, &own, CWD, path, AtFlags::SYMLINK_FOLLOW) {
        Err(Errno::EXIST) => {
            linkat(CWD, &own, CWD, beside, AtFlags::SYMLINK_FOLLOW)?;
            Ok(renameat(CWD, beside, CWD, path)?)
        }
        linked => Ok(linked?),
    }
}

/// Takes away what processes left that ended before their file was in its place.
fn sweep(folder: &Path) {
    // What cannot be listed or removed stays, and is in nobody's way.
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let beside = entries.filter(|entry| {
        let (name, [start, end]) = (entry.file_name(), BESIDE);
        let name = name.to_string_lossy();
        name.starts_with(start) && name.ends_with(end)
    });
    for path in beside.map(|entry| entry.path()) {
        let _ = abandoned(&path);
    }
}

/// Removes a file unless somebody has locked it.
///
/// # Errors
/// What the system says: [`Errno::WOULDBLOCK`] of a file that is locked, [`Errno::STALE`] of a name that another file has
/// by now.
pub(crate) fn abandoned(path: &Path) -> io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = openat(CWD, path, flags, Mode::empty())?;
    flock(&file, FlockOperation::NonBlockingLockExclusive)?;
    still_named(&file, path)?;
    Ok(unlinkat(CWD, path, AtFlags::empty())?)
}

/// Rejects a name that was given to another file since this one was opened. A file that is locked keeps its name: who takes
/// it away locks it first.
fn still_named(file: &impl AsFd, path: &Path) -> io::Result<()> {
    let (opened, named) = (fstat(file)?, statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW)?);
    match (opened.st_dev, opened.st_ino) == (named.st_dev, named.st_ino) {
        true => Ok(()),
        false => Err(Errno::STALE.into()),
    }
}

/// Part of a name that nobody else has. Processes of several containers may have the same number and write to the same
/// folder, so a process draws its own.
fn unique() -> String {
    static OWN: OnceLock<u64> = OnceLock::new();
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let own = OWN.get_or_init(|| drawn().unwrap_or_else(|| std::process::id().into()));
    format!("{own:x}.{}", NEXT.fetch_add(1, Ordering::Relaxed))
}

fn drawn() -> Option<u64> {
    let mut number = [0; 8];
    let drawn = getrandom(&mut number[..], GetRandomFlags::empty());
    (drawn == Ok(number.len())).then_some(u64::from_le_bytes(number))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::path::PathBuf;

    fn folder(name: &str) -> PathBuf {
        let name = format!("counterflow-draft-{name}-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        let _ = fs::remove_dir_all(&folder);
        folder
    }

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).expect("a folder");
        let name = |entry: io::Result<fs::DirEntry>| entry.expect("read").file_name();
        let mut names: Vec<String> = entries
            .map(|entry| name(entry).to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn processes_of_one_number_have_names_of_their_own() {
        let names = [unique(), unique()];
        assert_ne!(names[0], names[1]);
        let own: Vec<&str> = names
            .iter()
            .map(|name| name.split('.').next().expect("a part"))
            .collect();
        assert_eq!(own[0], own[1]);
        assert_ne!(
            own[0],
            format!("{:x}", std::process::id()),
            "what another container may have"
        );
        assert_ne!(drawn(), drawn());
    }

    #[test]
    fn a_file_is_replaced_whole_and_nothing_else_stays() {
        let folder = folder("whole");
        let path = folder.join("deep/file");
        for text in ["first", "second, which is longer", "3"] {
            write(&path, text.as_bytes()).expect("written");
            assert_eq!(fs::read_to_string(&path).expect("read"), text);
        }
        assert_eq!(names(&folder.join("deep")), ["file"]);
        // As where files without names are not possible.
        let beside = folder.join(beside());
        let file = locked(&beside)
            .and_then(|file| filled(file, b"x"))
            .expect("written");
        assert!(abandoned(&beside).is_err(), "it is being written");
        drop(file);
        write(&folder.join("file"), b"x").expect("written");
        assert_eq!(names(&folder), ["deep", "file"], "what was left is swept");
        // What cannot be replaced, here a folder, stays as it is.
        assert!(write(&folder.join("deep"), b"x").is_err());
        assert_eq!(names(&folder), ["deep", "file"]);
        fs::remove_dir_all(folder).expect("gone");
    }

    #[test]
    fn a_file_that_was_replaced_since_it_was_opened_stays() {
        let folder = folder("replaced");
        fs::create_dir_all(&folder).expect("a folder");
        let path = folder.join("file");
        let old = locked(&path).expect("written");
        still_named(&old, &path).expect("it has its name");
        // Another one sweeps, and another one writes.
        fs::remove_file(&path).expect("gone");
        let told = still_named(&old, &path).expect_err("no name");
        assert_eq!(told.kind(), io::ErrorKind::NotFound);
        fs::write(&path, b"new").expect("written");
        let told = still_named(&old, &path).expect_err("another file");
        assert_eq!(told.raw_os_error(), Some(Errno::STALE.raw_os_error()));
        // What is new is nobody's either, unless it is locked.
        abandoned(&path).expect("removed");
        assert!(!path.exists());
        fs::remove_dir_all(folder).expect("gone");
    }

    /// Child process of the test below, with room for fewer bytes than it writes, or until it is killed.
    #[test]
    #[ignore = "no test: the next one starts it as a child process, and kills it"]
    fn writes_for_ever() {
        let path = std::env::var_os("COUNTERFLOW_TEST_DRAFT").expect("started by another test");
        let path = PathBuf::from(path);
        println!("\nwrites");
        for at in 0.. {
            let written = write(&path, &vec![at as u8; 1 << 20]);
            if let Err(error) = written {
                println!("\nfull: {error}");
                return;
            }
        }
    }

    #[test]
    fn a_killed_writer_and_a_full_disk_leave_nothing_but_whole_files() {
        use std::io::{BufRead, BufReader};
        use std::process::{Command, Stdio};
        let folder = folder("killed");
        let path = folder.join("file");
        let start = |limit: &str| {
            let own = std::env::current_exe().expect("this program");
            let script = format!(
                "trap '' XFSZ; {limit} exec \"$0\" --exact draft::tests::writes_for_ever --ignored --nocapture"
            );
            let mut process = Command::new("sh")
                .args(["-c", &script])
                .arg(own)
                .env("COUNTERFLOW_TEST_DRAFT", &path)
                .stdout(Stdio::piped())
                .spawn()
                .expect("started");
            let said = BufReader::new(process.stdout.take().expect("piped"));
            (process, said.lines().map_while(Result::ok))
        };
        for round in 0..8 {
            let (mut process, mut said) = start("");
            assert!(said.any(|line| line == "writes"));
            std::thread::sleep(std::time::Duration::from_millis(3 * round));
            process
                .kill()
                .and_then(|()| process.wait())
                .expect("killed");
            if path.exists() {
                let bytes = fs::read(&path).expect("read");
                assert!(bytes.len() == 1 << 20 && bytes.iter().all(|byte| *byte == bytes[0]));
            }
        }
        write(&path, b"last").expect("written");
        assert_eq!(names(&folder), ["file"]);
        // In blocks of 512 bytes.
        let (mut process, mut said) = start("ulimit -f 100;");
        assert!(said.any(|line| line.starts_with("full: ")));
        process.wait().expect("it ends");
        assert_eq!(fs::read(&path).expect("read"), b"last");
        assert_eq!(names(&folder), ["file"]);
        fs::remove_dir_all(folder).expect("gone");
    }
}
