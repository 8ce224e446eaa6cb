use counterflow::prelude::*;

#[epilogue]
async fn later(x: f32) -> f32 {
    x
}

#[epilogue]
fn generic<T>(x: f32) -> f32 {
    x
}

#[epilogue]
fn wide(x: f64) -> f32 {
    x as f32
}

#[epilogue]
fn nothing() -> f32 {
    1.0
}

#[epilogue]
fn silent(x: f32) {
    let _ = x;
}

#[epilogue(fast)]
fn fast(x: f32) -> f32 {
    x
}

#[epilogue]
const TWO: f32 = 2.0;

fn main() {}
