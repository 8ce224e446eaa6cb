//! Layers and calls that cannot be, each with what to do. Nothing is enqueued, and nobody waits.

use super::{each, userbuffers};
use counterflow::prelude::bf16;
use counterflow::{Dtype, Error, Layout, Tensor};
use counterflow_layers::overlap::{Comm, Config, Flags, Settings};
use counterflow_layers::{
    CommOverlap, CommOverlapP2P, Destination, GradientSum, Gradients, Initialize, Linear,
    LinearConfig, Operand, Parameters, QuantizationMode, Userbuffers, VocabParallelCrossEntropy,
    VocabParallelEmbedding,
};

fn told<T: std::fmt::Debug>(result: Result<T, Error>) -> String {
    let error = result.expect_err("refused");
    format!("{error}: {}", error.help().unwrap_or_default())
}

#[test]
fn layers() {
    let all = each(2, |rank| {
        let buffers = userbuffers(rank, [64, 64], "fc1_dgrad: {method: pipeline}")?;
        let named = |name: &str, flags| LinearConfig {
            ub_name: Some(name.into()),
            flags,
            ..LinearConfig::column(64, 64)
        };
        let ag = Flags {
            ub_overlap_ag: true,
            ..Flags::default()
        };
        let bulk = Flags {
            ub_bulk_dgrad: true,
            ..Flags::default()
        };
        let sums = Flags {
            ub_overlap_rs_dgrad: true,
            ..Flags::default()
        };
        let table = [
            (
                LinearConfig::column(64, 63),
                "out_features is 63, which 2 ranks divide: give a multiple of 16",
            ),
            (
                LinearConfig::row(0, 64),
                "in_features is 0, which 2 ranks divide: give a multiple of 16",
            ),
            (
                LinearConfig::column(128, 64),
                "in_features is 128, with buffers of 64 columns: ",
            ),
            (
                LinearConfig {
                    flags: ag,
                    ..LinearConfig::row(64, 64)
                },
                "a layer overlaps its communication and has no ub_name: ",
            ),
            (
                LinearConfig {
                    keep_gathered: true,
                    ..LinearConfig::row(64, 64)
                },
                "keep_gathered of a row-parallel layer: ",
            ),
            (
                named("proj", ag),
                "proj_fprop of a column-parallel layer: `proj` is a row-parallel layer: give yours another name",
            ),
            (named("my layer", ag), "`my layer` as the name of a layer: "),
            (
                named("fc1", bulk),
                "ub_bulk_dgrad or ub_bulk_wgrad, where fc1_dgrad has the method pipeline: set ub_overlap_rs_dgrad",
            ),
            (
                named("qkv", sums),
                "ub_overlap_rs_dgrad, where qkv_dgrad has the method bulk: give qkv_dgrad the method pipeline",
            ),
        ];
        for (layer, wanted) in table {
            let told = told(Linear::new(&buffers, &layer));
            assert!(told.starts_with(wanted), "{told}");
        }
        // What is overlapped nowhere needs no name, and one that nothing has settings for is a name.
        Linear::new(&buffers, &LinearConfig::column(64, 64))?;
        Linear::new(&buffers, &named("my-layer.3", ag)).map(drop)
    });
    all.expect("two layers");
}

#[test]
fn calls() {
    let all = each(2, |rank| {
        let buffers = userbuffers(rank, [16, 16], "")?;
        let layer = Linear::new(
            &buffers,
            &LinearConfig {
                bias: true,
                ..LinearConfig::column(16, 32)
            },
        )?;
        let weight = rank.zeros::<bf16>(layer.weight_shape())?;
        let bias = rank.zeros::<bf16>(layer.bias_shape())?;
        let parameters = Parameters {
            weight: &weight,
            bias: Some(&bias),
        };
        let x = rank.zeros(layer.input_shape(6))?;
        let mut y = rank.zeros(layer.output_shape(6))?;
        let mut forward = |rows, x: &Tensor<bf16>, parameters: &Parameters<'_>| {
            told(layer.forward(rows, x, parameters, &mut y))
        };
        let found = forward(17, &x, &parameters);
        assert!(
            found.starts_with("17 rows, with buffers for 16: "),
            "{found}"
        );
        let found = forward(6, &weight, &parameters);
        assert_eq!(found, "x is 16 x 16: give 3 x 16");
        let found = forward(8, &x, &parameters);
        assert_eq!(found, "x is 3 x 16: give 4 x 16");
        let found = forward(
            6,
            &x,
            &Parameters {
                bias: None,
                ..parameters
            },
        );
        assert!(found.starts_with("a bias is not given: "), "{found}");
        let found = forward(
            6,
            &x,
            &Parameters {
                weight: &bias,
                ..parameters
            },
        );
        assert_eq!(found, "the weight is 1 x 16: give 16 x 16");

        let mut of_bias = rank.zeros::<f32>([1, 15])?;
        let dy = rank.zeros(layer.output_shape(6))?;
        let mut dx = rank.zeros(layer.input_shape(6))?;
        let mut of_weight = rank.zeros::<f32>(layer.weight_shape())?;
        let saved = layer.forward(6, &x, &parameters, &mut y)?;
        let found = layer.backward(saved, &parameters, &dy, &mut dx, Gradients::default());
        let found = told(found);
        assert!(
            found.starts_with("the weight's gradient is not given: "),
            "{found}"
        );
        let saved = layer.forward(6, &x, &parameters, &mut y)?;
        let gradients = Gradients {
            weight: Some(&mut of_weight),
            bias: Some(&mut of_bias),
        };
        let found = told(layer.backward(saved, &parameters, &dy, &mut dx, gradients));
        assert_eq!(found, "the bias's gradient is 1 x 15: give 1 x 16");

        // No rows: nothing is launched, and nothing is lost.
        let (x, mut y) = (
            rank.zeros(layer.input_shape(0))?,
            rank.zeros(layer.output_shape(0))?,
        );
        layer.forward(0, &x, &parameters, &mut y)?;
        rank.barrier()?;
        rank.synchronize()
    });
    all.expect("refusals end nothing");
}

