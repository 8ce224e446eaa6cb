//! A quantiser's kernels on a GPU: compiled, loaded, enqueued.
#![allow(unsafe_code)]

use crate::history::{Delayed, Pick};
use crate::job::{At, Job, Steps, Words};
use crate::kernels::{HEADERS, Recipe, Scaling};
use crate::{emulate, job};
use counterflow_codegen::dtype::Dtype;
use counterflow_codegen::encoding::Granularity;
use counterflow_codegen::rule::{Fp8, ScaleRule};
use counterflow_runtime::cuda::{Arguments, Function, LaunchConfig, Module};
use counterflow_runtime::driver::Address;
use counterflow_runtime::jit::{Compiler, Source, Target};
use counterflow_runtime::op::{Running, Step};
use counterflow_runtime::{Communicator, Error, Pending};
use std::sync::Arc;

/// Threads of every CTA.
const THREADS: u32 = 256;
/// The most CTAs that measure a whole tensor: each leaves an amax behind.
pub(crate) const MOST_CTAS: usize = 1024;
/// Words before those amaxes.
pub(crate) const BEFORE_CTAS: usize = 4;

/// The kernels of a recipe.
#[derive(Clone, Debug)]
pub(crate) struct Kernels {
    cast_tiles: Function,
    amaxes_of_lines: Option<Function>,
    amax_of_ctas: Function,
    settle: Function,
    cast_rows: Function,
    clear: Function,
    next_step: NextStep,
    sms: u32,
}

impl Kernels {
    /// Compiles them, or takes them from the cache, and loads them. None: the rank is emulated.
    pub fn load(rank: &Communicator, recipe: &Recipe) -> Result<Option<Kernels>, Error> {
        let (tiles, lines) = (load(rank, &recipe.tiles())?, load(rank, &recipe.lines())?);
        let (Some(tiles), Some(lines)) = (tiles, lines) else {
            return Ok(None);
        };
        let by_rows = recipe.scaling == Scaling::Current(Granularity::PerRow);
        let of_lines = by_rows.then(|| tiles.function("amaxes_of_lines", 0));
        Ok(Some(Kernels {
            cast_tiles: tiles.function("cast_tiles", 0)?,
            amaxes_of_lines: of_lines.transpose()?,
            amax_of_ctas: lines.function("amax_of_ctas", 0)?,
            settle: lines.function("settle", 0)?,
            cast_rows: lines.function("cast_rows", 0)?,
            clear: lines.function("clear", 0)?,
            next_step: NextStep(lines.function("next_step", 0)?),
            sms: rank.gpu().sms(),
        }))
    }

    /// The kernel that ends steps of delayed scaling.
    pub fn next_step(&self) -> &NextStep {
        &self.next_step
    }

