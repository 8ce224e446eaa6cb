//! Whole layers on emulated ranks against an unsharded model in f64: outputs, and every gradient.

use super::model::{
    Exact, Held, NAMES, Part, Path, Sizes, Weights, close, exactly, tensor, weights,
};
use super::reference::Matrix;
use super::{each, userbuffers};
use counterflow::prelude::bf16;
use counterflow::{Communicator, Error, Tensor};
use counterflow_layers::overlap::ModuleFlags;
use counterflow_layers::{
    Activation, LayerNormMlp, LayerNormMlpSaved, MultiheadAttention, MultiheadAttentionSaved,
    Normalization, Product, RngTracker, TransformerLayer, TransformerLayerConfig,
    TransformerLayerSaved,
};
use std::sync::Arc;

/// Rows of each call, of two sequences: most, fewer than ranks, some.
const ROWS: [usize; 3] = [22, 2, 10];
const BATCH: usize = 2;
/// What gradients are before the first call.
const BEFORE: f32 = 0.25;

struct Case {
    name: &'static str,
    part: Part,
    sizes: Sizes,
    config: &'static str,
    flags: ModuleFlags,
    change: fn(&mut TransformerLayerConfig),
}

const ON: ModuleFlags = ModuleFlags {
    ub_tp_comm_overlap: true,
    ub_overlap_ag: true,
    ub_overlap_rs: true,
    ub_overlap_rs_dgrad: false,
    ub_bulk_dgrad: true,
    ub_bulk_wgrad: true,
};

const OFF: ModuleFlags = ModuleFlags {
    ub_tp_comm_overlap: false,
    ..ON
};

const RS_DGRAD: ModuleFlags = ModuleFlags {
    ub_overlap_rs_dgrad: true,
    ..ON
};

/// What `RS_DGRAD` needs.
const PIPELINED: &str = "qkv_dgrad: {method: pipeline}\nfc1_dgrad: {method: ring_exchange}";

fn sizes(world: usize) -> Sizes {
    Sizes {
        hidden: 48,
        ffn: 96,
        heads: 2 * world,
        groups: world,
        depth: 16,
        kind: Normalization::LayerNorm,
        activation: Activation::Gelu,
        bias: true,
        causal: true,
        rope: true,
    }
}

fn cases(world: usize) -> Vec<Case> {
    let gelu = sizes(world);
    let swiglu = Sizes {
        kind: Normalization::RmsNorm,
        activation: Activation::SwiGlu,
        bias: false,
        ..gelu
    };
    let plain = Sizes {
        causal: false,
        rope: false,
        groups: 2 * world,
        ..gelu
    };
    let case = |name, part, sizes, (config, flags), change| Case {
        name,
        part,
        sizes,
        config,
        flags,
        change,
    };
    let same: fn(&mut TransformerLayerConfig) = |_| {};
    vec![
        case("gelu, bulk", Part::Mlp, gelu, ("", ON), same),
        case(
            "swiglu, rs of dgrad",
            Part::Mlp,
            swiglu,
            (PIPELINED, RS_DGRAD),
            same,
        ),
        case(
            "swiglu, frozen fc1, recomputed",
            Part::Mlp,
            swiglu,
            ("", ON),
            |layer| {
                layer.mlp.frozen = [true, false];
                layer.mlp.recompute_activation = true;
            },
        ),
        case(
            "gelu, frozen fc2, kept",
            Part::Mlp,
            gelu,
            ("", ON),
            |layer| {
                layer.mlp.frozen = [false, true];
                layer.mlp.keep_gathered = true;
            },
        ),
        case(
            "swiglu with biases, nothing overlapped",
            Part::Mlp,
            Sizes {
                bias: true,
                ..swiglu
            },
            ("", OFF),
            same,
        ),
        case(
            "auto",
            Part::Mlp,
            gelu,
            (
                "fc1_fprop: {method: auto}\nfc2_fprop: {method: auto}\nfc2_dgrad: {method: auto}",
                ON,
            ),
            same,
        ),
        case(
            "causal, grouped, bulk",
            Part::Attention,
            gelu,
            ("", ON),
            same,
        ),
        case(
            "all keys, rs of dgrad",
            Part::Attention,
            plain,
            (PIPELINED, RS_DGRAD),
            same,
        ),
        case(
            "no bias, frozen qkv",
            Part::Attention,
            swiglu,
            ("", ON),
            |layer| layer.attention.frozen = [true, false],
        ),
        case(
            "nothing overlapped",
            Part::Attention,
            gelu,
            ("", OFF),
            |layer| layer.attention.frozen = [false, true],
        ),
        case("gelu, bulk", Part::Layer, gelu, ("", ON), same),
        case(
            "swiglu, rs of dgrad",
            Part::Layer,
            swiglu,
            (PIPELINED, RS_DGRAD),
            same,
        ),
        case("nothing overlapped", Part::Layer, swiglu, ("", OFF), same),
        case(
            "rings",
            Part::Layer,
            gelu,
            (
                "qkv_fprop: {use_ce: 0, num_sm: 2}\nfc1_fprop: {use_ce: 0, aggregate: 1}",
                ON,
            ),
            same,
        ),
    ]
}

