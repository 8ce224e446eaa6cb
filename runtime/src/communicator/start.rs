//! Start of ranks: on GPUs of their own, on shared ones, on emulated ones, each with a thread.

use super::Communicator;
use crate::cuda;
use crate::device::Device;
use crate::driver::{Gpu, Stream};
use crate::emulated::{self, Machine};
use crate::error::Error;
use crate::group::{Group, threads};
use crate::own::Own;
use crate::proof::Proven;
use crate::retire;
use counterflow_codegen::shape::MAX_WORLD;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tracing::debug;

/// Seconds a rank waits for another, unless `UB_TIMEOUT` says otherwise.
const TIMEOUT: u64 = 110;

impl Communicator {
    /// One rank on each of the first `world` GPUs of this process: give each to a thread of its own.
    ///
    /// ```
    /// use counterflow::Communicator;
    ///
    /// // Where there are fewer than four GPUs, this goes on without any.
    /// let ranks = Communicator::local(4).or_else(|why| {
    ///     eprintln!("{why}: {}", why.help().unwrap_or_default());
    ///     Communicator::emulated(4)
    /// })?;
    /// assert_eq!(ranks[3].rank(), 3);
    /// # Ok::<(), counterflow::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::NoDevice`] where there are not so many, with those that there are and the ways to share them, or where they
    /// do not reach each other; [`Error::Usage`] for no rank, or more than 128.
    pub fn local(world: u32) -> Result<Vec<Communicator>, Error> {
        legal(world as usize)?;
        let count = cuda::Gpu::count()?;
        if count < world {
            let gpus = (0..count).map(|gpu| Ok(cuda::Gpu::open(gpu)?.name().to_owned()));
            return Err(too_few(world, &gpus.collect::<Result<Vec<_>, Error>>()?));
        }
        let gpus = (0..world).collect::<Vec<_>>();
        Communicator::on(&gpus, None)
    }

    /// Several ranks on one GPU, for profilers and sanitizers, which see one kernel at a time. Kernels that wait for
    /// each other must all fit on the GPU at once.
    ///
    /// The driver may let a call that takes memory of a GPU wait until nothing runs there. So take all memory before
    /// the ranks launch: a peer's kernel that waits for this rank's launch would hold up the call that comes before it.
    /// Memory that a stream freed before is there at once: this communicator lets the GPU's memory pool keep what is
    /// freed, and lets no allocation of the process on that GPU wait for a free in another stream.
    ///
    /// ```no_run
    /// use counterflow::Communicator;
    ///
    /// let ranks = Communicator::loopback(4)?;
    /// assert_eq!(ranks[0].gpu().ordinal(), ranks[3].gpu().ordinal());
    /// # Ok::<(), counterflow::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::NoDevice`] where there is no GPU.
    pub fn loopback(world: u32) -> Result<Vec<Communicator>, Error> {
        legal(world as usize)?;
        Communicator::on(&vec![0; world as usize], None)
    }

    /// Rank `r` on GPU `gpus[r]`. A slot has that many bytes of addresses, by default as many as the largest GPU's
    /// memory.
    ///
    /// The first call that asks for a GPU sets `CUDA_DEVICE_MAX_CONNECTIONS`, the number of hardware queues, to 32 if
    /// nobody set it. Make that call before you start threads that read the environment other than by `std::env`.
    ///
    /// ```no_run
    /// use counterflow::Communicator;
    ///
    /// let ranks = Communicator::on(&[0, 0, 1, 1], Some(8 << 30))?; // four ranks on two GPUs
    /// assert_eq!(ranks[0].stride(), 8 << 30);
    /// # Ok::<(), counterflow::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Communicator::local`]; [`Error::Environment`] if that variable is not a number from 1 to 32.
    pub fn on(gpus: &[u32], slot: Option<u64>) -> Result<Vec<Communicator>, Error> {
        legal(gpus.len())?;
        let timeout = timeout()?;
        retire::sweep();
        let mut opened: Vec<Gpu> = Vec::new();
        for ordinal in gpus {
            let gpu = cuda::Gpu::open(*ordinal)?;
            if opened.iter().any(|other| other.ordinal() == *ordinal) {
                gpu.allocate_without_waits()?;
            }
            opened.push(Arc::new(gpu).into());
        }
        Communicator::of(opened, slot, timeout)
    }

