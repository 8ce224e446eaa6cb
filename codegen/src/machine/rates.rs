//! Rates and latencies of a GPU and its links.

use super::Sm;
use crate::dtype::Dtype;

/// Rates of a GPU and its links: the numbers of a [`Profile`](super::Profile), as the model reads them. Rates are per
/// GPU, in bytes or FLOP a second. Times are in seconds.
///
/// ```
/// use counterflow_codegen::{dtype::Dtype, machine::Machine};
///
/// let h200 = Machine::h200();
/// println!("{} pushes {} B/s from 4 CTAs", h200.name, h200.push_rate(4));
/// assert!(h200.copy_engine_rate(64e6) > h200.copy_engine_rate(1e6), "each copy has a fixed cost");
/// assert!(h200.memory_of(132) > h200.memory_of(16));
/// assert_eq!(h200.clusters(2, h200.sms), 66);
/// let hot = h200.at_power_limit();
/// assert!(hot.flops_of(Dtype::Bf16, 132.0) < h200.flops_of(Dtype::Bf16, 132.0));
/// // Half of it, as two ranks on one GPU have.
/// let half = Machine { sms: 66, ..Machine::h200() };
/// assert!(half.sms < Machine::h100().sms);
/// ```
#[derive(Clone, PartialEq, Debug)]
pub struct Machine {
    /// Name in reports: the GPU, and how it is linked.
    pub name: String,
    /// The GPU, as its driver names it.
    pub gpu: String,
    /// Streaming multiprocessors.
    pub sms: u32,
    /// Clusters that run at once if every SM is free, by their number of CTAs, from 1: see [`Machine::clusters`].
    pub clusters: Vec<u32>,
    /// Bytes a second from device memory, with more requests than it can serve: see [`Machine::memory_of`].
    pub memory: f64,
    /// CTAs that reach half of it.
    pub memory_half: f64,
    /// The share of it that remains if several CTAs each request the same bytes.
    pub memory_again: f64,
    /// Bytes a second that all SMs together read through the L2 cache, each for itself, beside what comes from memory.
    pub l2: f64,
    /// Bytes that all SMs read again and again at about [`Machine::l2`]: less than the cache holds, as each half of it keeps
    /// copies of what its SMs read.
    pub l2_bytes: f64,
    /// Dense 16-bit matrix FLOP a second of all SMs inside the K loop of full tiles.
    pub flops: f64,
    /// Rate of one SM, however few others multiply.
    pub flops_sm: f64,
    /// Bytes a second one direction of its link carries when a copy engine moves large chunks.
    pub link_copy_engine: f64,
    /// Seconds one copy-engine operation costs before its first byte.
    pub copy_engine_latency: f64,
    /// Bytes a second when CTAs push.
    pub link_push: f64,
    /// Bytes a second when CTAs pull.
    pub link_pull: f64,
    /// Bytes a second when CTAs add to a peer's memory.
    pub link_reduce: f64,
    /// Bytes a second one pushing CTA reaches.
    pub link_push_cta: f64,
    /// Bytes a second one pulling CTA reaches.
    pub link_pull_cta: f64,
    /// Bytes a second one adding CTA reaches.
    pub link_reduce_cta: f64,
    /// Seconds from a signal to the waiter's next instruction on another GPU.
    pub signal_latency: f64,
    /// Seconds from a signal to the waiter's next instruction on the same GPU.
    pub local_signal_latency: f64,
    /// Changes under a load of several seconds.
    pub sustained: Sustained,
    /// An SM of its architecture.
    pub sm: Sm,
}

/// Rates of a GPU at its power limit, as in training. What is not here stays as it is.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Sustained {
    /// As [`Machine::flops`].
    pub flops: f64,
    /// As [`Machine::flops_sm`].
    pub flops_sm: f64,
    /// As [`Machine::link_push_cta`], beside a GEMM.
    pub link_push_cta: f64,
    /// As [`Machine::link_pull_cta`], beside a GEMM.
    pub link_pull_cta: f64,
    /// As [`Machine::link_reduce_cta`], beside a GEMM.
    pub link_reduce_cta: f64,
}

/// A number of a profile: its name there, its unit, and its place.
pub(super) struct Named {
    pub name: &'static str,
    pub unit: &'static str,
    pub set: fn(&mut Machine, f64),
}

macro_rules! numbers {
    ($($name:literal, $unit:literal, $($field:ident).+;)*) => {
        /// The numbers of a profile, in the order of its text.
        pub(super) const NUMBERS: &[Named] = &[$(Named {
            name: $name,
            unit: $unit,
            set: |machine, value| machine.$($field).+ = value,
        }),*];
    };
}

