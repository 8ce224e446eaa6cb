//! The host's protocols in every order that threads can take their steps in: how ranks meet, who has which seat, how
//! the end of a communicator reaches those who wait, and that a launch and a rank that leaves do not miss each other.
//!
//! The files are the run time's own, with loom's atomics, locks and condition variables. In loom a wait has no time
//! limit, so a wake that is missed is a deadlock, which it reports. Each rule that keeps a protocol right is also
//! switched off once, and loom must then find what it closed. `cargo run` tries all; each model has a process of its own.

mod error;
mod group;
mod sync;
mod undo;

use group::models::MODELS;
use std::process::{Command, ExitCode, Stdio};

fn main() -> ExitCode {
    let asked: Vec<String> = std::env::args().skip(1).collect();
    if let [name, how] = &asked[..] {
        let model = MODELS.iter().find(|model| model.name == name);
        let model = model.unwrap_or_else(|| panic!("no model {name}"));
        undo::undo((how == "undone").then_some(model.fix));
        model.run();
        return ExitCode::SUCCESS;
    }
    let mut right = true;
    for model in MODELS {
        let runs = |how: &str| {
            let this = std::env::current_exe().expect("this program");
            let mut run = Command::new(this);
            let run = run.args([model.name, how]).stderr(match how {
                "undone" => Stdio::null(),
                _ => Stdio::inherit(),
            });
            run.status().expect("it starts").success()
        };
        let (holds, found) = (runs("whole"), !runs("undone"));
        println!(
            "{}: {}; without {:?} it {}",
            model.name,
            if holds { "holds" } else { "FAILS" },
            model.fix,
            if found { "fails" } else { "STILL HOLDS" },
        );
        right &= holds && found;
    }
    match right {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}
