//! One product with all of its settings, and the schedule that does it.

use super::name::{GemmName, Pass};
use super::settings::{Comm, Method, Parallel, Settings};
use crate::schedules as ours;
use crate::step::Work;
use counterflow::family::{Family, Stage};
use counterflow::{Error, Program, Setting, families, schedules};

/// A product with what was said of it and TransformerEngine's defaults for the rest.
///
/// `num_sm` acts where it was given: without it a schedule has as many CTAs that communicate as are fastest.
///
/// ```
/// use counterflow_layers::overlap::{Comm, Config, Method, Parallel};
///
/// let fc2 = Config::default().gemm("fc2_dgrad", Parallel::Row)?;
/// assert_eq!((fc2.method, fc2.comm, fc2.num_sm, fc2.use_ce), (Method::RingExchange, Comm::AllGather, 1, true));
/// # Ok::<(), counterflow::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Gemm {
    /// Name of the product.
    pub name: GemmName,
    /// Division of its layer.
    pub parallel: Parallel,
    /// Method by which the product overlaps its communication.
    pub method: Method,
    /// Communication of the product.
    pub comm: Comm,
    /// SMs that communicate.
    pub num_sm: u32,
    /// CTAs in a cluster of a kernel that communicates.
    pub cga_size: u32,
    /// True if products leave `num_sm` SMs to communication.
    pub set_sm_margin: bool,
    /// Parts of a pipelined product. `None`: as many as ranks.
    pub num_splits: Option<u32>,
    /// True if chunks move in fewer, larger steps.
    pub aggregate: bool,
    /// True if one product waits for chunks by counters.
    pub atomic_gemm: bool,
    /// True if copy engines move chunks.
    pub use_ce: bool,
    /// True if what travels is FP8 where products are.
    pub fp8_buf: bool,
    /// Priority of the stream that communicates. `None`: the GPU's highest.
    pub comm_priority: Option<i32>,
    /// Priority of the stream of products. `None`: the GPU's lowest.
    pub gemm_priority: Option<i32>,
    /// True if the first part of a pipelined product is computed ahead.
    pub pipeline_rs_overlap_first_gemm: bool,
    /// Settings that were given for it.
    pub given: Settings,
}

/// Defaults of a product, by the division of its layer.
struct Defaults {
    method: Method,
    num_sm: u32,
    cga_size: u32,
    set_sm_margin: bool,
    num_splits: Option<u32>,
    fp8_buf: bool,
}

fn defaults(parallel: Parallel, pass: Pass) -> Defaults {
    let beside = |method, fp8_buf| Defaults {
        method,
        num_sm: 16,
        cga_size: 2,
        set_sm_margin: true,
        num_splits: Some(4),
        fp8_buf,
    };
    match (parallel, pass) {
        (Parallel::Column, Pass::Fprop) | (Parallel::Row, Pass::Dgrad) => Defaults {
            method: Method::RingExchange,
            num_sm: 1,
            cga_size: 1,
            set_sm_margin: false,
            num_splits: None,
            fp8_buf: true,
        },
        (Parallel::Row, Pass::Fprop) => beside(Method::Pipeline, false),
        (Parallel::Column, Pass::Dgrad) => beside(Method::Bulk, true),
        (Parallel::Column, Pass::Wgrad) => beside(Method::Bulk, false),
        (Parallel::Row, Pass::Wgrad) => beside(Method::External, true),
    }
}

/// The methods that a product can have.
fn methods(parallel: Parallel, pass: Pass) -> &'static [Method] {
    use Method::{Auto, Bulk, External, Pipeline, RingExchange};
    match (parallel, pass) {
        (Parallel::Column, Pass::Fprop) | (Parallel::Row, Pass::Dgrad) => &[RingExchange, Auto],
        (Parallel::Row, Pass::Fprop) => &[Pipeline, RingExchange, Auto],
        (Parallel::Column, Pass::Dgrad) => &[Bulk, Pipeline, RingExchange, Auto],
        (Parallel::Column, Pass::Wgrad) => &[Bulk],
        (Parallel::Row, Pass::Wgrad) => &[External],
    }
}

