//! Asks everybody: driver, NVML, files and variables. Nothing is set, made or left behind.

use super::boards;
use super::facts::{Asked, CacheFacts, Facts, Problem, Tables, Toolkit};
use counterflow_runtime::cuda::Survey;
use counterflow_runtime::jit::{Cache, Compiler, Source, Target};
use counterflow_runtime::machines::{self, Known};
use counterflow_runtime::tuned::Tuned;
use counterflow_runtime::tuning::Tuning;
use counterflow_runtime::{Error, multicast};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

/// Time that a library may take to answer. The driver starts each GPU anew where persistence is off, some seconds
/// each.
const PATIENCE: Duration = Duration::from_secs(60);

/// True once a call of a library did not come back in time.
static HANGS: AtomicBool = AtomicBool::new(false);

/// True if a thread of this process is still in a call that does not come back.
pub(crate) fn hangs() -> bool {
    HANGS.load(Ordering::Relaxed)
}

/// The facts of this machine.
pub(super) fn facts() -> Facts {
    let end = Instant::now() + patience(std::env::var("UB_TIMEOUT").ok().as_deref());
    let driver = aside(Survey::take);
    let management = aside(boards::management);
    let variable = |name: &str| std::env::var(name).ok();
    let set = |(name, value): (&str, &str)| format!("{name}={value}");
    let forbidding = multicast::forbidding(variable).into_iter();
    let driver = driver.by(end);
    Facts {
        compiler: compiler(),
        cache: cache(&Cache::of_user()),
        tuned: Tables {
            shipped: rows(Tuned::embedded()),
            user: rows(Tuned::of_user()),
        },
        tuning: Tuning::from_env()
            .map(|said| said.unwrap_or(Tuning::Quick))
            .map_err(Problem::from),
        visible: variable("CUDA_VISIBLE_DEVICES"),
        imex: has_entries(Path::new("/dev/nvidia-caps-imex-channels")),
        allowing: multicast::allowing(variable).into_iter().map(set).collect(),
        forbidding: forbidding
            .map(|(name, value)| set((name, &value)))
            .collect(),
        multicast_built: multicast::BUILT,
        profiles: profiles(&driver),
        driver,
        management: management.by(end),
    }
}

fn patience(said: Option<&str>) -> Duration {
    let seconds = said.and_then(|text| text.parse::<f64>().ok());
    let seconds = seconds.filter(|seconds| *seconds > 0.0);
    let said = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    said.map_or(PATIENCE, |said| said.min(PATIENCE))
}

/// An answer that may never come, with when it was asked for.
struct Waiting<T> {
    answer: Receiver<T>,
    since: Instant,
}

/// Asks in a thread of its own, which is left where it is if it never comes back.
fn aside<T: Send + 'static>(ask: impl FnOnce() -> T + Send + 'static) -> Waiting<T> {
    let (told, answer) = channel();
    thread::spawn(move || {
        // Nobody may wait for it any more.
        let _ = told.send(ask());
    });
    Waiting {
        answer,
        since: Instant::now(),
    }
}

impl<T, E: Into<Problem>> Waiting<Result<T, E>> {
    /// Answer until then.
    fn by(self, end: Instant) -> Asked<T> {
        let left = end.saturating_duration_since(Instant::now());
        match self.answer.recv_timeout(left) {
            Ok(Ok(told)) => Asked::Told(told),
            Ok(Err(why)) => Asked::Refused(why.into()),
            Err(RecvTimeoutError::Timeout) => {
                HANGS.store(true, Ordering::Relaxed);
                Asked::Silent(end.saturating_duration_since(self.since))
            }
            // The thread panicked, which the binding does where a library lacks a function.
            Err(RecvTimeoutError::Disconnected) => Asked::Refused(Problem {
                what: "the library is not one that this version knows".into(),
                help: "install the driver anew, version 580 or later".into(),
            }),
        }
    }
}

fn compiler() -> Result<Toolkit, Problem> {
    let compiler = Compiler::find().map_err(Problem::from)?;
    let empty = Source::new("nothing", "extern \"C\" __global__ void nothing() {}");
    // A cache in place of a compiler has no such kernel.
    let works = match compiler.version() {
        Some(_) => {
            let fresh = compiler.clone().with_cache(Cache::off());
            fresh.compile(&empty, Target::Sm90a).map(|_| ())
        }
        None => Ok(()),
    };
    Ok(Toolkit {
        name: compiler.describe(),
        version: compiler.version(),
        works: works.map_err(Problem::from),
    })
}

fn cache(cache: &Cache) -> CacheFacts {
    CacheFacts {
        folder: cache.dir().map(Path::to_path_buf),
        room: cache.room().map_err(Problem::from),
    }
}

fn rows(tuned: Result<Tuned, Error>) -> Result<BTreeMap<String, usize>, Problem> {
    let tuned = tuned.map_err(Problem::from)?;
    let rows = tuned.gpus().into_iter();
    Ok(rows.map(|(gpu, rows)| (gpu.to_owned(), rows)).collect())
}

/// The profile of each kind of GPU that the driver told of.
fn profiles(driver: &Asked<Survey>) -> BTreeMap<String, Result<Known, Problem>> {
    let gpus = driver.told().map_or(&[][..], |survey| &survey.gpus);
    let names = gpus.iter().map(|gpu| gpu.name.clone());
    let known = |name: String| {
        let known = machines::of(&name).map_err(Problem::from);
        (name, known)
    };
    names.map(known).collect()
}

fn has_entries(folder: &Path) -> bool {
    std::fs::read_dir(folder).is_ok_and(|mut entries| entries.next().is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn soon() -> Instant {
        Instant::now() + Duration::from_millis(50)
    }

    #[test]
    fn a_library_that_does_not_answer_is_left_behind() {
        let (_keep, never) = channel::<()>();
        let silent = aside(move || {
            let _ = never.recv();
            Ok::<_, Problem>(1)
        });
        assert!(matches!(silent.by(soon()), Asked::Silent(_)));
        assert!(hangs());
        let told = aside(|| Ok::<_, Problem>(1));
        let end = Instant::now() + PATIENCE;
        assert!(matches!(told.by(end), Asked::Told(1)));
        let refused = aside(|| {
            Err::<(), _>(Problem::from(Error::NoDevice {
                device: counterflow_runtime::Device::Cuda,
                why: "no driver".into(),
                help: "install one".into(),
            }))
        });
        let Asked::Refused(why) = refused.by(end) else {
            panic!("refused");
        };
        assert_eq!((&why.what[..], &why.help[..]), ("no driver", "install one"));
        let broken = aside(|| -> Result<(), Problem> { std::panic::panic_any("no function") });
        assert!(matches!(broken.by(end), Asked::Refused(_)));
    }

    #[test]
    fn patience_is_that_of_a_rank_at_most_a_minute() {
        assert_eq!(patience(None), PATIENCE);
        assert_eq!(patience(Some("2.5")), Duration::from_millis(2500));
        for text in ["110", "many", "-1", "0", "inf", "NaN", "1e300"] {
            assert_eq!(patience(Some(text)), PATIENCE, "{text}");
        }
    }
}
