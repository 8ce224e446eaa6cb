//! What the layers of a tensor-parallel group share: buffers, and the configuration of their products.

use crate::fp8::{self, Amaxes};
use crate::overlap::Config;
use crate::scratch::{Lent, Scratch};
use crate::side::twin::Norm;
use crate::side::{
    AttentionKernels, CodedElementKernels, CodedNormKernels, ElementKernels, NormKernels,
};
use crate::step::{CODES, blocks, together};
use counterflow::driver::Address;
use counterflow::prelude::{bf16, e4m3};
use counterflow::{Communicator, Dtype, Error, Tensor, UserBuffer, quantise};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tracing::warn;

/// The element types of products, of which TransformerEngine has one set of buffers each.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum QuantizationMode {
    /// The element types of the tensors.
    None,
    /// FP8: of layers that have a recipe.
    Fp8,
}

/// Backend by which the ranks meet. A [`Communicator`] has met already, so all three are one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum BootstrapBackend {
    /// `mpi`
    Mpi,
    /// `gloo`
    Gloo,
    /// `nccl`
    Nccl,
}

impl std::str::FromStr for BootstrapBackend {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self, Error> {
        match name {
            "mpi" => Ok(BootstrapBackend::Mpi),
            "gloo" => Ok(BootstrapBackend::Gloo),
            "nccl" => Ok(BootstrapBackend::Nccl),
            other => Err(Error::Usage {
                what: format!("`{other}` as bootstrap_backend"),
                legal: "give mpi, gloo or nccl".into(),
            }),
        }
    }
}

/// The arguments of TransformerEngine's `initialize_ub`.
///
/// ```
/// use counterflow_layers::{Initialize, overlap::Config};
///
/// let config = Config::from_yaml("proj_fprop: {method: ring_exchange}")?;
/// let arguments = Initialize { ub_cfgs: vec![config], ..Initialize::new([2048, 1536], 4) };
/// assert_eq!(arguments.heap_bytes(), 2 * 1536 * 2 * 2048);
/// # Ok::<(), counterflow::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Initialize {
    /// The most rows over all ranks (sequence length by batch size), and the most columns of what is gathered or summed: the
    /// hidden size. Both are upper bounds. Each call of a layer says its own rows.
    pub shape: [usize; 2],
    /// Ranks of the group.
    pub tp_size: u32,
    /// Elements of the buffers: bf16.
    pub dtype: Dtype,
    /// The element types that products have, each once.
    pub quantization_modes: Vec<QuantizationMode>,
    /// None, one for all modes, or one for each mode.
    pub ub_cfgs: Vec<Config>,
    /// Told as without effect.
    pub bootstrap_backend: Option<BootstrapBackend>,
    /// SMs that every kernel of the layers' ops leaves to others: TransformerEngine's `NVTE_EXT_MARGIN_SM`. Where kernels of another
    /// library that wait for their own peers run beside a pass, as NCCL's do, state as many as they take, and give that library no more:
    /// else each side may keep the SMs that the other waits for. What is made without these buffers is told by itself:
    /// [`GradientSum::beside`](crate::GradientSum::beside), [`VocabParallelCrossEntropy::beside`](crate::VocabParallelCrossEntropy::beside),
    /// [`CommOverlap::beside`](crate::CommOverlap::beside) and [`CommOverlapP2P::beside`](crate::CommOverlapP2P::beside).
    pub ext_margin_sm: u32,
}

impl Initialize {
    /// For so many rows and columns, with the defaults of the rest.
    pub fn new(shape: [usize; 2], tp_size: u32) -> Initialize {
        Initialize {
            shape,
            tp_size,
            dtype: Dtype::Bf16,
            quantization_modes: vec![QuantizationMode::None],
            ub_cfgs: Vec::new(),
            bootstrap_backend: None,
            ext_margin_sm: 0,
        }
    }

    /// Bytes of the symmetric heap that the buffers take on each rank. Ops of layers take theirs beside them.
    pub fn heap_bytes(&self) -> u64 {
        let [_, columns] = self.shape;
        let each = rows_held(self.each(), self.has_fp8()) + self.gradients();
        let all = each * self.tp_size as usize;
        let of_fp8 = match self.has_fp8() {
            true => Amaxes::heap_bytes(self.tp_size) + (4 * self.scales()) as u64,
            false => 0,
        };
        (all * columns * size_of::<bf16>()) as u64 + of_fp8
    }

    fn has_fp8(&self) -> bool {
        self.quantization_modes.contains(&QuantizationMode::Fp8)
    }

    /// Rows of each rank in the buffer that gradients of bf16 are gathered in.
    fn gradients(&self) -> usize {
        let modes = &self.quantization_modes;
        match modes.contains(&QuantizationMode::None) && self.tp_size > 1 {
            true => self.each(),
            false => 0,
        }
    }

