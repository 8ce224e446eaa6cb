//! Defects that reading TransformerEngine's userbuffers finds, and the test that each does not exist here.
//!
//! | | defect there | here |
//! |---|---|---|
//! | H1 | a wait that ends at its limit goes on, and its results are wrong | [`a_rank_that_does_not_come_is_an_error_and_no_result`] |
//! | H2 | with several SMs that send, a receiver goes on after the first one | [`sms_that_communicate_change_no_bit`] |
//! | H3 | with 5, 6 or 7 ranks nothing is launched | [`every_number_of_ranks`] |
//! | H4 | few elements are left out, and so are tails | [`few_elements_and_tails`]; of sums, `training::gradients_are_summed_over_ranks` |
//! | H5 | f16 is added as if it were bf16 | layers refuse f16: `refused::buffers`; sums of f16 by themselves: `suites::gathered_and_summed_products` |
//! | H6 | the order of a sum depends on SMs, and it is added in bf16 | [`sms_that_communicate_change_no_bit`], `reported::sums_are_rounded_once` |
//! | H7 | the 33rd buffer is none, and nobody says so | [`forty_buffers_and_a_heap_that_is_full`] |
//! | H8 | the settings of one product are those of the next one, too | [`layers_keep_their_own_settings`] |
//! | H9 | values that were never set: the core of a rank, an attribute of a launch | cannot be: safe Rust has no such value, ranks are pinned to no core, and what launches the crate's kernels sets the grid in one place (`side::launch`) |
//! | H10 | sizes are of 32 bits | [`sizes_beyond_32_bits`] |
//! | H11 | a reduce-scatter of dgrad with two quantisation modes is an exception | [`two_modes_with_a_summed_dgrad`] |
//! | H12 | the buffer that a summed dgrad does not need is there | [`a_summed_dgrad_takes_no_memory_for_what_it_replaces`] |
//! | H13 | checks are assertions that a release build leaves out | [`no_check_is_a_debug_assertion`]; the checks themselves: `refused`, `comm_overlap::what_a_class_cannot_do_is_refused` |
//! | H14 | a group of ranks that are not neighbours sends to others | [`groups_of_ranks_that_are_not_neighbours`] |
//! | H15 | a refusal of multicast by the driver ends the program | layers ask for none; who asks with `Multicast::Auto` goes on without: the runtime's own tests of `multicast` |
//! | H16 | a default that is a list of one element counts as set | [`a_list_is_no_switch`] |
//! | H17 | the input's gradient of a frozen layer is not summed | [`a_frozen_layer_sums_the_gradient_of_its_input`] |
//!
//! And three that its users met: a bias that each rank adds (`reported::a_bias_is_added_once`), gradients of layers in another order than the
//! forward pass's (`reported::gradients_in_another_order`), and gradients that are rounded once more when they are gathered
//! (`reported::what_is_gathered_is_not_rounded`).

use super::cases::{Case, RS_DGRAD, USUAL};
use super::model::tensor;
use super::one::{Held, linear, own};
use super::reference::{Layer, Matrix};
use super::right::run;
use super::{each, userbuffers};
use counterflow::prelude::bf16;
use counterflow::{Communicator, Error};
use counterflow_layers::overlap::{Comm, Config, Parallel, Pass, Settings};
use counterflow_layers::{
    CommOverlapP2P, GradientSum, Gradients, Initialize, LayerNormLinear, LayerNormLinearConfig,
    LayerNormLinearGradients, LayerNormLinearParameters, Linear, LinearConfig, Norm, Normalization,
    QuantizationMode, Userbuffers,
};
use std::process::Command;
use std::sync::{Arc, Barrier};

/// Outputs and every gradient of a layer with calls of so many rows, on each rank of a group. Gives their bits.
fn right(
    rank: &Arc<Communicator>,
    layer: &LinearConfig,
    rows: &[usize],
    config: &'static str,
) -> Result<Vec<u64>, Error> {
    let (world, features) = (
        rank.world() as usize,
        [layer.in_features, layer.out_features],
    );
    let (parts, hidden) = match layer.parallel {
        Parallel::Column => ([1, world], features[0]),
        Parallel::Row => ([world, 1], features[1]),
    };
    let most = rows.iter().copied().max().unwrap_or(1);
    let buffers = userbuffers(rank, [most, hidden], config)?;
    let whole = Layer::new(features, rows, parts);
    let case = Case {
        name: "a defect",
        config,
        layer: layer.clone(),
    };
    run(rank, &buffers, &case, &whole)
}

