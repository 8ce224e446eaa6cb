//! A multicast object can put machines out of service that others share. Only programs with the feature `multicast` can make one,
//! and nothing of ours is built with it: no binary names the driver's call, no step turns the feature on, and no kernel that goes to
//! a GPU needs it.

use super::{files, root, short, text};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The driver's call. It is put together here, so that this test's own binary does not name it.
fn call() -> String {
    "etaerCtsacitluMuc".chars().rev().collect()
}

/// All of them begin so.
fn calls() -> String {
    call().replace("Create", "")
}

/// Whether it is a program or a shared library, by its first bytes: no object on its way into one.
fn is_linked(path: &Path) -> bool {
    let mut head = [0; 18];
    let read = File::open(path).and_then(|mut file| file.read_exact(&mut head));
    read.is_ok() && head.starts_with(b"\x7fELF") && (head[16] == 2 || head[16] == 3)
}

/// The folder of this test's binary, where cargo puts all tests of the profile.
fn deps() -> PathBuf {
    let this = std::env::current_exe().expect("this program");
    this.parent().expect("a folder").to_owned()
}

/// Folders of profiles in a target folder, also of other targets: each has programs, `deps` and `examples`.
fn profiles(target: &Path) -> Vec<PathBuf> {
    let folders = |of: &Path| -> Vec<PathBuf> {
        let entries = fs::read_dir(of).into_iter().flatten().flatten();
        let paths = entries.map(|entry| entry.path());
        paths.filter(|path| path.is_dir()).collect()
    };
    let within = folders(target);
    let below = within.iter().flat_map(|folder| folders(folder));
    let all = within.iter().cloned().chain(below);
    let mut found: Vec<PathBuf> = all.filter(|at| at.join("deps").is_dir()).collect();
    found.sort();
    found
}

fn linked(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let paths = entries.map(|entry| entry.path());
    paths
        .filter(|path| path.is_file() && is_linked(path))
        .collect()
}

/// Tests, benches, examples and programs of every profile in the target folder of this test.
fn built() -> Vec<PathBuf> {
    let profile = deps().parent().expect("a profile").to_owned();
    let target = profile.parent().expect("a target folder");
    let all = profiles(target).into_iter();
    all.flat_map(|profile| [profile.join("deps"), profile.join("examples"), profile])
        .flat_map(|folder| linked(&folder))
        .collect()
}

/// Those of these files that have a word in them, wherever. Another build may remove one meanwhile: it is none of a program then.
fn having(word: &str, paths: &[PathBuf]) -> Vec<PathBuf> {
    let mut paths = paths.to_vec();
    for _ in 0..8 {
        paths.retain(|path| path.exists());
        if paths.is_empty() {
            return Vec::new();
        }
        let grep = Command::new("grep")
            .args(["-laF", "--", word])
            .args(&paths)
            .output()
            .expect("grep");
        // Nothing is found: 1. A file that cannot be read: 2.
        if grep.status.code().is_some_and(|code| code < 2) {
            let found = String::from_utf8(grep.stdout).expect("paths");
            return found.lines().map(PathBuf::from).collect();
        }
        let told = String::from_utf8_lossy(&grep.stderr);
        let gone = paths.iter().any(|path| !path.exists());
        assert!(gone, "{told}");
    }
    panic!("programs come and go: build alone");
}

/// The programs that `.ci/run` builds for the tests, by the sources and manifests of the members: tests, benches, examples,
/// binaries. Those that ask for a feature are left out.
fn expected() -> BTreeSet<String> {
    let manifest = |dir: &str| -> toml::Table {
        let path = root().join(dir).join("Cargo.toml");
        text(&path).parse().expect("a manifest")
    };
    let workspace = manifest("");
    let members = workspace["workspace"]["members"]
        .as_array()
        .expect("members");
    let mut found = BTreeSet::new();
    for member in members.iter().filter_map(toml::Value::as_str) {
        let manifest = manifest(member);
        let at = root().join(member);
        let mut without = BTreeSet::new();
        for (kind, folder) in [
            ("test", "tests"),
            ("example", "examples"),
            ("bench", "benches"),
            ("bin", "src/bin"),
        ] {
            let told = manifest.get(kind).and_then(toml::Value::as_array);
            for target in told.into_iter().flatten() {
                let name = target["name"].as_str().expect("a name").to_owned();
                match target.get("required-features") {
                    None => found.insert(name),
                    Some(_) => without.insert(name),
                };
            }
            // A folder that is a package of its own tells its targets itself.
            if at.join(folder).join("Cargo.toml").is_file() {
                continue;
            }
            let entries = fs::read_dir(at.join(folder))
                .into_iter()
                .flatten()
                .flatten();
            for path in entries.map(|entry| entry.path()) {
                let is_file = path.extension().is_some_and(|end| end == "rs");
                if !(is_file || path.join("main.rs").is_file()) {
                    continue;
                }
                let name = path.file_stem().and_then(|name| name.to_str());
                found.extend(
                    name.map(str::to_owned)
                        .filter(|name| !without.contains(name)),
                );
            }
        }
    }
    found
}

