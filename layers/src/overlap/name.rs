//! Names of products.

use super::settings::Parallel;
use counterflow::Error;
use std::fmt;

/// A product of a layer's training step.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Pass {
    /// The output: `x · wᵀ`.
    Fprop,
    /// The gradient of the input: `dy · w`.
    Dgrad,
    /// The gradient of the weight: `dyᵀ · x`.
    Wgrad,
}

impl Pass {
    /// All of them.
    pub const ALL: [Pass; 3] = [Pass::Fprop, Pass::Dgrad, Pass::Wgrad];

    /// Suffix in names.
    pub const fn name(self) -> &'static str {
        match self {
            Pass::Fprop => "fprop",
            Pass::Dgrad => "dgrad",
            Pass::Wgrad => "wgrad",
        }
    }
}

/// A layer's name and one of its products: `qkv_fprop`.
///
/// TransformerEngine knows `qkv`, `proj`, `fc1` and `fc2`. Any other name of letters, digits, `_`, `-` and `.` is a layer, too.
///
/// ```
/// use counterflow_layers::overlap::{GemmName, Parallel, Pass};
///
/// let name: GemmName = "q_up_proj_dgrad".parse()?;
/// assert_eq!((name.layer(), name.pass()), ("q_up_proj", Pass::Dgrad));
/// assert_eq!(name.known(), None); // by the layer that has the name
/// assert_eq!("fc2_wgrad".parse::<GemmName>()?.known(), Some(Parallel::Row));
/// assert!("qkv".parse::<GemmName>().is_err());
/// # Ok::<(), counterflow::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct GemmName {
    layer: String,
    pass: Pass,
}

/// The layers that TransformerEngine's `initialize_ub` knows.
pub(super) const KNOWN: [(&str, Parallel); 4] = [
    ("qkv", Parallel::Column),
    ("proj", Parallel::Row),
    ("fc1", Parallel::Column),
    ("fc2", Parallel::Row),
];

impl GemmName {
    /// A product of a layer.
    ///
    /// # Errors
    /// [`Error::Usage`] for a layer's name that is empty or has other characters.
    pub fn new(layer: &str, pass: Pass) -> Result<GemmName, Error> {
        let fits = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
        if layer.is_empty() || !layer.chars().all(fits) {
            return Err(Error::Usage {
                what: format!("`{layer}` as the name of a layer"),
                legal: "use letters, digits, `_`, `-` and `.`".into(),
            });
        }
        Ok(GemmName {
            layer: layer.into(),
            pass,
        })
    }

    /// The layer.
    pub fn layer(&self) -> &str {
        &self.layer
    }

    /// Product of the layer.
    pub fn pass(&self) -> Pass {
        self.pass
    }

    /// Division of the layer, if TransformerEngine knows it.
    pub fn known(&self) -> Option<Parallel> {
        let known = KNOWN.iter().find(|(layer, _)| *layer == self.layer);
        known.map(|(_, parallel)| *parallel)
    }
}

impl fmt::Display for GemmName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}_{}", self.layer, self.pass.name())
    }
}

impl std::str::FromStr for GemmName {
    type Err = Error;

    fn from_str(name: &str) -> Result<GemmName, Error> {
        let found = Pass::ALL.into_iter().find_map(|pass| {
            let layer = name.strip_suffix(pass.name())?.strip_suffix('_')?;
            Some((layer, pass))
        });
        let (layer, pass) = found.ok_or_else(|| Error::Usage {
            what: format!("`{name}` is no product"),
            legal: "name a layer and its product: `qkv_fprop`, `qkv_dgrad`, `qkv_wgrad`".into(),
        })?;
        GemmName::new(layer, pass)
    }
}