    /// Rows of a full shard.
    fn each(&self) -> usize {
        self.shape[0].div_ceil(self.tp_size.max(1) as usize)
    }

    /// Scales of blocks that are gathered at most: along columns, or along tokens.
    fn scales(&self) -> usize {
        let (each, [_, columns]) = (self.each(), self.shape);
        let along_columns = blocks(columns) * each.next_multiple_of(4);
        let along_tokens = blocks(each) * columns.next_multiple_of(4);
        self.tp_size as usize * along_columns.max(along_tokens)
    }

    /// The configuration of each mode's products.
    fn configs(&self) -> Result<Vec<(QuantizationMode, Config)>, Error> {
        let modes = &self.quantization_modes;
        let refused = |what: String, legal: &str| {
            let legal = legal.to_owned();
            Err(Error::Usage { what, legal })
        };
        let twice = |(at, mode): (usize, &QuantizationMode)| modes[..at].contains(mode);
        if modes.is_empty() || modes.iter().enumerate().any(twice) {
            let what = format!("quantization_modes are {modes:?}");
            return refused(what, "name each mode once, and one at least");
        }
        let each: Vec<Config> = match &self.ub_cfgs[..] {
            [] => vec![Config::default(); modes.len()],
            [one] => vec![one.clone(); modes.len()],
            each if each.len() == modes.len() => each.to_vec(),
            others => {
                return refused(
                    format!(
                        "{} ub_cfgs for {} quantization_modes",
                        others.len(),
                        modes.len()
                    ),
                    "give one for all modes, or one for each",
                );
            }
        };
        Ok(modes.iter().copied().zip(each).collect())
    }
}

/// State that the layers of a group share: buffers that rows are gathered in, one of inputs and one of gradients, and how products overlap.
///
/// All layers of a rank use the same buffers, one after another in the order of its stream. They borrow the memory of their calls from
/// each other, too: what one gives back, the next one takes. So a step after the first allocates nothing, and what is saved for backward
/// passes is what takes memory.
///
/// Memory is lent for the most rows that [`Initialize::shape`] states, whatever the rows of a call. What a layer saves for its backward pass
/// takes that, too: a step of few rows saves as much memory as one of the most rows. State the rows that you have, not more.
///
/// Who makes a layer builds and loads all that its passes need, whatever their rows, and all ranks meet behind that: no pass builds or
/// loads. Attention of the caller's ([`CoreAttention`](crate::CoreAttention)) should have loaded its kernels by then, too.
///
/// ```
/// use counterflow::Communicator;
/// use counterflow_layers::{Initialize, Userbuffers};
/// use std::sync::Arc;
///
/// let rank = Arc::new(Communicator::emulated(1)?.remove(0));
/// rank.reserve(4 << 20)?;
/// let userbuffers = Userbuffers::initialize(&rank, &Initialize::new([1024, 64], 1))?;
/// assert_eq!(userbuffers.shape(), [1024, 64]);
/// # Ok::<(), counterflow::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Userbuffers(Arc<Shared>);

/// Rows of each rank in the buffer that rows are gathered in. Codes along tokens are padded to 16, and are half as large.
fn rows_held(each: usize, has_fp8: bool) -> usize {
    match has_fp8 {
        true => each.max(CODES / 2),
        false => each,
    }
}

fn without_fp8() -> Error {
    Error::Usage {
        what: "buffers without FP8".into(),
        legal: "add `QuantizationMode::Fp8` to `quantization_modes`".into(),
    }
}

/// Side kernels, each loaded once.
#[derive(Debug, Default)]
struct Side {
    norms: Vec<NormKernels>,
    coded_norms: Vec<CodedNormKernels>,
    elements: Option<ElementKernels>,
    coded_elements: Vec<CodedElementKernels>,
    attention: Option<AttentionKernels>,
}

#[derive(Debug)]
struct Shared {
    rank: Arc<Communicator>,
    shape: [usize; 2],
    configs: Vec<(QuantizationMode, Config)>,
    margin: u32,
    fp8: Option<fp8::Shared>,
    gathered: UserBuffer<bf16>,
    /// A buffer for gradients alone, so that they stay where they are until they are gathered; and how many have come.
    gradients: (UserBuffer<bf16>, AtomicU64),
    /// Of blocks, with the codes in `gathered`.
    scales: Option<UserBuffer<f32>>,
    /// Side kernels that layers have loaded.
    side: Mutex<Side>,
    /// Memory of layers' calls.
    scratch: Scratch,
    /// Held while a layer's work is enqueued: it uses both buffers.
    turn: Mutex<()>,
}