    /// Ranks on emulated GPUs in this process, one each, for machines without GPUs and for tests. Every call is as on
    /// GPUs; launches run their checked plan tile by tile, and nothing is compiled.
    ///
    /// `COUNTERFLOW_FILL=n` has ranks of communicators of up to n ranks compile all the same what they would load on GPUs, side by side
    /// where threads are. `COUNTERFLOW_FILL="n:NVIDIA H200"` has the winners and the profile of a GPU of that name choose, too. So a
    /// program's, or a test's, run without GPUs fills the cache for its run on such GPUs, and [seals](crate::jit::Compiler::seal)
    /// it: if nothing is measured there (`COUNTERFLOW_TUNE=off`), and the user has the same winners.
    ///
    /// ```
    /// use counterflow::Communicator;
    ///
    /// let ranks = Communicator::emulated(8)?;
    /// assert!(ranks[7].gpu().is_emulated());
    /// assert!(Communicator::emulated(0).is_err_and(|error| error.kind() == "usage"));
    /// # Ok::<(), counterflow::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Usage`] for no rank, or more than 128.
    pub fn emulated(world: u32) -> Result<Vec<Communicator>, Error> {
        legal(world as usize)?;
        let machine = Machine::new(world as usize, 0, u64::MAX);
        let gpus = (0..world).map(|gpu| emulated::Gpu::of(&machine, gpu).into());
        Communicator::of(gpus.collect(), None, timeout()?)
    }

    /// Gives these ranks the proofs that others made.
    #[cfg(test)]
    pub(crate) fn proving_in(mut ranks: Vec<Self>, proven: &Arc<Proven>) -> Vec<Self> {
        for rank in &mut ranks {
            rank.proven = proven.clone();
        }
        ranks
    }

    /// A rank on each of these GPUs.
    pub(crate) fn of(
        gpus: Vec<Gpu>,
        slot: Option<u64>,
        timeout: Duration,
    ) -> Result<Vec<Communicator>, Error> {
        legal(gpus.len())?;
        Ok(Communicator::made(
            Group::new(gpus, slot, timeout)?,
            timeout,
        ))
    }

    /// The ranks of this process.
    pub(super) fn made(group: Group, timeout: Duration) -> Vec<Communicator> {
        let group = Arc::new(group);
        debug!(
            ranks = group.world(),
            gpus = ?group.gpus().iter().map(Gpu::ordinal).collect::<Vec<_>>(),
            slot_bytes = group.stride(),
            time_limit = ?timeout,
            "communicator"
        );
        let proven = Arc::new(Proven::default());
        let made = group.ranks();
        made.map(|(rank, stream)| Communicator::seat(&group, rank, stream, &proven))
            .collect()
    }

    /// The one that a rank's user has.
    pub(super) fn seat(
        group: &Arc<Group>,
        rank: u32,
        stream: &Stream,
        proven: &Arc<Proven>,
    ) -> Communicator {
        let own = Arc::new(Own::new(group.gpu(rank), stream, group.timeout()));
        group.seated(&own);
        Communicator {
            rank,
            own,
            copies: Arc::default(),
            compares: Arc::default(),
            group: group.clone(),
            proven: proven.clone(),
            metrics: Arc::default(),
            ancestors: Arc::default(),
            patience: None,
            seat: true,
            shared: OnceLock::new(),
        }
    }

    /// Runs `f` for every rank, each on a thread of its own.
    ///
    /// A rank whose `f` returns an error or panics ends the communicator: the others' waits end within a second, and
    /// their calls give [`Error::Aborted`] with that cause. Catch inside of `f` what the ranks can go on after. A rank whose
    /// `f` returns `Ok` does nothing any more before all have: a peer that waits for it by then, in a call or by a launch
    /// that it has not made, is told in the same way. Who needs nothing of it goes on.
    ///
    /// ```
    /// use counterflow::{Communicator, Error};
    ///
    /// let ranks = Communicator::emulated(2)?;
    /// assert_eq!(Communicator::each(&ranks, |rank| Ok(rank.rank()))?, [0, 1]);
    ///
    /// // Rank 0 waits at the barrier until it is told that rank 1 will not come.
    /// let ended = Communicator::each(&ranks, |rank| match rank.rank() {
    ///     0 => rank.barrier(),
    ///     _ => Err(Error::Usage { what: "no weights".into(), legal: "give a file".into() }),
    /// });
    /// assert_eq!(ended.unwrap_err().to_string(), "no weights");
    /// # Ok::<(), counterflow::Error>(())
    /// ```
    ///
    /// # Errors
    /// The cause: that of the lowest rank that was not only told of another's.
    ///
    /// # Panics
    /// If `f` does on a rank.
    pub fn each<T: Send>(
        ranks: &[Communicator],
        f: impl Fn(&Communicator) -> Result<T, Error> + Sync,
    ) -> Result<Vec<T>, Error> {
        /// A rank's part, until it ends, also by a panic.
        struct Part<'a>(&'a AtomicUsize);
        impl Drop for Part<'_> {
            fn drop(&mut self) {
                self.0.fetch_sub(1, Ordering::AcqRel);
            }
        }
        let left = &AtomicUsize::new(ranks.len());
        std::thread::scope(|scope| {
            let f = &f;
            let one = move |rank: &Communicator| {
                let part = Part(left);
                let done = threads::telling(|| f(rank), |why| rank.ended_early(why));
                drop(part);
                if done.is_ok() {
                    rank.is_done(|| left.load(Ordering::Acquire) == 0);
                }
                done
            };
            let threads: Vec<_> = ranks
                .iter()
                .map(|rank| scope.spawn(move || one(rank)))
                .collect();
            let ended: Vec<_> = threads.into_iter().map(|thread| thread.join()).collect();
            ranks
                .iter()
                .for_each(|rank| rank.ends().comes_back(rank.rank));
            let results = ended
                .into_iter()
                .map(|done| done.unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
            threads::all(results.collect())
        })
    }
}

