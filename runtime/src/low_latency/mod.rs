//! Exchanges of few rows, each by one kernel that is built for latency: rows go straight into every peer's memory, where data is its own
//! signal, and nobody waits for a flag, a fence or the other CTAs. It takes the place of a schedule's kernel that does the same, as
//! a stage of a family's candidate ([`Stage::low_latency`](crate::family::Stage::low_latency)).

mod same;
mod text;
mod twin;

pub(crate) use text::NAME;
pub use text::compile_exchange;
pub(crate) use twin::{At, Launched};

use crate::error::Error;
use crate::slots;
use counterflow_codegen::dtype::Dtype;
use counterflow_codegen::kernel::{Buffer, Kernel};
use counterflow_codegen::machine::Machine;
use counterflow_codegen::plan::Plan;
use counterflow_codegen::program::{TensorId, Usage};
use counterflow_codegen::shape::Shape;
use std::fmt;

/// Ranks at most: a thread holds a piece of each rank's rows.
const MOST_RANKS: u32 = 8;
/// Bytes of the heap at most on each rank: 256 rows of 8192 elements of four ranks, added up everywhere.
const MOST_BYTES: u64 = 32 << 20;
/// Bytes that a thread moves at once.
const PIECE: u64 = 16;
/// Threads of a CTA.
pub(crate) const THREADS: u32 = 256;

/// What ranks exchange.
///
/// ```
/// use counterflow::family::{Collective, Stage};
/// use counterflow::schedules::{all_reduce, gemm};
///
/// // An all-reduce of few rows behind a product.
/// let few = [Stage::new(gemm()).tensor("y", "g"), Stage::low_latency(Collective::AllReduce, all_reduce()).of_result()];
/// assert_eq!(few[1].program().name, "low_latency_all_reduce");
/// println!("{}", Collective::AllReduce);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Collective {
    /// Every rank has the rows of all at the end, in place.
    AllGather,
    /// Every rank has the sum over ranks of the rows that it owns.
    ReduceScatter,
    /// Every rank has the sum over ranks of all rows. Each sends all of its rows to every other.
    AllReduce,
    /// The same in two shots: each rank adds up the rows that it owns, and sends the sum to every other. It moves fewer bytes, and words
    /// travel twice.
    TwoShotAllReduce,
}

impl fmt::Display for Collective {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Collective::AllGather => "all-gather",
            Collective::ReduceScatter => "reduce-scatter",
            Collective::AllReduce => "all-reduce",
            Collective::TwoShotAllReduce => "all-reduce in two shots",
        })
    }
}

/// Sizes of an exchange.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Sizes {
    pub collective: Collective,
    pub world: u32,
    /// Rows over all ranks.
    pub rows: u32,
    /// Rows that a rank owns; the last ones own fewer, or none.
    pub shard: u32,
    /// Bytes of a row.
    pub row: u64,
}

impl Collective {
    /// The tensor that a rank sends of, and the one that it receives.
    fn tensors(self, kernel: &Kernel) -> Result<[TensorId; 2], Error> {
        let given = kernel.buffers.iter().zip(0..);
        let given = given.filter(|(buffer, _)| !buffer.is_scratch());
        let given: Vec<(&Buffer, TensorId)> =
            given.map(|(buffer, id)| (buffer, TensorId(id))).collect();
        let usages: Vec<Usage> = given.iter().map(|(buffer, _)| buffer.usage).collect();
        let (wanted, is): (&[Usage], &str) = match self {
            Collective::AllGather => (&[Usage::GATHERED], "one tensor that is gathered"),
            Collective::ReduceScatter => (
                &[Usage::LOCAL, Usage::REDUCE_SCATTERED],
                "an input, and an output whose rows ranks divide",
            ),
            Collective::AllReduce | Collective::TwoShotAllReduce => (
                &[Usage::LOCAL, Usage::ALL_REDUCED],
                "an input, and an output that all ranks have",
            ),
        };
        let refuse = |what: String, legal: String| {
            Err(Error::Usage {
                what: format!("{self} of low latency {what}"),
                legal,
            })
        };
        if usages != wanted {
            return refuse(
                format!("as {}", kernel.name),
                format!("a schedule with {is}, in this order"),
            );
        }
        let dtype = given[0].0.dtype;
        if !matches!(dtype, Dtype::Bf16 | Dtype::F16)
            || given
                .iter()
                .any(|(buffer, _)| buffer.dtype != dtype || buffer.mn_major)
        {
            return refuse(
                format!("of {}", dtype.name()),
                "rows of bf16, or of f16, which lie one behind the other".into(),
            );
        }
        let (first, last) = (given[0].1, given[given.len() - 1].1);
        Ok([first, last])
    }

