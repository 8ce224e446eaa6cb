//! An example under four processes, with the variables that torchrun sets, and under our launcher; without a GPU.

use std::path::PathBuf;
use std::process::{Command, Stdio};

const RIGHT: &str = "emulated GPU: every number is right\n";

/// What `cargo test --workspace` builds.
fn built(name: &str, alone: &str) -> PathBuf {
    let mut path = std::env::current_exe().expect("this program");
    path.pop();
    path.pop();
    path.push(name);
    let help = format!("`cargo test --workspace` builds {name}; before a test alone, `{alone}`");
    assert!(path.exists(), "{help}");
    path
}

fn embed() -> PathBuf {
    built("examples/embed", "cargo build --example embed")
}

#[test]
fn embed_runs_under_our_launcher() {
    let launcher = built("counterflow-run", "cargo build -p counterflow-launcher");
    let done = Command::new(launcher)
        .args(["-n", "4", "--"])
        .arg(embed())
        .env("CUDA_VISIBLE_DEVICES", "")
        .output()
        .expect("started");
    assert!(done.status.success(), "{done:?}");
    assert_eq!(String::from_utf8_lossy(&done.stdout), RIGHT.repeat(4));
}

#[test]
fn embed_runs_under_four_processes() {
    let path = embed();
    let run = format!("embed of {}", std::process::id());
    let ranks = [0, 1, 2, 3].map(|rank| {
        Command::new(&path)
            .env("CUDA_VISIBLE_DEVICES", "")
            .env("RANK", rank.to_string())
            .env("LOCAL_RANK", rank.to_string())
            .env("WORLD_SIZE", "4")
            .env("LOCAL_WORLD_SIZE", "4")
            .env("MASTER_ADDR", "127.0.0.1")
            .env("MASTER_PORT", "29500")
            .env("TORCHELASTIC_RUN_ID", &run)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("started")
    });
    for rank in ranks {
        let done = rank.wait_with_output().expect("ended");
        let said =
            [done.stdout, done.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
        assert!(done.status.success(), "{said:?}");
        assert_eq!(said[0], RIGHT);
    }
}