/// Rejects worlds that no schedule is proven for.
pub(super) fn legal(world: usize) -> Result<(), Error> {
    if world == 0 || world > MAX_WORLD as usize {
        return Err(Error::Usage {
            what: format!("a communicator of {world} ranks"),
            legal: format!("1 to {MAX_WORLD}"),
        });
    }
    Ok(())
}

/// Fewer GPUs than ranks: which there are, and how ranks can share them.
fn too_few(world: u32, gpus: &[String]) -> Error {
    let named = gpus.iter().enumerate();
    let named: Vec<String> = named.map(|(gpu, name)| format!("{gpu} ({name})")).collect();
    let shared: Vec<String> = (0..world)
        .map(|rank| (rank as usize % gpus.len().max(1)).to_string())
        .collect();
    Error::NoDevice {
        device: Device::Cuda,
        why: format!(
            "{world} ranks want a GPU each, and there are {}: {}",
            gpus.len(),
            named.join(", ")
        ),
        help: format!(
            "let ranks share them: `Communicator::on(&[{}], None)`, or `loopback({world})` with all on the first; `emulated({world})` needs no GPU",
            shared.join(", ")
        ),
    }
}

impl Communicator {
    /// Time that a rank waits for another: of `UB_TIMEOUT`. Wait as long for what another library does with the ranks.
    ///
    /// ```
    /// use counterflow::Communicator;
    /// use std::time::Instant;
    ///
    /// let rank = &Communicator::emulated(1)?[0];
    /// let deadline = Instant::now() + rank.timeout();
    /// assert!(deadline > Instant::now());
    /// # Ok::<(), counterflow::Error>(())
    /// ```
    pub fn timeout(&self) -> Duration {
        self.group.timeout()
    }
}

/// Time that a rank waits for another, by the environment.
pub(super) fn timeout() -> Result<Duration, Error> {
    let Some(text) = std::env::var_os("UB_TIMEOUT").filter(|text| !text.is_empty()) else {
        return Ok(Duration::from_secs(TIMEOUT));
    };
    let seconds = text.to_str().and_then(|text| text.parse::<f64>().ok());
    seconds
        .filter(|seconds| *seconds > 0.0 && *seconds <= 1e6)
        .map(Duration::from_secs_f64)
        .ok_or_else(|| Error::Usage {
            what: format!("UB_TIMEOUT={}", text.to_string_lossy()),
            legal: "seconds, above 0 and at most a million".into(),
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn worlds_that_no_schedule_is_proven_for_are_refused_before_anything_is_made() {
        for world in [0, 129, 100_000_000, u32::MAX] {
            for made in [
                Communicator::local(world),
                Communicator::loopback(world),
                Communicator::emulated(world),
            ] {
                let error = made.expect_err("refused");
                assert_eq!(error.kind(), "usage");
                assert_eq!(
                    error.to_string(),
                    format!("a communicator of {world} ranks")
                );
            }
        }
    }

    #[test]
    fn too_few_gpus_are_named_with_the_ways_to_share_them() {
        let error = too_few(4, &["one".into(), "two".into()]);
        assert_eq!(
            error.to_string(),
            "device cuda: 4 ranks want a GPU each, and there are 2: 0 (one), 1 (two)"
        );
        let help = error.help().unwrap_or_default();
        for way in ["on(&[0, 1, 0, 1], None)", "loopback(4)", "emulated(4)"] {
            assert!(help.contains(way), "{help}");
        }
    }
}
