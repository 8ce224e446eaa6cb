//! The identity of plans, the same on every rank.

use crate::kernel::Kernel;
use crate::order::RankOrder;
use crate::shape::Shape;

/// Identifies a series by its kernel's text (bodies, choices, types), the expressions of its stores, the ranks that its
/// orders visit, and the largest launch.
pub(crate) fn identity(kernel: &Kernel, most: &Shape) -> u64 {
    // The kernel's text names an `#[epilogue]` function; the values hold its body.
    let mut text = format!("{}\n{:?}\nup to {most}", kernel.text(), kernel.values);
    for order in kernel.orders() {
        // A closure has no text, so its ranks are listed.
        if let RankOrder::Table(table) = order {
            let ranks = table.ranks().iter().map(|rank| format!(" {rank}"));
            text.extend(std::iter::once("\norder".into()).chain(ranks));
        }
    }
    fnv1a(&text)
}

/// FNV-1a, 64 bits: stable over processes and machines, unlike the standard library's hasher.
pub(super) fn fnv1a(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}
