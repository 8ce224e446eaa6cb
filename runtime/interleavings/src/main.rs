//! The host's protocols in every order that threads can take their steps in: how ranks meet, who has which seat, how
//! the end of a communicator reaches those who wait, and that a launch and a rank that leaves do not miss each other.
//!
//! The files are the run time's own, with loom's atomics, locks and condition variables. In loom a wait has no time
//! limit, so a wake that is missed is a deadlock, which it reports. Each rule that keeps a protocol right is also
//! switched off once, and loom must then find what it closed: the run must end with the words of that failure, since a
//! crash for another reason finds nothing. `cargo run` tries all; each model has a process of its own.
//!
//! The callers of `Meeting::wake` are not covered: the models assume that the group calls it when it ends and when a rank
//! leaves.

mod error;
mod group;
mod sync;
mod undo;

use group::models::MODELS;
use std::process::{Command, ExitCode};

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
            let run = Command::new(this).args([model.name, how]).output();
            let run = run.expect("it starts");
            let said = String::from_utf8_lossy(&run.stderr).into_owned();
            (run.status.success(), said)
        };
        let (holds, why) = runs("whole");
        let (survives, said) = runs("undone");
        let found = !survives && said.contains(model.failure);
        if !holds {
            eprint!("{why}");
        }
        if !survives && !found {
            eprint!("not {:?}, but:\n{said}", model.failure);
        }
        println!(
            "{}: {}; without {:?} it {}",
            model.name,
            if holds { "holds" } else { "FAILS" },
            model.fix,
            match (survives, found) {
                (_, true) => "fails",
                (true, false) => "STILL HOLDS",
                (false, false) => "FAILS OTHERWISE",
            },
        );
        right &= holds && found;
    }
    match right {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}
