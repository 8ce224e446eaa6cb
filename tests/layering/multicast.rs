//! A multicast object can put machines out of service that others share. Only programs with the feature `multicast` can make one,
//! and nothing of ours is built with it: no binary names the driver's call, no step turns the feature on, and no kernel that goes to
//! a GPU needs it.

use super::{code, files, root, short, text};
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

fn linked(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let paths = entries.map(|entry| entry.path());
    paths
        .filter(|path| path.is_file() && is_linked(path))
        .collect()
}

/// Tests, benches, examples and programs that are built for this profile.
fn built() -> Vec<PathBuf> {
    let (deps, above) = (deps(), deps().join(".."));
    [deps, above.clone(), above.join("examples")]
        .iter()
        .flat_map(|folder| linked(folder))
        .collect()
}

/// Those of these files that have a word in them, wherever.
fn having(word: &str, paths: &[PathBuf]) -> Vec<PathBuf> {
    if paths.is_empty() {
        return Vec::new();
    }
    let grep = Command::new("grep")
        .args(["-laF", "--", word])
        .args(paths)
        .output()
        .expect("grep");
    // Nothing is found: 1. A file that cannot be read: 2.
    let told = String::from_utf8_lossy(&grep.stderr);
    assert!(grep.status.code().is_some_and(|code| code < 2), "{told}");
    let found = String::from_utf8(grep.stdout).expect("paths");
    found.lines().map(PathBuf::from).collect()
}

#[test]
fn no_binary_of_ours_can_make_a_multicast_object() {
    let built = built();
    let this = std::env::current_exe().expect("this program");
    assert!(built.contains(&this), "{built:?}");
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

/// Files of code that name one of those calls.
fn naming(paths: &[PathBuf]) -> Vec<String> {
    let names = paths.iter().filter(|path| code(path).contains(&calls()));
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
    fs::write(&planted, format!("fn f() {{ look_up(\"{}\") }}", call())).expect("written");
    assert_eq!(
        naming(std::slice::from_ref(&planted)).len(),
        1,
        "it would see another"
    );
    fs::remove_file(planted).expect("removed");
}

const FEATURE: &str = "multicast";

/// Every list under `features`, with the keys that lead there.
fn features(value: &toml::Value, at: &str, found: &mut Vec<(String, Vec<String>)>) {
    let Some(table) = value.as_table() else {
        for value in value.as_array().into_iter().flatten() {
            features(value, at, found);
        }
        return;
    };
    for (key, value) in table {
        let here = format!("{at}.{key}");
        let list = value
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(toml::Value::as_str);
        let list: Vec<String> = list.map(str::to_owned).collect();
        let every = (key == "all-features" && value.as_bool() == Some(true))
            .then(|| vec![FEATURE.to_owned()]);
        found.push((here.clone(), every.unwrap_or(list)));
        features(value, &here, found);
    }
}

/// What of a manifest turns the feature on.
fn turned_on(manifest: &str) -> Vec<String> {
    let parsed: toml::Table = manifest.parse().expect("a manifest");
    let mut lists = Vec::new();
    features(&toml::Value::Table(parsed), "", &mut lists);
    let on = lists.into_iter().filter(|(at, list)| {
        let is_it = |name: &String| name.rsplit(['/', '?']).next() == Some(FEATURE);
        // The feature itself hands on to the crate that has it.
        at != ".features.multicast" && !at.ends_with(".keywords") && list.iter().any(is_it)
    });
    on.map(|(at, _)| at).collect()
}

/// What of a script turns the feature on.
fn turns_on(script: &str) -> Vec<&str> {
    let lines = script
        .lines()
        .filter(|line| !line.trim_start().starts_with('#'));
    let on = lines.filter(|line| {
        let features = line.contains("feature") || line.contains(" -F");
        line.contains("all-features") || (features && line.contains(FEATURE))
    });
    on.collect()
}

/// What runs or builds something of ours.
fn scripts() -> Vec<PathBuf> {
    let mut all = files("", &[".sh", ".py"]);
    for folder in [".ci", ".github/workflows", ".cargo"] {
        let entries = fs::read_dir(root().join(folder))
            .into_iter()
            .flatten()
            .flatten();
        all.extend(
            entries
                .map(|entry| entry.path())
                .filter(|path| path.is_file()),
        );
    }
    all
}

#[test]
fn nothing_of_ours_turns_the_feature_on() {
    let manifests = files("", &["Cargo.toml"]);
    assert!(manifests.len() >= 12, "{manifests:?}");
    for path in &manifests {
        assert_eq!(turned_on(&text(path)), [""; 0], "{}", short(path));
    }
    for manifest in ["Cargo.toml", "runtime/Cargo.toml"] {
        let parsed: toml::Table = text(&root().join(manifest)).parse().expect("a manifest");
        assert!(parsed["features"].get(FEATURE).is_some(), "{manifest}");
    }
    let scripts = scripts();
    assert!(
        scripts.iter().any(|path| path.ends_with(".ci/run")),
        "{scripts:?}"
    );
    for path in &scripts {
        assert_eq!(turns_on(&text(path)), [""; 0], "{}", short(path));
    }
    // Tests start cargo, too.
    let this = root().join("tests/layering/multicast.rs");
    for path in files("", &[".rs"]).iter().filter(|path| **path != this) {
        let code = text(path);
        assert!(!code.contains("--all-features"), "{}", short(path));
        let behind = code.contains("feature = \"multicast\"");
        let own = [
            "runtime/src/cuda/",
            "runtime/src/driver/multicast.rs",
            "runtime/src/multicast.rs",
        ];
        assert!(
            !behind || own.iter().any(|own| short(path).starts_with(own)),
            "{}",
            short(path)
        );
    }
}

#[test]
fn the_check_sees_who_turns_the_feature_on() {
    for manifest in [
        "[features]\ndefault = ['multicast']\n",
        "[features]\nfast = ['counterflow-runtime/multicast']\n",
        "[dependencies]\ncounterflow = { path = '..', features = ['unstable', 'multicast'] }\n",
        "[target.'cfg(unix)'.dev-dependencies.counterflow]\nfeatures = ['multicast']\n",
        "[workspace.dependencies]\ncounterflow = { features = ['multicast'] }\n",
        "[package.metadata.docs.rs]\nall-features = true\n",
        "[[test]]\nname = 'x'\nrequired-features = ['multicast']\n",
    ] {
        assert_eq!(turned_on(manifest).len(), 1, "{manifest}");
    }
    let own = "[features]\nmulticast = ['counterflow-runtime/multicast']\n[package]\nkeywords = ['multicast']\n";
    assert_eq!(turned_on(own), [""; 0]);
    let script = "cargo test --all-features\n# cargo test --features multicast\ncargo build --features unstable,multicast\n\
                  cargo run -Fmulticast -F multicast\nexport NCCL_NVLS_ENABLE=0\ncargo test --features unstable\n";
    assert_eq!(turns_on(script).len(), 3, "{:?}", turns_on(script));
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
    assert!(scan < pack.find("\ntar ").expect("the archive"));
}
