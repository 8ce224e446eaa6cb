//! Settings out of a document. Everything wrong is found at once, each with its line.

use super::document::{Broken, Lined, Value};
use super::gemm::Gemm;
use super::name::{GemmName, KNOWN, Pass};
use super::settings::{Method, Settings};
use counterflow::Error;
use std::collections::BTreeMap;

/// The keys of a product, as files have them.
pub(super) const KEYS: [&str; 14] = [
    "method",
    "is_reduce_scatter",
    "num_sm",
    "cga_size",
    "set_sm_margin",
    "num_splits",
    "num_max_streams",
    "aggregate",
    "atomic_gemm",
    "use_ce",
    "fp8_buf",
    "comm_priority",
    "gemm_priority",
    "pipeline_rs_overlap_first_gemm",
];

/// Settings by product, and the line of each.
pub(super) type Read = BTreeMap<GemmName, (usize, Settings)>;

pub(super) fn settings(document: Result<Value, Broken>) -> Result<Read, Error> {
    let mut found = Found::default();
    let mut all = Read::new();
    match document {
        Err(Broken { line, why }) => found.add(line, why),
        Ok(Value::Table(products)) => {
            for (name, value) in products {
                let Some(parsed) = product(&name, &mut found) else {
                    continue;
                };
                let Some(settings) = of_product(&name, value, &mut found) else {
                    continue;
                };
                // What is wrong whatever the layer is: the rest is found when a layer asks.
                if let Some(parallel) = parsed.known()
                    && let Err(error) = Gemm::new(&parsed, parallel, &settings)
                {
                    found.add(name.line, both(&error));
                }
                all.insert(parsed, (name.line, settings));
            }
        }
        Ok(other) => found.add(1, format!("{}, not products by name", words(&other))),
    }
    found.end(all)
}

/// An error in one sentence.
fn both(error: &Error) -> String {
    match error.help() {
        Some(help) => format!("{error}: {help}"),
        None => error.to_string(),
    }
}

#[derive(Default)]
struct Found(Vec<String>);

impl Found {
    fn add(&mut self, line: usize, what: String) {
        self.0.push(format!("line {line}: {what}"));
    }

    fn end<T>(self, value: T) -> Result<T, Error> {
        if self.0.is_empty() {
            return Ok(value);
        }
        Err(Error::Usage {
            what: self.0.join("\n"),
            legal: format!(
                "a product is named `<layer>_fprop`, `_dgrad` or `_wgrad`; its keys are {}",
                KEYS.join(", ")
            ),
        })
    }
}

/// The name of a product. One that is nearly a known one is taken for a mistake.
fn product(name: &Lined<String>, found: &mut Found) -> Option<GemmName> {
    let known = KNOWN.iter().flat_map(|(layer, _)| {
        let named = |pass: Pass| format!("{layer}_{}", pass.name());
        Pass::ALL.map(named)
    });
    let known: Vec<String> = known.collect();
    let parsed: Result<GemmName, Error> = name.value.parse();
    match parsed {
        Ok(parsed) => Some(parsed),
        Err(error) => {
            let meant = meant(&name.value, known.iter().map(String::as_str));
            found.add(name.line, format!("{error}{meant}"));
            None
        }
    }
}

/// `; did you mean ..?`, if one of these is near.
pub(super) fn meant<'a>(written: &str, options: impl Iterator<Item = &'a str>) -> String {
    let near = options.map(|option| (strsim::damerau_levenshtein(written, option), option));
    match near.min_by_key(|(distance, _)| *distance) {
        Some((distance, option)) if distance <= 1 + written.len() / 4 => {
            format!("; did you mean `{option}`?")
        }
        Some(_) | None => String::new(),
    }
}