impl Userbuffers {
    /// Allocates the buffers in the heap of the group, which must have [`Initialize::heap_bytes`] left. Collective: every rank
    /// gives the same. Settings without effect are logged, by rank 0.
    ///
    /// # Errors
    /// [`Error::Usage`] for another `tp_size` than the group has, no rows or columns, or modes and configurations that do not
    /// match; [`Error::NotYet`] for elements other than bf16; as [`Communicator::allocate`].
    pub fn initialize(
        rank: &Arc<Communicator>,
        arguments: &Initialize,
    ) -> Result<Userbuffers, Error> {
        let [rows, columns] = arguments.shape;
        let world = rank.world();
        if arguments.tp_size != world {
            return Err(Error::Usage {
                what: format!("tp_size is {}, and the communicator has {world} ranks", arguments.tp_size),
                legal: "give the tensor-parallel group: `Communicator::split` makes one of a larger communicator".into(),
            });
        }
        if rows == 0 || columns == 0 {
            return Err(Error::Usage {
                what: format!("buffers of {rows} x {columns}"),
                legal: "give the most rows over all ranks, and the hidden size".into(),
            });
        }
        if arguments.dtype != Dtype::Bf16 {
            return Err(Error::NotYet {
                what: format!("layers of {}", arguments.dtype),
                help: "use bf16".into(),
            });
        }
        let configs = arguments.configs()?;
        if rank.rank() == 0 {
            let mut told = Vec::new();
            for (mode, config) in &configs {
                told.extend(match mode {
                    QuantizationMode::None => config.notices(),
                    QuantizationMode::Fp8 => config.notices_in_fp8(),
                });
            }
            let mut each: Vec<String> = told.iter().map(ToString::to_string).collect();
            each.dedup();
            for notice in each {
                warn!("{notice}");
            }
            if let Some(backend) = arguments.bootstrap_backend {
                warn!(
                    "bootstrap_backend {backend:?} is without effect: the ranks of a communicator have met"
                );
            }
        }
        let gathered = rows_held(rows.div_ceil(world as usize), arguments.has_fp8());
        let fp8 = || together(rank, || fp8::Shared::new(rank, arguments.ext_margin_sm));
        Ok(Userbuffers(Arc::new(Shared {
            gathered: rank.allocate("gathered", [gathered * world as usize, columns])?,
            gradients: (
                rank.allocate(
                    "gradients",
                    [arguments.gradients() * world as usize, columns],
                )?,
                AtomicU64::new(0),
            ),
            scales: arguments
                .has_fp8()
                .then(|| rank.allocate("scales", [1, arguments.scales()]))
                .transpose()?,
            rank: rank.clone(),
            shape: arguments.shape,
            margin: arguments.ext_margin_sm,
            fp8: arguments.has_fp8().then(fp8).transpose()?,
            configs,
            side: Mutex::default(),
            scratch: Scratch::default(),
            turn: Mutex::new(()),
        })))
    }

    /// This rank of the group.
    pub fn rank(&self) -> &Arc<Communicator> {
        &self.0.rank
    }

    /// The most rows over all ranks, and the most columns.
    pub fn shape(&self) -> [usize; 2] {
        self.0.shape
    }

    /// SMs that ops leave to others.
    pub(crate) fn sm_margin(&self) -> u32 {
        self.0.margin
    }

    /// How products of a mode overlap their communication.
    ///
    /// # Errors
    /// [`Error::Usage`] for a mode that the buffers were not initialized with.
    pub fn config(&self, mode: QuantizationMode) -> Result<&Config, Error> {
        let mut configs = self.0.configs.iter();
        let found = configs.find(|(of, _)| *of == mode);
        let found = found.map(|(_, config)| config);
        found.ok_or_else(|| Error::Usage {
            what: format!("a layer of the mode {mode:?}, which the buffers do not have"),
            legal: format!("add `QuantizationMode::{mode:?}` to `quantization_modes`"),
        })
    }

    /// What FP8 layers share.
    pub(crate) fn fp8(&self) -> Result<&fp8::Shared, Error> {
        self.config(QuantizationMode::Fp8)?;
        self.0.fp8.as_ref().ok_or_else(without_fp8)
    }

    /// The buffer that rows are gathered in, as so many rows over all ranks.
    pub(crate) fn gathered(&self, shape: [usize; 2]) -> Result<UserBuffer<bf16>, Error> {
        self.0.gathered.shaped(shape)
    }

    /// The buffer that gradients are gathered in, as so many rows over all ranks.
    pub(crate) fn gradients(&self, shape: [usize; 2]) -> Result<UserBuffer<bf16>, Error> {
        self.0.gradients.0.shaped(shape)
    }

