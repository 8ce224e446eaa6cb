//! Registers of each role, and the tiles that fit them. All numbers are measured: other choices spill.

use super::wgmma::{MOST_ACCUMULATORS, Mode, PARTIAL_BOX_ROWS, Wgmma};

/// Accumulators of a thread from which the others have few registers: the loading thread 24.
const MANY_ACCUMULATORS: u32 = 160;

/// Purposes for which a thread needs registers beside a tile's accumulators.
#[derive(Clone, Copy)]
pub(super) enum RegisterClass {
    /// A product that is stored as it is, by a CTA alone.
    Plain,
    /// Signals, math, or sums.
    Little,
    /// A sum over ranks: 256x144 spills, whether it is added to the product, or where it is stored.
    Added,
    /// One with registers of its own: 160x256 spills, too, where operands have scales.
    Apart,
    /// Other CTAs that load: 256x176 and 176x256 spill in clusters. The latter spills with sums, too.
    Much,
}

/// True if accumulators leave a thread registers for the rest: in ping-pong there is one more ring to keep track of.
pub(super) const fn has_registers(wgmma: Wgmma, company: RegisterClass) -> bool {
    let most = match (wgmma.blocks(), wgmma.mode, company) {
        (0 | 1, ..) => 128,
        (_, Mode::Cooperative, RegisterClass::Plain) => MOST_ACCUMULATORS,
        (_, Mode::Cooperative, RegisterClass::Added | RegisterClass::Apart) if !wgmma.swap_ab() => {
            128
        }
        (_, Mode::Cooperative, RegisterClass::Little | RegisterClass::Added) => 176,
        (_, Mode::Cooperative, RegisterClass::Apart) => 152,
        (_, Mode::Cooperative, RegisterClass::Much) | (_, Mode::PingPong, _) => 160,
    };
    wgmma.accumulators() <= most
}

/// Registers of a thread for promoted sums, what tensor cores sum of a piece, and scales along the N side: others have
/// addresses, and scales along the M side. Beside a sum of stored tiles, 192 spill.
pub(super) const fn registers_to_promote(sums: bool) -> u32 {
    if sums { 160 } else { 192 }
}

/// Registers of a CTA alone, for pieces that have all of the N side, where a subtile takes few registers to store: a
/// product as it is, or what is computed in 16 bits. In FP8 it spills.
pub(super) const REGISTERS_TO_PROMOTE_WHOLE: u32 = 208;

/// True if the loading thread has registers for how much of each operand's tile exists, so that the rest is not loaded:
/// beside more accumulators it would spill (256x176 in partial boxes, 200x256 in blocks).
pub(super) const fn leaves_out(accumulators: u32) -> bool {
    accumulators <= MANY_ACCUMULATORS
}

/// True if a box of so many rows of an operand that is K-major may be loaded in parts of [`PARTIAL_BOX_ROWS`]: what each of
/// several CTAs loads of a tile is whole ones.
pub(super) const fn in_parts(rows: u32, ctas: u32, accumulators: u32) -> bool {
    let whole = ctas == 1 || rows.is_multiple_of(PARTIAL_BOX_ROWS);
    rows > PARTIAL_BOX_ROWS && whole && leaves_out(accumulators)
}

/// Registers that a thread of the first warpgroup keeps, and that one of the others takes. What the first gives up, the
/// others share: at most 504 in all. A fused kernel's loading thread needs more for the schedule's arithmetic, most of all
/// where it moves data itself, or waits for tiles between its products; a sum over ranks needs more in the multiplying ones.
/// Measured: other splits spill.
pub(super) const fn reallocated(plain: bool, moves: bool, accumulators: u32) -> (u32, u32) {
    match (plain, moves) {
        (true, _) if accumulators > MANY_ACCUMULATORS => (24, 240),
        (true, _) => (40, 232),
        (false, true) => (72, 216),
        (false, false) => (56, 224),
    }
}
