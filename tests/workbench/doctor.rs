//! `doctor` on this machine, and on machines of a fake driver: two H100s, of which something may be wrong.

use super::*;
use counterflow_workbench::{REJECTED, USAGE};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// How long a process may take.
const MOST: Duration = Duration::from_secs(120);

fn findings(object: &Json) -> &[Json] {
    object["findings"].as_array().expect("a list")
}

/// The lines of a check, each with its grade.
fn lines<'a>(object: &'a Json, check: &str) -> Vec<(&'a str, &'a str)> {
    let of = findings(object)
        .iter()
        .filter(|line| line["check"] == check);
    let text = |line: &'a Json, name| line[name].as_str().expect("text");
    of.map(|line| (text(line, "grade"), text(line, "says")))
        .collect()
}

/// What holds on any machine.
#[track_caller]
fn whole(object: &Json, code: u8) {
    assert_eq!(object["verb"], "doctor");
    let bad = findings(object)
        .iter()
        .filter(|line| line["grade"] == "bad");
    let bad: Vec<_> = bad.collect();
    assert_eq!(code == GOOD, bad.is_empty(), "{bad:?}");
    assert_eq!(
        (&object["exit"], &object["ok"]),
        (&code.into(), &bad.is_empty().into())
    );
    for line in bad {
        assert_ne!(line["help"].as_str().unwrap_or_default(), "", "{line}");
    }
}

#[test]
fn this_machine_has_a_page_and_an_object() {
    let told = tell(&ALL, "doctor --json");
    let object = object(&told);
    whole(&object, told.code);
    for check in ["driver", "NVRTC", "kernel cache"] {
        assert!(!lines(&object, check).is_empty(), "{check}");
    }
    let page = tell(&ALL, "doctor");
    assert_eq!((page.code, &page.err[..]), (told.code, ""));
    has(&page.out, &["driver", "NVRTC", "kernel cache"]);
    let summary = if page.code == GOOD {
        "all good"
    } else {
        "not good: "
    };
    has(&page.out, &[summary]);
}

#[test]
fn doctor_needs_no_schedule_and_takes_none() {
    assert_ne!(tell(&[], "doctor").code, USAGE);
    bad(
        &tell(&ALL, "doctor gemm"),
        USAGE,
        &["not at a schedule such as `gemm`"],
    );
    bad(
        &tell(&ALL, "doctor check"),
        USAGE,
        &["both doctor and check"],
    );
}

/// The folder of the fake driver; of one that is too old.
fn fake(old: bool) -> Option<&'static Path> {
    static MADE: [OnceLock<Option<PathBuf>>; 2] = [OnceLock::new(), OnceLock::new()];
    let made = MADE[usize::from(old)].get_or_init(|| {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/common/fake_driver.rs");
        let name = if old {
            "old-fake-driver"
        } else {
            "fake-driver"
        };
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        std::fs::create_dir_all(&folder).expect("a folder");
        // Another run of these tests may have the libraries loaded: each is replaced, never written.
        let draft = folder.join(format!("draft-{}", std::process::id()));
        let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
        let mut made = Command::new(rustc);
        made.args(["--edition=2024", "--crate-type=cdylib", "-Cpanic=abort"]);
        made.arg("--check-cfg=cfg(old)")
            .args(old.then_some("--cfg=old"));
        match made.arg(source).arg("-o").arg(&draft).output() {
            Ok(done) => {
                let said = String::from_utf8_lossy(&done.stderr);
                assert!(done.status.success(), "{said}");
            }
            Err(error) => {
                eprintln!("skipped: no rustc here: {error}");
                return None;
            }
        }
        let second = draft.with_extension("second");
        std::fs::copy(&draft, &second).expect("copied");
        std::fs::rename(&draft, folder.join("libcuda.so")).expect("moved");
        std::fs::rename(&second, folder.join("libnvidia-ml.so.1")).expect("moved");
        Some(folder)
    });
    made.as_deref()
}

/// What `doctor --json` says in a process that finds the fake driver.
fn on_a_machine(what: &str, old: bool) -> Option<Json> {
    on_a_machine_with(what, old, &[])
}

