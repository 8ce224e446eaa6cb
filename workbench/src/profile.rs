//! `profile`: measures the GPUs here, keeps the numbers for this user, and prints them beside those of the package.

use super::outcome::Outcome;
use super::render::{self, Console};
use counterflow_codegen::machine::{Profile, shipped};
use counterflow_runtime::cuda::Gpu;
use counterflow_runtime::{Communicator, Error, machines, probes};
use serde_json::{Map, Value as Json, json};
use std::path::PathBuf;
use std::time::Instant;

/// GPUs that are measured: links are alike between all.
const MOST: u32 = 2;

pub(super) fn profile(console: &mut Console<'_>) -> Result<Outcome, Error> {
    let bar = console.bar(1, "measuring");
    let begin = Instant::now();
    let measured = measured();
    drop(bar);
    let (profile, file, apart) = measured?;
    let seconds = begin.elapsed().as_secs_f64();
    console.say(told(&profile));
    if let Some(why) = apart {
        console.say(format!("  links were not measured: {why}"));
    }
    let file = file.display().to_string();
    console.say(format!(
        "**measured** in {seconds:.1} s, with what was compiled; kept in {file}"
    ));
    let numbers = profile.numbers.iter();
    let numbers = numbers.map(|(name, number)| {
        let from = number.from.name();
        (name.clone(), json!({ "value": number.value, "from": from }))
    });
    Ok(Outcome::good(Map::from_iter([
        ("numbers".into(), Json::Object(numbers.collect())),
        ("curves".into(), json!(profile.curves)),
        ("gpu".into(), profile.gpu.into()),
        ("link".into(), profile.link.name().into()),
        ("driver".into(), profile.driver.into()),
        ("file".into(), file.into()),
        ("seconds".into(), seconds.into()),
    ])))
}

/// The profile, its file, and why links were not measured, if several GPUs do not reach each other.
fn measured() -> Result<(Profile, PathBuf, Option<Error>), Error> {
    let gpus = Gpu::count()?.min(MOST);
    let (ranks, apart) = match Communicator::local(gpus) {
        Err(why) if gpus > 1 => (Communicator::local(1)?, Some(why)),
        ranks => (ranks?, None),
    };
    let profile = probes::measure(&ranks)?;
    let file = machines::keep(&profile)?;
    Ok((profile, file, apart))
}

/// A line for each number: what it is here, where it comes from, and what the package has for such a GPU.
fn told(profile: &Profile) -> String {
    let package = shipped(&profile.gpu);
    let rows = Profile::units().filter_map(|(name, unit)| {
        let number = profile.numbers.get(name)?;
        let of_package = package.numbers.get(name)?;
        Some(vec![
            name.to_owned(),
            spelled(number.value, unit),
            number.from.name().to_owned(),
            spelled(of_package.value, unit),
        ])
    });
    let title = format!("package: {}", package.gpu);
    let table = render::table(&["number", "here", "from", &title], rows.collect(), &[]);
    let Profile {
        gpu,
        link,
        driver,
        sms,
        clusters,
        ..
    } = profile;
    let link = link.name();
    format!("**{gpu}**, {link}, CUDA {driver}: {sms} SMs, clusters at once {clusters:?}\n{table}")
}

/// A number with a unit that keeps it short.
fn spelled(value: f64, unit: &str) -> String {
    let (scaled, prefix) = match value.abs() {
        1e12.. => (value / 1e12, "T"),
        1e9.. => (value / 1e9, "G"),
        1e6.. => (value / 1e6, "M"),
        1e-2.. => (value, ""),
        1e-6.. => (value * 1e6, "µ"),
        _ => (value * 1e9, "n"),
    };
    format!("{scaled:.3} {prefix}{unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_short_units_and_every_one_has_a_line() {
        assert_eq!(spelled(4.3e12, "B/s"), "4.300 TB/s");
        assert_eq!(spelled(0.78, "of it"), "0.780 of it");
        assert_eq!(spelled(1.22e-6, "s"), "1.220 µs");
        let text = told(shipped("NVIDIA H200"));
        for (name, _) in Profile::units() {
            assert!(text.contains(name), "{name}: {text}");
        }
    }
}
