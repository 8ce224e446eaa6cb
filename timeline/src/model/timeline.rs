//! The predicted timeline of one launch.
//!
//! The model covers:
//! - Each CTA of the GEMM claims items in order. A tile costs the larger of its multiplications and its reads through
//!   L2, plus a fixed overhead, and at least the time of its operands from memory if nobody read them before. Waves
//!   follow from that. The SMs of a pair read what consecutive tiles share once, while they are in step. A finished
//!   tile is stored while the next one is computed. Comm CTAs that are done claim tiles, too.
//! - A store to every rank leaves a rank's link once and arrives at every rank, its sender too. A sum in the switch arrives once.
//!   Both have the rate that others published ([`IN_SWITCH`](super::IN_SWITCH) in a kernel that does both, otherwise
//!   [`UNICAST`](super::UNICAST)): not measured by us. A copy engine goes to one rank after another.
//! - The transfers on each direction of a rank's link share it (`links.rs`). A CTA issues at the measured rate at most. CTAs that
//!   move data take chunks batch by batch, so several of them move one chunk (`batches.rs`).
//!   A copy engine makes one copy after another, each with its fixed cost.
//! - A wait ends when the last signal that it needs has arrived, one latency after it was sent. Scratch credits were
//!   granted in the launch before, so they are there.
//! - A vector, or a scale, is read from memory for the first tile that needs it, and from the cache for the others.
//! - Scales that a store makes count by the bytes of their plane, with the tile: written, sent, and read where partial
//!   sums are added.
//!
//! It leaves out clocks and power (a GEMM longer than a millisecond or so runs up to 20 % slower than
//! [`Machine::h200`] says; [`Machine::at_power_limit`] has the sustained rate), clusters of three that start
//! only after others although there is space for them, tiles of a cluster that are outside, contention of arriving data
//! with the GEMM for memory, operands evicted from L2 and read again, acknowledgements of stores, claiming by
//! cluster, what one CTA can issue to a multicast address (not measured by us), the arithmetic of amaxes and of scales that are made (not measured), ranks that start at different times, and
//! anything else that runs on the GPUs.

use super::event::{Event, Flow};
use super::sim::Sim;
use super::state::{Mode, lane_count};
use super::switch;
use super::volume::Volume;
use counterflow_codegen::diag::Diagnostic;
use counterflow_codegen::kernel::{Kernel, RoleKind};
use counterflow_codegen::machine::Machine;
use counterflow_codegen::plan::Plan;

/// The events of every rank. Times are in seconds after the kernels were enqueued.
///
/// ```
/// use counterflow_codegen::machine::Machine;
/// use counterflow_timeline::model;
/// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/../codegen/tests/fixtures/example.rs")); }
///
/// let (series, plan) = example::proven();
/// let machine = Machine::h200();
/// let timeline = model::predict(series.kernel(), &plan, &machine)?;
/// println!("{}\n{}", timeline.summary(), timeline.gantt(100));
/// assert!(timeline.total >= timeline.bound());
/// println!("{} s exposed", timeline.exposed_communication());
/// assert_eq!(model::seconds(series.kernel(), &plan, &machine)?, timeline.total);
/// let outline = model::outline(series.kernel(), &plan.shape, &machine)?; // at once, without a run
/// assert!(outline.least <= timeline.total);
/// assert!(model::joined(series.kernel(), &plan, &machine).is_none(), "it has one `#[comm]` loop");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, PartialEq, Debug)]
pub struct Timeline {
    /// The schedule's name, variant, shape and machine.
    pub title: String,
    /// Number of ranks.
    pub world: u32,
    /// The lanes, which are the same on every rank.
    pub lanes: Vec<Lane>,
    /// The events: one lane's in order of time, several lanes' in no order.
    pub events: Vec<Event>,
    /// Signals that somebody was waiting for.
    pub flows: Vec<Flow>,
    /// The statement of each op, by [`OpId`](counterflow_codegen::kernel::OpId).
    pub statements: Vec<String>,
    /// The name of each counter, by [`CounterId`](counterflow_codegen::program::CounterId).
    pub counters: Vec<String>,
    /// From enqueueing to the end of the slowest rank.
    pub total: f64,
    /// The time of the same GEMM on the same CTAs, without waits and transfers.
    pub gemm_alone: f64,
    /// The time of the least bytes on the busiest link at its best rate.
    pub least_link: f64,
    /// The bytes that crossed the links.
    pub volume: Volume,
    /// The best rate of each rank's link in bytes a second: the full scale of charts.
    pub link_rate: f64,
}

