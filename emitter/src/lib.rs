//! [`Pipeline`] → CUDA text. Prints what it is given, node by node: same pipeline in, same bytes out.
//!
//! This crate is above the compiler: it prints what was accepted, and neither the proof nor what builds can read a text.
//! It reads no files, environment variables or clocks, has no `unsafe`, and uses no device.
//!
//! The text includes the prelude by name and no other header; PTX is in the prelude only. Names are the schedule's.
//!
//! ```
//! use counterflow_codegen::verify;
//! use counterflow_emitter as cuda;
//! # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/../codegen/tests/fixtures/example.rs")); }
//!
//! let (series, _) = example::proven();
//! let source = cuda::emit(&verify::warps(series.kernel())?);
//! assert!(source.text.contains(&source.entry) && source.text.contains(cuda::PRELUDE));
//! println!("{}", cuda::prelude()); // what the text includes
//! # Ok::<(), counterflow_codegen::diag::Diagnostics>(())
//! ```

#![forbid(unsafe_code)]

mod cells;
mod computed_scales;
pub mod expected;
mod expr;
mod fragment;
mod head;
mod lanes;
mod lines;
mod mma;
mod node;
mod params;
mod probes;
mod promotion;
mod rings;
mod scheduler;
mod site;
mod stores;
mod tiles;
mod value;
mod words;
mod wrap;

pub use params::{EACH_RANK_BYTES, EVERY_COPY_BYTES, FieldAt, Param, WATCH_BYTES};
pub use site::{Site, SiteKind};

use counterflow_codegen::kernel::DimId;
use counterflow_codegen::program::Loc;
use counterflow_codegen::tiling::Tiling;
use counterflow_codegen::variant::Arch;
use counterflow_codegen::verify::Checked;
use counterflow_codegen::warp::{Field, Pipeline, RingId, RunBy};

/// The name under which the text includes the prelude.
pub const PRELUDE: &str = "prelude.cuh";

/// From an amax to a scale, as [`Rule`](counterflow_codegen::encoding::rule::ScaleRule) says: device functions that quantisers share. They need `u32`.
pub const SCALE: &str = include_str!("prelude/scale.cuh");

/// The kernel that compares launches of ranks on their GPUs. It includes [`PRELUDE`], and its symbol is `agree`.
pub const AGREE: &str = include_str!("agree.cu");

/// The name under which a text without a schedule that waits for peers includes [`WATCH`].
pub const WATCH_HEADER: &str = "watch.cuh";

/// The part of the prelude by which such a text ends its waits, with the types that it needs.
pub const WATCH: &str = concat!(
    include_str!("prelude/types.cuh"),
    include_str!("prelude/probes.cuh"),
    include_str!("prelude/watch.cuh"),
);

/// Device functions that every kernel's text uses: the only place with PTX, but for [`AGREE`].
pub fn prelude() -> String {
    let files = [
        include_str!("prelude/types.cuh"),
        include_str!("prelude/warps.cuh"),
        include_str!("prelude/scheduler.cuh"),
        include_str!("prelude/watch.cuh"),
        include_str!("prelude/probes.cuh"),
        include_str!("prelude/mbarrier.cuh"),
        include_str!("prelude/tma.cuh"),
        include_str!("prelude/counters.cuh"),
        include_str!("prelude/planes.cuh"),
        include_str!("prelude/wgmma.cuh"),
        include_str!("prelude/epilogue.cuh"),
        include_str!("prelude/parts.cuh"),
        SCALE,
        include_str!("prelude/computed_scales.cuh"),
        include_str!("prelude/promotion.cuh"),
        include_str!("prelude/partials.cuh"),
        include_str!("prelude/math.cuh"),
    ];
    files.join("\n")
}

/// The name under which a text that reaches every rank's memory at once includes [`MULTICAST`], behind the prelude.
pub const MULTICAST_PRELUDE: &str = "multicast.cuh";

/// Device functions of such a text alone, with `multimem` instructions: no other text has any.
pub const MULTICAST: &str = include_str!("prelude/multicast.cuh");

/// The name under which a traced kernel's text includes [`TRACE`], behind the prelude.
pub const TRACE_PRELUDE: &str = "trace.cuh";

/// Device functions of such a text alone: no other text has a word of them.
pub const TRACE: &str = include_str!("prelude/trace.cuh");

