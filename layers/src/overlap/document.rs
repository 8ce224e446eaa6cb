//! YAML and TOML as one tree, with the line of each key and value.

use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use std::fmt;

/// Something on a line of a file. The first line is 1.
#[derive(Debug)]
pub(super) struct Lined<T> {
    pub line: usize,
    pub value: T,
}

pub(super) type Table = Vec<(Lined<String>, Lined<Value>)>;

#[derive(Debug)]
pub(super) enum Value {
    Bool(bool),
    Integer(i64),
    Text(String),
    Table(Table),
    /// A value that no setting takes, in words.
    Other(&'static str),
}

/// Reason that a text is no document.
#[derive(Debug)]
pub(super) struct Broken {
    pub line: usize,
    pub why: String,
}

/// An empty document is an empty table.
pub(super) fn yaml(text: &str) -> Result<Value, Broken> {
    if text.trim().is_empty() {
        return Ok(Value::Table(Vec::new()));
    }
    let parsed: Result<Yaml, _> = serde_saphyr::from_str(text);
    let value = parsed.map_err(|error| Broken {
        line: error
            .location()
            .map_or(1, |at| usize::try_from(at.line()).unwrap_or(1)),
        why: told(&error.to_string()),
    })?;
    Ok(match value.0 {
        // Comments alone.
        Value::Other(NOTHING) => Value::Table(Vec::new()),
        other => other,
    })
}

pub(super) fn toml(text: &str) -> Result<Value, Broken> {
    let line = |at: usize| 1 + text[..at.min(text.len())].matches('\n').count();
    let parsed = toml::de::DeTable::parse(text).map_err(|error| Broken {
        line: error.span().map_or(1, |span| line(span.start)),
        why: error.message().to_owned(),
    })?;
    Ok(of_toml(
        toml::de::DeValue::Table(parsed.into_inner()),
        &line,
    ))
}

const NOTHING: &str = "nothing";
const LIST: &str = "a list";
const FRACTION: &str = "a fraction";

/// The first line of a parser's report, without its own words for the place.
fn told(report: &str) -> String {
    let line = report.lines().next().unwrap_or_default();
    let line = line.strip_prefix("error: ").unwrap_or(line);
    match line.split_once(": ") {
        Some((place, why)) if place.starts_with("line ") => why.to_owned(),
        Some(_) | None => line.to_owned(),
    }
}

fn of_toml(value: toml::de::DeValue<'_>, line: &impl Fn(usize) -> usize) -> Value {
    use toml::de::DeValue;
    match value {
        DeValue::Boolean(value) => Value::Bool(value),
        DeValue::String(value) => Value::Text(value.into_owned()),
        DeValue::Integer(value) => {
            let read = i64::from_str_radix(value.as_str(), value.radix());
            read.map_or(
                Value::Other("a number of more than 64 bits"),
                Value::Integer,
            )
        }
        DeValue::Float(_) => Value::Other(FRACTION),
        DeValue::Datetime(_) => Value::Other("a date"),
        DeValue::Array(_) => Value::Other(LIST),
        DeValue::Table(table) => {
            let entries = table.into_iter().map(|(key, value)| {
                let (at, of_value) = (line(key.span().start), line(value.span().start));
                let key = Lined {
                    line: at,
                    value: key.into_inner().into_owned(),
                };
                let value = Lined {
                    line: of_value,
                    value: of_toml(value.into_inner(), line),
                };
                (key, value)
            });
            let mut entries: Table = entries.collect();
            entries.sort_by_key(|(key, _)| key.line);
            Value::Table(entries)
        }
    }
}

struct Yaml(Value);

impl<'de> Deserialize<'de> for Yaml {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Reader).map(Yaml)
    }
}

struct Reader;

impl<'de> Visitor<'de> for Reader {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("settings of products by name")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Integer(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(i64::try_from(value).map_or(
            Value::Other("a number of more than 63 bits"),
            Value::Integer,
        ))
    }

    fn visit_f64<E>(self, _: f64) -> Result<Value, E> {
        Ok(Value::Other(FRACTION))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::Text(value.to_owned()))
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Other(NOTHING))
    }

    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::Other(NOTHING))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        while items.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Value::Other(LIST))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        use serde_saphyr::Spanned;
        let mut table = Table::new();
        while let Some((key, value)) = entries.next_entry::<Spanned<String>, Spanned<Yaml>>()? {
            let line = |at: serde_saphyr::Location| usize::try_from(at.line()).unwrap_or(1);
            let (at, of_value) = (line(key.referenced), line(value.referenced));
            let key = Lined {
                line: at,
                value: key.value,
            };
            let value = Lined {
                line: of_value,
                value: value.value.0,
            };
            table.push((key, value));
        }
        Ok(Value::Table(table))
    }
}