#[test]
fn a_rank_that_does_not_come_is_an_error_and_no_result() {
    const PART: &str = "DEFECTS_WITH_A_SHORT_LIMIT";
    if std::env::var_os(PART).is_none() {
        let name = "defects::a_rank_that_does_not_come_is_an_error_and_no_result";
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command
            .args(["--exact", name])
            .env(PART, "1")
            .env("UB_TIMEOUT", "1");
        let done = command.output().expect("started");
        let said = String::from_utf8_lossy(&done.stdout);
        assert!(done.status.success() && said.contains("1 passed"), "{said}");
        return;
    }
    let met = Barrier::new(2);
    let told = each(2, |rank| {
        let buffers = userbuffers(rank, [8, 16], "")?;
        let weight = Matrix::random(32, 16, 1.0, 1);
        let held = Held::new(
            &buffers,
            &linear(Parallel::Column, [16, 32], USUAL),
            &weight,
            None,
        )?;
        if rank.rank() == 1 {
            met.wait();
            return Ok(String::new());
        }
        let x = Matrix::random(8, 16, 1.0, 2);
        let found = held.forward(rank, &x).and_then(|(y, _)| y.read());
        met.wait();
        let error = found.expect_err("no result");
        Ok(error.kind().to_owned())
    });
    assert_eq!(told.expect("both end")[0], "stalled");
}

#[test]
fn sms_that_communicate_change_no_bit() {
    let configs = [
        "fc1_fprop: {use_ce: 0, num_sm: 1}\nfc1_dgrad: {num_sm: 1}\nfc1_wgrad: {num_sm: 1}",
        "fc1_fprop: {use_ce: 0, num_sm: 4}\nfc1_dgrad: {num_sm: 3}\nfc1_wgrad: {num_sm: 4}",
    ];
    let layer = linear(Parallel::Column, [24, 48], USUAL);
    let all =
        configs.map(|config| each(3, |rank| right(rank, &layer, &[20, 5], config)).expect("right"));
    assert!(all[0] == all[1], "other bits");
    let kernels = configs.map(|config| {
        let built = each(3, |rank| {
            let buffers = userbuffers(rank, [20, 24], config)?;
            Ok(Linear::new(&buffers, &layer)?.products())
        });
        built.expect("layers").remove(0)
    });
    let passes = [Pass::Fprop, Pass::Dgrad, Pass::Wgrad];
    for (kernels, sms) in kernels.iter().zip([[1, 1, 1], [4, 3, 4]]) {
        assert_eq!(kernels.len(), passes.len());
        for ((kernel, pass), sms) in kernels.iter().zip(passes).zip(sms) {
            assert_eq!(kernel.pass, pass);
            let ctas = format!("comm.ctas={sms} ");
            assert!(kernel.variant.contains(&ctas), "{kernel:?}, not {ctas}");
        }
    }
}

#[test]
fn every_number_of_ranks() {
    let wide = crate::wide::wide();
    for world in if wide { vec![5, 6, 7, 8] } else { vec![5, 7] } {
        let ffn = 8 * world as usize;
        for (parallel, features) in [(Parallel::Column, [16, ffn]), (Parallel::Row, [ffn, 16])] {
            let layer = linear(parallel, features, USUAL);
            let done = each(world, |rank| right(rank, &layer, &[11], ""));
            done.unwrap_or_else(|error| panic!("{world} ranks, {parallel}: {error}"));
        }
    }
}

#[test]
fn few_elements_and_tails() {
    for (parallel, features) in [(Parallel::Column, [8, 24]), (Parallel::Row, [24, 8])] {
        let layer = linear(parallel, features, USUAL);
        each(3, |rank| right(rank, &layer, &[1, 4, 8], "")).expect("right");
    }
}

#[test]
fn forty_buffers_and_a_heap_that_is_full() {
    let done = each(2, |rank| {
        rank.reserve(8 << 20)?;
        let settings = Settings::default();
        let made = (0..40).map(|_| CommOverlapP2P::new(rank, [6, 16], Comm::AllGather, &settings));
        let made: Vec<CommOverlapP2P> = made.collect::<Result<_, Error>>()?;
        for (seed, overlap) in made.iter().enumerate() {
            let x = Matrix::random(6, 16, 1.0, seed as u64);
            overlap.copy_into_buffer(6, &own(rank, &x, [3, 16])?, true)?;
        }
        for (seed, overlap) in made.iter().enumerate() {
            let x = Matrix::random(6, 16, 1.0, seed as u64);
            let own = rank.shard(rank.rank(), 6);
            let found = overlap.get_buffer(6, 16, true)?.read()?;
            assert_eq!(found, x.part(own, 0..16), "buffer {seed}");
        }
        let full = CommOverlapP2P::new(rank, [1 << 16, 1 << 10], Comm::AllGather, &settings);
        let error = full.map(drop).expect_err("8 MiB are full");
        assert!(
            error.help().is_some_and(|help| help.contains("reserve")),
            "{error}: {:?}",
            error.help()
        );
        Ok(())
    });
    done.expect("forty");
}

