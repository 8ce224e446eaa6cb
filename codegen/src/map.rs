//! Fast maps that are the same in every run.

use std::hash::{BuildHasherDefault, Hasher};

/// A map that hashes without a random seed: faster, and nothing in it depends on the order of its entries.
pub type Map<K, V> = std::collections::HashMap<K, V, BuildHasherDefault<Mixer>>;

/// Mixes its input into 64 bits by multiplication and rotation.
#[derive(Default)]
pub struct Mixer(u64);

impl Hasher for Mixer {
    fn write(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks();
        for word in words {
            self.write_u64(u64::from_le_bytes(*word));
        }
        for byte in rest {
            self.write_u64(u64::from(*byte));
        }
    }
    fn write_u16(&mut self, value: u16) {
        self.write_u64(u64::from(value));
    }
    fn write_u32(&mut self, value: u32) {
        self.write_u64(u64::from(value));
    }
    fn write_u64(&mut self, value: u64) {
        // 2^64 divided by the golden ratio, made odd: consecutive values land far apart.
        self.0 = (self.0.rotate_left(25) ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
    fn write_usize(&mut self, value: usize) {
        self.write_u64(value as u64);
    }
    fn finish(&self) -> u64 {
        self.0 ^ (self.0 >> 32)
    }
}
