//! Memory of steps: what a step allocates, what layers share, and what is given back.

use super::model::{Held, Sizes, tensor, weights};
use super::reference::Matrix;
use super::{each, userbuffers};
use counterflow::prelude::bf16;
use counterflow::{Communicator, Error, Tensor};
use counterflow_layers::overlap::ModuleFlags;
use counterflow_layers::{
    Activation, Normalization, RngTracker, TransformerLayer, TransformerLayerGradients,
    TransformerLayerParameters, Userbuffers,
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

fn flags(on: bool) -> ModuleFlags {
    ModuleFlags {
        ub_tp_comm_overlap: on,
        // Ops of weights' gradients beside a sum are built for a number of rows when it comes.
        ub_bulk_wgrad: false,
        ..ModuleFlags::default()
    }
}

/// Some layers of a rank, and tensors of a step's rows, all made before it.
struct Running {
    layers: Vec<TransformerLayer>,
    held: Held,
    x: Tensor<bf16>,
    ys: Vec<Tensor<bf16>>,
    dxs: Vec<Tensor<bf16>>,
}

impl Running {
    fn new(
        rank: &Arc<Communicator>,
        buffers: &Userbuffers,
        flags: ModuleFlags,
        change: fn(&mut counterflow_layers::TransformerLayerConfig),
    ) -> Result<Running, Error> {
        let mut config = SIZES.layer();
        config.flags = flags;
        (config.hidden_dropout, config.attention.dropout) = (0.1, 0.1);
        change(&mut config);
        let rng = Arc::new(RngTracker::new(1, rank.rank()));
        let made = (0..2).map(|_| TransformerLayer::new(buffers, &config, &rng));
        let layers: Vec<TransformerLayer> = made.collect::<Result<_, _>>()?;
        let whole = Matrix::random(MOST, SIZES.hidden, 1.0, 7);
        let [rows, _] = layers[0].shape(MOST);
        // A rank may have more rows of fewer.
        let rows = rows.max(MOST.div_ceil(rank.world() as usize));
        let x = tensor(
            rank,
            [rows, SIZES.hidden],
            &whole.part(0..rows, 0..SIZES.hidden),
        )?;
        let zeros = || {
            (0..2)
                .map(|_| rank.zeros(x.shape()))
                .collect::<Result<Vec<_>, Error>>()
        };
        Ok(Running {
            held: Held::new(rank, &SIZES, &weights(&SIZES, 3))?,
            ys: zeros()?,
            dxs: zeros()?,
            x,
            layers,
        })
    }

    fn step(&mut self, rows: usize) -> Result<(), Error> {
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
}

/// Allocations of each step after the first one.
fn allocations(
    world: u32,
    on: bool,
    change: fn(&mut counterflow_layers::TransformerLayerConfig),
) -> Vec<u64> {
    let found = each(world, |rank| {
        let buffers = userbuffers(rank, [MOST, SIZES.hidden], "")?;
        let mut running = Running::new(rank, &buffers, flags(on), change)?;
        let before = rank.tensors_allocated();
        running.step(MOST)?;
        let first = rank.tensors_allocated();
        assert!(first > before, "the first step takes its memory");
        let heap = rank.heap_use();
        // The same again, and fewer rows, which ranks may divide otherwise.
        for rows in [MOST, 8, 2, 10, MOST] {
            running.step(rows)?;
        }
        assert_eq!(rank.heap_use(), heap, "the symmetric heap");
        Ok(rank.tensors_allocated() - first)
    });
    found.expect("ranks")
}

#[test]
fn a_step_after_the_first_allocates_nothing() {
    let changes: [fn(&mut counterflow_layers::TransformerLayerConfig); 3] = [
        |_| {},
        |config| config.mlp.recompute_activation = true,
        |config| {
            config.mlp.keep_gathered = true;
            config.mlp.frozen = [false, true];
        },
    ];
    for (world, on, change) in [(1, false, 0), (3, true, 0), (2, true, 1), (2, false, 2)] {
        let found = allocations(world, on, changes[change]);
        assert!(
            found.iter().all(|count| *count == 0),
            "{world} ranks, {change}: {found:?}"
        );
    }
}

/// What a layer gave back, the next one takes: without what is saved, four layers take as much as one.
#[test]
fn layers_share_the_memory_of_their_calls() {
    let taken = |count: usize| {
        let found = each(2, |rank| {
            let buffers = userbuffers(rank, [MOST, SIZES.hidden], "")?;
            let mut config = SIZES.layer();
            config.flags = flags(true);
            let rng = Arc::new(RngTracker::new(1, rank.rank()));
            let made = (0..count).map(|_| TransformerLayer::new(&buffers, &config, &rng));
            let layers: Vec<TransformerLayer> = made.collect::<Result<_, _>>()?;
            let held = Held::new(rank, &SIZES, &weights(&SIZES, 3))?;
            let (x, mut y) = (
                rank.zeros(layers[0].shape(MOST))?,
                rank.zeros(layers[0].shape(MOST))?,
            );
            let before = rank.tensors_allocated();
            for layer in &layers {
                let (attention, mlp) = (held.attention(), held.mlp());
                let parameters = TransformerLayerParameters { attention, mlp };
                drop(layer.forward([MOST, BATCH], &x, &parameters, &mut y)?);
            }
            Ok(rank.tensors_allocated() - before)
        });
        found.expect("two ranks")
    };
    assert_eq!(taken(1), taken(4));
}

/// Buffers and layers that are dropped leave the heap as it was.
#[test]
fn what_is_dropped_is_used_again() {
    let done = each(2, |rank| {
        let mut peaks = Vec::new();
        for _ in 0..3 {
            let buffers = userbuffers(rank, [MOST, SIZES.hidden], "")?;
            let mut running = Running::new(rank, &buffers, flags(true), |_| {})?;
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
