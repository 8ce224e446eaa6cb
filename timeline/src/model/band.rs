//! How far predictions have been from what was measured.

use counterflow_codegen::kernel::{Kernel, Role, RoleKind};
use counterflow_codegen::machine::Machine;

/// Measured times over predicted ones: nine of ten rows lie between `low` and `high`.
///
/// ```
/// use counterflow_codegen::machine::Machine;
/// use counterflow_timeline::model::{self, Band};
/// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/../codegen/tests/fixtures/example.rs")); }
///
/// let (series, _) = example::proven();
/// // What communicates was measured beside the model on H100s alone.
/// let known: Option<Band> = model::band(series.kernel(), &Machine::h100());
/// assert!(known.is_some_and(|band| band.low < band.high));
/// assert_eq!(model::band(series.kernel(), &Machine::h200()), None);
/// # Ok::<(), counterflow_codegen::diag::Diagnostic>(())
/// ```
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Band {
    /// The 5th percentile of measured over predicted.
    pub low: f64,
    /// The 95th.
    pub high: f64,
    /// Number of rows that were measured.
    pub rows: u32,
}

/// The band of a kernel's predictions on a machine. `None` where no measured rows are of such a kernel: those are of one
/// product of 16-bit types alone, on an H200 and an H100 (`tests/measured`), and of the library's fused schedules of 16-bit types on
/// two to four H100s, where they were the fastest of their family (`runtime/tuned`). A test holds these numbers to the rows.
pub fn band(kernel: &Kernel, machine: &Machine) -> Option<Band> {
    let moves = !kernel.counters.is_empty() || kernel.variant.world > 1;
    let one_role = matches!(&kernel.roles[..], [role] if matches!(role.kind, RoleKind::Gemm(_)));
    let three = kernel.buffers.len() == 3;
    let wide = kernel
        .buffers
        .iter()
        .all(|buffer| buffer.dtype.bytes() == 2);
    let multiplies = |role: &Role| matches!(role.kind, RoleKind::Gemm(_));
    let fused = FUSED.contains(&&kernel.name[..]);
    if moves && wide && fused && kernel.roles.iter().any(multiplies) {
        return machine.gpu.contains("H100").then_some(H100_FUSED);
    }
    if moves || !one_role || !three || !wide {
        return None;
    }
    let known = [("H200", H200), ("H100", H100)].into_iter();
    let mut known = known.filter(|(name, _)| machine.gpu.contains(name));
    known.next().map(|(_, band)| band)
}

/// The schedules of those rows.
const FUSED: [&str; 5] = [
    "ag_gemm",
    "ag_gemm_pull",
    "gemm_ar",
    "gemm_ar_one_shot",
    "gemm_rs",
];

const H200: Band = Band {
    low: 0.884,
    high: 1.246,
    rows: 2869,
};

const H100: Band = Band {
    low: 0.869,
    high: 1.280,
    rows: 672,
};

const H100_FUSED: Band = Band {
    low: 0.974,
    high: 1.238,
    rows: 56,
};
