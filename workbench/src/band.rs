//! How far off a prediction may be, in words.

use counterflow_codegen::kernel::Kernel;
use counterflow_codegen::machine::Machine;
use counterflow_timeline::model::{self, Band};
use serde_json::{Value as Json, json};

/// Error of a kernel's prediction, as far as it is known.
pub(super) fn of(kernel: &Kernel, machine: &Machine) -> Option<Band> {
    model::band(kernel, machine)
}

/// One line.
pub(super) fn told(band: Option<&Band>, machine: &Machine) -> String {
    match band {
        Some(Band { low, high, rows }) => format!(
            "error band on {}: nine of ten of {rows} measured launches took {low:.2} to {high:.2} of the predicted time",
            machine.name
        ),
        None => format!(
            "error band on {}: not known, as no launch of this kind was measured beside the model (`trace` on GPUs does)",
            machine.name
        ),
    }
}

/// Error of a prediction for JSON; null where nothing is known.
pub(super) fn object(band: Option<&Band>) -> Json {
    band.map_or(
        Json::Null,
        |Band { low, high, rows }| json!({ "low": low, "high": high, "rows": rows }),
    )
}
