//! Random numbers by Philox, as PyTorch draws them.

/// Ten rounds of Philox 4x32: four numbers for each counter under a key.
///
/// ```
/// use counterflow_layers::side::twin::philox;
///
/// // Known answers of Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3".
/// assert_eq!(philox([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
/// ```
pub fn philox(mut counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    for key in keys(key) {
        let product = |by: u32, of: u32| {
            let both = u64::from(by) * u64::from(of);
            ((both >> 32) as u32, both as u32)
        };
        let (high0, low0) = product(0xD251_1F53, counter[0]);
        let (high1, low1) = product(0xCD9E_8D57, counter[2]);
        counter = [
            high1 ^ counter[1] ^ key[0],
            low1,
            high0 ^ counter[3] ^ key[1],
            low0,
        ];
    }
    counter
}

/// Keys of Philox's ten rounds.
fn keys(key: [u32; 2]) -> [[u32; 2]; 10] {
    std::array::from_fn(|round| {
        let of = |key: u32, step: u32| key.wrapping_add(step.wrapping_mul(round as u32));
        [of(key[0], 0x9E37_79B9), of(key[1], 0xBB67_AE85)]
    })
}

/// Mask of the elements that dropout keeps: a pure function of seed, offset and the element's number, so that it is
/// drawn again where it is needed, and the same however ranks divide the elements.
///
/// Element `i` has number `i % 4` of the counter `(offset, i / 4)`, as a generator of PyTorch's with that seed and offset draws it in
/// its subsequence `i / 4`.
///
/// ```
/// use counterflow_layers::side::twin::Mask;
///
/// let mask = Mask::new(1234, 0, 0.25);
/// let kept = (0..10_000).filter(|at| mask.keeps(*at)).count();
/// assert!((7_300..7_700).contains(&kept) && mask.scale() == 1.0 / 0.75);
/// ```
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Mask {
    pub(in crate::side) seed: u64,
    pub(in crate::side) offset: u64,
    /// Numbers below it are kept.
    pub(in crate::side) below: u32,
    scale: f32,
}

impl Mask {
    /// With the part of elements that is dropped: from 0 to below 1.
    pub fn new(seed: u64, offset: u64, dropped: f32) -> Mask {
        let kept = 1.0 - f64::from(dropped);
        Mask {
            seed,
            offset,
            below: (kept * 2f64.powi(32)) as u32,
            scale: (1.0 / kept) as f32,
        }
    }

    /// True if an element is kept.
    pub fn keeps(&self, element: u64) -> bool {
        let words = |of: u64| [of as u32, (of >> 32) as u32];
        let ([low, high], [group, above]) = (words(self.offset), words(element / 4));
        let drawn = philox([low, high, group, above], words(self.seed));
        drawn[(element % 4) as usize] < self.below
    }

    /// Keys of the rounds in which its numbers are drawn.
    pub(in crate::side) fn keys(&self) -> [[u32; 2]; 10] {
        keys([self.seed as u32, (self.seed >> 32) as u32])
    }

    /// Factor of elements that are kept.
    pub fn scale(&self) -> f32 {
        self.scale
    }
}
