//! The tensors of a schedule: its parameters and its scratch.

use super::{ScheduleBuilder, TensorRef, small};
use crate::dtype::Dtype;
use crate::program::{HeldRows, Slots, Tensor, TensorId, Usage};
use std::panic::Location;

impl ScheduleBuilder {
    #[track_caller]
    fn tensor(&mut self, name: &str, usage: Usage, dtype: Dtype) -> TensorRef {
        let id = TensorId(small(self.program.tensors.len()));
        self.program.tensors.push(Tensor {
            name: name.into(),
            usage,
            like: None,
            dtype,
            at: Location::caller(),
        });
        TensorRef { id, extent: None }
    }

    /// An input in row shards, one per rank. At the end every rank holds all of it ([`Usage::GATHERED`]).
    #[track_caller]
    pub fn gathered(&mut self, name: &str, dtype: Dtype) -> TensorRef {
        self.tensor(name, Usage::GATHERED, dtype)
    }
    /// An output in row shards, of which each rank computes its own. At the end every rank holds all of it
    /// ([`Usage::GATHERED_OUTPUT`]).
    #[track_caller]
    pub fn gathered_output(&mut self, name: &str, dtype: Dtype) -> TensorRef {
        self.tensor(name, Usage::GATHERED_OUTPUT, dtype)
    }
    /// An input that each rank holds whole ([`Usage::LOCAL`]).
    #[track_caller]
    pub fn local(&mut self, name: &str, dtype: Dtype) -> TensorRef {
        self.tensor(name, Usage::LOCAL, dtype)
    }
    /// An input vector along the columns ([`Usage::VECTOR`]).
    #[track_caller]
    pub fn vector(&mut self, name: &str, dtype: Dtype) -> TensorRef {
        self.tensor(name, Usage::VECTOR, dtype)
    }
    /// An output that each rank holds whole ([`Usage::OUT`]).
    #[track_caller]
    pub fn out(&mut self, name: &str, dtype: Dtype) -> TensorRef {
        self.tensor(name, Usage::OUT, dtype)
    }
    /// An output that a launch adds to ([`Usage::ACCUMULATED`]).
    #[track_caller]
    pub fn accumulated(&mut self, name: &str, dtype: Dtype) -> TensorRef {
        self.tensor(name, Usage::ACCUMULATED, dtype)
    }
    /// An output summed over ranks. Each rank keeps its shard ([`Usage::REDUCE_SCATTERED`]).
    #[track_caller]
    pub fn reduce_scattered(&mut self, name: &str, dtype: Dtype) -> TensorRef {
        self.tensor(name, Usage::REDUCE_SCATTERED, dtype)
    }
    /// An output summed over ranks. Every rank holds it whole ([`Usage::ALL_REDUCED`]).
    #[track_caller]
    pub fn all_reduced(&mut self, name: &str, dtype: Dtype) -> TensorRef {
        self.tensor(name, Usage::ALL_REDUCED, dtype)
    }

    /// An output with a slot for each rank. Each rank keeps its shard of what every rank sends
    /// ([`Usage::ALL_TO_ALL`]).
    #[track_caller]
    pub fn all_to_all(&mut self, name: &str, dtype: Dtype) -> TensorRef {
        self.tensor(name, Usage::ALL_TO_ALL, dtype)
    }

    /// Scratch in symmetric memory: `slots` copies of the shape of `like`.
    ///
    /// Each slot holds the shard that its rank owns if `like` is [`Usage::REDUCE_SCATTERED`] or
    /// [`Usage::ALL_TO_ALL`], all rows otherwise.
    /// [`TensorRef::shard`] and [`TensorRef::whole`] choose explicitly.
    #[track_caller]
    pub fn symmetric(
        &mut self,
        name: &str,
        dtype: Dtype,
        like: TensorRef,
        slots: impl Into<Slots>,
    ) -> TensorRef {
        let tensors = &self.program.tensors;
        let owned = (tensors.get(like.id.index()))
            .is_some_and(|like| like.usage.sharded() && like.usage.is_own_shard());
        let rows = like.extent.unwrap_or(match owned {
            true => HeldRows::Shard,
            false => HeldRows::Whole,
        });
        let made = self.tensor(name, Usage::scratch(rows, slots.into()), dtype);
        self.program.tensors[made.id.index()].like = Some(like.id);
        made
    }

    /// Scratch in symmetric memory whose shape is that of what is stored in it: one slot, with all rows on each rank.
    ///
    /// ```
    /// use counterflow_codegen::builder::*;
    /// use counterflow_codegen::dtype::Dtype::Bf16;
    ///
    /// let mut s = ScheduleBuilder::new("two_layers");
    /// let [x, up, down] = ["x", "up", "down"].map(|name| s.local(name, Bf16));
    /// let (y, hidden) = (s.out("y", Bf16), s.scratch("hidden", Bf16)); // as many rows as x, as many columns as up has rows
    /// let tiles = s.tiles("tiles", y, (128, 256));
    /// let hidden_tiles = s.tiles_like("hidden_tiles", hidden, tiles);
    /// let rows = s.chunks("rows", hidden, 128);
    /// let ready = s.counters("ready", [rows.into()]);
    /// s.gemm(GemmOptions::default(), |s| {
    ///     s.for_items("t", hidden_tiles.all(), |s, t| {
    ///         let product = s.dot(x.at(t), up.at(t)).gelu();
    ///         s.store(hidden.at(t), product);
    ///         s.signal(ready.at(t.rows()), 1);
    ///     });
    ///     s.for_items("t", tiles.all(), |s, t| {
    ///         s.wait(ready.at(t.rows())); // all columns of these rows
    ///         let product = s.dot(hidden.at(t), down.at(t));
    ///         s.store(y.at(t), product);
    ///     });
    /// });
    /// assert!(s.finish().text().contains("hidden = symmetric<bf16>()"));
    /// ```
    #[track_caller]
    pub fn scratch(&mut self, name: &str, dtype: Dtype) -> TensorRef {
        self.tensor(
            name,
            Usage::scratch(HeldRows::Whole, Slots::Count(1)),
            dtype,
        )
    }
}
