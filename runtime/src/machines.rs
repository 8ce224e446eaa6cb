//! Profiles of machines: those that were measured on this user's GPUs, and those that come with the package.
//!
//! A measured profile is a file beside the compiled kernels, in a folder that nobody else may write, one for each kind of GPU, link
//! and driver. It counts before the package's.

use crate::cuda::Survey;
use crate::draft;
use crate::error::Error;
use crate::jit::Cache;
use crate::trust;
use counterflow_codegen::machine::{Link, Machine, Profile, Refused, shipped};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// The folder of profiles, and the ends of their files' names.
const FOLDER: &str = "profiles";
const END: &str = "toml";
/// The most bytes of a profile.
const LONGEST: u64 = 1 << 20;

/// A profile, and where it is from.
///
/// ```no_run
/// use counterflow::cuda::{Gpu, Survey};
/// use counterflow::machines::{self, Known};
///
/// let gpu = Gpu::open(0)?;
/// let known: Known = machines::of(gpu.name())?;
/// if known.is_of_another(gpu.name()) {
///     println!("`profile` of the tool measures it");
/// }
/// println!("{:?}, {}", machines::link(&Survey::take()?), machines::machine(gpu.name())?.name);
/// println!("{} without a GPU", machines::named("NVIDIA H200")?.name);
/// let profile = machines::read("measured.toml".as_ref())?; // on another machine with such GPUs
/// println!("kept in {}", machines::keep(&profile)?.display());
/// # Ok::<(), counterflow::Error>(())
/// ```
#[derive(Clone, PartialEq, Debug)]
pub struct Known {
    /// The profile.
    pub profile: Profile,
    /// The user's file. None for one that came with the package.
    pub file: Option<PathBuf>,
}

impl Known {
    /// True if it is of another kind of GPU than the one that was asked for.
    pub fn is_of_another(&self, gpu: &str) -> bool {
        self.profile.gpu != gpu
    }
}

/// Connection of the GPUs of this process.
pub fn link(survey: &Survey) -> Link {
    let others = survey.gpus.iter().enumerate().flat_map(|(at, gpu)| {
        let reach = gpu.reach.iter().enumerate();
        reach.filter_map(move |(to, reach)| (to != at).then_some(reach))
    });
    let reach: Vec<_> = others.filter(|reach| reach.access).collect();
    match reach.iter().all(|reach| reach.atomics) {
        _ if reach.is_empty() => Link::Alone,
        true => Link::NvLink,
        false => Link::Peers,
    }
}

/// The CUDA version of this process's driver, and how its GPUs reach each other. None without a driver.
fn at_hand() -> Option<&'static (Link, String)> {
    static AT_HAND: OnceLock<Option<(Link, String)>> = OnceLock::new();
    let ask = || {
        let survey = Survey::take().ok()?;
        let (major, minor) = survey.cuda;
        Some((link(&survey), format!("{major}.{minor}")))
    };
    AT_HAND.get_or_init(ask).as_ref()
}

/// The name of a GPU in names of files.
fn spelled(gpu: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
    gpu.chars().map(plain).collect()
}

fn name(gpu: &str, link: Link, driver: &str) -> String {
    let link = link.name();
    format!("{}.{link}.{}.{END}", spelled(gpu), spelled(driver))
}

/// The folder of the user's profiles. None where there is no cache.
fn folder() -> Option<PathBuf> {
    Cache::of_user().dir().map(|dir| dir.join(FOLDER))
}

fn failed(path: &Path) -> impl FnOnce(io::Error) -> Error {
    let path = path.to_owned();
    move |source| Error::File { path, source }
}

/// Reads a profile.
///
/// # Errors
/// [`Error::File`] for a file that others may write, and for one that is no whole profile of this version.
pub fn read(path: &Path) -> Result<Profile, Error> {
    let text = trust::read(path, LONGEST)
        .and_then(|bytes| String::from_utf8(bytes).map_err(io::Error::other));
    let refused = |why: Refused| {
        let what = format!("it is no profile: {why}; measure again: `profile` of the tool");
        io::Error::new(ErrorKind::InvalidData, what)
    };
    let profile = text.and_then(|text| Profile::parse(&text).map_err(refused));
    profile.map_err(failed(path))
}

/// The profile of a GPU, by its driver's name: what was measured on this user's, under this driver; otherwise what comes with the
/// package, which may be of another GPU.
///
/// # Errors
/// As [`read`], of the user's file.
pub fn of(gpu: &str) -> Result<Known, Error> {
    let own = folder().filter(|folder| has_any(folder, gpu));
    let own = own.zip(at_hand());
    let own = own.and_then(|(folder, at_hand)| file_in(&folder, gpu, at_hand));
    match own {
        Some(path) => Ok(Known {
            profile: of_gpu(read(&path)?, gpu, &path)?,
            file: Some(path),
        }),
        None => Ok(Known {
            profile: shipped(gpu).clone(),
            file: None,
        }),
    }
}

/// True if there is any profile of that GPU: without one, no driver is asked.
fn has_any(folder: &Path, gpu: &str) -> bool {
    let begin = format!("{}.", spelled(gpu));
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names = entries.map(|entry| entry.file_name());
    names.any(|name| name.to_string_lossy().starts_with(&begin))
}

