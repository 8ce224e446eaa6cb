//! The script of the packed hardware suite, with programs in the place of its binaries: what it takes for a pass.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A folder as `.ci/pack` makes it, whose programs do what a test says.
struct Packed(PathBuf);

impl Drop for Packed {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

impl Packed {
    fn new(name: &str) -> Packed {
        let folder = format!("counterflow-packed-{name}-{}", std::process::id());
        let packed = Packed(std::env::temp_dir().join(folder));
        fs::create_dir_all(packed.0.join("bin")).expect("a folder");
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join(".ci/hardware");
        fs::copy(script, packed.0.join("run")).expect("the script");
        packed.program("hardware", "echo \"test result: ok. 2 passed; 0 failed\"");
        packed.program("faults", "echo \"test result: ok. 3 passed; 0 failed\"");
        packed.program("quantisers", "echo \"test result: ok. 1 passed; 0 failed\"");
        packed.program("counterflow-run", "shift 3; exec \"$@\"");
        packed.program("embed", "echo every number is right");
        packed.program("bin/nvidia-smi", "[[ $1 != -L ]] || echo GPU 0: one");
        packed
    }

    fn program(&self, name: &str, does: &str) {
        let path = self.0.join(name);
        fs::write(&path, format!("#!/usr/bin/env bash\n{does}\n")).expect("written");
        fs::set_permissions(path, Permissions::from_mode(0o755)).expect("a program");
    }

