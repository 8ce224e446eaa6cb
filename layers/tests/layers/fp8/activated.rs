//! Activations whose results come out as codes, and histories that end their steps together.

use super::*;
use counterflow::op::Element;
use counterflow::prelude::{e4m3, e5m2};
use counterflow::quantise::{DeviceHistory, Histories, Quantiser, Scaling};
use counterflow_layers::Activation;
use counterflow_layers::side::{CodedElementKernels, ElementKernels};

/// One tile and less, several with rows and columns that are left over, and one row.
const SHAPES: [[usize; 2]; 4] = [[1, 16], [16, 128], [129, 272], [300, 144]];

/// A code's bits.
trait Bits: Element {
    fn bits(self) -> u8;
}

impl Bits for e4m3 {
    fn bits(self) -> u8 {
        self.to_bits()
    }
}

impl Bits for e5m2 {
    fn bits(self) -> u8 {
        self.to_bits()
    }
}

struct Case {
    activation: Activation,
    is_backward: bool,
    shape: [usize; 2],
    x: Tensor<bf16>,
    dy: Tensor<bf16>,
}

/// Codes, the transposed copy, scales and the history of two steps.
type Found = (Vec<u8>, Vec<u8>, Vec<u32>, History);

impl Case {
    fn new(
        rank: &Communicator,
        (activation, is_backward): (Activation, bool),
        shape: [usize; 2],
    ) -> Result<Case, Error> {
        let [rows, columns] = shape;
        let random =
            |columns, seed| Matrix::random(rows, columns, 3.0, seed).part(0..rows, 0..columns);
        let inputs = activation.inputs(columns);
        let (mut x, dy) = (random(inputs, 1), random(columns, 2));
        if rows > 2 {
            x[inputs + 5] = bf16::NAN;
            x[2 * inputs..3 * inputs].fill(bf16::ZERO);
        }
        Ok(Case {
            activation,
            is_backward,
            shape,
            x: tensor(rank, [rows, inputs], &x)?,
            dy: tensor(rank, shape, &dy)?,
        })
    }

    /// By one kernel, or by two: twice, so that there is a delayed scale.
    fn run<T: Bits + counterflow::op::Code>(
        &self,
        rank: &Arc<Communicator>,
        to: Fp8,
        at_once: bool,
    ) -> Result<Found, Error> {
        let [rows, columns] = self.shape;
        let width = match self.is_backward {
            true => self.activation.inputs(columns),
            false => columns,
        };
        let made = [rows, width];
        let recipe = quantise::Recipe::new(
            ScaleRule::transformer_engine(to),
            Scaling::Delayed,
            Dtype::Bf16,
        );
        let recipe = recipe.with_transposed();
        let quantiser = Quantiser::build(rank, recipe, made)?;
        let mut history: DeviceHistory = quantiser.history(Delayed::transformer_engine(to))?;
        let mut codes = rank.zeros::<T>(made)?;
        let mut turned = rank.zeros::<T>([width, rows.next_multiple_of(16)])?;
        let mut scale = rank.zeros::<f32>([1])?;
        let (mut found, mut on_side, mut scales) = (Vec::new(), Vec::new(), Vec::new());
        let coded = CodedElementKernels::load(rank, recipe)?;
        let plain = ElementKernels::load(rank)?;
        let (activation, shape, x, dy) = (self.activation, self.shape, &self.x, &self.dy);
        for _ in 0..2 {
            codes.fill(0xff)?;
            turned.fill(0xff)?;
            scale.fill(0xff)?;
            match at_once {
                true => {
                    let to = (&mut codes, &mut turned, &mut scale);
                    match self.is_backward {
                        true => coded.backward(activation, shape, [x, dy], to, &mut history)?,
                        false => coded.forward(activation, shape, x, to, &mut history)?,
                    }
                }
                false => {
                    let mut y = rank.zeros::<bf16>(made)?;
                    match self.is_backward {
                        true => plain.activation_backward(activation, shape, [x, dy], &mut y)?,
                        false => plain.activation(activation, shape, x, &mut y)?,
                    }
                    let launch = quantiser.on(&**rank, made).x(&y).codes(&mut codes);
                    let launch = launch.transposed(&mut turned).scales(&mut scale);
                    launch.history(&mut history).launch()?;
                }
            }
            quantiser.next_step(&**rank, &mut history)?;
            found.extend(codes.read()?.into_iter().map(Bits::bits));
            on_side.extend(turned.read()?.into_iter().map(Bits::bits));
            scales.extend(scale.read()?.into_iter().map(f32::to_bits));
        }
        Ok((found, on_side, scales, history.read()?))
    }
}