enum Built {
    Attention(Box<MultiheadAttention>),
    Mlp(Box<LayerNormMlp>),
    Layer(Box<TransformerLayer>),
}

enum Saved {
    Attention(MultiheadAttentionSaved),
    Mlp(LayerNormMlpSaved),
    Layer(Box<TransformerLayerSaved>),
}

impl Built {
    fn new(rank: &Arc<Communicator>, case: &Case) -> Result<Built, Error> {
        let mut config = case.sizes.layer();
        config.flags = case.flags;
        let flags = case.flags.flags();
        (config.attention.flags, config.mlp.flags) = (flags, flags);
        (case.change)(&mut config);
        let buffers = userbuffers(rank, [ROWS[0], case.sizes.hidden], case.config)?;
        let rng = Arc::new(RngTracker::new(1, rank.rank()));
        Ok(match case.part {
            Part::Attention => {
                let layer = MultiheadAttention::new(&buffers, &config.attention, &rng)?;
                Built::Attention(Box::new(layer))
            }
            Part::Mlp => Built::Mlp(Box::new(LayerNormMlp::new(&buffers, &config.mlp)?)),
            Part::Layer => Built::Layer(Box::new(TransformerLayer::new(&buffers, &config, &rng)?)),
        })
    }

    fn shape(&self, rows: usize) -> [usize; 2] {
        match self {
            Built::Attention(layer) => layer.shape(rows),
            Built::Mlp(layer) => layer.shape(rows),
            Built::Layer(layer) => layer.shape(rows),
        }
    }

    fn products(&self) -> Vec<Product> {
        match self {
            Built::Attention(layer) => layer.products(),
            Built::Mlp(layer) => layer.products(),
            Built::Layer(layer) => layer.products(),
        }
    }

    fn frozen(&self) -> [bool; 4] {
        let of_mlp = |layer: &LayerNormMlp| layer.config().frozen;
        let (attention, mlp) = match self {
            Built::Attention(layer) => (layer.config().frozen, [false; 2]),
            Built::Mlp(layer) => ([false; 2], of_mlp(layer)),
            Built::Layer(layer) => (layer.attention().config().frozen, of_mlp(layer.mlp())),
        };
        [attention[0], attention[1], mlp[0], mlp[1]]
    }

    fn forward(
        &self,
        rows: usize,
        x: &Tensor<bf16>,
        held: &Held,
        y: &mut Tensor<bf16>,
    ) -> Result<Saved, Error> {
        let (attention, mlp) = (held.attention(), held.mlp());
        Ok(match self {
            Built::Attention(layer) => {
                Saved::Attention(layer.forward([rows, BATCH], x, &attention, y)?)
            }
            Built::Mlp(layer) => Saved::Mlp(layer.forward(rows, x, &mlp, y)?),
            Built::Layer(layer) => {
                let both = counterflow_layers::TransformerLayerParameters { attention, mlp };
                Saved::Layer(Box::new(layer.forward([rows, BATCH], x, &both, y)?))
            }
        })
    }

    fn backward(
        &self,
        saved: Saved,
        held: &mut Held,
        dy: &Tensor<bf16>,
        dx: &mut Tensor<bf16>,
    ) -> Result<(), Error> {
        let frozen = self.frozen();
        let ((attention, of_attention), (mlp, of_mlp)) = held.split(frozen);
        match (self, saved) {
            (Built::Attention(layer), Saved::Attention(saved)) => {
                layer.backward(saved, &attention, dy, dx, of_attention)
            }
            (Built::Mlp(layer), Saved::Mlp(saved)) => layer.backward(saved, &mlp, dy, dx, of_mlp),
            (Built::Layer(layer), Saved::Layer(saved)) => {
                let parameters = counterflow_layers::TransformerLayerParameters { attention, mlp };
                let gradients = counterflow_layers::TransformerLayerGradients {
                    attention: of_attention,
                    mlp: of_mlp,
                };
                layer.backward(*saved, &parameters, dy, dx, gradients)
            }
            (Built::Attention(_) | Built::Mlp(_) | Built::Layer(_), _) => unreachable!("its own"),
        }
    }
}

struct Round {
    x: Matrix,
    dy: Matrix,
    exact: Exact,
}