/// CTAs, lanes of each and events of each lane that a traced kernel keeps, as [`TRACE`] says.
pub const TRACE_ROOM: [u32; 3] = [144, 8, 1024];

/// Headers that a kernel's text includes, by name.
///
/// ```
/// use counterflow_codegen::verify;
/// use counterflow_emitter as cuda;
/// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/../codegen/tests/fixtures/example.rs")); }
///
/// let (series, _) = example::proven();
/// let source = cuda::emit(&verify::warps(series.kernel())?);
/// let names: Vec<&str> = cuda::headers(&source).iter().map(|(name, _)| *name).collect();
/// assert_eq!(names, [cuda::PRELUDE]);
/// # Ok::<(), counterflow_codegen::diag::Diagnostics>(())
/// ```
pub fn headers(source: &CudaSource) -> Vec<(&'static str, String)> {
    let mut headers = vec![(PRELUDE, prelude())];
    for (name, text) in [(MULTICAST_PRELUDE, MULTICAST), (TRACE_PRELUDE, TRACE)] {
        if source.text.contains(&format!("#include \"{name}\"")) {
            headers.push((name, text.into()));
        }
    }
    headers
}

/// A kernel's text and what the host must know to launch it.
///
/// ```
/// use counterflow_emitter::{self as cuda, CudaSource, FieldAt, Param};
/// use counterflow_codegen::verify;
/// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/../codegen/tests/fixtures/example.rs")); }
///
/// let (series, _) = example::proven();
/// let source: CudaSource = cuda::emit(&verify::warps(series.kernel())?);
/// println!("{}: {} threads, {} bytes", source.entry, source.threads, source.shared_bytes);
/// for param in &source.params {
///     match param {
///         Param::Map { map, .. } => println!("{map:?}"),
///         Param::Plan { bytes, fields } => {
///             let last: Option<&FieldAt> = fields.last();
///             println!("{bytes} bytes, the last field is {:?}", last.map(|field| &field.name));
///         }
///         Param::EveryCopy { map, .. } => println!("{map:?}, on every rank at once"),
///         Param::EachRank { map } => println!("{map:?}, on each rank"),
///         Param::Watch => println!("{} bytes", cuda::WATCH_BYTES),
///     }
/// }
/// assert!(source.with_lines().contains("#line")); // for the compiler: the schedule's lines
/// # Ok::<(), counterflow_codegen::diag::Diagnostics>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CudaSource {
    /// The text; it includes [`PRELUDE`].
    pub text: String,
    /// For each line of the text, the schedule's statement it is of, if it is of one.
    pub origins: Vec<Option<Loc>>,
    /// The kernel's symbol.
    pub entry: String,
    /// The architecture to compile for.
    pub arch: &'static str,
    /// Bytes of dynamic shared memory.
    pub shared_bytes: u32,
    /// Threads of a CTA.
    pub threads: u32,
    /// CTAs at the front of the grid that move data before they multiply; the grid has at least one more.
    pub comm_ctas: u32,
    /// The parameters, in order.
    pub params: Vec<Param>,
    /// Names of roles, by their number in stall records.
    pub roles: Vec<String>,
    /// Names of what a role can wait for, by their number in stall records: barriers, then counters.
    pub waits: Vec<String>,
}

/// The text of `pipeline`.
pub fn emit(pipeline: &Checked<Pipeline>) -> CudaSource {
    print(pipeline)
}

/// Text that tests of the verifier print without its verdict.
pub(crate) fn print(pipeline: &Pipeline) -> CudaSource {
    printed(pipeline, false).source
}

/// A kernel that writes down when its roles came to which point of the schedule.
///
/// ```
/// use counterflow_emitter::{self as cuda, SiteKind, Traced};
/// use counterflow_codegen::verify;
/// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/../codegen/tests/fixtures/example.rs")); }
///
/// let (series, _) = example::proven();
/// let Traced { source, sites } = cuda::emit_traced(&verify::warps(series.kernel())?);
/// let names: Vec<&str> = cuda::headers(&source).iter().map(|(name, _)| *name).collect();
/// assert_eq!(names, [cuda::PRELUDE, cuda::TRACE_PRELUDE]);
/// let waits = sites.iter().filter(|site| site.kind == SiteKind::Waits);
/// for cuda::Site { role, statement, .. } in waits {
///     println!("{role}: {statement}");
/// }
/// # Ok::<(), counterflow_codegen::diag::Diagnostics>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Traced {
    /// The text, which also includes [`TRACE_PRELUDE`].
    pub source: CudaSource,
    /// Probes, by the numbers in their events.
    pub sites: Vec<Site>,
}

