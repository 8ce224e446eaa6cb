//! Norms whose rows come out as codes.

use super::*;
use counterflow::prelude::e4m3;
use counterflow::quantise::{DeviceHistory, Quantiser, Scaling};
use counterflow_layers::side::{CodedNormKernels, NormKernels};
use counterflow_layers::{
    LayerNormLinear, LayerNormLinearConfig, LayerNormLinearParameters, Norm, Normalization,
};

const BLOCKS: Scaling = Scaling::Current(Granularity::BLOCK_1X128);

/// Codes, scales, statistics and the history of two steps.
type Found = (Vec<u8>, Vec<u32>, Vec<u32>, Option<History>);

fn bits(of: &Tensor<f32>) -> Result<Vec<u32>, Error> {
    Ok(of.read()?.into_iter().map(f32::to_bits).collect())
}

/// A row or more, long and short blocks, more than registers hold; with a row of NaN and one of zeros where there are three.
const SHAPES: [[usize; 2]; 4] = [[1, 16], [3, 128], [37, 272], [6, 9008]];

struct Case {
    norm: Norm,
    recipe: quantise::Recipe,
    shape: [usize; 2],
    x: Tensor<bf16>,
    gamma: Tensor<bf16>,
}

impl Case {
    fn new(
        rank: &Communicator,
        kind: Normalization,
        scaling: Scaling,
        shape: [usize; 2],
    ) -> Result<Case, Error> {
        let rule = ScaleRule::transformer_engine(Fp8::E4M3);
        let rule = match shape[1] {
            272 => rule.powers_of_two(),
            _ => rule,
        };
        let [rows, columns] = shape;
        let random =
            |rows: usize, seed| Matrix::random(rows, columns, 3.0, seed).part(0..rows, 0..columns);
        let mut x = random(rows, 1);
        if rows > 2 {
            x[columns + 5] = bf16::NAN;
            x[2 * columns..3 * columns].fill(bf16::ZERO);
        }
        Ok(Case {
            norm: Norm::new(kind),
            recipe: quantise::Recipe::new(rule, scaling, Dtype::Bf16),
            shape,
            x: tensor(rank, shape, &x)?,
            gamma: tensor(rank, [1, columns], &random(1, 2))?,
        })
    }

    /// Scales lie in a plane of more rows than there are.
    fn scales(&self) -> [usize; 2] {
        match self.recipe.scaling {
            Scaling::Delayed => [1, 1],
            Scaling::Current(_) => {
                let line = self.shape[0].next_multiple_of(4) + 4;
                [self.shape[1].div_ceil(128), line]
            }
        }
    }

    fn beta(&self) -> Option<&Tensor<bf16>> {
        (self.norm.kind == Normalization::LayerNorm).then_some(&self.gamma)
    }

    /// By one kernel, or by two: twice, so that there is a delayed scale.
    fn run(&self, rank: &Arc<Communicator>, at_once: bool) -> Result<Found, Error> {
        let quantiser = Quantiser::build(rank, self.recipe, self.shape)?;
        let delayed = self.recipe.scaling == Scaling::Delayed;
        let history = || quantiser.history(Delayed::transformer_engine(Fp8::E4M3));
        let mut history: Option<DeviceHistory> = delayed.then(history).transpose()?;
        let mut codes = rank.zeros::<e4m3>(self.shape)?;
        let mut scales = rank.zeros::<f32>(self.scales())?;
        let mut statistics = rank.zeros::<f32>([self.shape[0], 2])?;
        let (mut found, mut all_scales) = (Vec::new(), Vec::new());
        let affine = (&self.gamma, self.beta());
        for _ in 0..2 {
            codes.fill(0xff)?;
            scales.fill(0xff)?;
            if at_once {
                let kernels = CodedNormKernels::load(rank, self.norm, self.recipe)?;
                let (x, line) = (&self.x, self.scales()[1]);
                let of = &mut statistics;
                match &mut history {
                    Some(history) => {
                        let to = (&mut codes, &mut scales);
                        kernels.delayed(self.shape, x, affine, to, history, of)?;
                    }
                    None => {
                        let scales = (&mut scales, line);
                        kernels.in_blocks(self.shape, x, affine, &mut codes, scales, of)?;
                    }
                }
            } else {
                let mut y = rank.zeros::<bf16>(self.shape)?;
                let norm = NormKernels::load(rank, self.norm)?;
                norm.forward(self.shape, &self.x, affine, &mut y, &mut statistics)?;
                let launch = quantiser.on(&**rank, self.shape).x(&y);
                let launch = launch.codes(&mut codes).scales(&mut scales);
                let launch = match &mut history {
                    Some(history) => launch.history(history),
                    None => launch,
                };
                launch.launch()?;
            }
            if let Some(history) = &mut history {
                quantiser.next_step(&**rank, history)?;
            }
            found.extend(codes.read()?.iter().map(e4m3::to_bits));
            all_scales.extend(bits(&scales)?);
        }
        let history = history.map(|history| history.read()).transpose()?;
        Ok((found, all_scales, bits(&statistics)?, history))
    }
}

