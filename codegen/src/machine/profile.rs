//! A profile as a file: read, written, and refused where it is not whole.

use super::product::{Curve, ProductTime};
use super::rates::{Machine, NUMBERS};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// The version of the file's form. Another one is refused: its numbers may mean something else.
pub const FORMAT: u32 = 1;

/// Clusters of 1 to 8 CTAs.
const CLUSTERS: usize = 8;

/// Connection of the GPUs of a process.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Link {
    /// There is one GPU.
    Alone,
    /// Each reads and writes the others' memory, without atomic additions: PCIe.
    Peers,
    /// As peers, with atomic additions: NVLink.
    NvLink,
}

impl Link {
    /// Name in files.
    pub const fn name(self) -> &'static str {
        match self {
            Link::Alone => "alone",
            Link::Peers => "peers",
            Link::NvLink => "nvlink",
        }
    }
}

/// Origin of a number.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Source {
    /// Probes on that kind of GPU.
    Measured,
    /// Chosen so that predictions are near the measured times of kernels on that kind of GPU.
    Fitted,
    /// The maker's own figure.
    Published,
    /// Another card's, as nothing of this one is known.
    Assumed,
}

impl Source {
    /// Name in files.
    pub const fn name(self) -> &'static str {
        match self {
            Source::Measured => "measured",
            Source::Fitted => "fitted",
            Source::Published => "published",
            Source::Assumed => "assumed",
        }
    }
}

/// A number, and where it comes from.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Number {
    /// In the unit that [`Profile::units`] gives.
    pub value: f64,
    /// Origin of the number.
    pub from: Source,
}

/// The numbers of one kind of GPU, linked in one way, under one driver.
///
/// ```
/// use counterflow_codegen::machine::{self, Link, Machine, Number, Profile, Refused, Source};
///
/// let mut profile: Profile = machine::shipped("NVIDIA H200").clone();
/// assert_eq!((profile.gpu.as_str(), profile.link), ("NVIDIA H200", Link::NvLink));
/// let memory: Number = profile.numbers["memory"];
/// println!("{:.1} TB/s, {}", memory.value / 1e12, memory.from.name());
/// assert_eq!(Profile::parse(&profile.text()), Ok(profile.clone()));
/// assert_eq!(profile.machine()?, Machine::h200());
///
/// profile.numbers.insert("l2".into(), Number { value: -1.0, from: Source::Measured });
/// let refused: Refused = Profile::parse(&profile.text()).unwrap_err();
/// println!("{refused}"); // it names the number
/// for (name, unit) in Profile::units() {
///     println!("{name} in {unit}");
/// }
/// # Ok::<(), Refused>(())
/// ```
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// [`FORMAT`].
    pub format: u32,
    /// The GPU, as its driver names it.
    pub gpu: String,
    /// Connection of its GPUs.
    pub link: Link,
    /// The latest CUDA version that the driver supports, such as `13.0`.
    pub driver: String,
    /// Streaming multiprocessors.
    pub sms: u32,
    /// Clusters that run at once, of 1 to 8 CTAs.
    pub clusters: Vec<u32>,
    /// By name; all that [`Profile::units`] has.
    pub numbers: BTreeMap<String, Number>,
    /// Curves that probes measured, by name, for whoever reads the file. The model takes the numbers.
    #[serde(default)]
    pub curves: BTreeMap<String, Curve>,
    /// Times of our own products.
    #[serde(default)]
    pub products: Vec<ProductTime>,
}

/// Reason that a text is no profile.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refused(String);

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Refused {}

impl Profile {
    /// Names and units of all numbers.
    pub fn units() -> impl Iterator<Item = (&'static str, &'static str)> {
        NUMBERS.iter().map(|number| (number.name, number.unit))
    }

    /// Reads a profile's text.
    ///
    /// # Errors
    /// What is not as this version writes it: another form, a number that is absent, unknown or not above zero, a GPU without SMs.
    pub fn parse(text: &str) -> Result<Profile, Refused> {
        /// The form alone: the rest may have other fields.
        #[derive(Deserialize)]
        struct Form {
            format: Option<u32>,
        }
        let broken = |error: toml::de::Error| Refused(error.message().to_owned());
        let Form { format } = toml::from_str(text).map_err(broken)?;
        if format != Some(FORMAT) {
            let found = format.map_or("none".into(), |format| format.to_string());
            return Err(Refused(format!(
                "its format is {found}, and this version reads {FORMAT}"
            )));
        }
        let profile: Profile = toml::from_str(text).map_err(broken)?;
        profile.machine()?;
        Ok(profile)
    }

    /// Text of the profile, as [`Profile::parse`] reads it.
    pub fn text(&self) -> String {
        // No value of these types cannot be written.
        toml::to_string(self).unwrap_or_default()
    }

    /// Numbers that the model reads.
    ///
    /// # Errors
    /// As [`Profile::parse`].
    pub fn machine(&self) -> Result<Machine, Refused> {
        let clusters = &self.clusters;
        let falling = clusters.is_sorted_by(|less, more| less >= more);
        if self.sms == 0 || clusters.len() != CLUSTERS || clusters[0] != self.sms || !falling {
            return Err(Refused(format!(
                "clusters of {clusters:?} on {} SMs: there are numbers for 1 to {CLUSTERS} CTAs, none larger than the one before it, and that of 1 is the SMs'",
                self.sms
            )));
        }
        let name = match self.link {
            Link::Alone => self.gpu.clone(),
            Link::Peers | Link::NvLink => format!("{} {}", self.gpu, self.link.name()),
        };
        let mut machine = Machine::unknown((self.gpu.clone(), name), self.sms, clusters.clone());
        for named in NUMBERS {
            let Some(number) = self.numbers.get(named.name) else {
                return Err(Refused(format!("it lacks the number {}", named.name)));
            };
            // NaN is refused, too.
            if !(number.value > 0.0 && number.value.is_finite()) {
                let (name, value) = (named.name, number.value);
                return Err(Refused(format!("{name} is {value}, not a number above 0")));
            }
            (named.set)(&mut machine, number.value);
        }
        let known = |name: &str| NUMBERS.iter().any(|number| number.name == name);
        match self.numbers.keys().find(|name| !known(name)) {
            Some(name) => Err(Refused(format!("{name} is no number of a profile"))),
            None => Ok(machine),
        }
    }

    /// Number of its numbers that come from there.
    pub fn count(&self, from: Source) -> usize {
        let all = self.numbers.values();
        all.filter(|number| number.from == from).count()
    }
}