/// The same with these variables.
fn on_a_machine_with(what: &str, old: bool, set: &[(&str, &OsStr)]) -> Option<Json> {
    let folder = fake(old)?;
    let mut process = Command::new(std::env::current_exe().expect("this program"))
        .args([
            "--exact",
            "doctor::a_process_of_another_test",
            "--ignored",
            "--nocapture",
        ])
        .env("LD_LIBRARY_PATH", folder)
        .env("FAKE_DRIVER", what)
        .env("UB_TIMEOUT", if what == "hangs" { patience() } else { "" })
        .env_remove("CUDA_DEVICE_MAX_CONNECTIONS")
        .env_remove("CUDA_VISIBLE_DEVICES")
        .envs(set.iter().copied())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let end = Instant::now() + MOST;
    while process.try_wait().expect("its state").is_none() {
        if Instant::now() > end {
            let _ = process.kill();
            break;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let done = process.wait_with_output().expect("what it said");
    let (out, err) = (
        String::from_utf8_lossy(&done.stdout),
        String::from_utf8_lossy(&done.stderr),
    );
    let at = out
        .find("{\"")
        .unwrap_or_else(|| panic!("no object in:\n{out}{err}"));
    let line = out[at..].lines().next().expect("a line");
    let object: Json = serde_json::from_str(line).expect("an object");
    let code = object["exit"].as_u64().expect("a code") as u8;
    whole(&object, code);
    assert_eq!(done.status.code(), Some(code.into()), "{out}{err}");
    Some(object)
}

#[test]
#[ignore = "other tests start it"]
fn a_process_of_another_test() {
    let told = tell(&ALL, "doctor --json");
    println!("\n{}", told.out);
    // As `main` ends; that reads the command line, which is the test's here.
    counterflow_workbench::leave_what_hangs(told.code);
    std::process::exit(told.code.into());
}

#[test]
fn two_gpus_are_told_from_driver_and_nvml() {
    let Some(object) = on_a_machine("", false) else {
        return;
    };
    for (check, says) in [
        ("driver", "580.95.05, CUDA 13.0"),
        ("NVML", "answers"),
        (
            "GPUs",
            "GPU 0, 1: NVIDIA H100 80GB HBM3, 132 SMs, 80 GiB, compute capability 9.0",
        ),
        ("MIG", "GPU 0, 1: off"),
        ("compute mode", "GPU 0, 1: shared: any process may use it"),
        ("persistence", "GPU 0, 1: on"),
        ("clocks", "GPU 0, 1: up to 1980 MHz, nothing limits them"),
        ("power", "GPU 0, 1: limit 700 W"),
        ("ECC", "GPU 0, 1: on, no uncorrected error"),
        ("processes", "GPU 0, 1: no process uses it"),
        ("NVLink", "GPU 0, 1: 18 links up"),
        ("fabric", "GPU 0, 1: registered with the NVSwitch fabric"),
        ("peer access", "GPU 0, 1: reaches the memory of every other"),
        (
            "peer atomics",
            "GPU 0, 1: adds atomically to the memory of every other",
        ),
        (
            "memory handles",
            "GPU 0, 1: virtual memory, by file descriptors; no fabric handles",
        ),
        ("hardware queues", "32"),
    ] {
        assert_eq!(lines(&object, check), [("ok", says)], "{check}");
    }
    assert_eq!(object["links"], serde_json::json!([[null, 18], [18, null]]));
    assert_eq!(object["not_checked"], serde_json::json!([]));
    let [(_, multicast)] = lines(&object, "multicast")[..] else {
        panic!("one line of multicast");
    };
    assert!(
        multicast.contains("the GPU has it; it is off: this program was built without"),
        "{multicast}"
    );
}

#[test]
fn what_is_wrong_with_a_machine_is_told() {
    let mut known: Option<(&str, Json)> = None;
    for (machine, check, says) in [
        (
            "no peers",
            "peer access",
            "GPU 0: does not reach the memory of GPU 1",
        ),
        (
            "no peers",
            "peer atomics",
            "GPU 1: makes no atomic additions in the memory of GPU 0",
        ),
        ("low power", "power", "GPU 1: limit 500 W, of 700 W"),
        (
            "a link is down",
            "NVLink",
            "GPU 1: 17 of 18 links are up; down: 3",
        ),
        (
            "no fabric manager",
            "driver",
            "does not start: system not ready",
        ),
        (
            "no fabric manager",
            "fabric",
            "GPU 0000:1b:00.0, 0000:1c:00.0: not registered",
        ),
        ("no gpu", "driver", "does not start: no device"),
    ] {
        // What follows of the same machine is in the same object.
        if known.as_ref().is_none_or(|(of, _)| *of != machine) {
            let Some(object) = on_a_machine(machine, false) else {
                return;
            };
            known = Some((machine, object));
        }
        let (_, object) = known.as_ref().expect("told");
        let lines = lines(object, check);
        assert!(
            lines
                .iter()
                .any(|(grade, text)| *grade == "bad" && text.contains(says)),
            "{machine}: {lines:?}"
        );
        assert_eq!(object["exit"], 1, "{machine}");
    }
}

#[test]
fn a_driver_that_is_too_old_is_told_by_what_it_lacks() {
    if let Some(object) = on_a_machine("", true) {
        let [(grade, says)] = lines(&object, "driver")[..] else {
            panic!("one line of the driver");
        };
        assert_eq!(grade, "bad");
        has(
            says,
            &["580.95.05, the NVIDIA driver is too old: it has no cuMemcpyBatchAsync_v2"],
        );
    }
}

/// Seconds to wait for a driver that hangs. All else must answer until then: beside all of `.ci/run`, which sets `WIDE`, that takes longer.
fn patience() -> &'static str {
    let wide = crate::fixtures::wide::wide();
    if wide { "6" } else { "3" }
}

/// The process ends, although the library's own function at its end waits for the call that hangs.
#[test]
fn a_driver_that_hangs_is_told_and_left() {
    if let Some(object) = on_a_machine("hangs", false) {
        let [(grade, says)] = lines(&object, "driver")[..] else {
            panic!("one line of the driver");
        };
        assert_eq!(grade, "bad");
        let wanted = format!(
            "580.95.05, the driver does not answer within {}s",
            patience()
        );
        has(says, &[&wanted]);
        assert_eq!(
            lines(&object, "power"),
            [("ok", "GPU 0000:1b:00.0, 0000:1c:00.0: limit 700 W")]
        );
    }
}

#[test]
fn what_is_wrong_with_software_and_variables_is_told() {
    let top = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("doctor-{}", std::process::id()));
    let folder = |name: &str, files: &[(&str, &str)]| {
        let folder = top.join(name);
        std::fs::create_dir_all(&folder).expect("a folder");
        for (file, text) in files {
            std::fs::write(folder.join(file), text).expect("a file");
        }
        folder.into_os_string()
    };
    let half = folder("half", &[("libnvrtc.so.13", "")]);
    let both = ("libnvrtc-builtins.so.13.0", "");
    let broken = folder("broken", &[("libnvrtc.so.13", "no library"), both]);
    let damaged = folder("damaged", &[("tuned.toml", "winner = 3"), ("a-file", "")]);
    let below = Path::new(&damaged).join("a-file/kernels").into_os_string();
    let text = |text: &'static str| OsStr::new(text).to_owned();
    for (variable, value, check, grade, says) in [
        (
            "COUNTERFLOW_NVRTC",
            half,
            "NVRTC",
            "bad",
            "has no libnvrtc.so.13 with its",
        ),
        ("COUNTERFLOW_NVRTC", broken, "NVRTC", "bad", "does not load"),
        (
            "COUNTERFLOW_CACHE",
            below,
            "kernel cache",
            "bad",
            "cannot be written",
        ),
        (
            "COUNTERFLOW_CACHE",
            damaged,
            "choices",
            "bad",
            "tuned.toml: ",
        ),
        (
            "COUNTERFLOW_CACHE",
            text("off"),
            "kernel cache",
            "note",
            "off",
        ),
        (
            "CUDA_DEVICE_MAX_CONNECTIONS",
            text("many"),
            "hardware queues",
            "bad",
            "is not a number",
        ),
        (
            "CUDA_DEVICE_MAX_CONNECTIONS",
            text("1"),
            "hardware queues",
            "note",
            "1: enough",
        ),
        (
            "CUDA_LAUNCH_BLOCKING",
            text("1"),
            "hardware queues",
            "bad",
            "every launch wait",
        ),
        (
            "COUNTERFLOW_HANDLES",
            text("imex"),
            "memory handles",
            "bad",
            "without meaning",
        ),
        (
            "COUNTERFLOW_HANDLES",
            text("fabric"),
            "memory handles",
            "bad",
            "no fabric handles",
        ),
    ] {
        let Some(object) = on_a_machine_with("", false, &[(variable, &value)]) else {
            return;
        };
        let lines = lines(&object, check);
        let told = |(found, text): &(&str, &str)| *found == grade && text.contains(says);
        assert!(lines.iter().any(told), "{variable}={value:?}: {lines:?}");
    }
    let left = std::fs::read_dir(top.join("damaged"))
        .expect("there")
        .count();
    assert_eq!(left, 2, "nothing is written");
    let _ = std::fs::remove_dir_all(top);
}

