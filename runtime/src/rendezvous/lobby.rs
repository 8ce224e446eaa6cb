//! Meeting place of one host's ranks, which were told no address and no secret: a file that only this user can read, in
//! which rank 0 writes the port at which it listens and the job's secret.

use super::door::Place;
use super::failed;
use super::secret::{Secret, random};
use super::tcp::{Tcp, connect};
use crate::draft;
use crate::error::Error;
use crate::trust;
use rustix::fs::OFlags;
use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// The longest file that is read, in bytes.
const LONGEST: u64 = 256;

/// A folder that only this user can enter: all ranks of a host find the same. Another user may have made one of that name
/// in the folder for temporary files, so there are others to choose from.
pub(super) fn folder() -> Result<PathBuf, Error> {
    let run = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let user = rustix::process::geteuid().as_raw();
    let temp = std::env::temp_dir();
    let own = directories::ProjectDirs::from("", "", "counterflow");
    let all = places(run, &temp, user, own.as_ref().map(|own| own.cache_dir()));
    chosen(&all, user)
}

fn places(run: Option<PathBuf>, temp: &Path, user: u32, cache: Option<&Path>) -> Vec<PathBuf> {
    /// Names that another user must take to keep us out of the folder for temporary files.
    const NAMES: u32 = 4;
    let run = run.filter(|run| run.is_dir());
    let run = run.map(|run| run.join("counterflow"));
    let first = temp.join(format!("counterflow-{user}"));
    let more = (1..NAMES).map(|more| temp.join(format!("counterflow-{user}-{more}")));
    let all = run.into_iter().chain([first]).chain(more);
    all.chain(cache.map(|cache| cache.join("jobs"))).collect()
}

fn chosen(places: &[PathBuf], user: u32) -> Result<PathBuf, Error> {
    let mut refused = Vec::new();
    for place in places {
        match must_be_own(place, user) {
            Ok(()) => return Ok(place.clone()),
            Err(why) => refused.push(format!("{}: {why}", place.display())),
        }
    }
    Err(failed(
        format!("ranks cannot meet in any of: {}", refused.join("; ")),
        "let XDG_RUNTIME_DIR name a folder that only this user can enter (chmod 700)",
    ))
}

/// Makes it, unless it is there. Whoever else could enter it, or put another in its place, could read secrets.
fn must_be_own(folder: &Path, user: u32) -> io::Result<()> {
    let above = trust::parent(folder);
    match trust::above(above) {
        // The user's folder for caches, before its first use.
        Err(error) if error.kind() == ErrorKind::NotFound => drop(trust::made(above)?),
        looked => looked?,
    }
    match DirBuilder::new().mode(0o700).create(folder) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    // Not of what a link leads to: others may have put a link there.
    let about = folder.symlink_metadata()?;
    match about.is_dir() && about.uid() == user && about.mode() & 0o077 == 0 {
        true => Ok(()),
        false => Err(trust::distrust(folder, "it is not this user's alone")),
    }
}

/// Takes away the files of jobs whose rank 0 ended before all were there.
fn sweep(folder: &Path) {
    // What cannot be listed or removed stays, and is in nobody's way.
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    for entry in entries {
        let _ = draft::abandoned(&entry.path());
    }
}

/// The file of a job with that name.
fn path(folder: &Path, job: &str) -> PathBuf {
    folder.join(blake3::hash(job.as_bytes()).to_hex().as_str())
}

/// Rank 0's file, locked while the others join, and gone afterwards.
struct Sign {
    path: PathBuf,
    file: File,
}

impl Drop for Sign {
    fn drop(&mut self) {
        // Gone already, or found useless by the next job of that name.
        let _ = std::fs::remove_file(&self.path);
    }
}

impl Sign {
    fn hung(path: PathBuf, job: &str) -> Result<Sign, Error> {
        const HELP: &str = "make room there, or let XDG_RUNTIME_DIR name another folder";
        let refused = |error: &io::Error| {
            failed(
                format!("rank 0 cannot write {}: {error}", path.display()),
                HELP,
            )
        };
        let patience = Instant::now() + Duration::from_millis(100);
        loop {
            let file = OpenOptions::new()
                .create(true)
                .truncate(false)
                .write(true)
                .custom_flags(OFlags::NOFOLLOW.bits().cast_signed())
                .mode(0o600)
                .open(&path)
                .map_err(|error| refused(&error))?;
            match file.try_lock() {
                Ok(()) => {}
                // Somebody may just look whether the job still lives.
                Err(TryLockError::WouldBlock) if Instant::now() < patience => {
                    sleep(Duration::from_millis(5));
                    continue;
                }
                Err(TryLockError::WouldBlock) => {
                    return Err(failed(
                        format!("another job named {job} is just starting"),
                        "give each job a name of its own: UB_JOB",
                    ));
                }
                Err(TryLockError::Error(error)) => return Err(refused(&error)),
            }
            // A job that ended meanwhile may have taken the file away.
            let here = path.metadata().map(|about| about.ino()).ok();
            let ours = file.metadata().map_err(|error| refused(&error))?.ino();
            if here == Some(ours) {
                return Ok(Sign { path, file });
            }
        }
    }