#[test]
fn layers_keep_their_own_settings() {
    let settings = "a_fprop: {use_ce: 0, num_sm: 1}\nb_fprop: {use_ce: 0, num_sm: 4, aggregate: 1}";
    let done = each(3, |rank| {
        let buffers = userbuffers(rank, [12, 24], settings)?;
        let weight = Matrix::random(48, 24, 1.0, 1);
        let of = |name: &str| {
            let config = LinearConfig {
                ub_name: Some(name.into()),
                ..linear(Parallel::Column, [24, 48], USUAL)
            };
            Held::new(&buffers, &config, &weight, None)
        };
        let mut all = [of("a")?, of("b")?];
        let products = all.each_ref().map(|held| held.layer.products());
        let [a, b] = products
            .each_ref()
            .map(|products| (&*products[0].schedule, &*products[0].variant));
        assert_eq!((a.0, b.0), ("ag_gemm_ring", "ag_gemm_double_ring"));
        assert!(a.1.contains("comm.ctas=1 "), "{}", a.1);
        assert!(b.1.contains("comm.ctas=4 "), "{}", b.1);
        let mut calls = |order: &[usize]| {
            let mut found = [Vec::new(), Vec::new()];
            for which in order {
                let seed = 10 + found[*which].len() as u64;
                let (x, dy) = (
                    Matrix::random(12, 24, 1.0, seed),
                    Matrix::random(12, 48, 1.0, seed + 50),
                );
                let held = &mut all[*which];
                let (y, saved) = held.forward(rank, &x)?;
                let dx = held.backward(rank, saved, &dy)?;
                found[*which].push((y.read()?, dx.read()?));
            }
            Ok::<_, Error>(found)
        };
        assert_eq!(calls(&[0, 0, 1, 1])?, calls(&[0, 1, 0, 1])?, "in turn");
        assert_eq!(all.each_ref().map(|held| held.layer.products()), products);
        Ok(())
    });
    done.expect("two layers");
}

#[test]
fn sizes_beyond_32_bits() {
    let arguments = Initialize::new([1 << 20, 1 << 16], 8);
    assert_eq!(arguments.heap_bytes(), 2 * (1 << 16) * 2 * (1 << 20));
    assert!(GradientSum::heap_bytes(1 << 33, 2) >= (2 * 4) << 33);
}

#[test]
fn two_modes_with_a_summed_dgrad() {
    let done = each(2, |rank| {
        let config =
            Config::from_yaml("qkv_dgrad: {method: ring_exchange}\nfc1_dgrad: {method: pipeline}")?;
        rank.reserve(16 << 20)?;
        // Twice: nothing of the first one is left in the second.
        for ub_cfgs in [vec![config.clone()], vec![config.clone(), config]] {
            let arguments = Initialize {
                quantization_modes: vec![QuantizationMode::None, QuantizationMode::Fp8],
                ub_cfgs,
                ..Initialize::new([8, 16], 2)
            };
            let buffers = Userbuffers::initialize(rank, &arguments)?;
            Linear::new(&buffers, &linear(Parallel::Column, [16, 32], RS_DGRAD))?;
        }
        Ok(())
    });
    done.expect("both");
}

#[test]
fn a_summed_dgrad_takes_no_memory_for_what_it_replaces() {
    let taken = |flags, config: &'static str| {
        let found = each(2, |rank| {
            let buffers = userbuffers(rank, [64, 64], config)?;
            let buffers_take = rank.heap_use().used;
            let layer = Linear::new(&buffers, &linear(Parallel::Column, [64, 128], flags))?;
            let product = |pass| {
                let all = layer.products();
                all.into_iter().find(|product| product.pass == pass)
            };
            let wgrad = product(Pass::Wgrad).expect("a product").schedule;
            Ok((buffers_take, rank.heap_use().used, wgrad))
        });
        found.expect("two ranks").remove(0)
    };
    let (bulk, with_bulk, beside) = taken(USUAL, "");
    let (summed, with_summed, alone) = taken(RS_DGRAD, "fc1_dgrad: {method: pipeline}");
    assert_eq!(
        bulk, summed,
        "the group's buffers are two, whatever a name is configured for"
    );
    assert_eq!((&*beside, &*alone), ("wgrad_rs", "wgrad"));
    // Either way there are slots for the ranks' terms of one sum, and counters. With another buffer there would be 64 rows more.
    let more = with_summed.saturating_sub(with_bulk);
    assert!(more < 2 * 64 * 64, "{with_bulk} and {with_summed}");
}