    /// Refuses a schedule with other results: one that is not the exchange as the library has it, but for names and choices.
    ///
    /// # Errors
    /// [`Error::Usage`].
    pub(crate) fn admits(self, kernel: &Kernel) -> Result<(), Error> {
        let dtype = self.dtype(kernel)?;
        // Sums would be rounded to another type on their way.
        let of_one_type = kernel.buffers.iter().all(|buffer| buffer.dtype == dtype);
        let own = match self {
            Collective::AllGather => same::gathers(),
            Collective::ReduceScatter => same::adds_up(false),
            Collective::AllReduce | Collective::TwoShotAllReduce => same::adds_up(true),
        };
        if of_one_type && same::is(&own, kernel)? {
            return Ok(());
        }
        Err(Error::Usage {
            what: format!("{self} of low latency as {}", kernel.name),
            legal:
                "the library's schedule of this exchange, or the same with other names and choices"
                    .into(),
        })
    }

    /// The element type.
    pub(crate) fn dtype(self, kernel: &Kernel) -> Result<Dtype, Error> {
        let [x, _] = self.tensors(kernel)?;
        Ok(kernel.buffers[x.index()].dtype)
    }
}

impl Sizes {
    /// Sizes of a launch of that shape, which moves rows of its depth, of 16-bit elements.
    pub(crate) fn of_shape(collective: Collective, world: u32, shape: &Shape) -> Sizes {
        Sizes {
            collective,
            world,
            rows: shape.m,
            shard: shape.m.div_ceil(world.max(1)),
            row: 2 * u64::from(shape.k),
        }
    }

    /// Sizes of a launch of that plan, and its tensors.
    ///
    /// # Errors
    /// [`Error::Usage`] for a schedule that does something else, for other elements, and for rows with gaps between them.
    pub(crate) fn of_plan(
        collective: Collective,
        kernel: &Kernel,
        plan: &Plan,
    ) -> Result<(Sizes, [TensorId; 2]), Error> {
        let tensors = collective.tensors(kernel)?;
        let [sent, received] = tensors;
        // The output's rows are those that ranks divide.
        let buffer = &kernel.buffers[received.index()];
        let geometry = &plan.geometry;
        let sizes = Sizes {
            collective,
            world: geometry.world,
            rows: geometry.size(buffer.rows),
            shard: geometry.shard_rows(buffer.rows),
            row: u64::from(geometry.size(buffer.columns)) * u64::from(buffer.dtype.bytes()),
        };
        let contiguous = [sent, received]
            .iter()
            .all(|tensor| plan.pitch(kernel, *tensor) == sizes.row);
        if !contiguous || !sizes.row.is_multiple_of(PIECE) {
            return Err(Error::Usage {
                what: format!(
                    "{collective} of low latency of rows of {} bytes in {}",
                    sizes.row, plan.shape
                ),
                legal: "rows of a multiple of 8 elements, without gaps between them".into(),
            });
        }
        Ok((sizes, tensors))
    }

    /// Bytes that a rank sends a peer in one shot at most: one piece at least.
    fn a_shot(&self) -> u64 {
        let rows = match self.collective {
            Collective::AllGather | Collective::ReduceScatter | Collective::TwoShotAllReduce => {
                self.shard
            }
            Collective::AllReduce => self.rows,
        };
        (u64::from(rows) * self.row).max(PIECE)
    }

    fn shots(&self) -> u32 {
        match self.collective {
            Collective::AllGather | Collective::ReduceScatter | Collective::AllReduce => 1,
            Collective::TwoShotAllReduce => 2,
        }
    }

    /// Bytes that a rank sends a peer at most, those of a second shot behind those of the first.
    pub(crate) fn each(&self) -> u64 {
        u64::from(self.shots()) * self.a_shot()
    }

    /// Pieces of a row.
    pub(crate) fn pieces(&self) -> u32 {
        u32::try_from(self.row / PIECE).unwrap_or(u32::MAX)
    }