/// On emulated ranks it shows that launches do what both twins do; on a GPU, that kernels do.
#[test]
fn codes_of_an_activation_are_those_of_a_quantiser_of_what_it_gives() {
    let done = each(1, |rank| {
        for (activation, is_backward, to) in [
            (Activation::Gelu, false, Fp8::E4M3),
            (Activation::SwiGlu, false, Fp8::E4M3),
            (Activation::Gelu, true, Fp8::E5M2),
            (Activation::SwiGlu, true, Fp8::E5M2),
            (Activation::SwiGlu, true, Fp8::E4M3),
        ] {
            for shape in SHAPES {
                let case = Case::new(rank, (activation, is_backward), shape)?;
                let run = |at_once| match to {
                    Fp8::E4M3 => case.run::<e4m3>(rank, to, at_once),
                    Fp8::E5M2 => case.run::<e5m2>(rank, to, at_once),
                };
                let (at_once, apart) = (run(true)?, run(false)?);
                let name = format!("{activation:?}, backward {is_backward}, {to:?}, {shape:?}");
                assert!(
                    at_once
                        .0
                        .iter()
                        .any(|code| !matches!(code, 0 | 0x7f | 0xff))
                );
                let differs = |a: &[u8], b: &[u8]| a.iter().zip(b).position(|(a, b)| a != b);
                assert_eq!(differs(&at_once.0, &apart.0), None, "{name}: other codes");
                let turned = differs(&at_once.1, &apart.1);
                assert_eq!(turned, None, "{name}: other codes on their side");
                assert_eq!(at_once.2, apart.2, "{name}: other scales");
                assert_eq!(at_once.3, apart.3, "{name}: another history");
            }
        }
        Ok(())
    });
    done.expect("a rank");
}

#[test]
fn recipes_that_no_activation_has_are_refused() {
    let done = each(1, |rank| {
        let rule = ScaleRule::transformer_engine(Fp8::E4M3);
        let delayed = quantise::Recipe::new(rule, Scaling::Delayed, Dtype::Bf16);
        let one = Scaling::Current(Granularity::PerTensor);
        for recipe in [
            delayed,
            delayed.with_transposed().with_scale_in_each_row(),
            quantise::Recipe::new(rule, one, Dtype::Bf16).with_transposed(),
            quantise::Recipe::new(rule, Scaling::Delayed, Dtype::F32).with_transposed(),
        ] {
            assert!(!CodedElementKernels::has(&recipe));
            let refused = CodedElementKernels::load(rank, recipe).expect_err("refused");
            assert_eq!(refused.kind(), "usage", "{refused}");
        }
        let kernels = CodedElementKernels::load(rank, delayed.with_transposed())?;
        let x = rank.zeros::<bf16>([8, 32])?;
        let (mut codes, mut turned) = (rank.zeros::<e4m3>([8, 16])?, rank.zeros::<e4m3>([16, 16])?);
        let mut scale = rank.zeros([1])?;
        for (shape, to) in [
            ([0, 16], Fp8::E4M3),
            ([8, 8], Fp8::E4M3),
            ([8, 16], Fp8::E5M2),
            ([9, 16], Fp8::E4M3),
        ] {
            let rule = ScaleRule::transformer_engine(to);
            let recipe = quantise::Recipe::new(rule, Scaling::Delayed, Dtype::Bf16);
            let quantiser = Quantiser::build(rank, recipe, [8, 16])?;
            let mut history = quantiser.history(Delayed::transformer_engine(to))?;
            let to = (&mut codes, &mut turned, &mut scale);
            let refused = kernels.forward(Activation::SwiGlu, shape, &x, to, &mut history);
            let refused = refused.expect_err("refused");
            assert_eq!(refused.kind(), "usage", "{shape:?}: {refused}");
        }
        Ok(())
    });
    done.expect("a rank");
}

