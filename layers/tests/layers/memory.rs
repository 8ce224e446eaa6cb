//! Memory of steps: what a step allocates, what layers share, and what is given back.

use super::model::{Held, Sizes, tensor, weights};
use super::reference::Matrix;
use super::{each, userbuffers, userbuffers_of};
use crate::wide::wide;
use counterflow::prelude::bf16;
use counterflow::{Communicator, Error, Tensor};
use counterflow_layers::overlap::ModuleFlags;
use counterflow_layers::{
    Activation, DelayedScaling, Float8BlockScaling, Float8CurrentScaling, Normalization,
    QuantizationMode, Recipe, RngTracker, TransformerLayer, TransformerLayerConfig,
    TransformerLayerGradients, TransformerLayerParameters, TransformerLayerSaved, Userbuffers,
};
use std::sync::Arc;

const SIZES: Sizes = Sizes {
    hidden: 24,
    ffn: 48,
    heads: 6,
    groups: 6,
    depth: 16,
    kind: Normalization::LayerNorm,
    activation: Activation::SwiGlu,
    bias: true,
    causal: true,
    rope: true,
};
const BATCH: usize = 2;
const MOST: usize = 14;

/// Sizes whose features are whole 16s on each of two ranks, as FP8 needs.
const SIZES_IN_FP8: Sizes = Sizes {
    hidden: 32,
    ffn: 64,
    heads: 4,
    groups: 2,
    ..SIZES
};

pub fn flags(on: bool) -> ModuleFlags {
    ModuleFlags {
        ub_tp_comm_overlap: on,
        ..ModuleFlags::default()
    }
}

/// Sizes of layers, the rows of the first step, and those of the others.
#[derive(Clone, Copy)]
pub struct Shapes {
    pub sizes: Sizes,
    pub most: usize,
    pub others: [usize; 5],
}

pub const SHAPES: Shapes = Shapes {
    sizes: SIZES,
    most: MOST,
    // The same again, and fewer rows, which ranks may divide otherwise.
    others: [MOST, 8, 2, 10, MOST],
};

/// With scales of blocks each of two ranks has a multiple of 4 rows.
pub const SHAPES_IN_FP8: Shapes = Shapes {
    sizes: SIZES_IN_FP8,
    most: 16,
    others: [16, 8, 16, 8, 16],
};

type Change = fn(&mut TransformerLayerConfig);

/// Some layers of a rank, and tensors of a step's rows, all made before it.
pub struct Running {
    layers: Vec<TransformerLayer>,
    pub held: Held,
    pub x: Tensor<bf16>,
    pub ys: Vec<Tensor<bf16>>,
    pub dxs: Vec<Tensor<bf16>>,
    buffers: Userbuffers,
}

impl Running {
    pub fn new(
        rank: &Arc<Communicator>,
        buffers: &Userbuffers,
        Shapes { sizes, most, .. }: Shapes,
        (flags, fp8): (ModuleFlags, Option<Recipe>),
        change: Change,
    ) -> Result<Running, Error> {
        let mut config = sizes.layer();
        config.flags = flags;
        config.fp8 = fp8;
        (config.hidden_dropout, config.attention.dropout) = (0.1, 0.1);
        change(&mut config);
        let rng = Arc::new(RngTracker::new(1, rank.rank()));
        let made = (0..2).map(|_| TransformerLayer::new(buffers, &config, &rng));
        let layers: Vec<TransformerLayer> = made.collect::<Result<_, _>>()?;
        let whole = Matrix::random(most, sizes.hidden, 1.0, 7);
        let [rows, _] = layers[0].shape(most);
        // A rank may have more rows of fewer.
        let rows = rows.max(most.div_ceil(rank.world() as usize));
        let x = tensor(
            rank,
            [rows, sizes.hidden],
            &whole.part(0..rows, 0..sizes.hidden),
        )?;
        let zeros = || {
            (0..2)
                .map(|_| rank.zeros(x.shape()))
                .collect::<Result<Vec<_>, Error>>()
        };
        Ok(Running {
            held: Held::new(rank, &sizes, &weights(&sizes, 3))?,
            buffers: buffers.clone(),
            ys: zeros()?,
            dxs: zeros()?,
            x,
            layers,
        })
    }

