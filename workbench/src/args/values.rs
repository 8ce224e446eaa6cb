//! Parses the values of options. An error says what is expected.

use super::request::Numbers;
use counterflow_codegen::dtype::Dtype;
use counterflow_codegen::machine::Machine;
use counterflow_codegen::program::Setting;
use counterflow_codegen::rule::{Convention, Fp8, ScaleRule};
use counterflow_codegen::shape::MAX_WORLD;
use counterflow_codegen::variant::{Arch, Layout, Scales};
use counterflow_runtime::cuda::Gpu;
use counterflow_runtime::{Device, Error, machines};

/// A value the user chose by name.
#[derive(Clone, Debug)]
pub(super) struct Named<T>(pub T);

pub(super) fn number(text: &str) -> Result<u32, String> {
    match text.parse::<u32>() {
        Ok(value) if value <= i32::MAX as u32 => Ok(value),
        _ => Err("expected a whole number up to 2147483647".into()),
    }
}

pub(super) fn world(text: &str) -> Result<u32, String> {
    match number(text)? {
        world @ 1..=MAX_WORLD => Ok(world),
        _ => Err(format!("a world has 1 to {MAX_WORLD} ranks")),
    }
}

pub(super) fn worlds(text: &str) -> Result<Numbers, String> {
    numbers(text, MAX_WORLD, "1..=8")
}

pub(super) fn rows(text: &str) -> Result<Numbers, String> {
    numbers(text, i32::MAX as u32, "1..=4096")
}

/// `1..=8`, of numbers from 1.
fn numbers(text: &str, most: u32, example: &str) -> Result<Numbers, String> {
    let (first, last) = text.split_once("..=").unwrap_or((text, text));
    match (first.parse::<u32>(), last.parse::<u32>()) {
        (Ok(first), Ok(last)) if (1..=last).contains(&first) && last <= most => Ok(first..=last),
        _ => Err(format!(
            "expected a range such as {example}, of numbers from 1 to {most}"
        )),
    }
}

pub(super) fn launches(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(launches) if (1..=100).contains(&launches) => Ok(launches),
        _ => Err("expected a whole number from 1 to 100".into()),
    }
}

pub(super) fn seed(text: &str) -> Result<u64, String> {
    text.parse()
        .map_err(|_| format!("expected a whole number up to {}", u64::MAX))
}

fn pair<'a>(text: &'a str, example: &str) -> Result<(String, &'a str), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() && !value.is_empty() => Ok((name.into(), value)),
        _ => Err(format!("expected a name and a value, such as {example}")),
    }
}

pub(super) fn named_number(text: &str) -> Result<(String, u32), String> {
    let (name, value) = pair(text, "z.rows=512")?;
    Ok((name, number(value)?))
}

pub(super) fn setting(text: &str) -> Result<(String, Setting), String> {
    let (name, value) = pair(text, "tiles=128x256")?;
    let setting = Setting::parse(value)
        .ok_or("a choice is a number such as 128, or a pair such as 128x256")?;
    Ok((name, setting))
}

fn one_of<T>(found: Option<T>, names: &[&str]) -> Result<T, String> {
    found.ok_or_else(|| format!("expected one of {}", names.join(", ")))
}

pub(super) fn dtype(text: &str) -> Result<Dtype, String> {
    one_of(Dtype::from_name(text), &Dtype::ALL.map(Dtype::name))
}

pub(super) fn scales(text: &str) -> Result<Scales, String> {
    if text == "2d2d" {
        return Err("of two operands one has scales of 1x128: 1d2d, 2d1d or 1d1d".into());
    }
    one_of(Scales::from_name(text), &Scales::ALL.map(Scales::name))
}

pub(super) fn fp8(text: &str) -> Result<Fp8, String> {
    let all = [Fp8::E4M3, Fp8::E5M2];
    let mut named = all.into_iter();
    one_of(
        named.find(|it| it.dtype().name() == text),
        &all.map(|it| it.dtype().name()),
    )
}

/// Of e4m3.
pub(super) fn rule(text: &str) -> Result<ScaleRule, String> {
    let words = Convention::ALL.map(Convention::name).join(", ");
    ScaleRule::parse(text, Fp8::E4M3)
        .ok_or_else(|| format!("expected one of {words}, such as te+pow2 or te+eps=1e-6"))
}

pub(super) fn layout(text: &str) -> Result<Layout, String> {
    one_of(Layout::from_name(text), &Layout::ALL.map(Layout::name))
}

pub(super) fn arch(text: &str) -> Result<Arch, String> {
    let all = [Arch::Sm90, Arch::Cpu];
    one_of(
        all.into_iter().find(|arch| arch.name() == text),
        &all.map(Arch::name),
    )
}

pub(super) fn device(text: &str) -> Result<Device, String> {
    one_of(Device::from_name(text), &Device::ALL.map(Device::name))
}

/// A machine to predict for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Chosen {
    H100,
    #[default]
    H200,
    /// The first GPU here.
    This,
}

pub(super) fn machine(text: &str) -> Result<Named<Chosen>, String> {
    let all = [
        ("h100", Chosen::H100),
        ("h200", Chosen::H200),
        ("this", Chosen::This),
    ];
    let found = all.into_iter().find(|(name, _)| *name == text);
    one_of(
        found.map(|(_, machine)| Named(machine)),
        &all.map(|(name, _)| name),
    )
}

impl Chosen {
    /// By the profile that comes with the package, or by that of the GPU here.
    pub(super) fn machine(self) -> Result<Machine, Error> {
        match self {
            Chosen::H100 => machines::named("NVIDIA H100 80GB HBM3"),
            Chosen::H200 => machines::named("NVIDIA H200"),
            Chosen::This => machines::machine(Gpu::open(0)?.name()),
        }
    }
}
