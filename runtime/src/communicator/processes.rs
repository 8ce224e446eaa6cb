//! Ranks that are processes.

use super::Communicator;
use super::start::{legal, timeout};
use crate::emulated::{self, Machine};
use crate::error::Error;
use crate::group::Group;
use crate::rendezvous::{Deadline, Job, Rendezvous};
use crate::retire;
use crate::shared::Links;
use std::time::Duration;

impl Communicator {
    /// This process's rank of the job that a launcher started it for, on an emulated GPU: every rank is a process of
    /// this host. torchrun, OpenMPI's and MPICH's mpirun, and Slurm's srun are known: see [`Job`].
    ///
    /// ```no_run
    /// use counterflow::Communicator;
    ///
    /// // torchrun --no-python --nproc-per-node 4 ./program
    /// let rank = Communicator::emulated_from_env()?;
    /// rank.reserve(1 << 20)?;
    /// rank.barrier()?;
    /// println!("rank {} of {}", rank.rank(), rank.world());
    /// # Ok::<(), counterflow::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Usage`] if no launcher started the process, [`Error::Environment`] for variables that contradict each
    /// other; as [`Communicator::join_emulated`].
    pub fn emulated_from_env() -> Result<Communicator, Error> {
        let job = Job::from_env()?.ok_or_else(|| Error::Usage {
            what: "a rank of a job that no launcher started".into(),
            legal: "start it by torchrun, mpirun or srun, or make all ranks in this process: `Communicator::emulated`"
                .into(),
        })?;
        let timeout = timeout()?;
        let deadline = Deadline::after(timeout);
        Communicator::by(&job.rendezvous(timeout)?, timeout, deadline)
    }

    /// This process's rank on an emulated GPU. Every rank of the rendezvous is a process of this host and this user, or
    /// a thread that makes this call itself.
    ///
    /// Every call is as on ranks of one process: the heap is memory that the processes share. A process that ends
    /// without dropping its communicator ends it for all: the others get [`Error::Aborted`] within a second.
    ///
    /// ```
    /// use counterflow::{Communicator, rendezvous::Threads};
    ///
    /// std::thread::scope(|scope| {
    ///     for rank in Threads::of(2) {
    ///         scope.spawn(move || {
    ///             let rank = Communicator::join_emulated(&rank)?;
    ///             rank.reserve(1 << 20)?;
    ///             let buffer = rank.allocate::<u32>("x", [4])?;
    ///             buffer.write_on(1 - rank.rank(), &[rank.rank(); 4])?;
    ///             rank.synchronize()?;
    ///             rank.barrier()?;
    ///             assert_eq!(buffer.read()?, [1 - rank.rank(); 4]);
    ///             Ok::<(), counterflow::Error>(())
    ///         });
    ///     }
    /// });
    /// ```
    ///
    /// # Errors
    /// [`Error::Rendezvous`] with the ranks that did not come within the time limit; [`Error::Mismatch`] for processes
    /// of other versions or hosts; [`Error::TooLarge`] if memory or file descriptors run out; [`Error::Usage`] for more
    /// than 128 ranks.
    pub fn join_emulated(ranks: &dyn Rendezvous) -> Result<Communicator, Error> {
        let timeout = timeout()?;
        Communicator::by(ranks, timeout, Deadline::after(timeout))
    }

    fn by(
        ranks: &dyn Rendezvous,
        timeout: Duration,
        deadline: Deadline,
    ) -> Result<Communicator, Error> {
        legal(ranks.world() as usize)?;
        retire::sweep();
        let links = Links::make(ranks, deadline)?;
        let machine = Machine::apart()?;
        let gpu = emulated::Gpu::of(&machine, 0);
        let group = Group::apart(gpu.into(), links, timeout, deadline)?;
        let mut made = Communicator::made(group, timeout);
        made.pop().ok_or_else(|| Error::Usage {
            what: "a communicator without ranks".into(),
            legal: "at least one".into(),
        })
    }
}
