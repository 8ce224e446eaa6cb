//! Counts of builds, loads and launches on a rank.

use super::Communicator;
use crate::cuda::Module;
use crate::error::Error;
use crate::jit::{self, Compiled};
use crate::metrics::{Enqueued, OpCounts};
use std::sync::Arc;

impl Communicator {
    /// Work that this rank has enqueued so far. A step whose numbers grow from one version to the next takes more of the host's time.
    ///
    /// ```
    /// use counterflow::{Communicator, metrics::Enqueued};
    ///
    /// let rank = &Communicator::emulated(1)?[0];
    /// let (x, y) = (rank.zeros::<f32>([4, 8])?, rank.zeros::<f32>([4, 8])?);
    /// let before: Enqueued = rank.enqueued();
    /// x.copy_from(&y)?;
    /// assert_eq!((rank.enqueued().copies, rank.enqueued().steps), (before.copies + 1, before.steps));
    /// # Ok::<(), counterflow::Error>(())
    /// ```
    pub fn enqueued(&self) -> Enqueued {
        let [kernels, steps, copies, fills] = self.own().enqueued();
        Enqueued {
            kernels,
            steps,
            copies,
            copied_bytes: self.own().copied(),
            fills,
        }
    }

    /// Numbers of builds and launches on this rank so far, by schedule and variant. It waits for nobody.
    ///
    /// ```
    /// use counterflow::metrics::{OpCounts, Why};
    /// use counterflow::{Communicator, prelude::bf16, schedules::GemmOp};
    ///
    /// let rank = &Communicator::emulated(1)?[0];
    /// rank.time_launches(true);
    /// let op = rank.op_of::<GemmOp>().first_options().up_to(64, 64, 64).build()?;
    /// let (x, mut y) = (rank.zeros::<bf16>([64, 64])?, rank.zeros::<bf16>([64, 64])?);
    /// op.on(rank).x(&x).w(&x).y(&mut y).rows(40).launch()?.wait()?;
    ///
    /// let gemm: &OpCounts = &rank.op_counts()[0];
    /// assert_eq!((&*gemm.schedule, gemm.why, gemm.fused), ("gemm", Why::FirstOptions, false));
    /// assert_eq!((gemm.built, gemm.launches, gemm.rows, gemm.bytes), (1, 1, 40, 0));
    /// println!("{} of {} launches took {:?}", gemm.timed, gemm.launches, gemm.gpu_time);
    /// # Ok::<(), counterflow::Error>(())
    /// ```
    pub fn op_counts(&self) -> Vec<OpCounts> {
        self.metrics().counts()
    }

    /// Loads machine code that `compile` gives onto this rank's GPU, and counts it. An emulated rank has no machine code: it counts a load
    /// all the same, and compiles only where `COUNTERFLOW_FILL` asks for it, so that the cache has the code.
    ///
    /// The driver may load code only when all kernels on the GPU have ended, and until then holds a lock that other threads need to
    /// launch. So load before a step, with all ranks, and [meet](Communicator::barrier) before it and behind it.
    ///
    /// ```
    /// use counterflow::Communicator;
    /// use counterflow::jit::{Compiler, Source, Target};
    ///
    /// const TEXT: &str = "extern \"C\" __global__ void nothing() {}";
    ///
    /// let rank = &Communicator::emulated(1)?[0];
    /// let module = rank.load(|| Compiler::find()?.compile(&Source::new("nothing", TEXT), Target::Sm90a))?;
    /// assert!(module.is_none(), "the rank is emulated");
    /// assert_eq!(rank.modules_loaded(), 1);
    /// # Ok::<(), counterflow::Error>(())
    /// ```
    ///
    /// # Errors
    /// What `compile` gives; as [`Module::load`].
    pub fn load(
        &self,
        compile: impl FnOnce() -> Result<Compiled, Error>,
    ) -> Result<Option<Arc<Module>>, Error> {
        self.own().loads();
        match self.gpu().is_emulated() {
            true if self.fills()? => {
                jit::filling()?;
                compile().map(|_| None)
            }
            true => Ok(None),
            false => Module::load(self.gpu().cuda()?, &compile()?).map(Some),
        }
    }

    /// True if this rank is emulated, and compiles all the same what it would load on a GPU.
    ///
    /// # Errors
    /// [`Error::Usage`] for a variable that is no number.
    pub(crate) fn fills(&self) -> Result<bool, Error> {
        Ok(self.gpu().is_emulated() && self.world() <= jit::ranks_that_fill()?)
    }

    /// Name of the GPU whose winners and profile choose for this rank: its own, or that for which an emulated rank fills the cache.
    pub(crate) fn gpu_that_chooses(&self) -> &str {
        let filled = self.gpu().is_emulated().then(jit::gpu_that_is_filled_for);
        filled.flatten().unwrap_or_else(|| self.gpu().name())
    }

    /// Number of modules of machine code so far that were loaded for this rank: of ops, quantisers and exchanges, and by
    /// [`Communicator::load`]. An emulated rank counts what it would load on a GPU. A step that loads none leaves it as it was.
    ///
    /// ```
    /// use counterflow::{Communicator, prelude::bf16, schedules::GemmOp};
    ///
    /// let rank = &Communicator::emulated(1)?[0];
    /// let op = rank.op_of::<GemmOp>().first_options().up_to(64, 64, 64).build()?;
    /// assert_eq!(rank.modules_loaded(), 1);
    /// let (x, mut y) = (rank.zeros::<bf16>([64, 64])?, rank.zeros::<bf16>([64, 64])?);
    /// op.on(rank).x(&x).w(&x).y(&mut y).launch()?.wait()?;
    /// assert_eq!(rank.modules_loaded(), 1);
    /// # Ok::<(), counterflow::Error>(())
    /// ```
    pub fn modules_loaded(&self) -> u64 {
        self.own().loaded()
    }

    /// Times this rank's launches on the GPU from now on, or no more: [`OpCounts::gpu_time`]. Off at first, as two events that
    /// keep time cost the host some microseconds a launch, and a launch between them does not start before the one in front of it
    /// has ended. A launch in a [`Graph`](crate::Graph) is timed at its replays if it was recorded while this was on.
    ///
    /// [`Communicator::op_counts`] has an example.
    pub fn time_launches(&self, on: bool) {
        self.metrics().time(on);
    }
}
