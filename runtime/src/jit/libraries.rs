//! Searches for NVRTC and NVIDIA's other tools, best guess first. The search is pure but for files: variables and the
//! program's folder are arguments.
//!
//! Their code runs in this process, so nothing is taken from where the program happens to be started, and nothing that
//! others may write ([`trust`]).

use crate::error::Error;
use crate::trust;
use object::Object;
use object::read::ReadCache;
use object::read::elf::ElfFile64;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

/// The variable that names NVRTC's folder or file and ends the search.
pub(super) const NVRTC: &str = "COUNTERFLOW_NVRTC";
/// The major version our kernels and bindings are written for.
const MAJOR: &str = "13";
/// Folder into which NVIDIA's Python packages put a toolkit.
const PACKAGES: &str = "nvidia/cu13";

/// The compiler's two files. Both must be loaded: the first looks for the second by its bare name only.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Libraries {
    pub nvrtc: PathBuf,
    pub builtins: PathBuf,
}

/// A variable's value, if it is set and not empty.
pub(super) type Variable<'a> = &'a dyn Fn(&str) -> Option<OsString>;

/// A variable of this process.
pub(super) fn of_process(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

/// The folder that has this program, if the system says which.
pub(super) fn program() -> PathBuf {
    let program = std::env::current_exe().ok();
    program
        .and_then(|program| Some(program.parent()?.to_path_buf()))
        .unwrap_or_default()
}

/// Names the contents of a library: its build ID, which a linker computes from them, else a hash of every byte. The ID is read in a
/// millisecond; NVIDIA's libraries have one.
///
/// # Errors
/// [`Error::File`] if it cannot be read.
pub(super) fn contents(path: &Path) -> Result<String, Error> {
    let named = || {
        let file = ReadCache::new(File::open(path)?);
        let elf = ElfFile64::<object::Endianness, _>::parse(&file);
        if let Some(id) = elf.ok().and_then(|elf| elf.build_id().ok().flatten()) {
            return Ok(id.iter().map(|byte| format!("{byte:02x}")).collect());
        }
        let mut hasher = blake3::Hasher::new();
        hasher.update_reader(File::open(path)?)?;
        Ok(hasher.finalize().to_hex().to_string())
    };
    named().map_err(|source| Error::File {
        path: path.to_path_buf(),
        source,
    })
}

/// The first folder in the search order that has both libraries.
pub(super) fn find(variable: Variable<'_>, program: &Path) -> Result<Libraries, Error> {
    if let Some(named) = variable(NVRTC) {
        let named = PathBuf::from(named);
        let dir = if named.is_dir() {
            named.clone()
        } else {
            named.parent().map(Path::to_path_buf).unwrap_or_default()
        };
        return match in_dir(&dir) {
            Ok(Some(found)) => Ok(found),
            Ok(None) => Err(missing(format!(
                "{NVRTC} names {}, which has no libnvrtc.so.{MAJOR} with its libnvrtc-builtins beside it",
                named.display()
            ))),
            Err(why) => Err(missing(format!("{NVRTC} names {}: {why}", named.display()))),
        };
    }
    let places = places(variable, program);
    let mut passed = Vec::new();
    for dir in &places {
        match in_dir(dir) {
            Ok(Some(found)) => return Ok(found),
            Ok(None) => {}
            Err(why) => passed.push(why.to_string()),
        }
    }
    let some: Vec<String> = places
        .iter()
        .take(4)
        .map(|dir| dir.display().to_string())
        .collect();
    let passed = passed.iter().map(|why| format!("; passed over: {why}"));
    Err(missing(format!(
        "NVRTC {MAJOR} (libnvrtc.so.{MAJOR} and libnvrtc-builtins) is in none of {} folders, among them {}{}",
        places.len(),
        some.join(", "),
        passed.collect::<String>()
    )))
}

fn missing(what: String) -> Error {
    let cache = of_user().unwrap_or_else(|| PathBuf::from(".cuda"));
    Error::Toolkit {
        what,
        help: format!(
            "no GPU is needed to compile: in counterflow's checkout, `.ci/cuda.sh` puts NVRTC into .cuda/; for other programs, `pip install --no-deps --target {} nvidia-cuda-nvrtc==13.0.88`; or set {NVRTC} to the folder that has it",
            cache.display()
        ),
    }
}

/// The first file of that name in the search order, for NVIDIA's other libraries. Python packages keep those that are
/// not part of a toolkit in separate folders.
///
/// # Errors
/// [`Error::Toolkit`] if there is only one that others may write.
pub(super) fn other(
    variable: Variable<'_>,
    program: &Path,
    name: &str,
) -> Result<Option<PathBuf>, Error> {
    let places = places(variable, program);
    let packages = places
        .iter()
        .filter(|dir| dir.ends_with("nvidia/cu13/lib"))
        .filter_map(|dir| Some(dir.ancestors().nth(2)?.join("nccl/lib")));
    let all = packages.chain(places.iter().cloned());
    first(all.map(|dir| dir.join(name))).map_err(|why| Error::Toolkit {
        what: format!("{name}: {why}"),
        help:
            "let nobody else write it and the folders above it, or move it to a folder of your own"
                .into(),
    })
}

/// The first of these files that is there and trusted.
///
/// # Errors
/// Why the first of them is not trusted, if none is.
pub(super) fn first(files: impl Iterator<Item = PathBuf>) -> io::Result<Option<PathBuf>> {
    let mut refused = None;
    for file in files.filter(|file| file.is_file()) {
        match trust::file(&file) {
            Ok(file) => return Ok(Some(file)),
            Err(why) => refused = refused.or(Some(why)),
        }
    }
    refused.map_or(Ok(None), Err)
}

/// The user's folder for what is fetched once and used by all programs.
fn of_user() -> Option<PathBuf> {
    directories::ProjectDirs::from("", "", "counterflow").map(|dirs| dirs.cache_dir().to_path_buf())
}

/// Folders into which Python's packages may have been installed for this program or this user: `.cuda` in the program's
/// folder or above it, in the package that cargo runs or above it, and the user's folder.
pub(super) fn own(variable: Variable<'_>, program: &Path) -> Vec<PathBuf> {
    // Cargo sets it for what it starts, and has run the package's code before.
    let package = variable("CARGO_MANIFEST_DIR").map(PathBuf::from);
    let roots = [Some(program), package.as_deref()].into_iter().flatten();
    let above = roots
        .filter(|root| root.is_absolute())
        .flat_map(Path::ancestors);
    above
        .map(|dir| dir.join(".cuda"))
        .chain(of_user())
        .map(|dir| dir.join(PACKAGES))
        .collect()
}

/// Every folder that may have them, in order: a toolkit the user named, this program's or user's own, an installed
/// toolkit, Python packages.
fn places(variable: Variable<'_>, program: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for name in ["CUDA_HOME", "CUDA_PATH", "CUDA_ROOT"] {
        found.extend(
            variable(name)
                .iter()
                .flat_map(|root| toolkit(Path::new(root))),
        );
    }
    found.extend(own(variable, program).iter().map(|dir| dir.join("lib")));
    found.extend(toolkit(Path::new("/usr/local/cuda")));
    for dir in below(Path::new("/usr/local"), "cuda-13") {
        found.extend(toolkit(&dir));
    }
    found.push("/usr/lib/x86_64-linux-gnu".into());
    found.push("/usr/lib64".into());
    let mut prefixes: Vec<PathBuf> = ["VIRTUAL_ENV", "CONDA_PREFIX"]
        .iter()
        .filter_map(|name| variable(name).map(PathBuf::from))
        .collect();
    prefixes.extend(variable("HOME").map(|home| Path::new(&home).join(".local")));
    // The Python that a shell would start: its prefix is above its `bin`. The link is not resolved: a virtual
    // environment's interpreter links to another's.
    let path = variable("PATH").unwrap_or_default();
    prefixes.extend(
        std::env::split_paths(&path)
            .filter(|bin| bin.is_absolute() && bin.join("python3").exists())
            .filter_map(|bin| bin.parent().map(Path::to_path_buf)),
    );
    for python in prefixes
        .iter()
        .flat_map(|prefix| below(&prefix.join("lib"), "python3"))
    {
        found.push(python.join("site-packages/nvidia/cu13/lib"));
        found.push(python.join("dist-packages/nvidia/cu13/lib"));
    }
    // What a variable says must not depend on where the program is started.
    found.retain(|dir| dir.is_absolute());
    found
}