/// The text of `pipeline` with probes. It does what [`emit`]'s does, in the same order.
pub fn emit_traced(pipeline: &Checked<Pipeline>) -> Traced {
    printed(pipeline, true)
}

fn printed(pipeline: &Pipeline, traced: bool) -> Traced {
    let mut text = Text {
        pipeline,
        out: String::new(),
        origins: Vec::new(),
        origin: None,
        depth: 0,
        role: "",
        run_by: RunBy::Groups,
        group: false,
        all_lanes: false,
        tiling: 0,
        more_loops: false,
        ahead: None,
        releases: false,
        traced,
        in_role: false,
        sites: Vec::new(),
        statement: String::new(),
    };
    let params = params::of(pipeline);
    text.head(&params);
    text.kernel(&params);
    let arch = match pipeline.kernel.variant.arch {
        Arch::Sm90 => "sm_90a",
        Arch::Cpu => "",
    };
    let source = CudaSource {
        entry: pipeline.kernel.name.clone(),
        arch,
        shared_bytes: pipeline.shared_bytes(),
        threads: pipeline.threads(),
        comm_ctas: pipeline.comm.as_ref().map_or(0, |comm| comm.ctas()),
        params,
        roles: text.roles(),
        waits: text.waits(),
        origins: text.origins,
        text: text.out,
    };
    Traced {
        source,
        sites: text.sites,
    }
}

/// The text so far.
struct Text<'a> {
    pipeline: &'a Pipeline,
    out: String,
    /// The statement of each line so far.
    origins: Vec<Option<Loc>>,
    /// The statement that is being printed.
    origin: Option<Loc>,
    depth: usize,
    /// The current role, as stall records name it.
    role: &'static str,
    /// Threads that run the text.
    run_by: RunBy,
    /// True if warpgroups do, not one thread.
    group: bool,
    /// True if all lanes of its warp run what is being printed, of which one does some.
    all_lanes: bool,
    /// The tiling of the loop over items that is being printed.
    tiling: usize,
    /// True if its scheduler has more loops over items after what is being printed.
    more_loops: bool,
    /// The ring that nodes run ahead in, if they do: their loads complete on its current slot's barrier.
    ahead: Option<RingId>,
    /// True if it releases slots some stores later.
    releases: bool,
    /// True if it is a traced kernel's.
    traced: bool,
    /// True if a role's body is being printed.
    in_role: bool,
    /// Probes so far.
    sites: Vec<Site>,
    /// The words of the statement that is being printed, for probes.
    statement: String,
}

impl Text<'_> {
    fn line(&mut self, line: impl AsRef<str>) {
        for line in wrap::wrapped(line.as_ref(), self.depth * 4) {
            self.out.push_str(&line);
            self.out.push('\n');
            self.origins.push(self.origin);
        }
    }

    fn block(&mut self, head: impl AsRef<str>, body: impl FnOnce(&mut Self)) {
        self.line(format!("{} {{", head.as_ref()));
        self.depth += 1;
        body(self);
        self.depth -= 1;
        self.line("}");
    }

    /// Tiling of the loop that is being printed.
    fn tiling(&self) -> &Tiling {
        self.pipeline.tiling_of(self.tiling)
    }

    /// The function that gives a shard's rows.
    fn rows_function(&self, dim: DimId) -> String {
        let name = params::name(self.pipeline, Field::ShardRows(dim));
        format!("{name}_of")
    }

    fn roles(&self) -> Vec<String> {
        self.pipeline
            .warps
            .iter()
            .map(|warp| warp.name.to_string())
            .collect()
    }

    fn barrier_names(&self) -> Vec<String> {
        let barriers = self.pipeline.barriers();
        let mut names: Vec<String> = barriers.map(|(_, barrier)| barrier.name.into()).collect();
        if self.pipeline.order_barriers() > 0 {
            names.push("order".into());
        }
        names
    }

    fn waits(&self) -> Vec<String> {
        let counters = self.pipeline.kernel.counters.iter();
        let counters = counters.map(|counter| counter.name.clone());
        self.barrier_names().into_iter().chain(counters).collect()
    }
}
