//! A process's job, as the launcher's environment variables tell it.

use super::door::Place;
use super::secret::Secret;
use super::tcp::Tcp;
use super::{failed, lobby};
use crate::error::Error;
use counterflow_codegen::shape::MAX_WORLD;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::time::Duration;

/// The launcher that started the process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Launcher {
    /// `torchrun`, or whoever sets `RANK` and `WORLD_SIZE` as it does.
    Torchrun,
    /// `mpirun` of OpenMPI.
    OpenMpi,
    /// `mpiexec` of MPICH.
    Mpich,
    /// `srun` of Slurm.
    Slurm,
}

/// A process's place in its job.
///
/// ```no_run
/// use counterflow_runtime::rendezvous::{Job, Launcher, Rendezvous};
/// # use std::time::Duration;
/// if let Some(job) = Job::from_env()? {
///     assert_eq!(job.launcher, Launcher::Torchrun);
///     let ranks = job.rendezvous(Duration::from_secs(60))?;
///     println!("rank {} of {}", ranks.rank(), ranks.world());
/// }
/// # Ok::<(), counterflow_runtime::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Job {
    /// Launcher that says so.
    pub launcher: Launcher,
    /// This process's rank.
    pub rank: u32,
    /// Number of ranks.
    pub world: u32,
    /// Number of this rank among those of this host.
    pub local_rank: u32,
    /// Number of ranks on this host.
    pub local_world: u32,
    /// Name that all of its processes give the job, and no other job on this host.
    pub name: String,
    /// Rank 0's host, if the launcher says which.
    pub address: Option<String>,
    /// The port at which rank 0 is to listen for ranks of other hosts: `UB_PORT`.
    pub port: Option<u16>,
    /// A file with the job's secret: `UB_SECRET_FILE`. Ranks of one host need none.
    pub secret: Option<PathBuf>,
}

/// The variables by which a launcher says what.
struct Names {
    launcher: Launcher,
    rank: &'static str,
    world: &'static str,
    local_rank: &'static str,
    local_world: &'static str,
}

impl Names {
    fn of(launcher: Launcher) -> Names {
        let mut all = LAUNCHERS.into_iter();
        let found = all.find(|names| names.launcher == launcher);
        found.unwrap_or(SLURM)
    }

    /// Rejects numbers that contradict each other.
    fn must_be_legal(&self, [rank, world, local_rank, local_world]: [u32; 4]) -> Result<(), Error> {
        if local_world > world {
            let what = format!(
                "{local_world} of {world} ranks are on this host, by what {:?} sets",
                self.launcher
            );
            return Err(Error::Environment {
                variable: self.local_world,
                what,
                help: "a host has no more ranks than the job".into(),
            });
        }
        let places = [
            (self.rank, rank, world),
            (self.local_rank, local_rank, local_world),
        ];
        let beyond = places.into_iter().find(|(_, number, end)| number >= end);
        beyond.map_or(Ok(()), |(variable, number, end)| {
            Err(Error::Environment {
                variable,
                what: format!("rank {number} of {end}, by what {:?} sets", self.launcher),
                help: "ranks count from 0, below the number of ranks".into(),
            })
        })
    }
}

/// In this order: MPI's launchers set Slurm's variables too where Slurm starts them, and programs set torchrun's where
/// another launcher started them.
const LAUNCHERS: [Names; 3] = [
    Names {
        launcher: Launcher::Torchrun,
        rank: "RANK",
        world: "WORLD_SIZE",
        local_rank: "LOCAL_RANK",
        local_world: "LOCAL_WORLD_SIZE",
    },
    Names {
        launcher: Launcher::OpenMpi,
        rank: "OMPI_COMM_WORLD_RANK",
        world: "OMPI_COMM_WORLD_SIZE",
        local_rank: "OMPI_COMM_WORLD_LOCAL_RANK",
        local_world: "OMPI_COMM_WORLD_LOCAL_SIZE",
    },
    Names {
        launcher: Launcher::Mpich,
        rank: "PMI_RANK",
        world: "PMI_SIZE",
        local_rank: "MPI_LOCALRANKID",
        local_world: "MPI_LOCALNRANKS",
    },
];

