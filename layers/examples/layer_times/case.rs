//! Which cases there are.

use crate::Options;
use counterflow::Error;
use counterflow_layers::overlap::{Config, Flags};
use counterflow_layers::{DelayedScaling, Float8BlockScaling, Float8CurrentScaling, Recipe};
use std::fmt;
use std::str::FromStr;

/// Hidden size, columns between the MLP's products, and output features of qkv: those of Llama-3 70B.
const SIZES: [usize; 3] = [8192, 28672, 10240];
/// Those of emulated ranks.
const SMALL: [usize; 3] = [64, 256, 128];
/// Steps that delayed scaling remembers.
pub const HISTORY: usize = 16;
/// A precision has the rows of both, the first ones first.
const PRECISIONS: [&str; 4] = ["bf16", "fp8ds", "fp8cs", "fp8bl"];
/// In the order of worth: a run that is cut off has the first ones.
const WAYS: [&str; 6] = ["none", "auto", "nocomm", "p2p", "sm", "ub"];

/// The layers of one precision, number of rows and way, with the modules that are asked for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Job {
    pub precision: String,
    pub rows: usize,
    pub way: String,
    pub modules: Vec<Module>,
}

/// What a case times.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Module {
    /// An MLP.
    SwiGlu,
    /// A norm with qkv, and the product behind attention, of an input of its own.
    QkvProj,
    /// An MLP.
    Gelu,
}

const MODULES: [Module; 3] = [Module::SwiGlu, Module::QkvProj, Module::Gelu];

impl Module {
    pub fn name(self) -> &'static str {
        match self {
            Module::SwiGlu => "swiglu",
            Module::QkvProj => "qkvproj",
            Module::Gelu => "gelu",
        }
    }
}

impl fmt::Display for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Job {
            precision,
            rows,
            way,
            modules,
        } = self;
        let modules = modules.iter().map(|module| module.name());
        let modules = modules.collect::<Vec<_>>().join("+");
        write!(f, "{precision}.{rows}.{way}.{modules}")
    }
}

impl FromStr for Job {
    type Err = String;

    fn from_str(text: &str) -> Result<Job, String> {
        let none = || format!("{text} is no job");
        let [precision, rows, way, modules] = text
            .split('.')
            .collect::<Vec<_>>()
            .try_into()
            .map_err(|_| none())?;
        let module = |name: &str| MODULES.into_iter().find(|module| module.name() == name);
        let modules = modules.split('+').map(|name| module(name).ok_or_else(none));
        Ok(Job {
            precision: precision.into(),
            rows: rows.parse().map_err(|_| none())?,
            way: way.into(),
            modules: modules.collect::<Result<_, _>>()?,
        })
    }
}

impl Job {
    pub fn name(&self, module: Module) -> String {
        let Job {
            precision,
            rows,
            way,
            ..
        } = self;
        format!("{precision}.{rows}.{way}.{}", module.name())
    }

    pub fn names(&self) -> Vec<String> {
        let modules = self.modules.iter();
        modules.map(|module| self.name(*module)).collect()
    }

    pub fn has_communication(&self) -> bool {
        self.way != "nocomm"
    }

    pub fn is_overlapped(&self) -> bool {
        !["none", "nocomm"].contains(&&*self.way)
    }

    /// As TransformerEngine has them in the same cases.
    pub fn recipe(&self) -> Option<Recipe> {
        let delayed = DelayedScaling {
            amax_history_len: HISTORY,
            ..DelayedScaling::default()
        };
        match &*self.precision {
            "fp8ds" => Some(delayed.into()),
            "fp8cs" => Some(Float8CurrentScaling::default().into()),
            "fp8bl" => Some(Float8BlockScaling::default().into()),
            _ => None,
        }
    }

    pub fn flags(&self) -> Flags {
        let bulk = ["sm", "ub"].contains(&&*self.way);
        let on = self.is_overlapped();
        Flags {
            ub_overlap_ag: on,
            ub_overlap_rs: on,
            ub_overlap_rs_dgrad: on && !bulk,
            ub_bulk_dgrad: bulk,
            ub_bulk_wgrad: bulk,
        }
    }

    /// `ub` is the default of users: copy engines move what is gathered. `sm`: SMs do. `p2p`: the gradient of a column-parallel layer's
    /// input is summed in its product, and nothing runs in bulk. `auto`: the fastest known schedules, by the table or the model.
    pub fn config(&self) -> Result<Config, Error> {
        let gathers = ["qkv_fprop", "fc1_fprop", "proj_dgrad", "fc2_dgrad"];
        let sums = ["proj_fprop", "fc2_fprop", "qkv_dgrad", "fc1_dgrad"];
        let lines = |names: &[&str], what: &str| -> String {
            names
                .iter()
                .map(|name| format!("{name}: {what}\n"))
                .collect()
        };
        Config::from_yaml(&match &*self.way {
            "sm" => lines(&gathers, "{use_ce: 0}"),
            "p2p" => {
                let by_sms = lines(&gathers, "{use_ce: 0}");
                by_sms + &lines(&sums, "{method: ring_exchange}")
            }
            "auto" => lines(&[gathers, sums].concat(), "{method: auto}"),
            _ => String::new(),
        })
    }
}

/// Hidden size, columns between an MLP's products, and output features of qkv.
pub fn sizes(options: &Options) -> [usize; 3] {
    if options.emulated { SMALL } else { SIZES }
}

/// True if a case is asked for, by its beginning or by its words.
fn is_wanted(only: &str, name: &str) -> bool {
    let words: Vec<&str> = name.split('.').collect();
    let mut each = only.split(',').filter(|only| !only.is_empty()).peekable();
    each.peek().is_none()
        || each.any(|only| {
            format!("{name}.").starts_with(&format!("{only}."))
                || only.split('+').all(|word| words.contains(&word))
        })
}

/// What is asked for, in the order of worth.
pub fn jobs(options: &Options) -> Vec<Job> {
    let rows = if options.emulated {
        [32, 16]
    } else {
        [8192, 2048]
    };
    let mut all = Vec::new();
    // GELU is told apart by the activation alone: the ways that matter, behind all others.
    let usual = (&[Module::SwiGlu, Module::QkvProj][..], &WAYS[..]);
    for (modules, ways) in [usual, (&[Module::Gelu], &["none", "auto", "nocomm"])] {
        for precisions in PRECISIONS.chunks(2) {
            for rows in rows {
                let each = precisions.iter();
                all.extend(each.flat_map(|precision| {
                    let job = |way: &&str| Job {
                        precision: (*precision).into(),
                        rows,
                        way: (*way).into(),
                        modules: modules.to_vec(),
                    };
                    ways.iter().map(job)
                }));
            }
        }
    }
    let jobs = all.into_iter().map(|mut job| {
        let name = |module: &Module| job.name(*module);
        let wanted = |module: &Module| is_wanted(&options.only, &name(module));
        job.modules = job.modules.iter().copied().filter(wanted).collect();
        job
    });
    jobs.filter(|job| !job.modules.is_empty()).collect()
}