/// Which of them are not among these files. Cargo writes `-` as `_`, and a hash behind the name.
fn missing(expected: &BTreeSet<String>, built: &[PathBuf]) -> Vec<String> {
    let names = built.iter().filter_map(|path| path.file_name()?.to_str());
    let stems: BTreeSet<&str> = names
        .map(|name| name.rsplit_once('-').map_or(name, |(stem, _)| stem))
        .collect();
    let has =
        |name: &String| stems.contains(&name.replace('-', "_")[..]) || stems.contains(&name[..]);
    expected.iter().filter(|name| !has(name)).cloned().collect()
}

#[test]
fn no_binary_of_ours_can_make_a_multicast_object() {
    let built = built();
    let this = std::env::current_exe().expect("this program");
    assert!(built.contains(&this), "{built:?}");
    let expected = expected();
    assert!(expected.len() > 30, "{expected:?}");
    // Somebody may build one test alone. Where all were built, all were looked at.
    if std::env::var_os("REQUIRE_BUILT").is_some() {
        assert_eq!(missing(&expected, &built), [""; 0]);
    }
    let found = having(&call(), &built);
    assert!(
        found.is_empty(),
        "built with the feature `multicast`, which has a target folder of its own (docs/multicast.md): {found:?}"
    );
}

/// The driver's bindings have the call, as a name to look up and as one to link: a program has it if some code of it makes it.
#[test]
fn the_scan_of_binaries_sees_the_call() {
    let is_bindings = |path: &PathBuf| {
        let name = path
            .file_name()
            .and_then(|name| name.to_str())
            .unwrap_or("");
        name.starts_with("libcudarc-") && name.ends_with(".rlib")
    };
    let entries = fs::read_dir(deps()).expect("a folder").flatten();
    let bindings: Vec<_> = entries
        .map(|entry| entry.path())
        .filter(is_bindings)
        .collect();
    assert!(!bindings.is_empty());
    assert_eq!(having(&call(), &bindings), bindings);
    assert!(
        bindings.iter().all(|path| !is_linked(path)),
        "a library of Rust is none of a program"
    );

    let planted = std::env::temp_dir().join(format!("counterflow-planted-{}", std::process::id()));
    fs::create_dir_all(&planted).expect("a folder");
    let this = fs::read(std::env::current_exe().expect("this program")).expect("read");
    let program = |name: &str, behind: &str| {
        let path = planted.join(name);
        fs::write(&path, [&this[..], behind.as_bytes()].concat()).expect("written");
        path
    };
    let (clean, could) = (program("clean", ""), program("could", &call()));
    fs::write(
        planted.join("object"),
        b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x01\0",
    )
    .expect("written");
    let mut all = linked(&planted);
    all.sort();
    assert_eq!(all, [clean, could.clone()]);
    assert_eq!(having(&call(), &all), [could]);
    fs::remove_dir_all(planted).expect("removed");
}