fn wide<T: Copy + Into<f64>>(values: &[T]) -> Vec<f64> {
    values.iter().map(|value| (*value).into()).collect()
}

/// What a rank found: the bits of all, and the gradients that are sums over ranks.
struct Found {
    bits: Vec<u64>,
    of_norms: Vec<(usize, Vec<f64>)>,
}

/// What came out of a layer.
#[derive(Clone, Copy)]
enum Kind {
    Output,
    Gradient,
}

/// What an activation multiplies the variance of its input's relative error by: ∫ (x f'(x))² / ∫ f(x)² over normal numbers of a deviation
/// from 0.7 to 2, for GELU and SiLU. And the same of its slope.
const ACTIVATION: [f64; 2] = [1.5, 0.15];

/// Roundings to bf16 between inputs and what comes out, by what is written to memory on the way.
fn path(part: Part, sizes: &Sizes, world: u32, kind: Kind) -> Path {
    let turned = f64::from(u8::from(sizes.rope));
    // Normalised rows, then what a product of them wrote.
    let written = 2.0;
    // What travels to be summed, and the sum.
    let summed = if world == 1 { 1.0 } else { 2.0 };
    // SwiGLU multiplies by another number that fc1 wrote.
    let [value_of, slope_of] = ACTIVATION;
    let (activated, slope) = match sizes.activation {
        Activation::Gelu => (value_of * written, slope_of * written),
        Activation::SwiGlu => ((value_of + 1.0) * written, (value_of + slope_of) * written),
    };
    // The activation's result, and the sum.
    let mlp = activated + 1.0 + summed;
    // A value is not turned.
    let (key, value) = (written + turned, written);
    // Probabilities come of a query and a key; heads' outputs are written; and the sum.
    let attention = 2.0 * key + value + 1.0 + summed;
    // The gradient behind the activation, times its slope; the gradient before it; the sum; and the norm's result.
    let of_mlp = 1.0 + slope + 1.0 + summed + 1.0;
    // The gradient of heads' outputs; those of probabilities have it and a value, less a sum with the output; then probabilities, and
    // the other one of query and key; what is written, turned back, the sum, and the norm's result.
    let of_probabilities = (1.0 + value) + (value + 2.0 * key + 1.0);
    let of_attention = 1.0 + of_probabilities + key + 1.0 + turned + summed + 1.0;
    // The sums with what goes past attention and MLP.
    let residuals = 2.0;
    let (output, gradient, most) = match part {
        Part::Mlp => (mlp, of_mlp, 5.0),
        Part::Attention => (attention, of_attention, 10.0),
        // The MLP's slopes and norm have what attention and the first sum left.
        Part::Layer => (
            attention + mlp + residuals,
            of_attention + of_mlp + attention + residuals,
            14.0,
        ),
    };
    Path {
        roundings: match kind {
            Kind::Output => output,
            Kind::Gradient => gradient,
        },
        most,
    }
}