/// Variables of a step that srun starts, where a node's tasks are in a list.
const SLURM: Names = Names {
    launcher: Launcher::Slurm,
    rank: "SLURM_PROCID",
    world: "SLURM_STEP_NUM_TASKS",
    local_rank: "SLURM_LOCALID",
    local_world: "SLURM_STEP_TASKS_PER_NODE",
};

/// The environment, or a test's.
struct Variables<F>(F);

impl<F: Fn(&str) -> Option<String>> Variables<F> {
    fn text(&self, name: &str) -> Option<String> {
        (self.0)(name).filter(|text| !text.is_empty())
    }

    /// A number, if the variable is set.
    fn number(&self, variable: &'static str) -> Result<Option<u32>, Error> {
        let Some(text) = self.text(variable) else {
            return Ok(None);
        };
        let number = text.trim().parse().map_err(|_| Error::Environment {
            variable,
            what: format!("{variable}={text} is no number of a rank, or of ranks"),
            help: "a launcher sets it; start the program by one, or unset it".into(),
        })?;
        Ok(Some(number))
    }

    fn must(&self, variable: &'static str, because: &str) -> Result<u32, Error> {
        self.number(variable)?.ok_or_else(|| Error::Environment {
            variable,
            what: format!("{variable} is not set, though {because} is"),
            help: "start the program by a launcher, or set what it would: torchrun's RANK, WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE".into(),
        })
    }

    /// The first of these that is set.
    fn first(&self, names: &[&str]) -> Option<String> {
        names.iter().find_map(|name| self.text(name))
    }

    fn place(&self) -> Result<Option<(Names, [u32; 4])>, Error> {
        for names in LAUNCHERS {
            if self.text(names.rank).is_none() {
                continue;
            }
            let must = |name| self.must(name, names.rank);
            let place = [
                must(names.rank)?,
                must(names.world)?,
                must(names.local_rank)?,
                must(names.local_world)?,
            ];
            return Ok(Some((names, place)));
        }
        // The script that Slurm starts first has a rank too, and no step.
        const STEP: &str = SLURM.world;
        let Some(world) = self.number(STEP)? else {
            return Ok(None);
        };
        let local = match self.must("SLURM_STEP_NUM_NODES", STEP)? {
            1 => world,
            _ => {
                let node = self.must("SLURM_NODEID", STEP)?;
                let tasks = self.text("SLURM_STEP_TASKS_PER_NODE").unwrap_or_default();
                tasks_of(&tasks, node).ok_or_else(|| Error::Environment {
                    variable: "SLURM_STEP_TASKS_PER_NODE",
                    what: format!("SLURM_STEP_TASKS_PER_NODE={tasks} does not say how many ranks node {node} has"),
                    help: "start the program by srun".into(),
                })?
            }
        };
        let rank = self.must(SLURM.rank, STEP)?;
        let local_rank = self.must(SLURM.local_rank, STEP)?;
        Ok(Some((SLURM, [rank, world, local_rank, local])))
    }

