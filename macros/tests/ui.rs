//! What the macros say about what they do not accept. Refresh with `UPDATE_UI=1 cargo test -p counterflow-macros-tests`.
//!
//! rustc compiles each file against the crate that this program was built with. Tools that have cargo find that one compile all that it
//! depends on once more.

#[path = "../../tests/common/parallel.rs"]
mod parallel;

use parallel::in_parallel;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::SystemTime;

/// The folder of the checkout, from which cargo compiles: messages name files from there.
const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
/// And the folder of the files, from there.
const HERE: &str = "macros/tests/";

/// What rustc says of a file, with that `counterflow`.
fn compiled(file: &str, counterflow: &Path) -> Output {
    let out = concat!(env!("CARGO_TARGET_TMPDIR"), "/ui");
    fs::create_dir_all(out).unwrap();
    let mut facade = std::ffi::OsString::from("counterflow=");
    facade.push(counterflow);
    let mut dependencies = std::ffi::OsString::from("dependency=");
    dependencies.push(counterflow.parent().unwrap());
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let mut command = Command::new(rustc);
    command.args(["--edition=2024", "--emit=metadata", "--crate-type=bin"]);
    command.args([
        "--cap-lints=allow",
        "--verbose",
        "--diagnostic-width=140",
        "--out-dir",
        out,
    ]);
    command
        .arg("--extern")
        .arg(facade)
        .arg("-L")
        .arg(dependencies);
    command.arg(format!("{HERE}{file}")).current_dir(ROOT);
    command.output().expect("rustc starts")
}

/// Whether cargo compiled this library from the checkout: the file that it leaves beside it names the sources. Other steps build it from its
/// package, in whose messages files have other names.
fn of_checkout(library: &Path) -> bool {
    let name = library.file_stem().unwrap().to_string_lossy();
    let sources = library.with_file_name(format!("{}.d", name.trim_start_matches("lib")));
    let checkout = fs::canonicalize(ROOT).unwrap().join("src/lib.rs");
    let checkout = checkout.to_string_lossy();
    let sources = fs::read_to_string(sources).unwrap_or_default();
    let mut sources = sources.split_whitespace();
    sources.any(|source| source == "src/lib.rs" || source == checkout)
}

/// The newest `counterflow` beside this program that has all that a right file needs. Other steps build it with fewer features.
fn facade() -> PathBuf {
    let program = std::env::current_exe().unwrap();
    let beside = fs::read_dir(program.parent().unwrap()).unwrap();
    let mut all: Vec<(SystemTime, PathBuf)> = beside
        .map(|entry| entry.unwrap())
        .filter(|entry| {
            let name = entry.file_name().to_string_lossy().into_owned();
            name.starts_with("libcounterflow-") && name.ends_with(".rlib")
        })
        .filter(|entry| of_checkout(&entry.path()))
        .map(|entry| (entry.metadata().unwrap().modified().unwrap(), entry.path()))
        .collect();
    all.sort();
    let mut said = String::new();
    let newest_first = all.into_iter().rev().map(|(_, path)| path);
    let found = newest_first.into_iter().find(|path| {
        let right = compiled("right.rs", path);
        said.push_str(&String::from_utf8_lossy(&right.stderr));
        right.status.success()
    });
    found.unwrap_or_else(|| panic!("no counterflow beside {}:\n{said}", program.display()))
}

/// Without counts at the end. Lines of our own crates have no numbers: they change with what stands before them. Files are named from
/// the checkout's folder: rustc gives whole paths where another workspace built the crate.
fn normal(said: &str) -> String {
    let checkout = fs::canonicalize(ROOT).unwrap();
    let checkout = format!("{}/", checkout.display());
    let mut lines = Vec::new();
    let mut elsewhere = false;
    for line in said.lines() {
        let ends = [
            "error: aborting due to",
            "Some errors have",
            "For more info",
        ];
        if ends.iter().any(|end| line.starts_with(end)) {
            continue;
        }
        let place = ["--> ", "::: "]
            .into_iter()
            .find_map(|arrow| line.split_once(arrow));
        if let Some((before, file)) = place.filter(|(before, _)| before.trim().is_empty()) {
            let arrow = &line[before.len()..before.len() + 4];
            let file = file.strip_prefix(&checkout).unwrap_or(file);
            elsewhere = !file.starts_with(HERE);
            let file = match elsewhere {
                true => file.split(':').next().unwrap_or(file),
                false => &file[HERE.len()..],
            };
            lines.push(format!("{before}{arrow}{file}"));
        } else if let Some((number, code)) = line.split_once('|').filter(|_| elsewhere) {
            let number = number.replace(|c: char| c.is_ascii_digit(), " ");
            lines.push(format!("{number}|{code}"));
        } else {
            elsewhere &= line.starts_with(' ') || line == "...";
            lines.push(line.to_owned());
        }
    }
    lines.join("\n").trim_end().to_owned() + "\n"
}

#[test]
fn ui() {
    let cases = fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/ui")).unwrap();
    let mut cases: Vec<PathBuf> = cases.map(|entry| entry.unwrap().path()).collect();
    cases.retain(|path| path.extension().is_some_and(|extension| extension == "rs"));
    cases.sort();
    assert!(cases.len() >= 40, "only {} cases", cases.len());
    let counterflow = facade();
    let wrong = in_parallel(cases.len(), |at| {
        let path = &cases[at];
        let name = path.file_name().unwrap().to_string_lossy();
        let output = compiled(&format!("ui/{name}"), &counterflow);
        if output.status.success() {
            return Some(format!("{name} is accepted"));
        }
        let said = normal(&String::from_utf8_lossy(&output.stderr));
        let wanted = path.with_extension("stderr");
        if std::env::var_os("UPDATE_UI").is_some() {
            fs::write(&wanted, &said).unwrap();
        }
        let wanted = fs::read_to_string(wanted).unwrap_or_default();
        (said != wanted).then(|| format!("{name}, wanted:\n{wanted}\nsaid:\n{said}"))
    });
    let wrong: Vec<String> = wrong.into_iter().flatten().collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A user who misspells something did not ask how the builder is made.
#[test]
fn messages_name_no_internals() {
    let mut seen = 0;
    for entry in fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/ui")).unwrap() {
        let path = entry.unwrap().path();
        if path
            .extension()
            .is_none_or(|extension| extension != "stderr")
        {
            continue;
        }
        seen += 1;
        let text = fs::read_to_string(&path).unwrap();
        for internal in [
            "__private",
            "ScheduleBuilder",
            "RankExpr",
            "PlaceRef",
            "CellsRef",
            "StmtKind",
        ] {
            assert!(!text.contains(internal), "{internal} in {}", path.display());
        }
    }
    assert!(seen >= 30, "only {seen} cases");
}
