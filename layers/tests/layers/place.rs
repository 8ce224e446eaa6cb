//! Gradients that come to where ranks gather them: no copy, the same bits, and a refusal of a place whose contents are gone.

use super::{each, userbuffers_of};
use crate::wide::in_turn;
use counterflow::prelude::bf16;
use counterflow::{Communicator, Error, Tensor};
use counterflow_layers::overlap::ModuleFlags;
use counterflow_layers::{
    DelayedScaling, Float8BlockScaling, GradientPlace, Gradients, Linear, LinearConfig,
    OutputGradient, Parameters, QuantizationMode, Recipe, Userbuffers,
};
use std::sync::Arc;

const MOST: usize = 40;
const SIDES: [usize; 2] = [64, 128];

fn numbers(count: usize, seed: u64) -> Vec<bf16> {
    let mut word = seed;
    let mut next = || {
        word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        bf16::from_f32((word >> 40) as f32 / (1 << 23) as f32 - 1.0)
    };
    (0..count).map(|_| next()).collect()
}

fn random(rank: &Communicator, shape: [usize; 2], seed: u64) -> Result<Tensor<bf16>, Error> {
    let tensor = rank.zeros(shape)?;
    if !tensor.is_empty() {
        tensor.write(&numbers(tensor.len(), 97 * seed + u64::from(rank.rank())))?;
    }
    Ok(tensor)
}

fn proj(buffers: &Userbuffers, fp8: Option<Recipe>, on: bool) -> Result<Linear, Error> {
    let flags = ModuleFlags {
        ub_tp_comm_overlap: on,
        ..ModuleFlags::default()
    };
    let [hidden, features] = SIDES;
    let config = LinearConfig {
        fp8,
        flags: flags.flags(),
        ub_name: Some("proj".into()),
        ..LinearConfig::row(features, hidden)
    };
    Linear::new(buffers, &config)
}

/// A step of so many rows: dx and the weight's gradient as bits, and the bytes that the backward pass copied.
#[derive(Clone, Copy)]
struct Case<'a> {
    buffers: &'a Userbuffers,
    layer: &'a Linear,
    rows: usize,
}

impl Case<'_> {
    fn with<'d>(&self, dy: impl Into<OutputGradient<'d>>) -> Result<(Vec<u32>, u64), Error> {
        let (layer, rank) = (self.layer, self.buffers.rank());
        let weight = random(rank, layer.weight_shape(), 3)?;
        let x = random(rank, layer.input_shape(self.rows), 5)?;
        let mut y = rank.zeros(layer.output_shape(self.rows))?;
        let mut dx = rank.zeros(x.shape())?;
        let mut of_weight = rank.zeros::<f32>(weight.shape())?;
        let parameters = Parameters {
            weight: &weight,
            bias: None,
        };
        let step = layer.config().fp8.map(|_| self.buffers.autocast(None));
        let step = step.transpose()?;
        let saved = layer.forward(self.rows, &x, &parameters, &mut y)?;
        let before = rank.enqueued();
        let gradients = Gradients {
            weight: Some(&mut of_weight),
            bias: None,
        };
        let done = layer.backward(saved, &parameters, dy, &mut dx, gradients);
        let copied = rank.enqueued().copied_bytes - before.copied_bytes;
        step.map_or(Ok(()), |step| step.end())?;
        done?;
        let of_x = dx
            .read()?
            .into_iter()
            .map(|value| u32::from(value.to_bits()));
        let bits: Vec<u32> = of_x
            .chain(of_weight.read()?.into_iter().map(f32::to_bits))
            .collect();
        Ok((bits, copied))
    }
}

fn place(layer: &Linear, rows: usize, from: &Tensor<bf16>) -> Result<GradientPlace, Error> {
    let place = layer.gradient_place(rows)?;
    if !from.is_empty() {
        place.copy_from(from)?;
    }
    Ok(place)
}

fn of_rank(rank: &Arc<Communicator>, fp8: Option<Recipe>, on: bool) -> Result<(), Error> {
    let mode = fp8.map_or(QuantizationMode::None, |_| QuantizationMode::Fp8);
    let buffers = userbuffers_of(rank, [MOST, SIDES[1]], "", vec![mode])?;
    let layer = proj(&buffers, fp8, on)?;
    for rows in [MOST, 16, 8, 1] {
        let case = Case {
            buffers: &buffers,
            layer: &layer,
            rows,
        };
        let dy = random(rank, layer.output_shape(rows), 7)?;
        // Delayed scaling has these amaxes from then on.
        for _ in 0..if fp8.is_some() { 2 } else { 0 } {
            case.with(&dy)?;
        }
        let (wanted, copied) = case.with(&dy)?;
        let there = place(&layer, rows, &dy)?;
        let (found, none) = case.with(&there)?;
        assert!(wanted == found, "{rows} rows, {fp8:?}: other bits");
        assert_eq!(none, 0, "{rows} rows: bytes copied of a place");
        let gathers = fp8.is_none() && rank.world() > 1;
        let bytes = if gathers { 2 * dy.len() as u64 } else { 0 };
        assert_eq!(copied, bytes, "{rows} rows: bytes copied of a tensor");
        // It stays there for another pass.
        assert!(case.with(&there)?.0 == wanted, "{rows} rows, again");
        rank.barrier()?;
    }
    rank.synchronize()?;
    rank.barrier()
}