/// A scan of other profiles sees what is planted there, and one that misses a program says which.
#[test]
fn the_scan_of_binaries_sees_every_profile() {
    let target = std::env::temp_dir().join(format!("counterflow-profiles-{}", std::process::id()));
    let this = fs::read(std::env::current_exe().expect("this program")).expect("read");
    let wanted = ["debug", "release", "x86_64-unknown-linux-gnu/release"].map(|at| target.join(at));
    for profile in &wanted {
        fs::create_dir_all(profile.join("deps")).expect("a folder");
        let program = [&this[..], call().as_bytes()].concat();
        fs::write(profile.join("deps/right-0123456789abcdef"), program).expect("written");
    }
    fs::create_dir_all(target.join("tmp")).expect("a folder");
    let mut profiles = profiles(&target);
    profiles.sort();
    let mut sorted = wanted.to_vec();
    sorted.sort();
    assert_eq!(profiles, sorted);
    let programs: Vec<PathBuf> = profiles
        .iter()
        .flat_map(|at| linked(&at.join("deps")))
        .collect();
    assert_eq!(having(&call(), &programs).len(), 3);
    let gone = target.join("debug/deps/gone-0");
    let with = [&programs[..], &[gone]].concat();
    assert_eq!(
        having(&call(), &with).len(),
        3,
        "what is gone is no program"
    );
    let expected = BTreeSet::from(["right".to_owned(), "left-out".to_owned()]);
    assert_eq!(missing(&expected, &programs), ["left-out"]);
    fs::remove_dir_all(target).expect("removed");
    // As they lie in the folders.
    for name in [
        "layering",
        "tile",
        "counterflow-run",
        "library",
        "kernels",
        "pipeline",
    ] {
        assert!(self::expected().contains(name), "{name}");
    }
}

/// Without comments; with tests, as these become programs, too.
fn spoken(path: &Path) -> String {
    let text = text(path);
    let lines = text
        .lines()
        .map(|line| line.split("//").next().unwrap_or(""));
    lines.collect::<Vec<_>>().join("\n")
}

/// Files that name one of those calls.
fn naming(paths: &[PathBuf]) -> Vec<String> {
    let names = paths.iter().filter(|path| spoken(path).contains(&calls()));
    names.map(|path| short(path)).collect()
}

#[test]
fn only_a_file_behind_the_feature_names_the_calls() {
    let all = files("", &[".rs", ".cuh", ".cu", ".py", ".c", ".cpp", ".h"]);
    assert!(all.len() > 500, "only {} files", all.len());
    assert_eq!(naming(&all), ["runtime/src/cuda/multicast.rs"]);
    let above = text(&root().join("runtime/src/cuda/mod.rs"));
    assert!(above.contains("#[cfg(feature = \"multicast\")]\nmod multicast;"));
    let planted =
        std::env::temp_dir().join(format!("counterflow-planted-{}.rs", std::process::id()));
    let tested = format!(
        "fn f() {{}}\n#[cfg(test)]\nmod tests {{ fn f() {{ look_up(\"{}\") }} }}",
        call()
    );
    fs::write(&planted, tested).expect("written");
    assert_eq!(
        naming(std::slice::from_ref(&planted)).len(),
        1,
        "it would see another"
    );
    fs::remove_file(planted).expect("removed");
}

/// The schedules of the library whose kernels need it: none of the tables' winners, and of the suite's.
#[test]
fn no_table_of_winners_has_a_kernel_that_needs_it() {
    use counterflow::{Variant, codegen::lower::lower, schedules};
    let all = schedules::ALL.iter().chain(&schedules::MULTICAST);
    let needing = all.filter_map(|schedule| {
        let program = schedule();
        let kernel = lower(&program, &Variant::new(2)).expect("a kernel");
        kernel.needs_multicast().then(|| program.name.clone())
    });
    let needing: BTreeSet<String> = needing.collect();
    let known: BTreeSet<String> = schedules::MULTICAST
        .iter()
        .map(|schedule| schedule().name.clone())
        .collect();
    assert_eq!(needing, known, "nothing else of the library needs it");
    let mut rows = 0;
    for path in files("runtime/tuned", &[".toml"]) {
        let table: toml::Table = text(&path).parse().expect("a table");
        for row in table["winner"].as_array().expect("winners") {
            let op = row["op"].as_str().expect("a name");
            assert!(!needing.contains(op), "{}: {op}", short(&path));
            rows += 1;
        }
    }
    assert!(rows > 100, "only {rows} rows");
}

/// What is packed for GPU machines is looked at once more, where it is packed.
#[test]
fn the_pack_is_scanned_before_it_is_closed() {
    let pack = text(&root().join(".ci/pack"));
    let scan = pack
        .find(&format!("grep -rlaF {} ", call()))
        .expect("a scan");
    let archive = pack.find("\ntar ").expect("the archive");
    let ends = pack[scan..].find("\n    exit 1\nfi\n").expect("an end") + scan;
    assert!(scan < ends && ends < archive);
    assert!(
        !pack[scan..ends].contains("\nfi\n"),
        "it ends what the scan begins"
    );
}