    fn job(&self) -> Result<Option<Job>, Error> {
        let Some((names, place)) = self.place()? else {
            return Ok(None);
        };
        names.must_be_legal(place)?;
        let (launcher, [rank, world, local_rank, local_world]) = (names.launcher, place);
        let master = self.text("MASTER_ADDR");
        let given = match launcher {
            // Two jobs of one run have two ports, and a job that is started again has another count.
            Launcher::Torchrun => self.text("MASTER_PORT").map(|port| {
                let run = self.text("TORCHELASTIC_RUN_ID").unwrap_or_default();
                let again = self.text("TORCHELASTIC_RESTART_COUNT").unwrap_or_default();
                format!("{run}:{}:{port}:{again}", master.as_deref().unwrap_or(""))
            }),
            Launcher::OpenMpi => self.first(&["PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"]),
            Launcher::Mpich => self.first(&["PMI_JOBID", "PMI_KVSNAME", "MASTER_PORT"]),
            Launcher::Slurm => {
                let step = ["SLURM_JOB_ID", "SLURM_STEP_ID"].map(|name| self.text(name));
                step.into_iter()
                    .collect::<Option<Vec<_>>>()
                    .map(|step| step.join("."))
            }
        };
        let name =
            self.text("UB_JOB").or(given).ok_or_else(|| {
                Error::Environment {
            variable: "UB_JOB",
            what: format!("{launcher:?} does not name this job"),
            help: "set UB_JOB to a name that all its processes have, and no other job on this host"
                .into(),
        }
            })?;
        let port = self.number("UB_PORT")?.map(|port| {
            let port_or_none = u16::try_from(port).ok().filter(|port| *port > 0);
            port_or_none.ok_or_else(|| Error::Environment {
                variable: "UB_PORT",
                what: format!("UB_PORT={port} is no port"),
                help: "1 to 65535".into(),
            })
        });
        Ok(Some(Job {
            launcher,
            rank,
            world,
            local_rank,
            local_world,
            name,
            address: master.or_else(|| self.text("SLURM_LAUNCH_NODE_IPADDR")),
            port: port.transpose()?,
            secret: self.text("UB_SECRET_FILE").map(PathBuf::from),
        }))
    }
}

/// The tasks of a node by Slurm's list: `4(x2),3` is 4, 4, 3.
fn tasks_of(list: &str, node: u32) -> Option<u32> {
    let mut before = 0u32;
    for part in list.split(',') {
        let (tasks, times) = match part.split_once("(x") {
            Some((tasks, times)) => (tasks, times.strip_suffix(')')?.parse().ok()?),
            None => (part, 1),
        };
        before = u32::checked_add(before, times)?;
        if node < before {
            return tasks.parse().ok();
        }
    }
    None
}

impl Job {
    /// The job that a launcher started this process for. None if none did.
    ///
    /// torchrun, OpenMPI's and MPICH's mpirun, and Slurm's srun are known. `UB_JOB` names the job where the launcher
    /// does not, or two jobs would have one name.
    ///
    /// # Errors
    /// [`Error::Environment`] for variables that contradict each other or are not all there.
    pub fn from_env() -> Result<Option<Job>, Error> {
        Variables(|name: &str| std::env::var(name).ok()).job()
    }

    /// Finds the other ranks. On one host nothing more is needed: they meet in a folder that only this user can enter.
    /// Ranks of several hosts need rank 0's address, `UB_PORT` and `UB_SECRET_FILE`.
    ///
    /// # Errors
    /// [`Error::Environment`] at once for more than 128 ranks; [`Error::Rendezvous`] with the ranks that did not come within
    /// `limit`.
    pub fn rendezvous(&self, limit: Duration) -> Result<Tcp, Error> {
        let place = Place {
            rank: self.rank,
            world: self.world,
        };
        if self.world > MAX_WORLD {
            let variable = Names::of(self.launcher).world;
            return Err(Error::Environment {
                variable,
                what: format!("{variable}={} ranks", self.world),
                help: format!(
                    "a communicator has at most {MAX_WORLD} ranks: of a larger job, let those of one NVLink domain meet by a rendezvous of their own (`Tcp::join`, `Callbacks`)"
                ),
            });
        }
        if self.local_world == self.world {
            return lobby::join(&lobby::folder()?, &self.name, place, limit);
        }
        let (Some(host), Some(port), Some(secret)) = (&self.address, self.port, &self.secret)
        else {
            return Err(failed(
                "ranks of several hosts do not find each other by themselves",
                "set MASTER_ADDR to rank 0's host, UB_PORT to a free port there, and UB_SECRET_FILE to a file with a line of random text, the same on all hosts",
            ));
        };
        let secret = Secret::from_file(secret)?;
        Tcp::join(self.rank, self.world, resolved(host, port)?, &secret, limit)
    }
}

fn resolved(host: &str, port: u16) -> Result<SocketAddr, Error> {
    let found = (host, port).to_socket_addrs().ok();
    found.and_then(|mut all| all.next()).ok_or_else(|| {
        failed(
            format!("there is no host {host}"),
            "let MASTER_ADDR name rank 0's host",
        )
    })
}

#[cfg(test)]
#[path = "job/tests.rs"]
mod tests;