    /// What `passes` does, in a step of FP8 if the layers are of that.
    pub fn in_step(
        &mut self,
        passes: impl FnOnce(&mut Running) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let is_fp8 = self.layers[0].mlp().config().fp8.is_some();
        let in_fp8 = is_fp8.then(|| self.buffers.autocast(None)).transpose()?;
        passes(self)?;
        match in_fp8 {
            Some(in_fp8) => in_fp8.end(),
            None => Ok(()),
        }
    }

    pub fn step(&mut self, rows: usize) -> Result<(), Error> {
        self.in_step(|running| {
            let saved = running.forward(rows)?;
            running.backward(rows, saved)
        })
    }

    pub fn forward(&mut self, rows: usize) -> Result<Vec<TransformerLayerSaved>, Error> {
        let shape = self.layers[0].shape(rows);
        let view = |of: &Tensor<bf16>| of.shaped(shape);
        let mut saved = Vec::new();
        let mut now = view(&self.x)?;
        for (layer, y) in self.layers.iter().zip(&self.ys) {
            let mut y = view(y)?;
            let (attention, mlp) = (self.held.attention(), self.held.mlp());
            let parameters = TransformerLayerParameters { attention, mlp };
            saved.push(layer.forward([rows, BATCH], &now, &parameters, &mut y)?);
            now = y;
        }
        Ok(saved)
    }

    /// The gradient of the last result is that result.
    pub fn backward(
        &mut self,
        rows: usize,
        saved: Vec<TransformerLayerSaved>,
    ) -> Result<(), Error> {
        let shape = self.layers[0].shape(rows);
        let view = |of: &Tensor<bf16>| of.shaped(shape);
        let mut now = view(&self.ys[self.ys.len() - 1])?;
        for ((layer, dx), saved) in self.layers.iter().zip(&self.dxs).zip(saved).rev() {
            let mut dx = view(dx)?;
            let frozen = [
                layer.attention().config().frozen[0],
                layer.attention().config().frozen[1],
                layer.mlp().config().frozen[0],
                layer.mlp().config().frozen[1],
            ];
            let ((attention, of_attention), (mlp, of_mlp)) = self.held.split(frozen);
            let parameters = TransformerLayerParameters { attention, mlp };
            let gradients = TransformerLayerGradients {
                attention: of_attention,
                mlp: of_mlp,
            };
            layer.backward(saved, &parameters, &now, &mut dx, gradients)?;
            now = dx;
        }
        Ok(())
    }

    /// The bits of all results and gradients.
    pub fn bits(&self) -> Result<Vec<u32>, Error> {
        let mut found = Vec::new();
        for tensor in self.ys.iter().chain(&self.dxs) {
            found.extend(tensor.read()?.into_iter().map(|x| u32::from(x.to_bits())));
        }
        for gradient in &self.held.gradients {
            found.extend(gradient.read()?.into_iter().map(f32::to_bits));
        }
        Ok(found)
    }
}

/// Tensors that steps after the first one allocate, and waits of the host.
fn taken(
    world: u32,
    shapes: Shapes,
    (on, fp8): (bool, Option<Recipe>),
    change: Change,
) -> Vec<[u64; 2]> {
    let found = each(world, |rank| {
        let mode = fp8.map_or(QuantizationMode::None, |_| QuantizationMode::Fp8);
        let shape = [shapes.most, shapes.sizes.hidden];
        let buffers = userbuffers_of(rank, shape, "", vec![mode])?;
        let mut running = Running::new(rank, &buffers, shapes, (flags(on), fp8), change)?;
        let counted = || [rank.tensors_allocated(), rank.host_waits()];
        let [before, _] = counted();
        running.step(shapes.most)?;
        let first = counted();
        assert!(first[0] > before, "the first step takes its memory");
        let heap = rank.heap_use();
        for rows in shapes.others {
            running.step(rows)?;
        }
        assert_eq!(rank.heap_use(), heap, "the symmetric heap");
        let last = counted();
        running.ys[0].read()?;
        assert!(rank.host_waits() > last[1], "a wait is seen");
        Ok([0, 1].map(|of| last[of] - first[of]))
    });
    found.expect("ranks")
}

