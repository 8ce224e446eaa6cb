//! Programmatic dependent launch: CTAs become resident while the launch before them on the stream still runs, do what needs no
//! global memory that it may write, and await its end there. It hides what a launch costs.
//!
//! Only kernels without communication do it. What waits for a peer claims progress by having all its CTAs on the GPU
//! and nobody else's in their way, and grants credits at its start, which must be after the end of the launch before.
//! A kernel that only moves data lets the next launch come, too: by then all its own CTAs are on the GPU, and they are few.
//!
//! Operands that a variant declares constant are loaded before the end of earlier launches is awaited: as many steps of them
//! as there are stages.

use crate::kernel::{Kernel, OpKind, RoleKind, visit};
use crate::program::TensorId;

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

/// True if a kernel lets CTAs of the next launch come before its own end: a dependent launch, or one that only moves data by
/// CTAs.
pub fn lets_the_next_come(kernel: &Kernel) -> bool {
    let moves = |kind| match kind {
        RoleKind::Comm { .. } => true,
        RoleKind::Gemm(_) | RoleKind::SpareWarps | RoleKind::CopyEngine => false,
    };
    possible(kernel) || kernel.roles.iter().all(|role| moves(role.kind))
}

/// Tensors that a kernel's dependent launches load before earlier launches have ended: operands of its products that the
/// variant declares constant.
pub fn loaded_early(kernel: &Kernel) -> Vec<TensorId> {
    let mut found = Vec::new();
    if !possible(kernel) {
        return found;
    }
    for role in &kernel.roles {
        visit(&role.body, &mut |op| {
            if let OpKind::Dot { a, b, .. } = &op.kind {
                let operands = [a.buffer, b.buffer].into_iter();
                let constant = operands.filter(|tensor| kernel.is_constant(*tensor));
                found.extend(constant);
            }
        });
    }
    found.sort();
    found.dedup();
    found
}

/// True if a launch of so many CTAs on a GPU of so many SMs is faster for it.
pub const fn pays(ctas: u32, sms: u32) -> bool {
    ctas * PAYS_FROM.1 >= sms * PAYS_FROM.0
}

/// True if launches of so many CTAs are dependent launches behind any other, where the stream allows it.
pub fn chosen(kernel: &Kernel, ctas: u32, sms: u32) -> bool {
    possible(kernel) && pays(ctas, sms)
}

/// True if they are behind a launch that waits for peers and leaves them SMs: also where few of them load operands early, which
/// then come while that one waits.
pub fn chosen_beside(kernel: &Kernel, ctas: u32, sms: u32) -> bool {
    chosen(kernel, ctas, sms) || !loaded_early(kernel).is_empty()
}