    /// Enqueues a launch.
    ///
    /// # Safety
    /// The parts of `running` are what the job says, and as large as it needs them.
    unsafe fn quantise(&self, running: &Running<'_>, job: &Job) -> Result<(), Error> {
        let on = On {
            running,
            at: job.at,
        };
        let [rows, columns] = job.shape;
        let tiles = job.tiles();
        match job.recipe.scaling {
            Scaling::Current(Granularity::PerTensor) => {
                let eights = rows * columns / 8;
                let most = MOST_CTAS.min(self.sms as usize * 8);
                let ctas = eights.div_ceil(4 * THREADS as usize).clamp(1, most) as u32;
                if job.steps != Steps::Cast {
                    let eights = Item::Wide(eights as u64);
                    let of = [on.x(), on.partials(), on.skip(), eights];
                    // SAFETY: as the caller promises; each CTA writes one of so many amaxes.
                    unsafe { on.launch(&self.amax_of_ctas, ctas, &of)? };
                }
                let counted = if job.steps == Steps::Cast { 0 } else { ctas };
                // Who only measures has no place for a scale yet; who writes it to each row takes it from there.
                let scale = match job.at.scales.filter(|_| !job.recipe.each_row) {
                    Some(at) => Item::At(running.address(at)),
                    None => Item::At(on.state().plus(8)),
                };
                let of = [
                    on.partials(),
                    Item::At(on.state()),
                    scale,
                    on.skip(),
                    Item::Number(counted),
                ];
                // SAFETY: as above.
                unsafe { on.launch(&self.settle, 1, &of)? };
                if job.steps == Steps::Measure {
                    return Ok(());
                }
            }
            Scaling::Current(Granularity::PerRow) if job.at.turned.is_none() => {
                let threads = threads_of_row(columns);
                let ctas = rows.div_ceil((THREADS / threads) as usize) as u32;
                let of = [
                    on.x(),
                    on.codes(),
                    on.scales(),
                    on.skip(),
                    Item::Number(rows as u32),
                    Item::Number(columns as u32),
                    Item::Number(threads),
                ];
                // SAFETY: as the caller promises; so many threads have a row.
                return unsafe { on.launch(&self.cast_rows, ctas, &of) };
            }
            Scaling::Current(Granularity::PerRow) => {
                let lines = rows + columns;
                let ctas = lines.div_ceil(THREADS as usize) as u32;
                let of = [Item::At(on.state()), on.skip(), Item::Number(lines as u32)];
                // SAFETY: the state has an amax for each row and column.
                unsafe { on.launch(&self.clear, ctas, &of)? };
                let shape = job.shape.map(|size| Item::Number(size as u32));
                let of = [on.x(), Item::At(on.state()), on.skip(), shape[0], shape[1]];
                if let Some(kernel) = &self.amaxes_of_lines {
                    // SAFETY: as above.
                    unsafe { on.launch(kernel, tiles as u32, &of)? };
                }
            }
            Scaling::Current(Granularity::Block(_)) | Scaling::Delayed => {}
        }
        let of = [
            on.x(),
            on.codes(),
            on.part(job.at.turned),
            on.scales(),
            on.part(job.at.turned_scales),
            on.part(job.at.state),
            on.part(job.at.amax),
            on.skip(),
            Item::Number(rows as u32),
            Item::Number(columns as u32),
            Item::Number(job.pitch() as u32),
            Item::Plane(job.plane()),
            Item::Plane(job.turned_plane()),
        ];
        // SAFETY: as the caller promises; a CTA has a tile of 128×128 elements, and planes are as large as their words.
        unsafe { on.launch(&self.cast_tiles, tiles as u32, &of) }
    }
}

/// The kernel that ends steps of delayed scaling. It is the same of every recipe.
#[derive(Clone, Debug)]
pub(crate) struct NextStep(Function);

impl NextStep {
    /// Compiles it, or takes it from the cache, and loads it. None: the rank is emulated.
    pub fn load(rank: &Communicator) -> Result<Option<NextStep>, Error> {
        let rule = ScaleRule::transformer_engine(Fp8::E4M3);
        let recipe = Recipe::new(rule, Scaling::Delayed, Dtype::Bf16);
        let lines = load(rank, &recipe.lines())?;
        lines
            .map(|lines| Ok(NextStep(lines.function("next_step", 0)?)))
            .transpose()
    }

    /// Enqueues a CTA for each of the histories.
    ///
    /// # Safety
    /// The parts of `running` are the memory of so many histories, in the order of [`crate::histories`].
    unsafe fn launch(
        &self,
        running: &Running<'_>,
        recipes: &[Delayed],
        of_ranks: Option<[usize; 2]>,
    ) -> Result<(), Error> {
        let Some(recipe) = recipes.first() else {
            return Ok(());
        };
        let on = On {
            running,
            at: At::default(),
        };
        let [ranks, pitch] = of_ranks.unwrap_or_default();
        let [scales, amaxes, pasts, targets] = [0, 1, 2, 3].map(|part| on.part(Some(part)));
        let of = [
            scales,
            amaxes,
            pasts,
            targets,
            on.part(of_ranks.map(|_| 4)),
            Item::Number(ranks as u32),
            Item::Number(pitch as u32),
            Item::Number(recipe.length as u32 - 1),
            Item::Number(u32::from(recipe.pick == Pick::MostRecent)),
            Item::Number(u32::from(recipe.skips_zero)),
        ];
        // SAFETY: the caller's promise; a CTA uses what its history has.
        unsafe { on.launch(&self.0, recipes.len() as u32, &of) }
    }
}

fn load(rank: &Communicator, text: &str) -> Result<Option<Arc<Module>>, Error> {
    rank.load(|| {
        let source = Source::new("quantise", text).with(&HEADERS);
        Compiler::find()?.compile(&source, Target::Sm90a)
    })
}

