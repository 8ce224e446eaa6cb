//! The launcher with real processes: shells.

use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// `script` under the launcher; what follows the script are its `$0`, `$1`.
fn launcher(ranks: &str, options: &[&str], script: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_counterflow-run"));
    command.args(["-n", ranks]).args(options);
    command.args(["--", "sh", "-c", script, "sh", "a b"]);
    command
}

fn run(ranks: &str, options: &[&str], script: &str) -> Output {
    let done = launcher(ranks, options, script).output();
    done.expect("the launcher starts")
}

fn lines(bytes: &[u8]) -> Vec<String> {
    let mut lines: Vec<String> = String::from_utf8_lossy(bytes)
        .lines()
        .map(Into::into)
        .collect();
    lines.sort();
    lines
}

#[test]
fn each_rank_gets_its_place_and_the_arguments_as_they_are() {
    let script =
        r#"echo "$RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $MASTER_ADDR $MASTER_PORT [$1]""#;
    let done = run("3", &["--port", "1234"], script);
    assert!(done.status.success(), "{done:?}");
    let place = |rank| format!("{rank}/3 {rank}/3 127.0.0.1 1234 [a b]");
    assert_eq!(lines(&done.stdout), [0, 1, 2].map(place));
}

#[test]
fn options_that_there_are_not_start_nothing() {
    let run = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_counterflow-run"));
        let done = command
            .args(arguments)
            .output()
            .expect("the launcher starts");
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        (done.status.code(), said)
    };
    // In whatever order: neither is taken for the program, and the message names what is wrong.
    for several in [
        ["--nnodes", "2", "-n", "2", "echo"],
        ["-n", "2", "--nnodes", "2", "echo"],
    ] {
        let (code, said) = run(&several);
        assert_eq!(code, Some(2), "{said}");
        assert!(
            said.contains("torchrun, mpirun and srun start those of several"),
            "{said}"
        );
    }
    for unknown in [["--rdzv", "-n", "2", "echo"], ["-n", "2", "--rdzv", "echo"]] {
        let (code, said) = run(&unknown);
        assert_eq!(code, Some(2), "{said}");
        assert!(said.contains("--rdzv"), "{said}");
    }
    assert_eq!(
        run(&["--nnodes", "1", "--nproc_per_node", "2", "true", "--rdzv"]).0,
        Some(0)
    );
    // Behind `--`, and behind the program's name, all is the program's.
    assert_eq!(run(&["-n", "1", "--", "--rdzv"]).0, Some(127));
    assert_eq!(
        run(&["-n", "1", "sh", "-c", "[ $1 = --nnodes ]", "sh", "--nnodes"]).0,
        Some(0)
    );
}

#[test]
fn two_jobs_have_two_names() {
    let name = |_| lines(&run("2", &[], r#"echo "$TORCHELASTIC_RUN_ID""#).stdout);
    let [one, other] = [0, 1].map(name);
    assert!(one[0] == one[1] && other[0] == other[1] && one[0] != other[0]);
}

#[test]
fn the_code_is_that_of_the_rank_that_failed_first() {
    let script = "case $RANK in 1) exit 7;; 2) sleep 0.5; exit 9;; esac";
    let done = run("3", &[], script);
    assert_eq!(done.status.code(), Some(7));
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    let at = |text: &str| {
        said.find(text)
            .unwrap_or_else(|| panic!("no {text} in {said}"))
    };
    assert!(at("rank 1 ended after") < at("rank 2 ended after"));
    assert!(at("exit code 7") < at("exit code 9"));
    let done = run("2", &[], "[ $RANK = 0 ] || kill -ABRT $$");
    assert_eq!(done.status.code(), Some(128 + 6), "{done:?}");
    assert!(lines(&done.stderr)[0].ends_with(": SIGABRT"), "{done:?}");
}

#[test]
fn a_program_that_is_not_there_has_a_shells_code() {
    let done = Command::new(env!("CARGO_BIN_EXE_counterflow-run"))
        .args(["-n", "2", "/no/such/program"])
        .output()
        .expect("the launcher starts");
    assert_eq!(done.status.code(), Some(127));
    assert!(lines(&done.stderr)[0].contains("/no/such/program"));
}

#[test]
fn lines_of_ranks_stay_whole() {
    for _ in 0..20 {
        let done = Command::new(env!("CARGO_BIN_EXE_counterflow-run"))
            .args(["-n", "8", "/no/such/program"])
            .output()
            .expect("the launcher starts");
        let lines = lines(&done.stderr);
        assert_eq!(lines.len(), 16, "{lines:?}");
        for line in &lines {
            let once = line.matches("counterflow-run: ").count();
            assert!(
                line.starts_with("counterflow-run: ") && once == 1,
                "{lines:?}"
            );
        }
    }
}

/// Whether it ends within so many seconds.
fn gone(process: u32, seconds: u64) -> bool {
    let pid = Pid::from_raw(process as i32).expect("a process");
    let until = Instant::now() + Duration::from_secs(seconds);
    while Instant::now() < until {
        if test_kill_process(pid).is_err() || zombie(process) {
            return true;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    false
}

/// Ended, and its new parent has not looked yet.
fn zombie(process: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    stat.rsplit(") ")
        .next()
        .is_some_and(|rest| rest.starts_with('Z'))
}

/// A job of two ranks that stay: their processes, each with that of its child.
fn staying(script: &str) -> (Child, Vec<[u32; 2]>) {
    let script = format!("{script} sleep 100 & echo $$ $!; wait; sleep 100");
    let mut job = launcher("2", &["--grace", "0"], &script)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("the launcher starts");
    let out = BufReader::new(job.stdout.take().expect("piped"));
    let processes = out.lines().take(2).map(|line| {
        let line = line.expect("read");
        let numbers = line
            .split(' ')
            .map(|number| number.parse().expect("a number"));
        numbers.collect::<Vec<_>>().try_into().expect("two")
    });
    let processes = processes.collect();
    (job, processes)
}

fn signal(process: u32, signal: Signal) {
    let pid = Pid::from_raw(process as i32).expect("a process");
    kill_process(pid, signal).expect("it runs");
}

#[test]
fn nobody_stays_behind_when_a_rank_fails() {
    let (mut job, processes) = staying("");
    signal(processes[0][0], Signal::KILL);
    let code = job.wait().expect("it ends").code();
    assert_eq!(code, Some(128 + 9));
    for process in processes.concat() {
        assert!(gone(process, 5), "{process} stays");
    }
}

#[test]
fn nobody_stays_behind_after_an_interrupt() {
    // The second interrupt does not wait for a rank that ignores the first.
    for (script, interrupts, ends) in [("", 1, 15), ("trap '' TERM;", 2, 15)] {
        let (mut job, processes) = staying(script);
        for _ in 0..interrupts {
            signal(job.id(), Signal::TERM);
            std::thread::sleep(Duration::from_millis(300));
        }
        assert_eq!(job.wait().expect("it ends").code(), Some(128 + ends));
        for process in processes.concat() {
            assert!(gone(process, 5), "{process} stays");
        }
    }
}

#[test]
fn a_killed_launcher_takes_its_ranks_along() {
    let (mut job, processes) = staying("");
    signal(job.id(), Signal::KILL);
    job.wait().expect("it ends");
    // What ranks started are theirs: without the launcher, only the ranks are known.
    for [rank, _] in &processes {
        assert!(gone(*rank, 5), "{rank} stays");
    }
    for process in processes.concat() {
        let _gone = kill_process(Pid::from_raw(process as i32).expect("one"), Signal::KILL);
    }
}