#[test]
fn a_place_for_a_gradient_has_the_bits_of_a_tensor_and_is_not_copied() {
    let recipes: [Option<Recipe>; 3] = [
        None,
        Some(DelayedScaling::default().into()),
        Some(Float8BlockScaling::default().into()),
    ];
    for world in [1, 2] {
        for (at, fp8) in recipes.into_iter().enumerate() {
            // Without `WIDE` with or without overlap, in turn.
            for on in in_turn([false, true], at + world as usize) {
                each(world, |rank| of_rank(rank, fp8, on)).expect("ranks");
            }
        }
    }
}

#[test]
fn a_place_whose_contents_are_gone_is_refused() {
    let told = each(2, |rank| {
        let buffers = userbuffers_of(rank, [MOST, SIDES[1]], "", vec![QuantizationMode::None])?;
        let layer = proj(&buffers, None, true)?;
        let case = |rows| Case {
            buffers: &buffers,
            layer: &layer,
            rows,
        };
        let dy = random(rank, layer.output_shape(MOST), 7)?;
        let first = place(&layer, MOST, &dy)?;
        let second = place(&layer, MOST, &dy)?;
        let mut told = vec![
            case(MOST)
                .with(&first)
                .expect_err("another place")
                .to_string(),
        ];
        // A layer that gathers no gradient would read what is there, and refuses what is gone as well.
        let other = LinearConfig {
            ub_name: Some("qkv".into()),
            ..LinearConfig::column(SIDES[0], SIDES[0])
        };
        let other = Case {
            layer: &Linear::new(&buffers, &other)?,
            ..case(MOST)
        };
        told.push(other.with(&first).expect_err("elsewhere").to_string());
        case(MOST).with(&second)?;
        case(MOST).with(&dy)?;
        told.push(
            case(MOST)
                .with(&second)
                .expect_err("another gradient")
                .to_string(),
        );
        let fewer = place(&layer, 16, &random(rank, layer.output_shape(16), 7)?)?;
        case(16).with(&fewer)?;
        assert!(layer.gradient_place(MOST + 1).is_err(), "too many rows");
        rank.synchronize()?;
        rank.barrier()?;
        Ok(told)
    });
    let wanted = "a place for a gradient, after another gradient or for other rows";
    for told in told.expect("two ranks") {
        assert_eq!(told, [wanted, wanted, wanted]);
    }
}

/// A place that is handed on as the tensor that it also is: whose gradient it has, nobody could tell any more.
#[test]
fn a_place_is_no_plain_gradient() {
    let told = each(2, |rank| {
        let buffers = userbuffers_of(rank, [MOST, SIDES[1]], "", vec![QuantizationMode::None])?;
        let layer = proj(&buffers, None, true)?;
        let case = Case {
            buffers: &buffers,
            layer: &layer,
            rows: MOST,
        };
        let fewer = Case { rows: 16, ..case };
        let other = LinearConfig {
            ub_name: Some("qkv".into()),
            ..LinearConfig::column(SIDES[0], SIDES[0])
        };
        let other = Case {
            layer: &Linear::new(&buffers, &other)?,
            ..case
        };
        let dy = random(rank, layer.output_shape(MOST), 7)?;
        let there = place(&layer, MOST, &dy)?;
        let handle = Tensor::clone(&there);
        let part = there.rows(0..layer.output_shape(16)[0])?;
        let refused = [
            case.with(&*there),
            case.with(&handle),
            other.with(&handle),
            fewer.with(&part),
        ];
        let told = refused.map(|done| done.expect_err("a plain tensor").to_string());
        // The place itself is taken, as is another tensor.
        let wanted = case.with(&there)?;
        assert!(case.with(&dy)?.0 == wanted.0, "the same bits");
        rank.synchronize()?;
        rank.barrier()?;
        Ok(told)
    });
    for told in told.expect("two ranks") {
        assert_eq!(told, ["a gradient's place as a plain tensor"; 4]);
    }
}