/// A worker: a CTA, a CTA's spare warps, or a copy engine.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Lane {
    /// The role it starts with.
    pub role: u16,
    /// True if it is a CTA, which computes tiles now or later.
    pub cta: bool,
    /// Kind and number of the lane.
    pub name: String,
}

/// The timeline of `plan` on `machine`.
///
/// # Errors
/// A wait that nothing ends ([`counterflow_codegen::diag::Rule::Progress`]). A verified plan has none.
pub fn predict(kernel: &Kernel, plan: &Plan, machine: &Machine) -> Result<Timeline, Diagnostic> {
    let whole = Sim::new(kernel, plan, machine, Mode::Whole).run_all()?;
    let alone = Sim::new(kernel, plan, machine, Mode::GemmAlone).run_all()?;
    let volume = Volume::of(kernel, plan);
    let (least, link_rate) = match kernel.needs_multicast() {
        // Other statements may go to one rank, faster.
        true => (
            volume.least_of_a_link_by_switch(),
            switch::rate(kernel).max(machine.link_copy_engine),
        ),
        false => (volume.least_of_a_link(), machine.link_copy_engine),
    };
    Ok(Timeline {
        title: format!(
            "{}  {}  shape {}  on {}",
            kernel.name, kernel.variant, plan.shape, machine.name
        ),
        world: plan.geometry.world,
        lanes: lanes(kernel, plan),
        events: whole.events,
        flows: whole.flows,
        statements: kernel.op_texts(),
        counters: kernel.counters.iter().map(|c| c.name.clone()).collect(),
        total: whole.total,
        gemm_alone: alone.total,
        least_link: least as f64 / link_rate,
        volume,
        link_rate,
    })
}

/// The time of `plan` on `machine`, in seconds: [`Timeline::total`] without the timeline.
///
/// # Errors
/// As [`predict`].
pub fn seconds(kernel: &Kernel, plan: &Plan, machine: &Machine) -> Result<f64, Diagnostic> {
    let whole = Sim::new(kernel, plan, machine, Mode::Whole).silent();
    Ok(whole.run_all()?.total)
}

impl Timeline {
    /// The communication time that the GEMM does not hide.
    pub fn exposed_communication(&self) -> f64 {
        (self.total - self.gemm_alone).max(0.0)
    }

    /// The larger of the GEMM alone and the least bytes on the busiest link: no schedule is faster.
    pub fn bound(&self) -> f64 {
        self.gemm_alone.max(self.least_link)
    }

    /// Total, GEMM alone and what is exposed, in one line.
    pub fn summary(&self) -> String {
        let us = |time: f64| format!("{:.1} µs", time * 1e6);
        format!(
            "{} in all; GEMM alone {}, least bytes {}; exposed {}, {:.3} of the bound",
            us(self.total),
            us(self.gemm_alone),
            us(self.least_link),
            us(self.exposed_communication()),
            self.total / self.bound()
        )
    }
}

fn lanes(kernel: &Kernel, plan: &Plan) -> Vec<Lane> {
    let mut lanes = Vec::new();
    for (index, role) in (0..).zip(&kernel.roles) {
        let (cta, name) = match role.kind {
            RoleKind::Gemm(_) | RoleKind::Comm { .. } => (true, format!("{} CTA", role.name)),
            RoleKind::SpareWarps => (false, "spare warps".into()),
            RoleKind::CopyEngine => (false, "copy engine".into()),
        };
        let count = lane_count(role.kind, plan);
        for lane in 0..count {
            let name = if count == 1 {
                name.clone()
            } else {
                format!("{name} {lane}")
            };
            lanes.push(Lane {
                role: index,
                cta,
                name,
            });
        }
    }
    lanes
}
