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
/// // Gathers were measured beside the model on H100s alone.
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
/// product of 16-bit types alone, on an H200 and an H100 (`tests/measured`), and of the library's fused schedules of 16-bit types where
/// they were the fastest of their family (`runtime/tuned`): on two to four H100s, and sums over ranks on two H200s. A test holds these
/// numbers to the rows.
pub fn band(kernel: &Kernel, machine: &Machine) -> Option<Band> {
    let moves = !kernel.counters.is_empty() || kernel.variant.world > 1;
    let one_role = matches!(&kernel.roles[..], [role] if matches!(role.kind, RoleKind::Gemm(_)));
    let three = kernel.buffers.len() == 3;
    let wide = kernel
        .buffers
        .iter()
        .all(|buffer| buffer.dtype.bytes() == 2);
    let multiplies = |role: &Role| matches!(role.kind, RoleKind::Gemm(_));
    let mut cards = [H200, H100].into_iter();
    let card = cards.find(|card| machine.gpu.contains(card.name))?;
    if moves && wide && kernel.roles.iter().any(multiplies) {
        return card
            .schedules
            .contains(&&kernel.name[..])
            .then_some(card.fused);
    }
    (!moves && one_role && three && wide).then_some(card.product)
}

/// What was measured on a card.
struct Card {
    name: &'static str,
    /// One product alone.
    product: Band,
    /// The fused schedules of those rows, and their band.
    schedules: &'static [&'static str],
    fused: Band,
}

const H200: Card = Card {
    name: "H200",
    product: Band {
        low: 0.889,
        high: 1.241,
        rows: 3117,
    },
    schedules: &["gemm_ar", "gemm_rs"],
    fused: Band {
        low: 0.996,
        high: 1.272,
        rows: 16,
    },
};

const H100: Card = Card {
    name: "H100",
    product: Band {
        low: 0.869,
        high: 1.280,
        rows: 672,
    },
    schedules: &[
        "ag_gemm",
        "ag_gemm_pull",
        "gemm_ar",
        "gemm_ar_one_shot",
        "gemm_rs",
    ],
    fused: Band {
        low: 0.974,
        high: 1.238,
        rows: 56,
    },
};
