//! Ranks that are processes.

use super::Communicator;
use super::start::{legal, timeout};
use crate::cuda;
use crate::driver::Gpu;
use crate::emulated::{self, Machine};
use crate::error::Error;
use crate::group::Group;
use crate::rendezvous::{Deadline, Job, Rendezvous};
use crate::retire;
use crate::shared::Links;
use std::sync::Arc;

impl Communicator {
    /// This process's rank of the job that a launcher started it for, on the GPU that has its number among the ranks of
    /// this host. torchrun, OpenMPI's and MPICH's mpirun, and Slurm's srun are known: see [`Job`]. Where each process
    /// sees one GPU alone (`CUDA_VISIBLE_DEVICES`), it is on that.
    ///
    /// ```no_run
    /// use counterflow::Communicator;
    ///
    /// // torchrun --no-python --nproc-per-node 4 ./program
    /// let rank = Communicator::from_env()?;
    /// rank.reserve(1 << 30)?;
    /// println!("rank {} of {} on {}", rank.rank(), rank.world(), rank.gpu().name());
    /// # Ok::<(), counterflow::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Usage`] if no launcher started the process, or for two ranks on one GPU; [`Error::Environment`] for
    /// variables that contradict each other; as [`Communicator::join`].
    pub fn from_env() -> Result<Communicator, Error> {
        Communicator::of_job(|job| cuda_gpu(job.local_rank), false)
    }

    /// Joins the launcher's job like [`Communicator::from_env`], and lets several processes share a GPU: rank `r` of a host
    /// is on GPU `r % gpus`. The driver lets
    /// their kernels run in turn, for milliseconds each, so every wait for a peer is slow: this is for tests. Start no
    /// MPS, which would run the kernels at the same time without room for all.
    ///
    /// ```no_run
    /// use counterflow::Communicator;
    ///
    /// let rank = Communicator::from_env_sharing()?; // four ranks on one GPU, or on two
    /// # Ok::<(), counterflow::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Communicator::from_env`].
    pub fn from_env_sharing() -> Result<Communicator, Error> {
        Communicator::of_job(|job| cuda_gpu(job.local_rank), true)
    }

    /// Joins the launcher's job like [`Communicator::from_env`], on an emulated GPU, for machines without GPUs.
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
    /// As [`Communicator::from_env`].
    pub fn emulated_from_env() -> Result<Communicator, Error> {
        Communicator::of_job(|_| emulated_gpu(), true)
    }

    /// This process's rank on that GPU of it, counted from 0 as CUDA counts. Every rank of the rendezvous is a process
    /// of this host and this user, with a GPU of its own.
    ///
    /// Every call is as on ranks of one process. Each process maps the others' part of the heap at addresses of its own,
    /// and the driver keeps that memory until the last of them has let go of it.
    ///
    /// A rank leaves by dropping its communicator. Then calls of the others that need it, and launches that wait for one
    /// that it has not made, end the communicator: they get [`Error::Aborted`]. Others go on. Its process lives until its
    /// launches have ended, whatever else it has of the communicator by then: one that ends before, or without leaving,
    /// ends the communicator for all that have it, who are told within a second. Once nothing of its own uses the heap, a
    /// rank keeps its memory until no peer's work does, and at most for the time limit.
    ///
    /// ```no_run
    /// use counterflow::Communicator;
    /// use counterflow::rendezvous::{Secret, Tcp};
    /// use std::{net::SocketAddr, path::Path, time::Duration};
    ///
    /// # let (rank, world) = (0, 2);
    /// let secret = Secret::from_file(Path::new("secret"))?;
    /// let first = SocketAddr::from(([127, 0, 0, 1], 4242));
    /// let job = Tcp::join(rank, world, first, &secret, Duration::from_secs(60))?;
    /// let rank = Communicator::join(&job, rank)?; // rank r on GPU r
    /// # Ok::<(), counterflow::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::NoDevice`] if there is no such GPU, or it does not reach a peer's; [`Error::Usage`] for two ranks on one
    /// GPU, or more than 128 ranks; [`Error::Rendezvous`] with the ranks that did not come within the time limit;
    /// [`Error::Mismatch`] for processes of other versions or hosts; [`Error::Aborted`] with what another rank could not
    /// do; [`Error::Driver`] if the driver does not share memory with other processes; [`Error::TooLarge`] if memory or
    /// file descriptors run out.
    pub fn join(ranks: &dyn Rendezvous, gpu: u32) -> Result<Communicator, Error> {
        Communicator::now(ranks, || opened(gpu), false)
    }