/// On emulated ranks it shows that launches do what both twins do; on a GPU, that kernels do.
#[test]
fn codes_of_a_norm_are_those_of_a_quantiser_of_what_it_gives() {
    let done = each(1, |rank| {
        for kind in [Normalization::LayerNorm, Normalization::RmsNorm] {
            for (scaling, shape) in [Scaling::Delayed, BLOCKS]
                .into_iter()
                .flat_map(|scaling| SHAPES.map(|shape| (scaling, shape)))
            {
                let case = Case::new(rank, kind, scaling, shape)?;
                let (at_once, apart) = (case.run(rank, true)?, case.run(rank, false)?);
                let name = format!("{kind:?}, {}, {shape:?}", case.recipe);
                assert!(
                    at_once
                        .0
                        .iter()
                        .any(|code| !matches!(code, 0 | 0x7f | 0xff))
                );
                let first = at_once.0.iter().zip(&apart.0).position(|(a, b)| a != b);
                assert_eq!(first, None, "{name}: other codes");
                assert_eq!(at_once.1, apart.1, "{name}: other scales");
                assert_eq!(at_once.2, apart.2, "{name}: other statistics");
                assert_eq!(at_once.3, apart.3, "{name}: another history");
            }
        }
        Ok(())
    });
    done.expect("a rank");
}

#[test]
fn recipes_that_need_an_amax_before_are_refused() {
    let done = each(1, |rank| {
        let rule = ScaleRule::transformer_engine(Fp8::E4M3);
        let norm = Norm::new(Normalization::RmsNorm);
        let recipe = |scaling| quantise::Recipe::new(rule, scaling, Dtype::Bf16);
        let whole = recipe(Scaling::Current(Granularity::PerTensor));
        for recipe in [
            whole,
            recipe(BLOCKS).with_transposed(),
            recipe(Scaling::Delayed).with_scale_in_each_row(),
            quantise::Recipe::new(rule, BLOCKS, Dtype::F32),
            quantise::Recipe::new(
                ScaleRule::transformer_engine(Fp8::E5M2),
                Scaling::Delayed,
                Dtype::Bf16,
            ),
        ] {
            assert!(!CodedNormKernels::has(&recipe));
            let refused = CodedNormKernels::load(rank, norm, recipe).expect_err("refused");
            assert_eq!(refused.kind(), "usage", "{refused}");
        }
        let blocks = CodedNormKernels::load(rank, norm, recipe(BLOCKS))?;
        let (x, gamma) = (rank.zeros::<bf16>([8, 16])?, rank.zeros([1, 16])?);
        let (mut codes, mut scales) = (rank.zeros::<e4m3>([8, 16])?, rank.zeros::<f32>([1, 8])?);
        let mut of = rank.zeros([8, 2])?;
        for ([rows, columns], line) in [([0, 16], 8), ([8, 8], 8), ([8, 16], 7), ([8, 16], 9)] {
            let shape = [rows, columns];
            let scales = (&mut scales, line);
            let refused = blocks.in_blocks(shape, &x, (&gamma, None), &mut codes, scales, &mut of);
            let refused = refused.expect_err("refused");
            assert_eq!(refused.kind(), "usage", "{shape:?}, {line}: {refused}");
        }
        Ok(())
    });
    done.expect("a rank");
}