    /// True if some of a tensor is where gradients are gathered.
    pub(crate) fn holds_gradient(&self, tensor: &Tensor<bf16>) -> bool {
        let bytes = |first: Address, elements: usize| {
            first..first.plus((elements * size_of::<bf16>()) as u64)
        };
        let all = &self.0.gradients.0;
        let all = bytes(all.address(), all.len());
        let own = bytes(tensor.address(), tensor.len());
        all.start < own.end && own.start < all.end
    }

    /// The number of the gradient that comes there now. What was there before is gone.
    pub(crate) fn another_gradient(&self) -> u64 {
        self.0.gradients.1.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// True if no other one has come there since.
    pub(crate) fn is_last_gradient(&self, number: u64) -> bool {
        self.0.gradients.1.load(Ordering::Relaxed) == number
    }

    /// The buffer that scales of blocks are gathered in.
    pub(crate) fn scales(&self, shape: [usize; 2]) -> Result<UserBuffer<f32>, Error> {
        self.fp8()?;
        match &self.0.scales {
            Some(scales) => scales.shaped(shape),
            None => Err(without_fp8()),
        }
    }

    /// Memory for a call, of as many bytes whatever its rows: `most` elements.
    pub(crate) fn lend(&self, shape: [usize; 2], most: usize) -> Result<Lent<bf16>, Error> {
        self.0.scratch.bf16s.lend(&self.0.rank, shape, most)
    }

    /// The same of codes, of either type of FP8.
    pub(crate) fn lend_codes(&self, shape: [usize; 2], most: usize) -> Result<Lent<e4m3>, Error> {
        self.0.scratch.codes.lend(&self.0.rank, shape, most)
    }

    /// The same in f32.
    pub(crate) fn lend_f32(&self, shape: [usize; 2], most: usize) -> Result<Lent<f32>, Error> {
        self.0.scratch.f32s.lend(&self.0.rank, shape, most)
    }

    fn side(&self) -> MutexGuard<'_, Side> {
        self.0.side.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The kernels of a norm, which layers share.
    pub(crate) fn norm(&self, norm: Norm) -> Result<NormKernels, Error> {
        let mut side = self.side();
        if let Some(loaded) = side.norms.iter().find(|loaded| loaded.norm() == norm) {
            return Ok(loaded.clone());
        }
        let loaded = NormKernels::load(self.rank(), norm)?;
        side.norms.push(loaded.clone());
        Ok(loaded)
    }

    /// The same with codes by a recipe, if there are such kernels.
    pub(crate) fn coded_norm(
        &self,
        norm: Norm,
        recipe: quantise::Recipe,
    ) -> Result<Option<CodedNormKernels>, Error> {
        if !CodedNormKernels::has(&recipe) {
            return Ok(None);
        }
        let mut side = self.side();
        let is_it =
            |loaded: &&CodedNormKernels| loaded.norm() == norm && *loaded.recipe() == recipe;
        if let Some(loaded) = side.coded_norms.iter().find(is_it) {
            return Ok(Some(loaded.clone()));
        }
        let loaded = CodedNormKernels::load(self.rank(), norm, recipe)?;
        side.coded_norms.push(loaded.clone());
        Ok(Some(loaded))
    }

    /// Activations and sums.
    pub(crate) fn elements(&self) -> Result<ElementKernels, Error> {
        let mut side = self.side();
        let loaded = match &side.elements {
            Some(loaded) => loaded.clone(),
            None => ElementKernels::load(self.rank())?,
        };
        Ok(side.elements.insert(loaded).clone())
    }

    /// Activations with codes by a recipe, if there are such kernels.
    pub(crate) fn coded_elements(
        &self,
        recipe: quantise::Recipe,
    ) -> Result<Option<CodedElementKernels>, Error> {
        if !CodedElementKernels::has(&recipe) {
            return Ok(None);
        }
        let mut side = self.side();
        let mut loaded = side.coded_elements.iter();
        if let Some(loaded) = loaded.find(|loaded| *loaded.recipe() == recipe) {
            return Ok(Some(loaded.clone()));
        }
        let loaded = CodedElementKernels::load(self.rank(), recipe)?;
        side.coded_elements.push(loaded.clone());
        Ok(Some(loaded))
    }

    /// Attention of ours.
    pub(crate) fn attention(&self) -> Result<AttentionKernels, Error> {
        let mut side = self.side();
        let loaded = match &side.attention {
            Some(loaded) => loaded.clone(),
            None => AttentionKernels::load(self.rank())?,
        };
        Ok(side.attention.insert(loaded).clone())
    }

    /// Keeps other layers of the rank from enqueueing.
    pub(crate) fn turn(&self) -> MutexGuard<'_, ()> {
        self.0.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