fn toolkit(root: &Path) -> [PathBuf; 3] {
    ["lib64", "lib", "targets/x86_64-linux/lib"].map(|dir| root.join(dir))
}

/// Entries of `dir` whose name starts so, the highest first.
fn below(dir: &Path, start: &str) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = fs::read_dir(dir)
        .into_iter()
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| {
            path.file_name()
                .is_some_and(|name| name.to_string_lossy().starts_with(start))
        })
        .collect();
    found.sort();
    found.reverse();
    found
}

/// Both libraries, if the folder has them. The `.alt.` builds of the wheels are other code generators: never taken.
///
/// # Errors
/// Who else may change them.
fn in_dir(dir: &Path) -> io::Result<Option<Libraries>> {
    // `libnvrtc.so.13.0.88` names its version, `libnvrtc.so.13` may be a link to it: the shortest name is the link.
    let pick = |start: &str| {
        below(dir, start)
            .into_iter()
            .filter(|path| path.is_file())
            .min_by_key(|path| path.as_os_str().len())
    };
    let (Some(nvrtc), Some(builtins)) = (
        pick(&format!("libnvrtc.so.{MAJOR}")),
        pick(&format!("libnvrtc-builtins.so.{MAJOR}")),
    ) else {
        return Ok(None);
    };
    // Where links lead: the loader looks beside the file that it opens for more.
    Ok(Some(Libraries {
        nvrtc: trust::file(&nvrtc)?,
        builtins: trust::file(&builtins)?,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    fn put(dir: &Path, names: &[&str]) {
        fs::create_dir_all(dir).expect("a folder");
        for name in names {
            fs::write(dir.join(name), "").expect("a file");
        }
    }

    fn fresh(name: &str) -> PathBuf {
        let dir = std::env::temp_dir().join(format!("counterflow-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(&dir).expect("a folder");
        dir
    }

    const BOTH: [&str; 2] = ["libnvrtc.so.13", "libnvrtc-builtins.so.13.0"];

    #[test]
    fn the_named_folder_wins_and_must_be_right() {
        let dir = fresh("named");
        put(&dir.join(".cuda/nvidia/cu13/lib"), &BOTH);
        let named = dir.join("elsewhere");
        put(&named, &BOTH);
        let set = |name: &str| (name == NVRTC).then(|| named.clone().into_os_string());
        assert_eq!(find(&set, &dir).expect("found").nvrtc, named.join(BOTH[0]));
        fs::remove_file(named.join(BOTH[1])).expect("removed");
        let error = find(&set, &dir).expect_err("half a compiler");
        assert_eq!(error.kind(), "toolkit");
        assert!(error.to_string().contains("elsewhere"), "{error}");
        let _ = fs::remove_dir_all(dir);
    }

    #[test]
    fn a_folder_above_is_found_and_alternative_builds_are_not() {
        let dir = fresh("above");
        let deep = dir.join("a/b");
        put(&deep, &[]);
        let lib = dir.join(".cuda/nvidia/cu13/lib");
        put(
            &lib,
            &["libnvrtc.alt.so.13", "libnvrtc-builtins.alt.so.13.0"],
        );
        put(
            &deep.join(".cuda/nvidia/cu13/lib"),
            &["libnvrtc.alt.so.13", BOTH[1]],
        );
        put(&lib, &BOTH);
        let found = find(&|_| None, &deep).expect("found");
        assert_eq!(
            (found.nvrtc, found.builtins),
            (lib.join(BOTH[0]), lib.join(BOTH[1]))
        );
        let _ = fs::remove_dir_all(dir);
    }

    #[test]
    fn what_others_may_write_is_passed_over_and_named() {
        let dir = fresh("others");
        let deep = dir.join("shared/mine");
        put(&deep, &[]);
        let shared = dir.join("shared");
        let lib = shared.join(".cuda/nvidia/cu13/lib");
        put(&lib, &BOTH);
        let mode = |path: &Path, mode| {
            fs::set_permissions(path, Permissions::from_mode(mode)).expect("set");
        };
        let set = |name: &str| (name == NVRTC).then(|| lib.clone().into_os_string());
        let refused = || {
            let told = [find(&|_| None, &deep), find(&set, &deep)];
            for told in told {
                match told {
                    // A toolkit of this machine, then.
                    Ok(found) => assert!(!found.nvrtc.starts_with(&dir), "{found:?}"),
                    Err(error) => {
                        assert_eq!(error.kind(), "toolkit");
                        assert!(error.to_string().contains("others may write it"), "{error}");
                    }
                }
            }
        };
        for open in [&shared, &lib, &lib.join(BOTH[0]), &lib.join(BOTH[1])] {
            let before = fs::metadata(open).expect("there").permissions();
            mode(open, 0o777);
            refused();
            fs::set_permissions(open, before).expect("set");
            assert_eq!(
                find(&|_| None, &deep).expect("found").nvrtc,
                lib.join(BOTH[0])
            );
        }
        // In a folder for temporary files nobody replaces what is another's, so what is ours there is ours.
        mode(&shared, 0o1777);
        assert_eq!(
            find(&|_| None, &deep).expect("found").nvrtc,
            lib.join(BOTH[0])
        );
        mode(&lib, 0o1777);
        refused();
        let _ = fs::remove_dir_all(dir);
    }

    #[test]
    fn the_folder_where_the_program_is_started_is_not_searched() {
        let here = std::env::current_dir().expect("a folder");
        let cargo = Path::new(env!("CARGO_MANIFEST_DIR"));
        assert!(
            here.starts_with(cargo),
            "cargo starts tests in their package"
        );
        let all = places(&|_| None, Path::new("/opt/program/bin"));
        assert!(all.contains(&"/opt/program/.cuda/nvidia/cu13/lib".into()));
        assert!(
            !all.iter().any(|dir| dir.starts_with(cargo.join(".cuda"))),
            "{all:?}"
        );
        // Variables that name no folder in full say nothing.
        let relative = |name: &str| {
            ["CUDA_HOME", "CARGO_MANIFEST_DIR"]
                .contains(&name)
                .then(|| ".".into())
        };
        assert_eq!(places(&relative, Path::new("/opt/program/bin")), all);
        let package = |name: &str| (name == "CARGO_MANIFEST_DIR").then(|| "/checkout/crate".into());
        let all = places(&package, Path::new("/opt/program/bin"));
        assert!(all.contains(&"/checkout/.cuda/nvidia/cu13/lib".into()));
    }

    /// An ELF file of one note, which is a build ID of these bytes, and of other bytes behind it.
    fn linked(id: [u8; 4], code: u8) -> Vec<u8> {
        let (head, entry, note) = (64u64, 56u64, 20u64);
        let mut elf = b"\x7fELF\x02\x01\x01".to_vec();
        elf.resize(16, 0);
        elf.extend(3u16.to_le_bytes().iter().chain(&62u16.to_le_bytes()));
        elf.extend(1u32.to_le_bytes());
        // No entry point; program headers begin behind this one; no sections.
        for at in [0, head, 0] {
            elf.extend(at.to_le_bytes());
        }
        elf.extend(0u32.to_le_bytes());
        for size in [64u16, 56, 1, 64, 0, 0] {
            elf.extend(size.to_le_bytes());
        }
        // A note, that may be read.
        for word in [4u32, 4] {
            elf.extend(word.to_le_bytes());
        }
        let at = head + entry;
        for word in [at, at, at, note, note, 4] {
            elf.extend(word.to_le_bytes());
        }
        // A name of four bytes, an ID of four, of sort 3.
        for word in [4u32, 4, 3] {
            elf.extend(word.to_le_bytes());
        }
        elf.extend(b"GNU\0");
        elf.extend(id);
        elf.push(code);
        elf
    }

    #[test]
    fn libraries_of_one_length_are_told_apart() {
        let dir = fresh("contents");
        let path = dir.join("library");
        let named = |bytes: &[u8]| {
            fs::write(&path, bytes).expect("written");
            contents(&path).expect("readable")
        };
        assert_eq!(named(&linked([1, 2, 3, 0xff], 0)), "010203ff");
        assert_eq!(named(&linked([1, 2, 3, 0xfe], 0)), "010203fe");
        // Without an ID every byte counts; so it does in what is no library.
        let without = |code| linked([0; 4], code).split_off(64);
        assert_ne!(named(&without(1)), named(&without(2)));
        assert_eq!(named(&without(1)), named(&without(1)));
        assert_eq!(named(b"").len(), 64);
        fs::remove_file(&path).expect("removed");
        let error = contents(&path).expect_err("gone");
        assert_eq!(error.kind(), "file");
        let _ = fs::remove_dir_all(dir);
    }

    #[test]
    fn python_packages_are_searched() {
        let dir = fresh("python");
        let lib = dir.join("env/lib/python3.12/site-packages/nvidia/cu13/lib");
        put(&lib, &BOTH);
        put(&dir.join("env/bin"), &["python3"]);
        let places = places(
            &|name| (name == "PATH").then(|| dir.join("env/bin").into_os_string()),
            Path::new("/"),
        );
        assert!(places.contains(&lib), "{places:?}");
        let _ = fs::remove_dir_all(dir);
    }
}