/// The communication of a product with that method. The gradient of a column-parallel layer's input has either: beside the
/// product its input is gathered again, or the product itself is summed over ranks.
fn comm(parallel: Parallel, pass: Pass, method: Method) -> Comm {
    match (parallel, pass) {
        (Parallel::Column, Pass::Fprop) | (Parallel::Row, Pass::Dgrad | Pass::Wgrad) => {
            Comm::AllGather
        }
        (Parallel::Row, Pass::Fprop) | (Parallel::Column, Pass::Wgrad) => Comm::ReduceScatter,
        (Parallel::Column, Pass::Dgrad) => match method {
            Method::Bulk => Comm::AllGather,
            Method::RingExchange | Method::Pipeline | Method::External | Method::Auto => {
                Comm::ReduceScatter
            }
        },
    }
}

fn refused<T>(what: String, legal: impl Into<String>) -> Result<T, Error> {
    let legal = legal.into();
    Err(Error::Usage { what, legal })
}

impl Gemm {
    pub(crate) fn new(
        name: &GemmName,
        parallel: Parallel,
        given: &Settings,
    ) -> Result<Gemm, Error> {
        if let Some(known) = name.known()
            && known != parallel
        {
            return refused(
                format!("{name} of a {parallel}-parallel layer"),
                format!(
                    "`{}` is a {known}-parallel layer: give yours another name",
                    name.layer()
                ),
            );
        }
        let pass = name.pass();
        let of = defaults(parallel, pass);
        let method = given.method.unwrap_or(of.method);
        let legal = methods(parallel, pass);
        if !legal.contains(&method) {
            let names: Vec<&str> = legal.iter().map(|method| method.name()).collect();
            return refused(
                format!("{name} cannot have the method {method} in a {parallel}-parallel layer"),
                format!("give {}", names.join(", ")),
            );
        }
        let comm = comm(parallel, pass, method);
        let scatters = comm == Comm::ReduceScatter;
        if given.is_reduce_scatter.is_some_and(|said| said != scatters) {
            return refused(
                format!("{name} with the method {method} is {comm}"),
                format!(
                    "leave out `is_reduce_scatter`, or set it to {}",
                    u8::from(scatters)
                ),
            );
        }
        let aggregate = given.aggregate.unwrap_or(false);
        if aggregate && (scatters || method != Method::RingExchange) {
            return refused(
                format!("{name} cannot aggregate: it is {comm} with the method {method}"),
                "leave out `aggregate`: it makes the steps of a gather by ring_exchange larger",
            );
        }
        Ok(Gemm {
            name: name.clone(),
            parallel,
            method,
            comm,
            num_sm: given.num_sm.unwrap_or(of.num_sm),
            cga_size: given.cga_size.unwrap_or(of.cga_size),
            set_sm_margin: given.set_sm_margin.unwrap_or(of.set_sm_margin),
            num_splits: given.num_splits.or(of.num_splits),
            aggregate,
            atomic_gemm: given.atomic_gemm.unwrap_or(false),
            use_ce: given.use_ce.unwrap_or(true),
            fp8_buf: given.fp8_buf.unwrap_or(of.fp8_buf),
            comm_priority: given.comm_priority,
            gemm_priority: given.gemm_priority,
            pipeline_rs_overlap_first_gemm: given.pipeline_rs_overlap_first_gemm.unwrap_or(false),
            given: given.clone(),
        })
    }

    /// The schedule that does it.
    ///
    /// A gather by `ring_exchange` is [`AgGemmPull`](Schedule::AgGemmPull) if copy engines may move it (`use_ce`, the default);
    /// otherwise [`AgGemmRing`](Schedule::AgGemmRing), or with `aggregate` [`AgGemmDoubleRing`](Schedule::AgGemmDoubleRing), in
    /// half as many steps. TransformerEngine's reduce-scatters by `ring_exchange` and `pipeline` both send partial sums
    /// straight to their owner, which adds them in f32: [`GemmRs`](Schedule::GemmRs) does, tile by tile. Where a layer gathers its input
    /// again for the weight's gradient, [`gemm_rs_beside_gather`](crate::schedules::gemm_rs_beside_gather()) does both for the input's
    /// gradient, by whatever method it is summed. With `auto` a family chooses: the fastest known schedule for the sizes, which may be one that is not fused.
    pub fn schedule(&self) -> Schedule {
        match (self.comm, self.method) {
            (Comm::AllGather, Method::Bulk) => Schedule::Bulk,
            (Comm::AllGather, Method::External) => Schedule::Kept,
            (Comm::ReduceScatter, Method::Bulk) => Schedule::WgradRs,
            (Comm::AllGather, Method::RingExchange | Method::Pipeline) => {
                match (self.use_ce, self.aggregate) {
                    (true, _) => Schedule::AgGemmPull,
                    (false, false) => Schedule::AgGemmRing,
                    (false, true) => Schedule::AgGemmDoubleRing,
                }
            }
            (Comm::AllGather, Method::Auto) => Schedule::AllGatherGemm,
            (Comm::ReduceScatter, Method::Auto) => Schedule::GemmReduceScatter,
            (Comm::ReduceScatter, Method::RingExchange | Method::Pipeline | Method::External) => {
                Schedule::GemmRs
            }
        }
    }

