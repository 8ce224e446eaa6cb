//! A side kernel on a rank: compiled, loaded, enqueued. Emulated ranks run the twin instead.
#![allow(unsafe_code)]

use crate::scratch::{Lent, Pool};
use counterflow::cuda::{Arguments, Function, LaunchConfig};
use counterflow::driver::Address;
use counterflow::jit::{Compiler, Source, Target};
use counterflow::op::{Argument, Element, Part, Running, Step};
use counterflow::{Communicator, Error, Pending, quantise};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Threads of a CTA.
pub(super) const THREADS: usize = 256;
/// Threads of a CTA that has an SM to itself.
const WIDE: u32 = 512;

/// Texts that kernels include.
pub const HEADERS: [(&str, &str); 16] = [
    ("numbers.cuh", include_str!("kernels/numbers.cuh")),
    ("ahead.cuh", include_str!("kernels/ahead.cuh")),
    ("philox.cuh", include_str!("kernels/philox.cuh")),
    ("normed.cuh", include_str!("kernels/normed.cuh")),
    ("norm.cuh", include_str!("kernels/norm.cuh")),
    ("coded_norm.cuh", include_str!("kernels/coded_norm.cuh")),
    ("activations.cuh", include_str!("kernels/activations.cuh")),
    ("elements.cuh", include_str!("kernels/elements.cuh")),
    (
        "coded_elements.cuh",
        include_str!("kernels/coded_elements.cuh"),
    ),
    ("rope.cuh", include_str!("kernels/rope.cuh")),
    ("attention.cuh", include_str!("kernels/attention.cuh")),
    ("codes.cuh", include_str!("kernels/codes.cuh")),
    ("embedding.cuh", include_str!("kernels/embedding.cuh")),
    ("loss.cuh", include_str!("kernels/loss.cuh")),
    // Some of these make scales and codes as quantisers do.
    quantise::SCALE_HEADER,
    quantise::RULE_HEADER,
];

/// The kernels of one text on a rank.
#[derive(Clone, Debug)]
pub(super) struct Kernels {
    rank: Arc<Communicator>,
    scratch: Arc<Pool<f32>>,
    /// None: the rank is emulated.
    functions: Option<Arc<BTreeMap<&'static str, Function>>>,
}