/// Lines of the crate's own code.
fn lines(of: &std::path::Path, all: &mut Vec<String>) {
    for entry in std::fs::read_dir(of).expect("a folder") {
        let path = entry.expect("an entry").path();
        match path.is_dir() {
            true => lines(&path, all),
            false => {
                let text = std::fs::read_to_string(&path).expect("text");
                all.extend(text.lines().map(str::to_owned));
            }
        }
    }
}

#[test]
fn no_check_is_a_debug_assertion() {
    let mut all = Vec::new();
    lines(
        &std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src"),
        &mut all,
    );
    assert!(all.len() > 5000, "{} lines", all.len());
    let found: Vec<_> = all
        .iter()
        .filter(|line| line.contains("debug_assert"))
        .collect();
    // One line that is no check: debug builds fill the memory that layers borrow.
    assert_eq!(found, ["        if cfg!(debug_assertions) {"]);
}

#[test]
fn groups_of_ranks_that_are_not_neighbours() {
    let done = each(4, |rank| {
        // 0 and 2, 1 and 3, the latter in the opposite order.
        let (color, place) = (rank.rank() % 2, rank.rank() / 2);
        let key = if color == 1 { 1 - place } else { place };
        let group = Arc::new(rank.split(color, key)?);
        assert_eq!((group.rank(), group.world()), (key, 2));
        right(&group, &linear(Parallel::Row, [32, 16], USUAL), &[7], "")
    });
    let bits = done.expect("two groups");
    assert!(
        bits[0] == bits[3] && bits[1] == bits[2],
        "groups have the same numbers"
    );
}

#[test]
fn a_list_is_no_switch() {
    let config = Config::default();
    let proj = config.gemm("proj_fprop", Parallel::Row).expect("a product");
    assert_eq!(proj.given.fp8_buf, None);
    let error = Config::from_yaml("proj_fprop:\n  fp8_buf: [false]").expect_err("a list");
    assert!(error.to_string().starts_with("line 2: "), "{error}");
}

#[test]
fn a_frozen_layer_sums_the_gradient_of_its_input() {
    let done = each(3, |rank| {
        let buffers = userbuffers(rank, [10, 24], "")?;
        let weight = Matrix::random(48, 24, 1.0, 1);
        let (x, dy) = (
            Matrix::random(10, 24, 1.0, 2),
            Matrix::random(10, 48, 1.0, 3),
        );
        let config = |frozen| LinearConfig {
            frozen,
            ..linear(Parallel::Column, [24, 48], USUAL)
        };
        let mut found = Vec::new();
        for frozen in [false, true] {
            let mut held = Held::new(&buffers, &config(frozen), &weight, None)?;
            let (y, saved) = held.forward(rank, &x)?;
            found.push((y.read()?, held.backward(rank, saved, &dy)?.read()?));
            let norm = Norm::new(Normalization::RmsNorm);
            let linear = config(frozen);
            let layer = LayerNormLinear::new(&buffers, &LayerNormLinearConfig { norm, linear })?;
            let gamma = tensor(rank, [1, 24], &[bf16::ONE; 24])?;
            let parameters = LayerNormLinearParameters {
                layer_norm_weight: &gamma,
                layer_norm_bias: None,
                linear: held.parameters(),
            };
            let x = own(rank, &x, layer.linear().input_shape(10))?;
            let dy = own(rank, &dy, layer.linear().output_shape(10))?;
            let (mut y, mut dx) = (rank.zeros(dy.shape())?, rank.zeros(x.shape())?);
            let (mut of_gamma, mut of_weight) =
                (rank.zeros([1, 24])?, rank.zeros(held.weight.shape())?);
            let saved = layer.forward(10, &x, &parameters, &mut y)?;
            let gradients = LayerNormLinearGradients {
                layer_norm_weight: &mut of_gamma,
                layer_norm_bias: None,
                linear: Gradients {
                    weight: (!frozen).then_some(&mut of_weight),
                    bias: None,
                },
            };
            layer.backward(saved, &parameters, &dy, &mut dx, gradients)?;
            found.push((y.read()?, dx.read()?));
        }
        assert!(found[..2] == found[2..], "frozen");
        assert!(
            found
                .iter()
                .all(|(_, dx)| dx.iter().any(|dx| dx.to_f32() != 0.0))
        );
        Ok(())
    });
    done.expect("three ranks");
}