#[test]
fn buffers() {
    let all = each(2, |rank| {
        let usual = Initialize::new([64, 64], 2);
        let two = vec![Config::default(); 2];
        let none = vec![QuantizationMode::None; 2];
        let table = [
            (
                Initialize {
                    tp_size: 4,
                    ..usual.clone()
                },
                "tp_size is 4, and the communicator has 2 ranks: ",
            ),
            (
                Initialize {
                    shape: [0, 64],
                    ..usual.clone()
                },
                "buffers of 0 x 64: ",
            ),
            (
                Initialize {
                    dtype: Dtype::F16,
                    ..usual.clone()
                },
                "not yet: layers of f16: ",
            ),
            (
                Initialize {
                    quantization_modes: none,
                    ..usual.clone()
                },
                "quantization_modes are [None, None]: name each mode once",
            ),
            (
                Initialize {
                    ub_cfgs: two,
                    ..usual.clone()
                },
                "2 ub_cfgs for 1 quantization_modes: give one for all modes",
            ),
        ];
        for (arguments, wanted) in table {
            let told = told(Userbuffers::initialize(rank, &arguments));
            assert!(told.starts_with(wanted), "{told}");
        }
        rank.barrier()
    });
    all.expect("refusals end nothing");
    assert!(
        "tcp"
            .parse::<counterflow_layers::BootstrapBackend>()
            .is_err()
    );
}

/// The margin reaches every op that waits for peers: none leaves all SMs to others.
#[test]
fn a_margin_of_all_sms() {
    let all = each(2, |rank| {
        let sms = 132;
        rank.reserve(32 << 20)?;
        let arguments = Initialize {
            ext_margin_sm: sms,
            ..Initialize::new([16, 32], 2)
        };
        let buffers = Userbuffers::initialize(rank, &arguments)?;
        let of = |comm| CommOverlapP2P::beside(rank, [16, 32], comm, &Settings::default(), sms);
        let (gathers, sums) = (of(Comm::AllGather)?, of(Comm::ReduceScatter)?);
        let bulk = CommOverlap::beside(rank, [16, 32], &Settings::default(), sms)?;
        let (weight, x) = (rank.zeros::<bf16>([32, 32])?, rank.zeros::<bf16>([16, 32])?);
        let w = || Operand {
            tensor: (&weight).into(),
            bias: None,
            layout: Layout::Nt,
        };
        let (mut y, mut own) = (rank.zeros([16, 32])?, rank.zeros([8, 32])?);
        let mut dw = rank.zeros([32, 32])?;
        let refusals = [
            VocabParallelEmbedding::new(&buffers, [32, 32]).map(drop),
            VocabParallelCrossEntropy::beside(rank, 16, sms).map(drop),
            GradientSum::beside(rank, 64, sms).map(drop),
            Linear::new(&buffers, &LinearConfig::column(32, 32)).map(drop),
            gathers.split_overlap_ag(16, w(), &mut y, None),
            sums.split_overlap_rs(16, &x, w(), &mut own),
            bulk.split_overlap_rs(16, &x, w(), &mut own),
            bulk.bulk_overlap(
                16,
                [&x, &weight],
                Layout::Nt,
                Destination::Written(&mut y),
                Comm::AllGather,
                None,
            ),
            bulk.bulk_overlap(
                16,
                [&x, &x],
                Layout::Tn,
                Destination::AddedTo(&mut dw),
                Comm::ReduceScatter,
                Some(&mut own),
            ),
        ];
        let told = |refused: Result<(), Error>| refused.err().map(|error| error.to_string());
        Ok(refusals.map(told))
    });
    for refusals in all.expect("two ranks") {
        for (at, told) in refusals.iter().enumerate() {
            let wanted = Some("132 of 132 SMs left to others");
            assert_eq!(told.as_deref(), wanted, "{at}");
        }
    }
}
