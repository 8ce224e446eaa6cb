//! Numbers for launches whose results nobody reads.

use crate::driver::{Address, Stream, write};
use crate::error::Error;

/// Fills memory with numbers of every sign whose products neither vanish nor overflow, in every type: what switches in the
/// multipliers costs power, and so time.
///
/// # Errors
/// What the driver refuses.
pub(crate) fn fill(stream: &Stream, at: Address, bytes: usize, seed: u64) -> Result<(), Error> {
    const BLOCK: usize = 1 << 20;
    let mut state = 0x9e37_79b9_7f4a_7c15_u64 ^ seed;
    let words = (0..BLOCK / 2).flat_map(|_| {
        // Xorshift: any bits serve that do not repeat in a tile.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        // No element of e4m3 is NaN, and all of 16 bits are below one.
        (((state as u16) & 0x83bf) | 0x3800).to_le_bytes()
    });
    let block: Vec<u8> = words.take(BLOCK.min(bytes)).collect();
    for begin in (0..bytes).step_by(BLOCK) {
        let part = &block[..BLOCK.min(bytes - begin)];
        write(stream, at.plus(begin as u64), part)?;
    }
    Ok(())
}