#[test]
fn a_profile_is_of_gpus_and_not_of_a_schedule() {
    let told = tell(AG, "profile ag_gemm");
    let words = ["`profile` looks at the machine", "profile --json"];
    bad(&told, USAGE, &words);
    if counterflow::cuda::Gpu::count().is_ok() {
        eprintln!("SKIPPED: this machine has a GPU");
        return;
    }
    bad(&tell(AG, "profile"), REJECTED, &["driver"]);
    let told = tell(AG, "profile --json");
    let object = object(&told);
    assert_eq!(
        (&object["verb"], &object["ok"]),
        (&"profile".into(), &false.into())
    );
    bad(&tell(AG, "predict --machine this"), REJECTED, &["driver"]);
}

/// Another card's profile is another prediction.
#[test]
fn a_named_machine_changes_the_prediction() {
    let seconds = |machine: &str| {
        let words =
            format!("predict --json --m 8192 --n 8192 --k 8192 --world 2 --machine {machine}");
        let object = object(&good(tell(GEMM, &words)));
        let predicted = &object["predicted"];
        let name = predicted["machine"].as_str().expect("text").to_owned();
        (name, predicted["seconds"].as_f64().expect("a number"))
    };
    let (h100, h200) = (seconds("h100"), seconds("h200"));
    assert_eq!(
        (&h100.0[..], &h200.0[..]),
        ("NVIDIA H100 80GB HBM3 nvlink", "NVIDIA H200 nvlink")
    );
    assert_ne!(h100.1, h200.1);
}