fn of_product(name: &Lined<String>, value: Lined<Value>, found: &mut Found) -> Option<Settings> {
    let Value::Table(entries) = value.value else {
        let is = words(&value.value);
        found.add(value.line, format!("{} is {is}, not settings", name.value));
        return None;
    };
    let mut settings = Settings::default();
    let before = found.0.len();
    for (key, value) in entries {
        if !KEYS.contains(&&*key.value) {
            let meant = meant(&key.value, KEYS.into_iter());
            let what = format!("{} has no key `{}`{meant}", name.value, key.value);
            found.add(key.line, what);
        } else if let Err(wanted) = set(&mut settings, &key.value, &value.value) {
            let (is, key) = (words(&value.value), &key.value);
            let what = format!("{}.{key} is {is}: give {wanted}", name.value);
            found.add(value.line, what);
        }
    }
    (found.0.len() == before).then_some(settings)
}

/// Sets a key, or says what it takes.
fn set(settings: &mut Settings, key: &str, value: &Value) -> Result<(), String> {
    match key {
        "method" => settings.method = Some(method(value)?),
        "is_reduce_scatter" => settings.is_reduce_scatter = Some(switch(value)?),
        "num_sm" => settings.num_sm = Some(count(value)?),
        "cga_size" => settings.cga_size = Some(count(value)?),
        "set_sm_margin" => settings.set_sm_margin = Some(switch(value)?),
        "num_splits" => settings.num_splits = Some(count(value)?),
        "num_max_streams" => settings.num_max_streams = Some(count(value)?),
        "aggregate" => settings.aggregate = Some(switch(value)?),
        "atomic_gemm" => settings.atomic_gemm = Some(switch(value)?),
        "use_ce" => settings.use_ce = Some(switch(value)?),
        "fp8_buf" => settings.fp8_buf = Some(switch(value)?),
        "comm_priority" => settings.comm_priority = Some(priority(value)?),
        "gemm_priority" => settings.gemm_priority = Some(priority(value)?),
        "pipeline_rs_overlap_first_gemm" => {
            settings.pipeline_rs_overlap_first_gemm = Some(switch(value)?);
        }
        _ => return Err("no value: there is no such key".into()),
    }
    Ok(())
}

fn method(value: &Value) -> Result<Method, String> {
    let text = match value {
        Value::Text(text) => text.as_str(),
        Value::Bool(_) | Value::Integer(_) | Value::Table(_) | Value::Other(_) => "",
    };
    let found = Method::ALL.into_iter().find(|one| one.name() == text);
    found.ok_or_else(|| {
        let names = Method::ALL.map(Method::name);
        let meant = meant(text, names.into_iter());
        format!("one of {}{meant}", names.join(", "))
    })
}

/// Recipes have integers for booleans.
fn switch(value: &Value) -> Result<bool, String> {
    match value {
        Value::Bool(value) => Ok(*value),
        Value::Integer(0) => Ok(false),
        Value::Integer(1) => Ok(true),
        Value::Integer(_) | Value::Text(_) | Value::Table(_) | Value::Other(_) => {
            Err("true, false, 1 or 0".into())
        }
    }
}

fn count(value: &Value) -> Result<u32, String> {
    let read = match value {
        Value::Integer(value) => u32::try_from(*value).ok(),
        Value::Bool(_) | Value::Text(_) | Value::Table(_) | Value::Other(_) => None,
    };
    let some = read.filter(|count| *count > 0);
    some.ok_or_else(|| "a number of 1 or more".into())
}

fn priority(value: &Value) -> Result<i32, String> {
    match value {
        Value::Integer(value) => i32::try_from(*value).ok(),
        Value::Bool(_) | Value::Text(_) | Value::Table(_) | Value::Other(_) => None,
    }
    .ok_or_else(|| "a stream priority, such as 0".into())
}

/// A value as an error names it.
fn words(value: &Value) -> String {
    match value {
        Value::Bool(value) => value.to_string(),
        Value::Integer(value) => value.to_string(),
        Value::Text(text) => format!("`{text}`"),
        Value::Table(_) => "a table".into(),
        Value::Other(what) => (*what).into(),
    }
}