/// Steps of three histories on each of two ranks, against one on the host that saw the larger amax.
#[test]
fn histories_end_their_steps_together_as_they_would_alone() {
    for (length, pick, skips_zero) in [
        (1, Pick::Max, true),
        (3, Pick::Max, false),
        (3, Pick::MostRecent, true),
        (1024, Pick::Max, true),
    ] {
        let done = each(1, |rank| {
            let recipe = Delayed {
                length,
                pick,
                margin: 1,
                skips_zero,
                ..Delayed::transformer_engine(Fp8::E4M3)
            };
            let mut all = Histories::new(rank, recipe, 4)?;
            let types = [Fp8::E4M3, Fp8::E5M2, Fp8::E4M3];
            let mut held = Vec::new();
            for to in types {
                held.push(all.add(to)?.expect("room"));
            }
            let mut wanted = types.map(|to| History::new(Delayed { to, ..recipe }));
            let pitch = 8;
            rank.reserve(2 << 20)?;
            let of_ranks = rank.allocate::<f32>("of ranks", [2, pitch])?;
            let steps: [[[f32; 3]; 2]; 6] = [
                [[7.0, 0.0, f32::NAN], [9.0, 1.0, 2.0]],
                [[0.0, 0.0, 0.0], [0.0, 4.0, 0.0]],
                [[1.0, f32::INFINITY, 3.0], [0.5, 1.0, f32::NAN]],
                [[1e-40, 2.0, 1.5], [0.0, 2.5, f32::NAN]],
                [[3.0, 0.0, 5.0], [1.0, 0.0, 6.0]],
                [[0.25, 8.0, 0.0], [0.5, 0.0, 0.0]],
            ];
            for (number, step) in steps.into_iter().enumerate() {
                // With amaxes of ranks, and every other time with those that the histories have.
                let alone = number % 2 == 1;
                let mut rows = vec![f32::NAN; 2 * pitch];
                for (rank, amaxes) in step.iter().enumerate() {
                    rows[rank * pitch..][..3].copy_from_slice(amaxes);
                }
                of_ranks.write(&rows)?;
                all.amaxes().write(&step[0])?;
                for (at, wanted) in wanted.iter_mut().enumerate() {
                    let seen = if alone { &step[..1] } else { &step[..] };
                    seen.iter().for_each(|amaxes| wanted.saw(amaxes[at]));
                    wanted.update();
                }
                let of_ranks = (!alone).then_some(&of_ranks);
                all.next_step(&**rank, of_ranks)?;
                for (at, (held, wanted)) in held.iter().zip(&wanted).enumerate() {
                    let found = held.read()?;
                    assert_eq!(found.scale(), wanted.scale(), "{recipe:?}, {number}, {at}");
                    assert_eq!(found.amaxes(), wanted.amaxes(), "{number}, {at}");
                }
            }
            Ok(())
        });
        done.expect("a rank");
    }
}

#[test]
fn histories_are_refused_without_room_or_amaxes() {
    let done = each(1, |rank| {
        let recipe = Delayed::transformer_engine(Fp8::E4M3);
        let none = Delayed {
            length: 0,
            ..recipe
        };
        for (recipe, most) in [(recipe, 0), (none, 1)] {
            let refused = Histories::new(rank, recipe, most).expect_err("refused");
            assert_eq!(refused.kind(), "usage", "{refused}");
        }
        let mut all = Histories::new(rank, recipe, 2)?;
        let _held = [all.add(Fp8::E4M3)?, all.add(Fp8::E4M3)?];
        assert!(all.add(Fp8::E4M3)?.is_none());
        rank.reserve(2 << 20)?;
        let few = rank.allocate::<f32>("of ranks", [2, 1])?;
        let refused = all.next_step(&**rank, Some(&few)).expect_err("refused");
        assert_eq!(
            refused.to_string(),
            "1 amaxes of each rank, for 2 histories"
        );
        Ok(())
    });
    done.expect("a rank");
}
