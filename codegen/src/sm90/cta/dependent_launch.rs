//! Programmatic dependent launch: their CTAs become resident while the launch before them on the stream still runs, do what
//! needs no global memory, and await its end there (programmatic dependent launch). It hides what a launch costs.
//!
//! Only kernels without communication do it. What waits for a peer claims progress by having all its CTAs on the GPU
//! and nobody else's in their way, and grants credits at its start, which must be after the end of the launch before.

use crate::kernel::{Kernel, RoleKind};

/// The share of a GPU's SMs from which on it pays, as a fraction.
///
/// Measured on one H200 of 132 SMs, launches back to back, in µs: it gains with 128 CTAs (36.8 → 34.3) and with 112
/// (28.2 → 24.7), and loses with 80 (24.3 → 27.2, 24.8 → 25.9, 15.6 → 17.6): there the CTAs of the dependent launch take the SMs
/// that the launch before left idle, beside its own in the same pairs of SMs, instead of those it leaves.
const PAYS_FROM: (u32, u32) = (4, 5);

/// True if a kernel may be a dependent launch: it has no counters, and no role that moves data between ranks.
pub fn possible(kernel: &Kernel) -> bool {
    let alone = |kind| match kind {
        RoleKind::Gemm(_) => true,
        RoleKind::Comm { .. } | RoleKind::SpareWarps | RoleKind::CopyEngine => false,
    };
    kernel.counters.is_empty() && kernel.roles.iter().all(|role| alone(role.kind))
}

/// True if a launch of so many CTAs on a GPU of so many SMs is faster for it.
pub const fn pays(ctas: u32, sms: u32) -> bool {
    ctas * PAYS_FROM.1 >= sms * PAYS_FROM.0
}