impl Kernels {
    /// Compiles a text, or takes it from the cache, and loads it.
    pub fn load(
        rank: &Arc<Communicator>,
        text: &str,
        names: &[&'static str],
    ) -> Result<Kernels, Error> {
        let names: Vec<_> = names.iter().map(|name| (*name, 0)).collect();
        Kernels::load_sharing(rank, text, &names)
    }

    /// As `load`, each kernel with so many bytes of shared memory whose size its text does not give.
    pub fn load_sharing(
        rank: &Arc<Communicator>,
        text: &str,
        names: &[(&'static str, u32)],
    ) -> Result<Kernels, Error> {
        let module = rank.load(|| {
            let source = Source::new("side", text).with(&HEADERS);
            Compiler::find()?.compile(&source, Target::Sm90a)
        })?;
        let functions = module.map(|module| {
            let each = names
                .iter()
                .map(|(name, shared)| Ok((*name, module.function(name, *shared)?)));
            Ok::<_, Error>(Arc::new(each.collect::<Result<_, Error>>()?))
        });
        Ok(Kernels {
            rank: rank.clone(),
            scratch: Arc::default(),
            functions: functions.transpose()?,
        })
    }

    /// Memory between two launches.
    pub fn lend(&self, shape: [usize; 2]) -> Result<Lent<f32>, Error> {
        self.scratch.lend_growing(&self.rank, shape)
    }

    /// SMs of the rank's GPU.
    pub fn sms(&self) -> usize {
        self.rank.gpu().sms() as usize
    }

    /// A launch in the order of the rank's own.
    pub fn call(&self, kernel: &'static str) -> Call<'_> {
        let step = self.rank.step(&*self.rank);
        Call {
            kernels: self,
            kernel,
            step: match &self.functions {
                Some(functions) => step.keep(functions.clone()),
                None => step,
            },
            items: Vec::new(),
        }
    }
}

/// A parameter of a kernel.
#[derive(Clone, Debug)]
enum Item {
    /// A part of the step, or nothing.
    Memory(Option<usize>),
    Bytes(Vec<u8>),
}

/// A launch that is being put together: parameters in the kernel's order.
#[derive(Debug)]
pub(super) struct Call<'a> {
    kernels: &'a Kernels,
    kernel: &'static str,
    step: Step<'a>,
    items: Vec<Item>,
}

impl<'a> Call<'a> {
    /// So many elements that are read. The parts' numbers count from 0, in the order of these calls.
    pub fn read<T: Element>(
        self,
        name: &'static str,
        elements: usize,
        memory: impl Into<Argument<'a>>,
    ) -> Self {
        self.part(Part::of::<T>(elements).read(name), memory)
    }

    /// So many elements that are written.
    pub fn written<T: Element>(
        self,
        name: &'static str,
        elements: usize,
        memory: impl Into<Argument<'a>>,
    ) -> Self {
        self.part(Part::of::<T>(elements).written(name), memory)
    }

    /// As `written`, one element at a time: the memory begins at any of them.
    pub fn written_by_elements<T: Element>(
        self,
        name: &'static str,
        elements: usize,
        memory: impl Into<Argument<'a>>,
    ) -> Self {
        let part = Part::of::<T>(elements).by_elements();
        self.part(part.written(name), memory)
    }

    fn part(mut self, part: Part, memory: impl Into<Argument<'a>>) -> Self {
        let number = self.step.add(part, memory);
        self.items.push(Item::Memory(Some(number)));
        self
    }

    /// Memory that this launch does not have.
    pub fn absent(mut self) -> Self {
        self.items.push(Item::Memory(None));
        self
    }

    pub fn number(self, number: usize) -> Self {
        let number = u32::try_from(number).unwrap_or(u32::MAX);
        self.bytes(&number.to_le_bytes())
    }

    /// Anything, as it lies in memory.
    pub fn bytes(mut self, bytes: &[u8]) -> Self {
        self.items.push(Item::Bytes(bytes.to_vec()));
        self
    }

    /// Enqueues it with a thread for each item, or a CTA for each where items are of 256 threads. On an emulated rank the twin is
    /// done when this returns.
    ///
    /// # Safety
    /// The kernel takes these parameters, uses so many elements of each part at most, and writes only those that are written.
    pub unsafe fn launch(
        self,
        threads: usize,
        twin: impl FnOnce(&Running<'_>) -> Result<(), Error>,
    ) -> Result<Option<Pending>, Error> {
        let ctas = threads.div_ceil(THREADS);
        // Kernels count threads in 32 bits.
        let counted = u32::try_from(threads.next_multiple_of(THREADS));
        let ctas = counted.ok().map(|_| ctas as u32);
        let ctas = ctas.ok_or_else(|| Error::Usage {
            what: format!("{} of {threads} threads", self.kernel),
            legal: "launch it for parts of the rows".into(),
        })?;
        // SAFETY: the caller's promise.
        unsafe { self.launch_ctas(LaunchConfig::of(ctas, THREADS as u32), twin) }
    }

    /// Enqueues it with `most` CTAs that have an SM to themselves, or one for each row if there are fewer rows: as `launch`.
    ///
    /// # Safety
    /// As `launch`.
    pub unsafe fn launch_wide(
        self,
        rows: usize,
        most: usize,
        twin: impl FnOnce(&Running<'_>) -> Result<(), Error>,
    ) -> Result<Option<Pending>, Error> {
        // SAFETY: the caller's promise.
        unsafe { self.launch_ctas(LaunchConfig::of(rows.min(most) as u32, WIDE), twin) }
    }

    /// Enqueues it with so many CTAs of 256 threads, which may start while the launch before ends: as `launch`.
    ///
    /// # Safety
    /// As `launch`. The kernel touches no memory before it has waited for the launch before. That is one of the caller's, started when all
    /// before it had ended, and it waits for no other kernel.
    pub unsafe fn launch_early(
        self,
        ctas: usize,
        twin: impl FnOnce(&Running<'_>) -> Result<(), Error>,
    ) -> Result<Option<Pending>, Error> {
        let grid = LaunchConfig {
            dependent_launch: true,
            ..LaunchConfig::of(ctas as u32, THREADS as u32)
        };
        // SAFETY: the caller's promise.
        unsafe { self.launch_ctas(grid, twin) }
    }

    unsafe fn launch_ctas(
        self,
        grid: LaunchConfig,
        twin: impl FnOnce(&Running<'_>) -> Result<(), Error>,
    ) -> Result<Option<Pending>, Error> {
        let Call {
            kernels,
            kernel,
            step,
            items,
        } = self;
        if grid.ctas == 0 {
            return Ok(None);
        }
        let work = |running: &Running<'_>| {
            let Some(functions) = &kernels.functions else {
                return twin(running);
            };
            let mut arguments = Arguments::new();
            for item in &items {
                match item {
                    Item::Memory(part) => {
                        let address = part.map(|part| running.address(part));
                        arguments.address(address.unwrap_or(Address::default()));
                    }
                    Item::Bytes(bytes) => arguments.bytes(bytes),
                }
            }
            // SAFETY: the caller's promise; the step keeps the memory until the kernel has ended.
            unsafe { functions[kernel].launch(running.stream().cuda()?, grid, &arguments) }
        };
        // SAFETY: the kernel uses what the parts have: the caller's promise.
        unsafe { step.launch(work) }.map(Some)
    }
}