    /// Joins like [`Communicator::join`], and lets several processes share a GPU, as [`Communicator::from_env_sharing`] does.
    ///
    /// ```no_run
    /// use counterflow::{Communicator, rendezvous::Rendezvous};
    ///
    /// fn on_the_first(job: &dyn Rendezvous) -> Result<Communicator, counterflow::Error> {
    ///     Communicator::join_sharing(job, 0)
    /// }
    /// ```
    ///
    /// # Errors
    /// As [`Communicator::join`]; [`Error::Usage`] for two ranks of one process on one GPU.
    pub fn join_sharing(ranks: &dyn Rendezvous, gpu: u32) -> Result<Communicator, Error> {
        Communicator::now(ranks, || opened(gpu), true)
    }

    /// Joins like [`Communicator::join`], on an emulated GPU. A rank may also be a thread that makes this call itself. The
    /// heap is memory that the
    /// processes share.
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
    /// As [`Communicator::join`].
    pub fn join_emulated(ranks: &dyn Rendezvous) -> Result<Communicator, Error> {
        Communicator::now(ranks, emulated_gpu, true)
    }

    /// The rank that a launcher started this process for.
    fn of_job(
        gpu: impl FnOnce(&Job) -> Result<Gpu, Error>,
        sharing: bool,
    ) -> Result<Communicator, Error> {
        let job = Job::from_env()?.ok_or_else(|| Error::Usage {
            what: "a rank of a job that no launcher started".into(),
            legal: "start it by torchrun, mpirun or srun, or make all ranks in this process: `Communicator::local`, `Communicator::emulated`"
                .into(),
        })?;
        let deadline = Deadline::after(timeout()?);
        let ranks = job.rendezvous(deadline.limit)?;
        Communicator::by(&ranks, || gpu(&job), sharing, deadline)
    }

    /// One that joins from now on.
    fn now(
        ranks: &dyn Rendezvous,
        gpu: impl FnOnce() -> Result<Gpu, Error>,
        sharing: bool,
    ) -> Result<Communicator, Error> {
        Communicator::by(ranks, gpu, sharing, Deadline::after(timeout()?))
    }

    fn by(
        ranks: &dyn Rendezvous,
        gpu: impl FnOnce() -> Result<Gpu, Error>,
        sharing: bool,
        deadline: Deadline,
    ) -> Result<Communicator, Error> {
        legal(ranks.world() as usize)?;
        retire::sweep();
        let links = Links::make(ranks, deadline)?;
        let group = Group::apart(gpu, sharing, links, deadline)?;
        let mut made = Communicator::made(group, deadline.limit);
        made.pop().ok_or_else(|| Error::Usage {
            what: "a communicator without ranks".into(),
            legal: "at least one".into(),
        })
    }
}

fn opened(gpu: u32) -> Result<Gpu, Error> {
    Ok(Arc::new(cuda::Gpu::open(gpu)?).into())
}

/// The GPU of a rank with that number on its host. If that is another rank's too, all are told.
fn cuda_gpu(local_rank: u32) -> Result<Gpu, Error> {
    opened(local_rank % cuda::Gpu::count()?.max(1))
}

fn emulated_gpu() -> Result<Gpu, Error> {
    Ok(emulated::Gpu::of(&Machine::apart()?, 0).into())
}