fn run(
    rank: &Arc<Communicator>,
    case: &Case,
    whole: &Weights,
    rounds: &[Round],
) -> Result<Found, Error> {
    let (me, world, hidden) = (rank.rank(), rank.world(), case.sizes.hidden);
    let layer = Built::new(rank, case)?;
    let overlaps = layer.products().iter().filter(|one| one.overlaps).count();
    let wanted = case.flags.ub_tp_comm_overlap && world > 1;
    // Of what `auto` does, any number may be fused.
    let auto = case.config.contains("auto");
    assert!(
        auto || (overlaps > 0) == wanted,
        "{}: {overlaps} overlap",
        case.name
    );
    let mut held = Held::new(rank, &case.sizes, whole)?;
    for gradient in &held.gradients {
        gradient.write(&vec![BEFORE; gradient.len()])?;
    }
    let name = |what: &str| {
        format!(
            "{:?}, {}, rank {me} of {world}: {what}",
            case.part, case.name
        )
    };
    let of_gradients = path(case.part, &case.sizes, world, Kind::Gradient);
    let mut bits = Vec::new();
    let mut saved = Vec::new();
    for round in rounds {
        let rows = round.x.rows();
        let shard = rank.shard(me, rows);
        let x = tensor(
            rank,
            layer.shape(rows),
            &round.x.part(shard.clone(), 0..hidden),
        )?;
        let mut y = rank.zeros(layer.shape(rows))?;
        y.fill(0xff)?; // NaN
        saved.push(layer.forward(rows, &x, &held, &mut y)?);
        let found = wide(&y.read()?);
        let own = shard.start * hidden..shard.end * hidden;
        close(
            &name(&format!("y of {rows}")),
            &found,
            &round.exact.y[own],
            hidden,
            path(case.part, &case.sizes, world, Kind::Output),
        );
        bits.extend(found.iter().map(|value| value.to_bits()));
    }
    for (round, saved) in rounds.iter().zip(saved).rev() {
        let rows = round.x.rows();
        let shard = rank.shard(me, rows);
        let dy = tensor(
            rank,
            layer.shape(rows),
            &round.dy.part(shard.clone(), 0..hidden),
        )?;
        let mut dx = rank.zeros(layer.shape(rows))?;
        dx.fill(0xff)?;
        layer.backward(saved, &mut held, &dy, &mut dx)?;
        let found = wide(&dx.read()?);
        let own = shard.start * hidden..shard.end * hidden;
        close(
            &name(&format!("dx of {rows}")),
            &found,
            &round.exact.dx[own],
            hidden,
            of_gradients,
        );
        bits.extend(found.iter().map(|value| value.to_bits()));
    }
    let frozen = layer.frozen();
    let mut of_norms = Vec::new();
    for (at, what) in NAMES.iter().enumerate() {
        let found = wide(&held.gradients[at].read()?);
        bits.extend(found.iter().map(|value| value.to_bits()));
        let is_frozen = [2, 4, 8, 10]
            .iter()
            .zip(frozen)
            .any(|(weight, frozen)| frozen && *weight == at);
        if !case.part.has(&case.sizes, at) || is_frozen {
            assert!(
                found.iter().all(|value| *value == f64::from(BEFORE)),
                "{what} is written"
            );
            continue;
        }
        let added: Vec<f64> = found
            .iter()
            .map(|value| value - f64::from(BEFORE))
            .collect();
        if [0, 1, 6, 7].contains(&at) {
            of_norms.push((at, added));
            continue;
        }
        let mut all = vec![0.0; held.part(at, &rounds[0].exact.gradients[at]).len()];
        for round in rounds {
            let own = held.part(at, &round.exact.gradients[at]);
            all.iter_mut().zip(own).for_each(|(all, own)| *all += own);
        }
        let [_, columns] = held.gradients[at].shape();
        close(&name(what), &added, &all, columns, of_gradients);
    }
    Ok(Found { bits, of_norms })
}

/// A case in that many ranks. Gives the bits of each.
fn done(case: &Case, world: usize) -> Vec<Vec<u64>> {
    let whole = weights(&case.sizes, 100);
    let rounds = ROWS.iter().zip(1..).map(|(rows, seed)| {
        let x = Matrix::random(*rows, case.sizes.hidden, 2.0, 10 * seed);
        let dy = Matrix::random(*rows, case.sizes.hidden, 1.0, 10 * seed + 1);
        let exact = exactly(&case.sizes, case.part, &whole, BATCH, &x, &dy);
        Round { x, dy, exact }
    });
    let rounds: Vec<Round> = rounds.collect();
    let found = each(world as u32, |rank| run(rank, case, &whole, &rounds));
    let found = found.unwrap_or_else(|error| panic!("{}, {world} ranks: {error}", case.name));
    for (which, (at, first)) in found[0].of_norms.iter().enumerate() {
        let mut sum = vec![0.0; first.len()];
        for rank in &found {
            let own = &rank.of_norms[which].1;
            sum.iter_mut().zip(own).for_each(|(sum, own)| *sum += own);
        }
        let mut all = vec![0.0; first.len()];
        for round in &rounds {
            let more = &round.exact.gradients[*at];
            all.iter_mut()
                .zip(more)
                .for_each(|(all, more)| *all += more);
        }
        let name = format!("{}, {world} ranks: {}", case.name, NAMES[*at]);
        let path = path(case.part, &case.sizes, world as u32, Kind::Gradient);
        close(&name, &sum, &all, sum.len(), path);
    }
    found.into_iter().map(|found| found.bits).collect()
}

/// Every case of a part in every world with `WIDE=1`; else one case for two ranks and another for three. Three ranks have the same bits
/// when all is done once more.
fn all(part: Part) {
    let wide = crate::wide::wide();
    for world in if wide { 1..=4 } else { 2..=3 } {
        let cases: Vec<Case> = cases(world)
            .into_iter()
            .filter(|case| case.part == part)
            .collect();
        let count = cases.len();
        for (at, case) in cases.iter().enumerate() {
            if !wide && at != world % count {
                continue;
            }
            let bits = done(case, world);
            assert!(bits.iter().all(|bits| bits.len() > 1000));
            if world == 3 {
                assert!(bits == done(case, world), "{}: other bits", case.name);
            }
        }
    }
}

#[test]
fn layer_norm_mlp() {
    all(Part::Mlp);
}

#[test]
fn multihead_attention() {
    all(Part::Attention);
}

#[test]
fn transformer_layer() {
    all(Part::Layer);
}
