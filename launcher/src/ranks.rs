//! The processes of a job.

use crate::ended::{Ended, How};
use crate::say::say;
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, getppid, kill_process_group,
    set_parent_process_death_signal, waitid,
};
use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Instant, SystemTime};

/// A rank's process, with a process group of its own, so that a signal reaches what it started, too.
struct Rank {
    group: Pid,
    process: Child,
    ended: Option<Ended>,
}

/// All ranks of a job. Dropped, they are killed.
pub struct Ranks {
    ranks: Vec<Rank>,
    start: Instant,
}

impl Ranks {
    /// Starts the program once for each rank. If one of them cannot be started, those before it are killed.
    pub fn start(world: u32, port: u16, program: &[OsString]) -> io::Result<Ranks> {
        let launcher = std::process::id().to_string();
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        // Ranks meet by the job's name: no other job of this host has it.
        let job = format!(
            "counterflow-run {launcher} {}",
            now.unwrap_or_default().as_nanos()
        );
        let mut ranks = Ranks {
            ranks: Vec::new(),
            start: Instant::now(),
        };
        for rank in 0..world {
            // The launcher again: there a rank can ask to end with its launcher, without unsafe code between fork and exec.
            let process = Command::new(std::env::current_exe()?)
                .args(["--ranks", &world.to_string(), "--rank-of", &launcher, "--"])
                .args(program)
                .env("RANK", rank.to_string())
                .env("LOCAL_RANK", rank.to_string())
                .env("GROUP_RANK", "0")
                .env("WORLD_SIZE", world.to_string())
                .env("LOCAL_WORLD_SIZE", world.to_string())
                .env("MASTER_ADDR", "127.0.0.1")
                .env("MASTER_PORT", port.to_string())
                .env("TORCHELASTIC_RUN_ID", &job)
                .env("TORCHELASTIC_RESTART_COUNT", "0")
                .process_group(0)
                .stdin(Stdio::null())
                .spawn()?;
            ranks.ranks.push(Rank {
                group: Pid::from_child(&process),
                process,
                ended: None,
            });
        }
        Ok(ranks)
    }

    /// Looks which ranks have ended. False once all have.
    pub fn look(&mut self) -> io::Result<bool> {
        let mut running = false;
        for (number, rank) in (0..).zip(&mut self.ranks) {
            if rank.ended.is_none() {
                // Its number stays taken until the job ends: no stranger gets a signal that is meant for its group.
                let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
                rank.ended = waitid(WaitId::Pid(rank.group), look)?.map(|status| Ended {
                    rank: number,
                    how: How::of(&status),
                    after: self.start.elapsed(),
                });
            }
            running |= rank.ended.is_none();
        }
        Ok(running)
    }

    /// Sends a signal to every rank and to what it started.
    pub fn signal(&self, signal: Signal) {
        for rank in &self.ranks {
            // A group of which nobody is left is not there any more.
            let _gone = kill_process_group(rank.group, signal);
        }
    }

    /// The ranks that failed, in the order in which they ended.
    pub fn failures(&self) -> Vec<Ended> {
        let ended = self.ranks.iter().filter_map(|rank| rank.ended);
        let mut failed: Vec<Ended> = ended.filter(|ended| ended.how != How::Exit(0)).collect();
        failed.sort_by_key(|ended| ended.after);
        failed
    }

    /// The rank that failed first.
    pub fn first_failure(&self) -> Option<Ended> {
        self.failures().first().copied()
    }
}

impl Drop for Ranks {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
        for rank in &mut self.ranks {
            // It was killed; this takes its end from the system.
            let _ended = rank.process.wait();
        }
    }
}

/// Turns this process into the program, which ends when its launcher does. Returns only if the program cannot be started.
pub fn become_rank(launcher: u32, program: &[OsString]) -> ExitCode {
    let failed = |error: io::Error| {
        say(&format_args!("{}: {error}", program[0].display()));
        let missing = error.kind() == io::ErrorKind::NotFound;
        // A shell's codes for a program that is not there, and for one that cannot be started.
        ExitCode::from(if missing { 127 } else { 126 })
    };
    if let Err(error) = set_parent_process_death_signal(Some(Signal::KILL)) {
        return failed(error.into());
    }
    // The launcher may have ended before this asked for the signal.
    if getppid().is_none_or(|parent| parent.as_raw_nonzero().get() as u32 != launcher) {
        return ExitCode::from(128 + Signal::KILL.as_raw() as u8);
    }
    failed(Command::new(&program[0]).args(&program[1..]).exec())
}