/// Threads of a CTA that have a row of so many elements, so that each holds up to four times 8 of them: a CTA for
/// each row that is short would be over before enough of memory is asked for.
fn threads_of_row(columns: usize) -> u32 {
    let threads = columns.div_ceil(4 * 8).next_power_of_two();
    threads.clamp(32, THREADS as usize) as u32
}

/// A parameter of a kernel.
#[derive(Clone, Copy)]
enum Item {
    At(Address),
    Number(u32),
    Wide(u64),
    Plane(Words),
}

/// The memory of a launch.
struct On<'a> {
    running: &'a Running<'a>,
    at: At,
}

impl On<'_> {
    /// Parameter of a part. A part that is not there has no address.
    fn part(&self, part: Option<usize>) -> Item {
        Item::At(part.map_or(Address::default(), |part| self.running.address(part)))
    }

    fn x(&self) -> Item {
        self.part(Some(self.at.x))
    }

    fn codes(&self) -> Item {
        self.part(Some(self.at.codes))
    }

    fn scales(&self) -> Item {
        self.part(self.at.scales)
    }

    fn skip(&self) -> Item {
        self.part(self.at.skip)
    }

    fn state(&self) -> Address {
        let state = self.at.state.map(|part| self.running.address(part));
        state.unwrap_or_default()
    }

    fn partials(&self) -> Item {
        Item::At(self.state().plus(4 * BEFORE_CTAS as u64))
    }

    /// Enqueues a kernel.
    ///
    /// # Safety
    /// The kernel stays inside of what it is given.
    unsafe fn launch(&self, kernel: &Function, ctas: u32, of: &[Item]) -> Result<(), Error> {
        if ctas == 0 {
            return Ok(());
        }
        let mut arguments = Arguments::new();
        for item in of {
            match item {
                Item::At(address) => arguments.address(*address),
                Item::Number(number) => arguments.number(*number),
                Item::Wide(number) => arguments.bytes(&number.to_le_bytes()),
                Item::Plane(words) => {
                    let numbers = [words.strides, words.padded].concat();
                    let bytes = numbers.iter().flat_map(|word| (*word as u32).to_le_bytes());
                    arguments.bytes(&bytes.collect::<Vec<_>>());
                }
            }
        }
        let grid = LaunchConfig::of(ctas, THREADS);
        // SAFETY: the caller's promise; the step keeps the memory until the kernel has ended.
        unsafe { kernel.launch(self.running.stream().cuda()?, grid, &arguments) }
    }
}

/// A step whose kernels stay as long as a graph that records it.
fn kept<'a>(step: Step<'a>, kernels: Option<&Arc<Kernels>>) -> Step<'a> {
    match kernels {
        Some(kernels) => step.keep(kernels.clone()),
        None => step,
    }
}

/// Enqueues a quantiser's launch: its kernels, or, where there are none, the twin.
///
/// # Safety
/// The step's parts are what the job says, as large as it needs them, and written where it writes.
pub(crate) unsafe fn quantise(
    step: Step<'_>,
    kernels: Option<&Arc<Kernels>>,
    job: &job::Job,
) -> Result<Pending, Error> {
    let step = kept(step, kernels);
    // SAFETY: the kernels use what the parts have: the caller's promise.
    unsafe {
        step.launch(|running| match kernels {
            Some(kernels) => kernels.quantise(running, job),
            None => emulate::quantise(running, job),
        })
    }
}

/// Enqueues the end of a step of delayed scaling of these histories. `of_ranks`: rows and columns of the ranks' amaxes, if there are some.
///
/// # Safety
/// The step's parts are the memory of so many histories, in the order of [`crate::histories`], and then the ranks' amaxes.
pub(crate) unsafe fn next_step(
    step: Step<'_>,
    kernel: Option<&NextStep>,
    recipes: &[Delayed],
    of_ranks: Option<[usize; 2]>,
) -> Result<Pending, Error> {
    let step = match kernel {
        Some(kernel) => step.keep(Arc::new(kernel.clone())),
        None => step,
    };
    let work = |running: &Running<'_>| match kernel {
        // SAFETY: the caller's promise.
        Some(kernel) => unsafe { kernel.launch(running, recipes, of_ranks) },
        None => emulate::next_step(running, recipes, of_ranks),
    };
    // SAFETY: as above.
    unsafe { step.launch(work) }
}
