//! Steps of FP8: what the first microbatch keeps, and what is refused.

use super::*;

/// A layer of FP8 on a rank, with random weights.
fn layer(buffers: &Userbuffers, config: &LinearConfig) -> Result<(Linear, Tensor<bf16>), Error> {
    let layer = Linear::new(buffers, config)?;
    let shape = layer.weight_shape();
    let weight = Matrix::random(shape[0], shape[1], 0.5, 7).part(0..shape[0], 0..shape[1]);
    Ok((layer, tensor(buffers.rank(), shape, &weight)?))
}

#[test]
fn the_first_microbatch_keeps_the_weights_codes() {
    let done = each(1, |rank| {
        let modes = vec![QuantizationMode::Fp8];
        let buffers = userbuffers_of(rank, [16, 32], "", modes)?;
        for recipe in recipes() {
            let config = LinearConfig {
                fp8: Some(recipe),
                ..LinearConfig::column(32, 48)
            };
            let (layer, weight) = layer(&buffers, &config)?;
            let before = weight.read()?;
            let x = Matrix::random(16, 32, 1.0, 3).part(0..16, 0..32);
            let x = tensor(rank, [16, 32], &x)?;
            let run = |first| {
                let step = buffers.autocast(first)?;
                let mut y = rank.zeros([16, 48])?;
                let parameters = Parameters {
                    weight: &weight,
                    bias: None,
                };
                drop(layer.forward(16, &x, &parameters, &mut y)?);
                drop(step); // no next scales
                y.read()
            };
            let first = run(Some(true))?;
            weight.write(&vec![bf16::ONE; weight.len()])?;
            assert_eq!(run(Some(false))?, first, "{recipe}: they were kept");
            assert_ne!(run(Some(true))?, first, "{recipe}: another first one");
            weight.write(&before)?;
            assert_eq!(run(None)?, first, "{recipe}: each time");
        }
        Ok(())
    });
    done.expect("one rank");
}

/// What a rank is told.
fn told<T>(found: Result<T, Error>) -> String {
    match found {
        Ok(_) => "nothing".into(),
        Err(error) => format!("{error}: {}", error.help().unwrap_or_default()),
    }
}

#[test]
fn what_fp8_cannot_do_is_refused() {
    let done = each(2, |rank| {
        let both = vec![QuantizationMode::None, QuantizationMode::Fp8];
        let [none, fp8] = [&both[..1], &both[1..]].map(<[_]>::to_vec);
        let without = userbuffers_of(rank, [16, 32], "", none)?;
        let alone = userbuffers_of(rank, [16, 32], "", fp8)?;
        let buffers = userbuffers_of(rank, [16, 32], "", both)?;
        let of = |recipe: Recipe| LinearConfig {
            fp8: Some(recipe),
            ..LinearConfig::column(32, 64)
        };
        let delayed = DelayedScaling::default();
        let blocks: Recipe = Float8BlockScaling::default().into();
        let table = [
            (
                told(Linear::new(&without, &of(delayed.into()))),
                "a layer of the mode Fp8, which the buffers do not have: add `QuantizationMode::Fp8`",
            ),
            (
                told(Linear::new(&alone, &LinearConfig::column(32, 64))),
                "a layer of the mode None, which the buffers do not have: add `QuantizationMode::None`",
            ),
            (
                told(without.autocast(None)),
                "a layer of the mode Fp8, which the buffers do not have: ",
            ),
            (
                told(Linear::new(
                    &buffers,
                    &LinearConfig {
                        fp8: Some(delayed.into()),
                        ..LinearConfig::column(32, 48)
                    },
                )),
                "24 features on a rank, of a layer of FP8: give multiples of 16 on each rank",
            ),
            (
                told(Linear::new(
                    &buffers,
                    &of(DelayedScaling {
                        reduce_amax: false,
                        ..delayed
                    }
                    .into()),
                )),
                "reduce_amax is false in a group of 2 ranks: leave it out: rows that ranks gather need one scale",
            ),
            (
                told(Linear::new(
                    &buffers,
                    &of(DelayedScaling {
                        amax_history_len: 0,
                        ..delayed
                    }
                    .into()),
                )),
                "an amax_history_len of 0: remember one step or more",
            ),
            (
                told(Linear::new(
                    &buffers,
                    &LinearConfig {
                        keep_gathered: true,
                        ..of(blocks)
                    },
                )),
                "keep_gathered with scales of blocks: leave it out: ",
            ),
        ];
        for (told, wanted) in table {
            assert!(told.starts_with(wanted), "{told}");
        }
        let (layer, weight) = layer(&buffers, &of(blocks))?;
        let parameters = Parameters {
            weight: &weight,
            bias: None,
        };
        let forward = |rows: usize| {
            let x = rank.zeros(layer.input_shape(rows))?;
            let mut y = rank.zeros(layer.output_shape(rows))?;
            layer.forward(rows, &x, &parameters, &mut y).map(drop)
        };
        let outside = "a layer of FP8 outside of a step: open one, `userbuffers.autocast(None)?`";
        assert!(told(forward(16)).starts_with(outside));
        let step = buffers.autocast(None)?;
        let within = told(buffers.autocast(None));
        assert!(within.starts_with("a step of FP8 within another: end the one that is open first"));
        let uneven = "10 rows over 2 ranks, with scales of blocks: give rows of which each rank has a multiple of 4";
        assert!(
            told(forward(10)).starts_with(uneven),
            "{}",
            told(forward(10))
        );
        forward(16)?;
        step.end()?;
        assert!(told(forward(16)).starts_with(outside), "it has ended");
        rank.barrier()
    });
    done.expect("refusals end nothing");
}
