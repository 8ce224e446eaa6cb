//! Random schedules, drawn from strings of bytes of which zero always means "as it should be", so that proptest
//! shrinks towards a library schedule; and judges of what they do that share nothing with the verifier.
#![allow(dead_code, reason = "each test file uses some of it")]

mod divided;
mod draw;
mod gather;
mod handed;
pub mod judge;
mod multicast;
mod others;
mod reduce;
mod several;
pub mod warps;

use counterflow_codegen::builder::ScheduleBuilder;
use counterflow_codegen::program::Program;
use counterflow_codegen::shape::Shape;
use counterflow_emulator::Numbers;
use draw::Draw;

/// What is added to a sum over ranks, or subtracted from it, once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Addend {
    Nothing,
    /// The vector `b`.
    Bias,
    /// The tensor `r`.
    Residual,
}

/// What ranks contribute to a sum.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Summed {
    /// `x · wᵀ`.
    Products,
    /// `x`.
    Inputs,
}

/// What `y` is to be, where it is a sum over ranks: of what, with an addend, and perhaps a relu of all.
#[derive(Clone, Copy, Debug)]
pub struct Meant {
    pub of: Summed,
    pub addend: Addend,
    /// Whether that is subtracted.
    pub minus: bool,
    pub relu: bool,
}

/// What `y` is to be, where it is a rank's product with what all ranks hold of the weight: with an addend, and perhaps a relu
/// of all.
#[derive(Clone, Copy, Debug)]
pub struct Product {
    pub addend: Addend,
    /// Whether that is subtracted.
    pub minus: bool,
    pub relu: bool,
}

/// A schedule, how many ranks run it, and the shapes of its launches in turn.
#[derive(Debug)]
pub struct Case {
    pub program: Program,
    pub world: u32,
    pub launches: Vec<Shape>,
    /// Where `y` is a sum over ranks.
    pub meant: Option<Meant>,
    /// Whether gathered products are each a relu.
    pub gathers_relu: bool,
    /// Where `y` is a product whose columns the ranks divide.
    pub divided: Option<Product>,
    /// Whether operands are FP8 with scales, of rows or of blocks by the number of ranks.
    pub scaled: bool,
}

impl Case {
    /// The largest of all launches in every dimension.
    pub fn most(&self) -> Shape {
        let first = self.launches[0].clone();
        self.launches[1..]
            .iter()
            .fold(first, |most, shape| most.covering(shape))
    }
}

/// How large everything is.
#[derive(Clone, Copy)]
pub struct Sizes {
    /// Rows of a chunk.
    pub chunk: u32,
    /// Rows and columns of a tile.
    pub tile: (u32, u32),
    /// What a drawn number of rows, and one of columns, is multiplied by.
    pub times: (u32, u32),
}

/// Several chunks and tiles in a shard of a few rows.
const SMALL: Sizes = Sizes {
    chunk: 2,
    tile: (3, 4),
    times: (1, 1),
};

/// Tiles that tensor cores have, and several of them in a shard.
pub const TENSOR_CORES: Sizes = Sizes {
    chunk: 128,
    tile: (128, 128),
    times: (64, 32),
};

/// Which byte says what kind of schedule it is.
pub const KIND: usize = 3;

/// Which byte of a gather says whether it moves slabs.
pub const SLABS: usize = 6;

/// From this number on that byte says: several gathers, products and sums in one kernel.
pub const SEVERAL: u8 = 240;

/// From this number on, below that, it says: every rank's memory at once.
pub const MULTICAST: u8 = 226;

/// The schedule that those bytes are, of a few rows.
pub fn case(bytes: &[u8]) -> Case {
    sized(bytes, SMALL)
}

/// The schedule that those bytes are.
pub fn sized(bytes: &[u8], sizes: Sizes) -> Case {
    let mut draw = Draw::new(bytes);
    let world = [3, 2, 4, 5, 3, 2, 4, 9][draw.of(8)];
    let rows = [13, 13, 13, 40][draw.of(4)];
    let m = (1 + draw.of(rows) as u32) * sizes.times.0;
    let kind = match draw.of(256) {
        several if several >= usize::from(SEVERAL) => usize::from(SEVERAL),
        everywhere if everywhere >= usize::from(MULTICAST) => usize::from(MULTICAST),
        kind => kind % 20,
    };
    // Every dimension of the second launch is its own. Where tiles have cells, their columns stay.
    let (n, k) = ([8, 16][draw.of(2)], [8, 16][draw.of(2)]);
    let n = if kind < 3 { n } else { 8 };
    // Rows of FP8 have whole 16 bytes.
    let scaled = kind == 18 || kind == 19;
    let deep = if scaled { 2 } else { 1 };
    let shape = |m, n, k| {
        let [n, k] = [n, k].map(|columns| columns * sizes.times.1);
        Shape::new(m, n, deep * k).dim("x.columns", k)
    };
    let mut launches = vec![shape(m, 8, 8), shape(m.div_ceil(2), n, k), shape(m, 8, 8)];
    let mut s = ScheduleBuilder::new("random");
    let (mut meant, mut gathers_relu, mut divided) = (None, false, None);
    match kind {
        0..=2 | 18 | 19 => gather::all_gather(&mut draw, &mut s, sizes, scaled, &mut launches),
        3 | 4 => meant = Some(reduce::scatter(&mut draw, &mut s, sizes, false)),
        5 => meant = Some(reduce::scatter(&mut draw, &mut s, sizes, true)),
        6 => meant = Some(reduce::add(&mut draw, &mut s, sizes)),
        10 => others::exchange(&mut draw, &mut s, sizes),
        11 => gathers_relu = others::gather_results(&mut draw, &mut s, sizes),
        12 | 13 => others::layers(&mut draw, &mut s, sizes),
        14 | 15 => others::summed_beside(&mut draw, &mut s, sizes),
        16 | 17 => divided = divided::columns(&mut draw, &mut s, sizes, &mut launches),
        226..240 => meant = multicast::reaching(&mut draw, &mut s, sizes),
        240.. => {
            handed::with_sizes(&mut launches, sizes.times.1);
            handed::several(&mut draw, &mut s, sizes, world);
        }
        7 | 8 => launches = several::gathers(&mut draw, &mut s, kind == 8),
        _ => several::soup(&mut draw, &mut s),
    }
    if meant.is_some_and(|meant| meant.of == Summed::Inputs) {
        // Then columns are those of `x`.
        for launch in &mut launches {
            *launch = launch.clone().dim("x.columns", 8 * sizes.times.1);
        }
    }
    Case {
        program: s.finish(),
        world,
        launches,
        meant,
        gathers_relu,
        divided,
        scaled,
    }
}

/// The bytes of the `number`th case of a seed.
pub fn bytes(seed: u64, number: u64) -> Vec<u8> {
    let mut numbers = Numbers::new(seed ^ number.wrapping_mul(0x9e37_79b9));
    let count = 24 + numbers.below(96);
    (0..count).map(|_| numbers.draw() as u8).collect()
}