    fn write(&mut self, text: &str) -> io::Result<()> {
        self.file.set_len(0)?;
        self.file.write_all(text.as_bytes())?;
        self.file.flush()
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The port and the secret in a file, once they are there whole.
fn read(path: &Path) -> io::Result<(SocketAddr, Secret)> {
    let nothing = || io::Error::new(ErrorKind::NotFound, "rank 0 has not said where it listens");
    let why = |error: io::Error| match error.kind() {
        ErrorKind::NotFound | ErrorKind::InvalidData => nothing(),
        _ => error,
    };
    let bytes = trust::read(path, LONGEST).map_err(why)?;
    let text = String::from_utf8(bytes).map_err(|_| nothing())?;
    let mut words = text.split(' ');
    let (port, secret, end) = (words.next(), words.next(), words.next());
    let port = port.and_then(|port| port.parse().ok());
    match (port, secret, end) {
        (Some(port), Some(secret), Some("end")) => Ok((
            SocketAddr::from((Ipv4Addr::LOCALHOST, port)),
            Secret::of(secret.as_bytes()),
        )),
        _ => Err(nothing()),
    }
}

/// Joins the job of that name on this host.
pub(super) fn join(folder: &Path, job: &str, place: Place, limit: Duration) -> Result<Tcp, Error> {
    let path = path(folder, job);
    if place.rank > 0 {
        let joined = Tcp::follow(place, limit, |until: Instant| {
            // Read each time: a file of an earlier job may lie there.
            let (address, secret) = read(&path)?;
            Ok((connect(address, until)?, secret))
        });
        // Rank 0 may have been killed.
        return joined.inspect_err(|_| sweep(folder));
    }
    sweep(folder);
    let mut sign = Sign::hung(path, job)?;
    let word = hex(&random()?);
    let listens = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|listener| {
        let port = listener.local_addr()?.port();
        sign.write(&format!("{port} {word} end"))?;
        Ok(listener)
    });
    let listener = listens.map_err(|error| {
        failed(
            format!("rank 0 cannot listen on this host: {error}"),
            "free a port, a file descriptor or room on the disk, as that says",
        )
    })?;
    Tcp::lead(&listener, place.world, &Secret::of(word.as_bytes()), limit)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rendezvous::Rendezvous;
    use std::os::unix::fs::PermissionsExt;

    const LONG: Duration = Duration::from_secs(60);

    fn place(rank: u32, world: u32) -> Place {
        Place { rank, world }
    }

    fn scratch(name: &str) -> PathBuf {
        let name = format!("counterflow-lobby-{name}-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        must_be_own(&folder, rustix::process::geteuid().as_raw()).expect("made");
        folder
    }

    #[test]
    fn ranks_meet_by_a_name_although_an_earlier_job_left_its_file() {
        let folder = scratch("meet");
        let left = format!("1 {} end", hex(&[7; 32]));
        std::fs::write(path(&folder, "job"), left).expect("written");
        let all = std::thread::scope(|scope| {
            let folder = &folder;
            let ranks = [2, 1, 0].map(|rank| {
                scope.spawn(move || {
                    if rank == 0 {
                        std::thread::sleep(Duration::from_millis(100));
                    }
                    let job = join(folder, "job", place(rank, 3), LONG)?;
                    job.all_gather(&[rank as u8], LONG)
                })
            });
            ranks.map(|rank| rank.join().expect("no panic").expect("met"))
        });
        assert!(all.iter().all(|all| *all == [[0], [1], [2]]));
        assert!(
            !path(&folder, "job").exists(),
            "it lies no longer than it must"
        );
        std::fs::remove_dir_all(&folder).expect("gone");
    }

    #[test]
    fn two_jobs_of_one_name_at_once_are_told() {
        let folder = scratch("two");
        let first = Sign::hung(path(&folder, "job"), "job").expect("free");
        let second = join(&folder, "job", place(0, 2), LONG).expect_err("taken");
        assert_eq!(second.to_string(), "another job named job is just starting");
        assert!(second.help().is_some_and(|help| help.contains("UB_JOB")));
        drop(first);
        let late = join(&folder, "job", place(0, 2), Duration::from_millis(50));
        assert_eq!(
            late.expect_err("alone").to_string(),
            "rank 1 did not join within 50ms"
        );
        std::fs::remove_dir_all(&folder).expect("gone");
    }

    #[test]
    fn a_folder_that_others_can_enter_is_refused() {
        let folder = scratch("open");
        let user = rustix::process::geteuid().as_raw();
        std::fs::set_permissions(&folder, PermissionsExt::from_mode(0o755)).expect("set");
        assert!(must_be_own(&folder, user).is_err());
        std::fs::set_permissions(&folder, PermissionsExt::from_mode(0o700)).expect("set");
        assert!(must_be_own(&folder, user).is_ok());
        assert!(must_be_own(&folder, user + 1).is_err(), "another user's");
        let link = folder.join("link");
        std::os::unix::fs::symlink(&folder, &link).expect("made");
        assert!(must_be_own(&link, user).is_err(), "a link");
        std::fs::remove_dir_all(&folder).expect("gone");
    }

    #[test]
    fn where_another_user_has_taken_the_name_ranks_meet_elsewhere() {
        let temp = scratch("taken");
        let user = rustix::process::geteuid().as_raw();
        let all = places(None, &temp, user, Some(&temp.join("cache/counterflow")));
        // As another user may leave them: a folder that others can enter, a file, a link to somewhere else, a pipe.
        std::fs::create_dir(&all[0]).expect("made");
        std::fs::set_permissions(&all[0], PermissionsExt::from_mode(0o777)).expect("set");
        assert_eq!(chosen(&all, user).expect("another"), all[1]);
        std::fs::remove_dir(&all[1]).expect("gone");
        std::fs::write(&all[1], "").expect("a file");
        std::os::unix::fs::symlink(&temp, &all[2]).expect("a link");
        rustix::fs::mkfifoat(rustix::fs::CWD, &all[3], rustix::fs::Mode::RWXU).expect("a pipe");
        let last = chosen(&all, user).expect("the user's own");
        assert_eq!(last, temp.join("cache/counterflow/jobs"));
        assert_eq!(
            chosen(&all, user).expect("there"),
            last,
            "the next rank finds it"
        );
        let told = chosen(&all[..4], user).expect_err("none").to_string();
        assert!(
            told.starts_with("ranks cannot meet in any of: ")
                && told.matches("not this user's alone").count() == 4,
            "{told}"
        );
        // Nor where others may put another folder in its place.
        let open = temp.join("open");
        std::fs::create_dir(&open).expect("made");
        std::fs::set_permissions(&open, PermissionsExt::from_mode(0o777)).expect("set");
        let told = must_be_own(&open.join("jobs"), user)
            .expect_err("open")
            .to_string();
        assert!(told.contains("others may write it"), "{told}");
        assert!(!open.join("jobs").exists());
        std::fs::remove_dir_all(&temp).expect("gone");
    }

    /// Child process that the test below starts and kills.
    #[test]
    #[ignore = "no test: the next one starts it as a child process, and kills it"]
    fn waits_for_ever() {
        let folder = std::env::var_os("COUNTERFLOW_TEST_LOBBY").expect("started by another test");
        let alone = join(Path::new(&folder), "killed", place(0, 2), LONG);
        panic!("{:?}", alone.map(drop));
    }

    #[test]
    fn a_killed_rank_0_leaves_no_file_for_long() {
        let folder = scratch("killed");
        let kill = || {
            let mut first = std::process::Command::new(std::env::current_exe().expect("this"))
                .args([
                    "--exact",
                    "rendezvous::lobby::tests::waits_for_ever",
                    "--ignored",
                ])
                .env("COUNTERFLOW_TEST_LOBBY", &folder)
                .stdout(std::process::Stdio::null())
                .spawn()
                .expect("started");
            while read(&path(&folder, "killed")).is_err() {
                std::thread::sleep(Duration::from_millis(5));
            }
            // Not while it lives.
            sweep(&folder);
            assert!(read(&path(&folder, "killed")).is_ok());
            first.kill().and_then(|()| first.wait()).expect("killed");
            assert!(path(&folder, "killed").exists());
        };
        let empty = || std::fs::read_dir(&folder).expect("a folder").count() == 0;
        // Its peers take the file away when they give up, else whoever meets next.
        kill();
        let soon = Duration::from_millis(50);
        assert!(join(&folder, "killed", place(1, 2), soon).is_err());
        assert!(empty());
        kill();
        join(&folder, "another", place(0, 1), LONG).expect("alone");
        assert!(empty());
        std::fs::remove_dir_all(&folder).expect("gone");
    }
}