/// The file of that GPU, driver and link. A process that sees one GPU may be one of several that have one each: it takes that of linked
/// ones first.
fn file_in(folder: &Path, gpu: &str, (link, driver): &(Link, String)) -> Option<PathBuf> {
    let links: &[Link] = match link {
        Link::Alone => &[Link::NvLink, Link::Peers, Link::Alone],
        Link::Peers => &[Link::Peers],
        Link::NvLink => &[Link::NvLink],
    };
    let paths = links
        .iter()
        .map(|link| folder.join(name(gpu, *link, driver)));
    // What cannot be looked at is reported when it is read.
    paths
        .into_iter()
        .find(|path| path.symlink_metadata().is_ok())
}

/// Refuses the profile of another GPU under this one's name.
fn of_gpu(profile: Profile, gpu: &str, path: &Path) -> Result<Profile, Error> {
    if profile.gpu == gpu {
        return Ok(profile);
    }
    let what = format!("it is a profile of {}, not of {gpu}", profile.gpu);
    Err(failed(path)(io::Error::new(ErrorKind::InvalidData, what)))
}

/// Machine of the profile that comes with the package for a GPU of that name.
///
/// # Errors
/// None of a package that is whole.
pub fn named(gpu: &str) -> Result<Machine, Error> {
    let broken = |why| failed(Path::new(gpu))(io::Error::other(why));
    shipped(gpu).machine().map_err(broken)
}

/// Machine of a GPU's profile.
///
/// # Errors
/// As [`of`].
pub fn machine(gpu: &str) -> Result<Machine, Error> {
    let Known { profile, file } = of(gpu)?;
    profile.machine().map_err(|why| {
        let path = file.unwrap_or_default();
        failed(&path)(io::Error::other(why))
    })
}

/// Keeps a profile for this user, in place of the one before it. Gives its file.
///
/// # Errors
/// [`Error::Usage`] where there is no cache; [`Error::File`] for a folder that others may write.
pub fn keep(profile: &Profile) -> Result<PathBuf, Error> {
    let folder = folder().ok_or_else(|| Error::Usage {
        what: "there is no folder for the profile".into(),
        legal: "name one in COUNTERFLOW_CACHE; without HOME there is none".into(),
    })?;
    keep_in(&folder, profile)
}

fn keep_in(folder: &Path, profile: &Profile) -> Result<PathBuf, Error> {
    let path = folder.join(name(&profile.gpu, profile.link, &profile.driver));
    draft::write(&path, profile.text().as_bytes()).map_err(failed(&path))?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(name: &str, change: impl Fn(&mut Profile)) -> (PathBuf, PathBuf) {
        let folder = format!("counterflow-profile-{name}-{}", std::process::id());
        let folder = std::env::temp_dir().join(folder);
        let _ = std::fs::remove_dir_all(&folder);
        let mut profile = shipped("NVIDIA H200").clone();
        change(&mut profile);
        let path = keep_in(&folder, &profile).expect("kept");
        (folder, path)
    }

    #[test]
    fn a_profile_is_read_as_it_was_kept_and_found_by_gpu_link_and_driver() {
        let (folder, path) = kept("whole", |profile| {
            profile.gpu = "NVIDIA H100 80GB HBM3".into();
            profile.driver = "12.9".into();
        });
        let profile = read(&path).expect("whole");
        assert_eq!(keep_in(&folder, &profile).expect("kept"), path);
        assert_eq!(read(&path).expect("whole"), profile);
        let found = |gpu: &str, link, driver: &str| {
            file_in(&folder, gpu, &(link, driver.to_owned())).is_some()
        };
        assert!(has_any(&folder, &profile.gpu) && !has_any(&folder, "NVIDIA H100"));
        assert!(found(&profile.gpu, Link::NvLink, "12.9"));
        assert!(found(&profile.gpu, Link::Alone, "12.9"), "one of several");
        assert!(!found(&profile.gpu, Link::Peers, "12.9"), "another link");
        assert!(!found(&profile.gpu, Link::NvLink, "13.0"), "another driver");
        assert!(!found("NVIDIA H200", Link::NvLink, "12.9"), "another GPU");
        std::fs::remove_dir_all(folder).expect("gone");
    }

    #[test]
    fn a_profile_that_is_broken_foreign_or_open_to_others_is_refused() {
        use std::os::unix::fs::PermissionsExt;
        let (folder, path) = kept("broken", |_| {});
        let whole = std::fs::read_to_string(&path).expect("text");
        let refused = |text: &str, wanted: &str| {
            std::fs::write(&path, text).expect("written");
            let error = read(&path).expect_err("refused");
            assert_eq!(error.kind(), "file");
            assert!(error.to_string().contains(wanted), "{error}");
        };
        refused("", "its format is none");
        refused(
            &whole.replace("format = 1", "format = 2"),
            "its format is 2",
        );
        refused(&whole[..whole.len() / 2], "it is no profile");
        std::fs::write(&path, &whole).expect("written");
        let profile = read(&path).expect("whole");
        let error = of_gpu(profile, "NVIDIA H20", &path).expect_err("another GPU's");
        assert!(
            error
                .to_string()
                .contains("a profile of NVIDIA H200, not of NVIDIA H20")
        );
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o666)).expect("set");
        let error = read(&path).expect_err("others may write it");
        assert!(error.to_string().contains("others may write it"), "{error}");
        std::fs::remove_dir_all(folder).expect("gone");
    }
}