    /// The choices of that schedule which the settings make, by name.
    pub fn choices(&self) -> Vec<(&'static str, Setting)> {
        /// Rows of a step that was made larger: twice the first option.
        const LARGER: u32 = 2048;
        match self.schedule() {
            Schedule::AgGemmRing
            | Schedule::AgGemmDoubleRing
            | Schedule::Bulk
            | Schedule::WgradRs => {
                let ctas = self.given.num_sm.map(|sms| ("comm.ctas", sms.into()));
                ctas.into_iter().collect()
            }
            Schedule::AgGemmPull if self.aggregate => vec![("chunks", LARGER.into())],
            Schedule::AgGemmPull
            | Schedule::GemmRs
            | Schedule::Kept
            | Schedule::AllGatherGemm
            | Schedule::GemmReduceScatter => Vec::new(),
        }
    }

    /// The keys that were given and have nothing to act on, each with the reason.
    pub(crate) fn without_effect(&self, in_fp8: bool) -> Vec<(&'static str, &'static str)> {
        const ONE: &str = "communication and product are one kernel";
        const TILES: &str = "tiles are sent one by one, as they are computed";
        const STREAM: &str = "communication and product are one kernel, with the priority of the stream it is launched on";
        let given = &self.given;
        let schedule = self.schedule();
        let scatters = self.comm == Comm::ReduceScatter && self.method != Method::Bulk;
        let no_ctas = match schedule {
            Schedule::GemmRs => Some("tiles go straight to their owner: no SM only communicates"),
            Schedule::AgGemmPull => Some("copy engines move chunks: set `use_ce` to 0 for SMs"),
            Schedule::Kept => Some("the product before has gathered it"),
            Schedule::AllGatherGemm | Schedule::GemmReduceScatter => Some("auto chooses it"),
            Schedule::AgGemmRing
            | Schedule::AgGemmDoubleRing
            | Schedule::Bulk
            | Schedule::WgradRs => None,
        };
        let gathers_by_steps = matches!(
            (self.comm, self.method),
            (Comm::AllGather, Method::RingExchange)
        );
        let splits = match scatters {
            true => TILES,
            false => "chunks are those of the ranks",
        };
        let told = [
            ("num_sm", given.num_sm.and(no_ctas)),
            ("cga_size", given.cga_size.map(|_| ONE)),
            ("set_sm_margin", given.set_sm_margin.map(|_| ONE)),
            ("num_splits", given.num_splits.map(|_| splits)),
            ("num_max_streams", given.num_max_streams.map(|_| ONE)),
            (
                "atomic_gemm",
                (given.atomic_gemm == Some(false)).then_some("it is always on"),
            ),
            (
                "use_ce",
                match given.use_ce {
                    Some(_) if self.method == Method::Auto => Some("auto chooses it"),
                    Some(true) if !gathers_by_steps => Some("the kernel itself moves the data"),
                    Some(_) | None => None,
                },
            ),
            (
                "fp8_buf",
                match (given.fp8_buf, in_fp8, self.comm) {
                    (Some(true), false, _) => Some("products are not FP8"),
                    (Some(true), true, Comm::ReduceScatter) => Some("sums travel in bf16"),
                    // What is gathered is FP8.
                    (Some(true), true, Comm::AllGather) | (Some(false) | None, ..) => None,
                },
            ),
            ("comm_priority", given.comm_priority.map(|_| STREAM)),
            ("gemm_priority", given.gemm_priority.map(|_| STREAM)),
            (
                "pipeline_rs_overlap_first_gemm",
                (given.pipeline_rs_overlap_first_gemm == Some(true)).then_some(TILES),
            ),
        ];
        let told = told.into_iter();
        told.filter_map(|(key, why)| Some((key, why?))).collect()
    }
}

