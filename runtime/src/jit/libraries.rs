//! Searches for NVRTC, best guess first. The search is pure: variables and folder are arguments.

use crate::error::Error;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

/// The variable that names NVRTC's folder or file and ends the search.
pub(super) const NVRTC: &str = "COUNTERFLOW_NVRTC";
/// The major version our kernels and bindings are written for.
const MAJOR: &str = "13";

/// The compiler's two files. Both must be loaded: the first looks for the second by its bare name only.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Libraries {
    pub nvrtc: PathBuf,
    pub builtins: PathBuf,
}

/// A variable's value, if it is set and not empty.
pub(super) type Variable<'a> = &'a dyn Fn(&str) -> Option<OsString>;

/// The first folder in the search order that has both libraries.
pub(super) fn find(variable: Variable<'_>, here: &Path) -> Result<Libraries, Error> {
    if let Some(named) = variable(NVRTC) {
        let named = PathBuf::from(named);
        let dir = if named.is_dir() {
            named.clone()
        } else {
            named.parent().map(Path::to_path_buf).unwrap_or_default()
        };
        return in_dir(&dir).ok_or_else(|| {
            missing(
                format!("{NVRTC} names {}, which has no libnvrtc.so.{MAJOR} with its libnvrtc-builtins beside it", named.display()),
            )
        });
    }
    let places = places(variable, here);
    places.iter().find_map(|dir| in_dir(dir)).ok_or_else(|| {
        missing(format!(
            "NVRTC {MAJOR} (libnvrtc.so.{MAJOR} and libnvrtc-builtins) is in none of {} folders, among them {}",
            places.len(),
            places
                .iter()
                .take(4)
                .map(|dir| dir.display().to_string())
                .collect::<Vec<_>>()
                .join(", ")
        ))
    })
}

fn missing(what: String) -> Error {
    Error::Toolkit {
        what,
        help: format!(
            "no GPU is needed to compile: `.ci/cuda.sh` puts NVRTC into .cuda/ (or `pip install --no-deps --target .cuda nvidia-cuda-nvrtc==13.0.88`); or set {NVRTC} to the folder that has it"
        ),
    }
}

/// The first file of that name in the search order, for NVIDIA's other libraries. Python packages keep those that are
/// not part of a toolkit in separate folders.
pub(super) fn other(variable: Variable<'_>, here: &Path, name: &str) -> Option<PathBuf> {
    let places = places(variable, here);
    let packages = places
        .iter()
        .filter(|dir| dir.ends_with("nvidia/cu13/lib"))
        .filter_map(|dir| Some(dir.ancestors().nth(2)?.join("nccl/lib")));
    packages
        .chain(places.iter().cloned())
        .map(|dir| dir.join(name))
        .find(|file| file.is_file())
}

/// Every folder that may have them, in order: a toolkit the user named, `.cuda/` here or above, an installed toolkit,
/// Python packages.
fn places(variable: Variable<'_>, here: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for name in ["CUDA_HOME", "CUDA_PATH", "CUDA_ROOT"] {
        found.extend(
            variable(name)
                .iter()
                .flat_map(|root| toolkit(Path::new(root))),
        );
    }
    for dir in here.ancestors() {
        found.push(dir.join(".cuda/nvidia/cu13/lib"));
    }
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
            .filter(|bin| bin.join("python3").exists())
            .filter_map(|bin| bin.parent().map(Path::to_path_buf)),
    );
    for python in prefixes
        .iter()
        .flat_map(|prefix| below(&prefix.join("lib"), "python3"))
    {
        found.push(python.join("site-packages/nvidia/cu13/lib"));
        found.push(python.join("dist-packages/nvidia/cu13/lib"));
    }
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
fn in_dir(dir: &Path) -> Option<Libraries> {
    // `libnvrtc.so.13.0.88` names its version, `libnvrtc.so.13` may be a link to it: the shortest name is the link.
    let pick = |start: &str| {
        below(dir, start)
            .into_iter()
            .filter(|path| path.is_file())
            .min_by_key(|path| path.as_os_str().len())
    };
    Some(Libraries {
        nvrtc: pick(&format!("libnvrtc.so.{MAJOR}"))?,
        builtins: pick(&format!("libnvrtc-builtins.so.{MAJOR}"))?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

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
