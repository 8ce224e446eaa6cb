//! An example under four processes, with the variables that torchrun sets, and without a GPU.

use std::process::{Command, Stdio};

#[test]
fn embed_runs_under_four_processes() {
    let mut path = std::env::current_exe().expect("this program");
    path.pop();
    path.pop();
    path.push("examples/embed");
    assert!(
        path.exists(),
        "`cargo test` builds the examples; before a test alone, `cargo build --example embed`"
    );
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
        assert_eq!(said[0], "emulated GPU: every number is right\n");
    }
}
