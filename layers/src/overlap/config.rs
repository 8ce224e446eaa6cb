//! A configuration: settings by product.

use super::document::{self, Broken, Value};
use super::gemm::Gemm;
use super::name::{GemmName, KNOWN, Pass};
use super::read;
use super::settings::{Method, Parallel, Settings};
use counterflow::Error;
use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

/// A setting that a user wrote and that has nothing to act on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Notice {
    /// The product.
    pub name: GemmName,
    /// The key.
    pub key: &'static str,
    /// Reason that it has none.
    pub why: &'static str,
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Notice { name, key, why } = self;
        write!(f, "{name}.{key} is without effect: {why}")
    }
}

/// Settings of products by name: TransformerEngine's `ub_cfgs`. The default has none, so each product has its defaults.
///
/// ```
/// use counterflow_layers::overlap::{Config, Method, Parallel, Settings};
///
/// let mut config = Config::from_toml("[fc1_dgrad]\nmethod = \"bulk\"\nnum_sm = 4")?;
/// config.set("proj_fprop", Settings::method(Method::Auto))?;
/// assert_eq!(config.gemm("fc1_dgrad", Parallel::Column)?.given.num_sm, Some(4));
/// let missing = Config::load("no/such/file.yaml".as_ref());
/// assert_eq!(missing.unwrap_err().kind(), "file");
/// # Ok::<(), counterflow::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Config {
    products: BTreeMap<GemmName, Settings>,
}

impl Config {
    /// Of YAML: a mapping of settings for each product.
    ///
    /// # Errors
    /// [`Error::Usage`] with a line for each thing that is wrong: text that is no YAML, a name, key or value that is not known, or
    /// a method that a product cannot have.
    pub fn from_yaml(text: &str) -> Result<Config, Error> {
        Config::of(document::yaml(text))
    }

    /// Of TOML: a table for each product.
    ///
    /// # Errors
    /// As [`Config::from_yaml`].
    pub fn from_toml(text: &str) -> Result<Config, Error> {
        Config::of(document::toml(text))
    }

    /// Loads a file, by its ending: `.yaml`, `.yml` or `.toml`.
    ///
    /// # Errors
    /// [`Error::File`] for one that cannot be read; as [`Config::from_yaml`], with the file's name before each line.
    pub fn load(path: &Path) -> Result<Config, Error> {
        let ending = path.extension().and_then(|ending| ending.to_str());
        let parse = match ending {
            Some("yaml" | "yml") => Config::from_yaml,
            Some("toml") => Config::from_toml,
            Some(_) | None => {
                return Err(Error::Usage {
                    what: format!("{} as a configuration", path.display()),
                    legal: "give a file that ends in .yaml, .yml or .toml".into(),
                });
            }
        };
        let text = std::fs::read_to_string(path).map_err(|source| Error::File {
            path: path.into(),
            source,
        })?;
        parse(&text).map_err(|error| match error {
            Error::Usage { what, legal } => {
                let lines = what
                    .lines()
                    .map(|line| format!("{}, {line}", path.display()));
                Error::Usage {
                    what: lines.collect::<Vec<_>>().join("\n"),
                    legal,
                }
            }
            other => other,
        })
    }

    fn of(document: Result<Value, Broken>) -> Result<Config, Error> {
        let read = read::settings(document)?;
        let lines = read.iter().map(|(name, (line, _))| (name.clone(), *line));
        let lines: BTreeMap<GemmName, usize> = lines.collect();
        let products = read
            .into_iter()
            .map(|(name, (_, settings))| (name, settings));
        let config = Config {
            products: products.collect(),
        };
        for (layer, parallel) in KNOWN {
            if let Err(Error::Usage { what, legal }) = config.layer(layer, parallel) {
                let line = lines.get(&GemmName::new(layer, Pass::Wgrad)?).unwrap_or(&1);
                let what = format!("line {line}: {what}");
                return Err(Error::Usage { what, legal });
            }
        }
        Ok(config)
    }

    /// Sets all of a product's settings.
    ///
    /// # Errors
    /// [`Error::Usage`] for a name that is none, and for what the product cannot have, if its layer is known.
    pub fn set(&mut self, name: &str, settings: Settings) -> Result<(), Error> {
        let mut products = self.products.clone();
        products.insert(name.parse()?, settings);
        let config = Config { products };
        for (layer, parallel) in KNOWN {
            config.layer(layer, parallel)?;
        }
        *self = config;
        Ok(())
    }

    /// The products that have settings, with what was said of them.
    pub fn products(&self) -> impl Iterator<Item = (&GemmName, &Settings)> {
        self.products.iter()
    }

    /// A product of a layer that is divided in that way, with its settings and defaults.
    ///
    /// # Errors
    /// [`Error::Usage`] for a name that is none, a known layer that is divided in the other way, or settings that the product
    /// cannot have.
    pub fn gemm(&self, name: &str, parallel: Parallel) -> Result<Gemm, Error> {
        let name: GemmName = name.parse()?;
        let none = Settings::default();
        Gemm::new(&name, parallel, self.products.get(&name).unwrap_or(&none))
    }

    /// The products of a layer that is divided in that way: of output, input gradient and weight gradient.
    ///
    /// # Errors
    /// As [`Config::gemm`]; [`Error::Usage`] where the gradient of the weight has settings, and that of the input is not computed in
    /// bulk, so that nothing runs beside the former.
    pub fn layer(&self, layer: &str, parallel: Parallel) -> Result<[Gemm; 3], Error> {
        let gemm = |pass: Pass| self.gemm(&GemmName::new(layer, pass)?.to_string(), parallel);
        let [fprop, dgrad, wgrad] = [gemm(Pass::Fprop)?, gemm(Pass::Dgrad)?, gemm(Pass::Wgrad)?];
        let bulk = parallel == Parallel::Row || dgrad.method == Method::Bulk;
        if !bulk && wgrad.given != Settings::default() {
            return Err(Error::Usage {
                what: format!(
                    "{} has settings, and {} has the method {}",
                    wgrad.name, dgrad.name, dgrad.method
                ),
                legal: format!(
                    "leave out {}: nothing runs beside it, or give {} the method bulk",
                    wgrad.name, dgrad.name
                ),
            });
        }
        Ok([fprop, dgrad, wgrad])
    }

    /// Settings of users that have nothing to act on. [`Userbuffers::initialize`](crate::Userbuffers::initialize)
    /// logs them once.
    pub fn notices(&self) -> Vec<Notice> {
        self.notices_of(false)
    }

    /// The same of products in FP8, where `fp8_buf` acts on what is gathered.
    pub fn notices_in_fp8(&self) -> Vec<Notice> {
        self.notices_of(true)
    }

    fn notices_of(&self, in_fp8: bool) -> Vec<Notice> {
        let each = self.products.iter();
        each.flat_map(|(name, given)| {
            // A free name's layer says what its product communicates.
            let parallels = match name.known() {
                Some(parallel) => vec![parallel],
                None => vec![Parallel::Column, Parallel::Row],
            };
            let gemms = parallels.into_iter();
            let gemms = gemms.filter_map(|parallel| Gemm::new(name, parallel, given).ok());
            let told = gemms
                .map(|gemm| gemm.without_effect(in_fp8))
                .min_by_key(Vec::len);
            let notice = |(key, why)| Notice {
                name: name.clone(),
                key,
                why,
            };
            told.unwrap_or_default().into_iter().map(notice)
        })
        .collect()
    }
}
