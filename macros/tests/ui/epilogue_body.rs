use counterflow::prelude::*;

#[epilogue]
fn busy(x: f32, n: f32) -> f32 {
    let mut sum = 0.0;
    for _ in 0..4 {
        sum += x;
    }
    let bits = x.to_bits() as f32;
    let sine = x.sin();
    let sign = if x.is_nan() { 1.0 } else { match n { _ => 2.0 } };
    let power = x.powi(2);
    let again = busy(x, n);
    sum + bits + sine + sign + power + again % 2.0
}

#[epilogue]
fn early(x: f32) -> f32 {
    if x > 0.0 {
        return x;
    }
    x * 0.5
}

fn main() {}