#[test]
fn a_step_after_the_first_allocates_nothing_and_waits_for_nothing() {
    let changes: [Change; 3] = [
        |_| {},
        |config| config.mlp.recompute_activation = true,
        |config| {
            config.mlp.keep_gathered = true;
            config.mlp.frozen = [false, true];
        },
    ];
    let cases = [(3, true, 0), (2, true, 1), (1, false, 0), (2, false, 2)];
    for (world, on, change) in cases.into_iter().take(if wide() { 4 } else { 2 }) {
        let found = taken(world, SHAPES, (on, None), changes[change]);
        assert!(
            found.iter().all(|counts| *counts == [0, 0]),
            "{world} ranks, {change}: {found:?}"
        );
    }
}

#[test]
fn a_step_of_fp8_after_the_first_allocates_nothing_and_waits_for_nothing() {
    let recipes: [Recipe; 3] = [
        DelayedScaling::default().into(),
        Float8CurrentScaling::default().into(),
        Float8BlockScaling::default().into(),
    ];
    let cases = [(2, true, 2), (2, false, 1), (2, true, 0), (1, false, 0)];
    for (world, on, recipe) in cases.into_iter().take(if wide() { 4 } else { 2 }) {
        let recipe = recipes[recipe];
        let found = taken(world, SHAPES_IN_FP8, (on, Some(recipe)), |_| {});
        assert!(
            found.iter().all(|counts| *counts == [0, 0]),
            "{world} ranks, {recipe}: {found:?}"
        );
    }
}

/// What a layer gave back, the next one takes: where the first one has run, the others take nothing. They are built once for both counts:
/// on a GPU, kernels take most of the time.
#[test]
fn layers_share_the_memory_of_their_calls() {
    let found = each(2, |rank| {
        let buffers = userbuffers(rank, [MOST, SIZES.hidden], "")?;
        let mut config = SIZES.layer();
        config.flags = flags(true);
        let rng = Arc::new(RngTracker::new(1, rank.rank()));
        let made = (0..3).map(|_| TransformerLayer::new(&buffers, &config, &rng));
        let layers: Vec<TransformerLayer> = made.collect::<Result<_, _>>()?;
        let held = Held::new(rank, &SIZES, &weights(&SIZES, 3))?;
        let (x, mut y) = (
            rank.zeros(layers[0].shape(MOST))?,
            rank.zeros(layers[0].shape(MOST))?,
        );
        let mut taken = Vec::new();
        for layer in &layers {
            let before = rank.tensors_allocated();
            let (attention, mlp) = (held.attention(), held.mlp());
            let parameters = TransformerLayerParameters { attention, mlp };
            drop(layer.forward([MOST, BATCH], &x, &parameters, &mut y)?);
            taken.push(rank.tensors_allocated() - before);
        }
        Ok(taken)
    });
    for taken in found.expect("two ranks") {
        assert!(taken[0] > 0 && taken[1..] == [0, 0], "{taken:?}");
    }
}

/// Buffers and layers that are dropped leave the heap as it was.
#[test]
fn what_is_dropped_is_used_again() {
    let done = each(2, |rank| {
        let mut peaks = Vec::new();
        for _ in 0..3 {
            let buffers = userbuffers(rank, [MOST, SIZES.hidden], "")?;
            let mut running = Running::new(rank, &buffers, SHAPES, (flags(true), None), |_| {})?;
            running.step(MOST)?;
            rank.synchronize()?;
            drop((running, buffers));
            rank.barrier()?;
            let heap = rank.heap_use();
            peaks.push(heap.peak);
            let left: Vec<_> = heap.held.iter().map(|held| &held.name).collect();
            assert!(
                !left
                    .iter()
                    .any(|name| ["gathered", "summed"].contains(&&***name)),
                "{left:?}"
            );
        }
        assert!(peaks.windows(2).all(|two| two[0] == two[1]), "{peaks:?}");
        Ok(())
    });
    done.expect("two ranks");
}
