//! Facts about a machine that the checks read. Nothing here asks anybody: tests make the facts of machines that they do
//! not have.

use crate::cuda::Fabric;
use counterflow_runtime::Error;
use counterflow_runtime::cuda::{Pci, Survey};
use counterflow_runtime::machines::Known;
use counterflow_runtime::tuning::Tuning;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

/// All that `doctor` knows of this machine.
#[derive(Clone, Debug)]
pub(super) struct Facts {
    /// Answers of the CUDA driver.
    pub driver: Asked<Survey>,
    /// Answers of NVML, the management library.
    pub management: Asked<Management>,
    /// The value of `CUDA_VISIBLE_DEVICES`.
    pub visible: Option<String>,
    /// True if there is a channel of NVIDIA's IMEX service, which fabric handles need.
    pub imex: bool,
    /// Variables, with their values, that do not yet keep other libraries from multicast.
    pub allowing: Vec<String>,
    /// Variables, as they are set, that forbid it to this program.
    pub forbidding: Vec<String>,
    /// True if this program was built so that it could use multicast.
    pub multicast_built: bool,
    pub compiler: Result<Toolkit, Problem>,
    pub cache: CacheFacts,
    pub tuned: Tables,
    /// What an op does that knows no winner: the value of `COUNTERFLOW_TUNE`, or the default.
    pub tuning: Result<Tuning, Problem>,
    /// The profile of each kind of GPU, by the GPU's name.
    pub profiles: BTreeMap<String, Result<Known, Problem>>,
}

/// The answer of a library that may be missing, or may never answer.
#[derive(Clone, Debug)]
pub(super) enum Asked<T> {
    Told(T),
    Refused(Problem),
    /// No answer within this time.
    Silent(Duration),
}

impl<T> Asked<T> {
    pub(super) fn told(&self) -> Option<&T> {
        match self {
            Asked::Told(told) => Some(told),
            Asked::Refused(_) | Asked::Silent(_) => None,
        }
    }
}

/// Problem, and what to do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Problem {
    pub what: String,
    pub help: String,
}

impl From<Error> for Problem {
    fn from(error: Error) -> Problem {
        let help = error.help().unwrap_or(match &error {
            Error::Compile(_) => "`.ci/cuda.sh` fetches a compiler that works into .cuda/",
            _ => "this is a mistake of counterflow's: please report it with the page",
        });
        let help = help.to_owned();
        let what = match error {
            Error::NoDevice { why, .. } => why,
            other => other.to_string(),
        };
        Problem { what, help }
    }
}

/// Facts that NVML tells of this machine.
#[derive(Clone, Debug)]
pub(super) struct Management {
    /// Version of the driver, such as 580.95.05.
    pub driver: Option<String>,
    pub boards: Vec<Board>,
}

/// Facts that NVML tells of one GPU. None where it does not say.
#[derive(Clone, Debug)]
pub(super) struct Board {
    pub pci: Pci,
    /// True if MIG is on.
    pub mig: Option<bool>,
    pub persistence: Option<bool>,
    /// Watts.
    pub power: Option<Limits>,
    /// MHz of the SMs.
    pub clock: Option<Limits>,
    /// Reasons for a lower clock, without those of an idle GPU.
    pub slowed: Vec<Slowed>,
    pub ecc: Option<bool>,
    /// Errors of memory since the driver started that ECC could not correct.
    pub uncorrected: Option<u64>,
    pub rows: Option<Rows>,
    /// Processes that have a context there.
    pub processes: Option<u32>,
    pub links: Vec<Link>,
    pub fabric: Option<Fabric>,
}

/// Limits that are in force, and the GPU's defaults.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Limits {
    pub now: u32,
    pub default: u32,
}

/// Reason that a clock is lower than it could be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Slowed {
    /// The power limit.
    Power,
    /// A setting of application clocks.
    Setting,
    Heat,
    /// The hardware: heat, or the power supply.
    Hardware,
}

/// Rows of memory that ECC gave up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Rows {
    /// True if one waits for a reset to be replaced.
    pub pending: bool,
    /// True if one could not be replaced.
    pub failed: bool,
}

/// One NVLink of a GPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Link {
    pub active: bool,
    /// The other end. None if NVML does not say.
    pub to: Option<Pci>,
}

/// A compiler that was found.
#[derive(Clone, Debug)]
pub(super) struct Toolkit {
    /// Version and place.
    pub name: String,
    /// None for a cache that stands in for a compiler.
    pub version: Option<(u32, u32)>,
    /// Outcome of compiling an empty kernel.
    pub works: Result<(), Problem>,
}

/// The cache of compiled kernels.
#[derive(Clone, Debug)]
pub(super) struct CacheFacts {
    /// None if it is off.
    pub folder: Option<PathBuf>,
    /// Bytes that are free there.
    pub room: Result<u64, Problem>,
}

/// Rows of the tables of measured winners, by the GPU's name.
#[derive(Clone, Debug)]
pub(super) struct Tables {
    pub shipped: Result<BTreeMap<String, usize>, Problem>,
    pub user: Result<BTreeMap<String, usize>, Problem>,
}

impl Facts {
    /// NVML's facts about the GPUs that the driver gives this process, each with the ordinal that it has there; about all
    /// GPUs, by their place, where the driver tells none.
    pub(super) fn boards(&self) -> Vec<(String, &Board)> {
        let boards = self.management.told().map_or(&[][..], |told| &told.boards);
        let all = boards.iter();
        match self.driver.told() {
            Some(survey) => {
                let gpus = survey.gpus.iter().enumerate();
                let of = |pci: Pci| boards.iter().find(|board| board.pci == pci);
                gpus.filter_map(|(ordinal, gpu)| Some((ordinal.to_string(), of(gpu.pci)?)))
                    .collect()
            }
            None => all.map(|board| (board.pci.to_string(), board)).collect(),
        }
    }

    /// GPUs of this machine that the driver does not give this process.
    pub(super) fn unseen(&self) -> Vec<Pci> {
        let seen: &[_] = self.driver.told().map_or(&[], |survey| &survey.gpus);
        let boards = self.management.told().map_or(&[][..], |told| &told.boards);
        let unseen = boards
            .iter()
            .filter(|board| seen.iter().all(|gpu| gpu.pci != board.pci));
        unseen.map(|board| board.pci).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use counterflow_runtime::Device;

    #[test]
    fn every_problem_says_what_to_do() {
        let file = Error::File {
            path: "tuned.toml".into(),
            source: std::io::ErrorKind::PermissionDenied.into(),
        };
        let problem = Problem::from(file);
        assert!(problem.what.contains("tuned.toml"), "{problem:?}");
        assert!(problem.help.contains("this process may use it"));
        let none = Problem::from(Error::NoDevice {
            device: Device::Cuda,
            why: "no driver".into(),
            help: "install one".into(),
        });
        assert_eq!(
            (&none.what[..], &none.help[..]),
            ("no driver", "install one")
        );
    }
}