    /// The exit status, and all that it printed.
    fn run(&self, sections: &[&str], set: &[(&str, &str)]) -> (i32, String) {
        let path = std::env::var("PATH").expect("a path");
        let bin = self.0.join("bin");
        let ran = Command::new("bash")
            .arg(self.0.join("run"))
            .args(sections)
            .env("PATH", format!("{}:{path}", bin.display()))
            .env("REPORTS", self.0.join("reports"))
            .env("REQUIRE_GPU", "1")
            .env_remove("FRESH")
            .env_remove("BUDGET")
            .envs(set.iter().copied())
            .output()
            .expect("bash");
        let said = [ran.stdout, ran.stderr].concat();
        let code = ran.status.code().expect("it ends");
        (code, String::from_utf8_lossy(&said).into_owned())
    }
}

#[test]
fn a_section_without_tests_has_failed_and_runs_again() {
    let packed = Packed::new("none");
    let nothing = "echo \"test result: ok. ${PASSED:-2} passed; 0 failed; 9 filtered out\"";
    packed.program("hardware", nothing);
    let (code, said) = packed.run(&["pulls"], &[("PASSED", "0")]);
    assert!(
        code == 1 && said.contains("nothing was tested"),
        "{code}: {said}"
    );
    let (code, said) = packed.run(&["pulls"], &[]);
    assert!(code == 0 && said.contains("\n1 sections fine, 0 incomplete, 0 failed"));
    // It does not run once more.
    let (code, _) = packed.run(&["pulls"], &[("PASSED", "0")]);
    assert_eq!(code, 0);
    packed.program("embed", "true");
    let (code, said) = packed.run(&["embed-ours"], &[("FRESH", "1")]);
    assert!(
        code == 1 && said.contains("nothing was tested"),
        "{code}: {said}"
    );
}

#[test]
fn a_section_that_is_not_there_is_refused() {
    let packed = Packed::new("names");
    let (code, said) = packed.run(&["pulls", "typo"], &[]);
    assert!(
        code == 2 && said.contains("typo is no section"),
        "{code}: {said}"
    );
    let (code, said) = packed.run(&["list"], &[]);
    assert!(
        code == 0 && said.lines().any(|name| name == "pulls"),
        "{said}"
    );
}

#[test]
fn reports_of_another_build_are_refused() {
    let packed = Packed::new("build");
    assert_eq!(packed.run(&["faults"], &[]).0, 0);
    packed.program("embed", "true");
    let (code, said) = packed.run(&["faults"], &[]);
    assert!(
        code == 2 && said.contains("of another build"),
        "{code}: {said}"
    );
    assert_eq!(packed.run(&["faults"], &[("FRESH", "1")]).0, 0);
}

#[test]
fn a_driver_that_does_not_answer_is_told() {
    let packed = Packed::new("driver");
    packed.program("bin/nvidia-smi", "echo no driver; exit 9");
    let (code, said) = packed.run(&["pulls"], &[]);
    assert!(
        code == 2 && said.contains("nvidia-smi fails") && said.contains("no driver"),
        "{code}: {said}"
    );
}

#[test]
fn a_soak_that_ran_out_of_time_is_incomplete_and_what_was_skipped_is_counted() {
    let packed = Packed::new("soak");
    let soaked = "echo \"  $RAN launches right, 0 wrong, $RAN of 1000 asked\"
echo \"test result: ok. 1 passed; 0 failed\"";
    packed.program("hardware", soaked);
    for (ran, wanted) in [
        (
            "900",
            "0 sections fine, 1 incomplete, 0 failed, 2 skipped; 1 tests passed, 0 failed, 900 launches",
        ),
        (
            "1000",
            "1 sections fine, 0 incomplete, 0 failed, 2 skipped; 1 tests passed, 0 failed, 1000 launches",
        ),
    ] {
        let sections = ["soak-of-threads-two", "memcheck", "synccheck"];
        let set = [("RAN", ran), ("SANITIZE", "0"), ("FRESH", "1")];
        let (code, said) = packed.run(&sections, &set);
        let last = said.lines().last().unwrap_or_default();
        assert!(code == 0 && last.starts_with(wanted), "{code}: {said}");
        assert!(
            last.ends_with("SANITIZE=0: 2 sections did not run"),
            "{last}"
        );
    }
}

#[test]
fn two_runs_side_by_side_take_turns_on_a_gpu() {
    let packed = Packed::new("turns");
    // It fails where another one is at work.
    packed.program(
        "hardware",
        "mkdir at-work || exit 1
sleep 0.3
rmdir at-work
echo \"test result: ok. 1 passed; 0 failed\"",
    );
    let one = |reports: &str| {
        let reports = packed.0.join(reports);
        packed.run(
            &["queues", "pulls"],
            &[("REPORTS", &reports.to_string_lossy())],
        )
    };
    std::thread::scope(|scope| {
        let runs = ["one", "two"].map(|reports| scope.spawn(move || one(reports)));
        for run in runs {
            let (code, said) = run.join().expect("it ran");
            assert!(code == 0 && said.contains("2 sections fine"), "{said}");
        }
    });
}

#[test]
fn as_many_random_schedules_run_as_have_kernels() {
    let packed = Packed::new("random");
    fs::write(packed.0.join("random-cases"), "31\n").expect("written");
    packed.program(
        "hardware",
        "echo \"  $RANDOM_CASES launches right\"
echo \"test result: ok. 1 passed; 0 failed\"",
    );
    let (code, said) = packed.run(&["random"], &[]);
    assert!(
        code == 0 && said.contains(" 31 launches compared"),
        "{said}"
    );
    let set = [("RANDOM_CASES", "7"), ("FRESH", "1")];
    let (code, said) = packed.run(&["random"], &set);
    assert!(code == 0 && said.contains(" 7 launches compared"), "{said}");
}

#[test]
fn one_gpu_passes_without_what_needs_two() {
    let packed = Packed::new("two");
    let told = "echo SKIPPED: two GPUs; echo \"test result: ok. 2 passed; 0 failed\"";
    packed.program("hardware", told);
    let (code, said) = packed.run(&["pulls"], &[]);
    assert!(
        code == 0 && said.contains("1 skipped") && said.contains("1 sections skipped a part"),
        "{code}: {said}"
    );
    let (code, said) = packed.run(&["pulls"], &[("FRESH", "1"), ("REQUIRE_GPU", "2")]);
    assert!(code == 1 && said.contains("1 failed"), "{code}: {said}");
    packed.program(
        "bin/nvidia-smi",
        "[[ $1 != -L ]] || printf 'GPU 0: one\\nGPU 1: two\\n'",
    );
    let (code, said) = packed.run(&["pulls"], &[("FRESH", "1")]);
    assert!(code == 1 && said.contains("1 failed"), "{code}: {said}");
}