numbers! {
    "memory", "B/s", memory;
    "memory_half", "CTAs", memory_half;
    "memory_again", "of it", memory_again;
    "l2", "B/s", l2;
    "l2_bytes", "B", l2_bytes;
    "flops", "FLOP/s", flops;
    "flops_sm", "FLOP/s", flops_sm;
    "link_copy_engine", "B/s", link_copy_engine;
    "copy_engine_latency", "s", copy_engine_latency;
    "link_push", "B/s", link_push;
    "link_pull", "B/s", link_pull;
    "link_reduce", "B/s", link_reduce;
    "link_push_cta", "B/s", link_push_cta;
    "link_pull_cta", "B/s", link_pull_cta;
    "link_reduce_cta", "B/s", link_reduce_cta;
    "signal_latency", "s", signal_latency;
    "local_signal_latency", "s", local_signal_latency;
    "sustained_flops", "FLOP/s", sustained.flops;
    "sustained_flops_sm", "FLOP/s", sustained.flops_sm;
    "loaded_push_cta", "B/s", sustained.link_push_cta;
    "loaded_pull_cta", "B/s", sustained.link_pull_cta;
    "loaded_reduce_cta", "B/s", sustained.link_reduce_cta;
}

impl Machine {
    /// No number is known: a profile gives each.
    pub(super) fn unknown((gpu, name): (String, String), sms: u32, clusters: Vec<u32>) -> Machine {
        let none = f64::NAN;
        Machine {
            name,
            gpu,
            sms,
            clusters,
            memory: none,
            memory_half: none,
            memory_again: none,
            l2: none,
            l2_bytes: none,
            flops: none,
            flops_sm: none,
            link_copy_engine: none,
            copy_engine_latency: none,
            link_push: none,
            link_pull: none,
            link_reduce: none,
            link_push_cta: none,
            link_pull_cta: none,
            link_reduce_cta: none,
            signal_latency: none,
            local_signal_latency: none,
            sustained: Sustained {
                flops: none,
                flops_sm: none,
                link_push_cta: none,
                link_pull_cta: none,
                link_reduce_cta: none,
            },
            sm: Sm::HOPPER,
        }
    }

    /// A Hopper GPU of which only the places of CTAs are known: enough for a plan, and for nothing that asks how long it takes.
    pub(crate) fn of_places() -> Machine {
        let clusters = vec![132, 66, 39, 30, 22, 17, 15, 15];
        Machine::unknown((String::new(), String::new()), clusters[0], clusters)
    }

    /// This GPU under a load of several seconds.
    pub fn at_power_limit(&self) -> Machine {
        let Sustained {
            flops,
            flops_sm,
            link_push_cta,
            link_pull_cta,
            link_reduce_cta,
        } = self.sustained;
        Machine {
            flops,
            flops_sm,
            link_push_cta,
            link_pull_cta,
            link_reduce_cta,
            sm: self.sm.at_power_limit(),
            ..self.clone()
        }
    }

    /// Bytes a second that this many CTAs read from device memory.
    pub fn memory_of(&self, ctas: u32) -> f64 {
        let ctas = f64::from(ctas.max(1));
        self.memory * ctas / (ctas + self.memory_half)
    }

    /// Clusters of `ctas` CTAs that run at once on this many SMs, at most as many as a GPU can place.
    pub fn clusters(&self, ctas: u32, sms: u32) -> u32 {
        let size = (ctas.max(1) as usize).min(self.clusters.len());
        let [Some(whole), Some(all)] = [1, size].map(|size| self.clusters.get(size - 1)) else {
            return 0;
        };
        (all * sms / whole).max(u32::from(sms >= ctas))
    }

    /// FLOP a second of one SM inside the K loop, if this many SMs multiply operands of that type (f32 operands run as
    /// tf32, at half the 16-bit rate). At the power limit, fewer SMs have a faster clock: power grows faster than the
    /// clock.
    pub fn flops_of(&self, dtype: Dtype, busy: f64) -> f64 {
        let sms = f64::from(self.sms);
        let faster = (sms / busy.clamp(1.0, sms.max(1.0))).sqrt();
        let all = (self.flops / sms * faster).min(self.flops_sm);
        all * 2.0 / f64::from(dtype.bytes())
    }

    /// Bytes a second that copies of `bytes` bytes, one after another on one stream, reach.
    pub fn copy_engine_rate(&self, bytes: f64) -> f64 {
        bytes / (self.copy_engine_latency + bytes / self.link_copy_engine)
    }

    /// Bytes a second that `ctas` CTAs push.
    pub fn push_rate(&self, ctas: u32) -> f64 {
        (f64::from(ctas) * self.link_push_cta).min(self.link_push)
    }
}
