//! The tensors of a schedule: its parameters and its scratch.

use super::{ScheduleBuilder, TensorRef, small};
use crate::dtype::Dtype;
use crate::program::{ScratchRows, Slots, Tensor, TensorId, TensorKind};
use std::panic::Location;

impl ScheduleBuilder {
    #[track_caller]
    fn tensor(&mut self, name: &str, kind: TensorKind, dtype: Dtype) -> TensorRef {
        let id = TensorId(small(self.program.tensors.len()));
        self.program.tensors.push(Tensor {
            name: name.into(),
            kind,
            dtype,
            at: Location::caller(),
        });
        TensorRef { id, extent: None }
    }

    /// An input in row chunks, one per rank. At the end every rank holds all of it ([`TensorKind::Gathered`]).
    #[track_caller]
    pub fn gathered(&mut self, name: &str, dtype: Dtype) -> TensorRef {
        self.tensor(name, TensorKind::Gathered, dtype)
    }
    /// An output in row chunks, of which each rank computes its own. At the end every rank holds all of it
    /// ([`TensorKind::GatheredOutput`]).
    #[track_caller]
    pub fn gathered_output(&mut self, name: &str, dtype: Dtype) -> TensorRef {
        self.tensor(name, TensorKind::GatheredOutput, dtype)
    }
    /// An input that each rank holds whole ([`TensorKind::Local`]).
    #[track_caller]
    pub fn local(&mut self, name: &str, dtype: Dtype) -> TensorRef {
        self.tensor(name, TensorKind::Local, dtype)
    }
    /// An input vector along the columns ([`TensorKind::Vector`]).
    #[track_caller]
    pub fn vector(&mut self, name: &str, dtype: Dtype) -> TensorRef {
        self.tensor(name, TensorKind::Vector, dtype)
    }
    /// An output that each rank holds whole ([`TensorKind::Out`]).
    #[track_caller]
    pub fn out(&mut self, name: &str, dtype: Dtype) -> TensorRef {
        self.tensor(name, TensorKind::Out, dtype)
    }
    /// An output that a launch adds to ([`TensorKind::Accumulated`]).
    #[track_caller]
    pub fn accumulated(&mut self, name: &str, dtype: Dtype) -> TensorRef {
        self.tensor(name, TensorKind::Accumulated, dtype)
    }
    /// An output summed over ranks. Each rank keeps its chunk ([`TensorKind::Scattered`]).
    #[track_caller]
    pub fn scattered(&mut self, name: &str, dtype: Dtype) -> TensorRef {
        self.tensor(name, TensorKind::Scattered, dtype)
    }
    /// An output summed over ranks. Every rank holds it whole ([`TensorKind::Reduced`]).
    #[track_caller]
    pub fn reduced(&mut self, name: &str, dtype: Dtype) -> TensorRef {
        self.tensor(name, TensorKind::Reduced, dtype)
    }

    /// An output with a slot for each rank. Each rank keeps its chunk of what every rank sends
    /// ([`TensorKind::Exchanged`]).
    #[track_caller]
    pub fn exchanged(&mut self, name: &str, dtype: Dtype) -> TensorRef {
        self.tensor(name, TensorKind::Exchanged, dtype)
    }

    /// Scratch in symmetric memory: `slots` copies of the shape of `like`.
    ///
    /// Each slot holds the chunk that its rank owns if `like` is [`TensorKind::Scattered`] or
    /// [`TensorKind::Exchanged`], all rows otherwise.
    /// [`TensorRef::chunk`] and [`TensorRef::whole`] choose explicitly.
    #[track_caller]
    pub fn symmetric(
        &mut self,
        name: &str,
        dtype: Dtype,
        like: TensorRef,
        slots: impl Into<Slots>,
    ) -> TensorRef {
        let owned = self
            .program
            .tensors
            .get(like.id.index())
            .is_some_and(|t| matches!(t.kind, TensorKind::Scattered | TensorKind::Exchanged));
        let extent = like.extent.unwrap_or(if owned {
            ScratchRows::Chunk
        } else {
            ScratchRows::Whole
        });
        self.tensor(
            name,
            TensorKind::Scratch {
                like: Some(like.id),
                extent,
                slots: slots.into(),
                scales_of: None,
            },
            dtype,
        )
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
    /// let rows = s.pieces("rows", hidden, 128);
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
        let kind = TensorKind::Scratch {
            like: None,
            extent: ScratchRows::Whole,
            slots: Slots::Count(1),
            scales_of: None,
        };
        self.tensor(name, kind, dtype)
    }
}