/// A schedule of a product and its communication, or a family of such.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Schedule {
    /// Copy engines fetch the peers' rows.
    AgGemmPull,
    /// Rows go around a ring.
    AgGemmRing,
    /// Rows go around two rings, in half as many steps.
    AgGemmDoubleRing,
    /// Tiles go to the rank that owns their rows, which adds them in f32 in the order of ranks.
    GemmRs,
    /// A gather beside the product.
    Bulk,
    /// A reduce-scatter beside the gradient of a weight.
    WgradRs,
    /// None: the product before has left the gathered rows in their buffer.
    Kept,
    /// The fastest known schedule of a gather and the product of what was gathered, fused or not.
    AllGatherGemm,
    /// The fastest known schedule of a product and the sum of its result over ranks, fused or not.
    GemmReduceScatter,
}

impl Schedule {
    /// The name of its program, or of its family.
    pub const fn name(self) -> &'static str {
        match self {
            Schedule::AgGemmPull => "ag_gemm_pull",
            Schedule::AgGemmRing => "ag_gemm_ring",
            Schedule::AgGemmDoubleRing => "ag_gemm_double_ring",
            Schedule::GemmRs => "gemm_rs",
            Schedule::Bulk => "bulk",
            Schedule::WgradRs => "wgrad_rs",
            Schedule::Kept => "wgrad",
            Schedule::AllGatherGemm => "all_gather_gemm",
            Schedule::GemmReduceScatter => "gemm_reduce_scatter",
        }
    }

    /// Program of the work. Of a family: that of its first candidate, which says which tensors there are.
    pub fn program(self) -> Program {
        match self.work() {
            Work::Schedule(program) => program,
            Work::Family(family) => family.first().clone(),
        }
    }

    pub(crate) fn work(self) -> Work {
        Work::Schedule(match self {
            Schedule::AgGemmPull => schedules::ag_gemm_pull(),
            Schedule::AgGemmRing => schedules::ag_gemm_ring(),
            Schedule::AgGemmDoubleRing => schedules::ag_gemm_double_ring(),
            Schedule::GemmRs => schedules::gemm_rs(),
            Schedule::Bulk => schedules::bulk(),
            Schedule::WgradRs => ours::wgrad_rs(),
            Schedule::Kept => schedules::wgrad(),
            Schedule::AllGatherGemm => return Work::Family(families::all_gather_gemm()),
            Schedule::GemmReduceScatter => return Work::Family(families::gemm_reduce_scatter()),
        })
    }

    /// Work with a bias, where a layer's output can have the schedule.
    pub(crate) fn biased(self) -> Work {
        Work::Schedule(match self {
            Schedule::AgGemmPull => ours::ag_gemm_pull_bias(),
            Schedule::AgGemmRing => ours::ag_gemm_ring_bias(),
            Schedule::AgGemmDoubleRing => ours::ag_gemm_double_ring_bias(),
            Schedule::GemmRs => ours::gemm_rs_bias(),
            Schedule::AllGatherGemm => {
                let apart = [
                    Stage::new(schedules::all_gather()),
                    Stage::new(ours::gemm_bias()),
                ];
                let family = Family::new("all_gather_gemm_bias", ours::ag_gemm_bias());
                let family = family.or(ours::ag_gemm_pull_bias()).or_stages(apart);
                return Work::Family(family);
            }
            Schedule::GemmReduceScatter => {
                let apart = [
                    Stage::new(schedules::gemm()).tensor("y", "g"),
                    Stage::new(ours::reduce_scatter_bias()).of_result(),
                ];
                let family = Family::new("gemm_reduce_scatter_bias", ours::gemm_rs_bias());
                return Work::Family(family.or_stages(apart));
            }
            // No output has these.
            Schedule::Bulk | Schedule::WgradRs | Schedule::Kept => return self.work(),
        })
    }
}