    /// Bytes of the heap on each rank.
    pub(crate) fn heap(&self) -> u64 {
        slots::bytes(self.world, self.each())
    }

    /// Refuses more ranks than a thread holds rows of, and more memory than few rows need.
    ///
    /// # Errors
    /// [`Error::TooLarge`].
    pub(crate) fn are_few(&self) -> Result<(), Error> {
        let (bytes, help) = (self.heap(), "the exchange as a schedule is for many rows");
        let what = match self.world > MOST_RANKS {
            true => format!(
                "{} of low latency of {} ranks: {MOST_RANKS} at most",
                self.collective, self.world
            ),
            false if bytes > MOST_BYTES => format!(
                "{} of low latency of {} rows of {} bytes: it takes {bytes} bytes of the heap, {MOST_BYTES} at most",
                self.collective, self.rows, self.row
            ),
            false => return Ok(()),
        };
        Err(Error::TooLarge {
            what,
            help: help.into(),
        })
    }

    /// CTAs of a launch, of so many at most.
    pub(crate) fn ctas(&self, most: u32) -> u32 {
        let pieces = (self.a_shot() / PIECE).div_ceil(u64::from(THREADS));
        u32::try_from(pieces)
            .unwrap_or(u32::MAX)
            .clamp(1, most.max(1))
    }

    /// The model's time of a launch, in seconds: its start behind a kernel of ours, a word's way to a peer for each shot, and the bytes
    /// that a rank sends.
    ///
    /// Of W ranks one shot sends W - 1 times all rows, two send 2 (W - 1) / W times as much, and a word goes once more. So two shots are
    /// faster from latency · rate · W / ((W - 1) (W - 2)) bytes of all rows on: of four ranks with an H200's links 285 KB, 18 rows of
    /// 8192 elements, with an H100's 31; of two never.
    ///
    /// An all-reduce with a norm behind it, which exchanges its rows so, took by that much longer than one of a single rank on two H100s
    /// (`notes/bench`): of 1 row of 6144 elements 1.4 µs, of 16 rows of 8192 2.5, of 128 6.9. This says 2.2, 3.0 and 8.2 with an H100's
    /// profile, 1.3, 2.0 and 7.2 with an H200's: what probes of an H100 measure is a signal with release and acquire, which words that
    /// are their own signals do without.
    pub(crate) fn seconds(&self, machine: &Machine) -> f64 {
        let own = u64::from(self.rows) * self.row;
        let alone = machine.sm.dependent_launch_latency + own as f64 / machine.memory;
        if self.world == 1 {
            return alone;
        }
        let sent = u64::from(self.world - 1) * self.each();
        alone + f64::from(self.shots()) * machine.signal_latency + sent as f64 / machine.link_push
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The fewest rows of 8192 elements of which two shots take less than one.
    fn two_shots_from(world: u32, machine: &Machine) -> Option<u32> {
        let seconds = |collective, rows| {
            let sizes = Sizes::of_shape(collective, world, &Shape::new(rows, 0, 8192));
            sizes.seconds(machine)
        };
        let less = |rows: &u32| {
            let one = seconds(Collective::AllReduce, *rows);
            seconds(Collective::TwoShotAllReduce, *rows) < one
        };
        (1..=512).find(less)
    }

    /// No number is fitted: a word's latency and the link's rate say it, of any machine.
    #[test]
    fn two_shots_are_faster_from_where_a_words_way_is_shorter_than_the_bytes_that_they_save() {
        let (h200, slow) = (Machine::h200(), Machine::h200());
        let slow = Machine {
            signal_latency: 3.0 * slow.signal_latency,
            link_push: slow.link_push / 2.0,
            ..slow
        };
        for machine in [h200, slow] {
            assert_eq!(two_shots_from(2, &machine), None, "they save nothing");
            for world in 3..=8 {
                let ranks = f64::from(world);
                let bytes = machine.signal_latency * machine.link_push * ranks
                    / ((ranks - 1.0) * (ranks - 2.0));
                let from = two_shots_from(world, &machine).expect("some");
                // A rank owns whole rows, so it may be up to a row of each rank more.
                let rows = bytes / 16384.0;
                let found = f64::from(from);
                assert!(
                    (rows..=rows + 2.0 * ranks).contains(&found),
                    "{world} ranks: from {found} rows, not {rows}"
                );
            }
        }
    }
}