/// Tensors that a forward pass takes when a layer without a norm has run: those of statistics, and of rows of 16 bits if there are any.
#[test]
fn rows_that_a_norm_quantises_are_never_in_memory() {
    let of_recipe = |fp8: Option<Recipe>| {
        let found = each(2, |rank| {
            let mode = fp8.map_or(QuantizationMode::None, |_| QuantizationMode::Fp8);
            let buffers = userbuffers_of(rank, [16, 32], "", vec![mode])?;
            let linear = LinearConfig {
                fp8,
                ..LinearConfig::column(32, 64)
            };
            let norm = Norm::new(Normalization::RmsNorm);
            let config = LayerNormLinearConfig {
                norm,
                linear: linear.clone(),
            };
            let (plain, normed) = (
                Linear::new(&buffers, &linear)?,
                LayerNormLinear::new(&buffers, &config)?,
            );
            let weight = rank.zeros::<bf16>(plain.weight_shape())?;
            let gamma = rank.zeros::<bf16>([1, 32])?;
            let (x, mut y) = (
                rank.zeros(plain.input_shape(16))?,
                rank.zeros(plain.output_shape(16))?,
            );
            let linear = Parameters {
                weight: &weight,
                bias: None,
            };
            let parameters = LayerNormLinearParameters {
                layer_norm_weight: &gamma,
                layer_norm_bias: None,
                linear,
            };
            let step = fp8.map(|_| buffers.autocast(None)).transpose()?;
            drop(plain.forward(16, &x, &linear, &mut y)?);
            let before = rank.tensors_allocated();
            drop(normed.forward(16, &x, &parameters, &mut y)?);
            let taken = rank.tensors_allocated() - before;
            step.map_or(Ok(()), |step| step.end())?;
            Ok(taken)
        });
        found.expect("two ranks")
    };
    assert_eq!(of_recipe(None), [1, 1]);
    assert_eq!(of_recipe(Some(DelayedScaling::default().into())), [1, 1]);
    assert_eq!(
        of_recipe(Some(Float8BlockScaling::default().into())),
        [1, 1]
    );
    // The amax of a whole tensor is known once all rows are there.
    let current = of_recipe(Some(Float8CurrentScaling::default().into()));
    assert_eq!(current, [2, 2]);
}

#[test]
fn a_layer_has_the_bits_of_a_norm_and_then_a_layer() {
    let recipes: [Recipe; 3] = [
        DelayedScaling::default().into(),
        Float8CurrentScaling::default().into(),
        Float8BlockScaling::default().into(),
    ];
    for (fp8, world) in recipes.into_iter().flat_map(|fp8| [(fp8, 1), (fp8, 2)]) {
        let done = each(world, |rank| {
            let modes = vec![QuantizationMode::Fp8];
            let buffers = userbuffers_of(rank, [16, 48], "", modes)?;
            let linear = LinearConfig {
                fp8: Some(fp8),
                frozen: world == 1,
                ..LinearConfig::column(48, 64)
            };
            let norm = Norm::new(Normalization::LayerNorm);
            let config = LayerNormLinearConfig {
                norm,
                linear: linear.clone(),
            };
            let (plain, normed) = (
                Linear::new(&buffers, &linear)?,
                LayerNormLinear::new(&buffers, &config)?,
            );
            let random = |[rows, columns]: [usize; 2], seed| {
                let all = Matrix::random(rows, columns, 2.0, seed);
                tensor(rank, [rows, columns], &all.part(0..rows, 0..columns))
            };
            let weight = random(plain.weight_shape(), 1)?;
            let gamma = random([1, 48], 2)?;
            let linear = Parameters {
                weight: &weight,
                bias: None,
            };
            let parameters = LayerNormLinearParameters {
                layer_norm_weight: &gamma,
                layer_norm_bias: Some(&gamma),
                linear,
            };
            let kernels = NormKernels::load(rank, norm)?;
            // A rank may have no row.
            for rows in [16, 1, 8] {
                let shape = plain.input_shape(rows);
                let x = random([16, 48], 3 + rows as u64)?.rows(0..shape[0])?;
                let (mut of, mut between) = (rank.zeros([16, 2])?, rank.zeros(shape)?);
                let affine = (&gamma, Some(&gamma));
                kernels.forward(shape, &x, affine, &mut between, &mut of)?;
                let mut y = rank.zeros(plain.output_shape(rows))?;
                let mut apart = rank.zeros(plain.output_shape(rows))?;
                let step = buffers.autocast(None)?;
                drop(normed.forward(rows, &x, &parameters, &mut y)?);
                drop(plain.forward(rows, &between, &linear, &mut apart)?);
                step.end()?;
                let (y, apart) = (y.read()?, apart.read()?);
                assert!(y.iter().any(|y| *y != bf16::ZERO));
                assert_eq!(y, apart, "{fp8}, {world} ranks, {rows} rows");
            }
            Ok(())
        });
        done.expect("ranks");
    }
}
