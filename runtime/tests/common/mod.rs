//! What needs NVIDIA's compiler: fetched when it can be, else a visible skip, else (where it is required) a failure.
#![allow(dead_code, reason = "each test binary uses some of it")]

use crate::wide::wide;
use counterflow_runtime::Error;
use counterflow_runtime::jit::sass::Sass;
use counterflow_runtime::jit::{Cache, Compiler};
use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, Once, PoisonError};

/// Where a missing tool must fail the test.
fn required() -> bool {
    ["REQUIRE_NVRTC", "CI"]
        .iter()
        .any(|name| std::env::var_os(name).is_some_and(|value| !value.is_empty() && value != "0"))
}

/// What `get` gives; if it is missing, fetched once and asked for again.
fn or_skip<T>(get: impl Fn() -> Result<T, Error>) -> Option<T> {
    static FETCH: Once = Once::new();
    let first = match get() {
        Ok(found) => return Some(found),
        Err(error) if error.kind() == "toolkit" => error,
        Err(error) => panic!("{error}"),
    };
    FETCH.call_once(|| {
        // This file serves tests of several packages, at the root and below it.
        let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors();
        let script = scripts
            .map(|dir| dir.join(".ci/cuda.sh"))
            .find(|script| script.exists());
        let _ = script.map(|script| Command::new(script).status());
    });
    match get() {
        Ok(found) => Some(found),
        Err(_) if required() => panic!("{first}\n{}", first.help().unwrap_or_default()),
        Err(_) => {
            skipped(&format!("{first}\n  {}", first.help().unwrap_or_default()));
            None
        }
    }
}

/// Says so once, past the test harness, which keeps what a passing test prints to itself.
pub fn skipped(why: &str) {
    static SAID: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    let mut said = SAID.lock().unwrap_or_else(PoisonError::into_inner);
    if said.insert(why.into()) {
        let _ = std::io::stderr().write_all(format!("\nSKIPPED: {why}\n").as_bytes());
    }
}

/// The compiler without a cache.
pub fn compiler() -> Option<Compiler> {
    Some(or_skip(Compiler::find)?.with_cache(Cache::off()))
}

/// The compiler with a cache that the test programs of a checkout share: none compiles a text that another one has compiled.
/// Machine code is checked each time. `.ci/run` removes what is a fortnight old.
pub fn caching_compiler() -> Option<Compiler> {
    let files = option_env!("CARGO_TARGET_TMPDIR");
    let cache = files.map_or(Cache::off(), |dir| {
        Cache::at(Path::new(dir).join("kernels"))
    });
    Some(compiler()?.with_cache(cache))
}

/// The instructions of a cubin.
pub fn sass(cubin: &[u8]) -> Option<Sass> {
    or_skip(|| Sass::of(cubin))
}

/// The instructions of each of them, which costs little more than of one.
pub fn sass_of_all(cubins: &[&[u8]]) -> Option<Vec<Sass>> {
    or_skip(|| Sass::of_all(cubins))
}

/// The same, as kept beside the machine code: the disassembler starts for half a second, and most tests have few kernels. With `WIDE` it
/// has thousands, whose instructions would take a gigabyte.
pub fn kept_sass_of_all(cubins: &[&[u8]]) -> Option<Vec<Sass>> {
    let dir = option_env!("CARGO_TARGET_TMPDIR").filter(|_| !wide());
    let Some(dir) = dir.map(|dir| Path::new(dir).join("kernels")) else {
        return sass_of_all(cubins);
    };
    let mut hasher = DefaultHasher::new();
    // The script has the disassembler's version.
    let script = include_str!("../../../.ci/cuda.sh");
    let tool = std::env::var_os("COUNTERFLOW_NVDISASM");
    (script, tool, cubins).hash(&mut hasher);
    let path = dir.join(format!("{:016x}.sass", hasher.finish()));
    let read = |text: String| {
        let each = text.split_terminator("\n\n").map(|one| Sass {
            instructions: one.lines().map(str::to_owned).collect(),
        });
        let all: Vec<Sass> = each.collect();
        (text.ends_with("\n\n") && all.len() == cubins.len()).then_some(all)
    };
    if let Some(all) = std::fs::read_to_string(&path).ok().and_then(read) {
        return Some(all);
    }
    let all = sass_of_all(cubins)?;
    let each = all.iter().map(|sass| sass.instructions.join("\n") + "\n\n");
    // Whole or not at all, whichever thread writes it; where it cannot be kept, it is made each time.
    let writer = (std::process::id(), std::thread::current().id());
    let draft = dir.join(format!("{:016x}.{writer:?}", hasher.finish()));
    let kept = std::fs::write(&draft, each.collect::<String>());
    let _ = kept.and_then(|()| std::fs::rename(&draft, &path));
    Some(all)
}

/// A folder of this test's own.
pub fn folder(name: &str) -> PathBuf {
    let dir = std::env::temp_dir().join(format!("counterflow-test-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&dir);
    dir
}
