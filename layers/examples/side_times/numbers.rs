//! Random tensors, and the rows of results that are looked at.

use counterflow::prelude::bf16;
use counterflow::{Communicator, Error, Tensor};

/// Numbers between -`most` and `most`, of which one piece is drawn and then laid side by side.
pub fn random(
    rank: &Communicator,
    [rows, columns]: [usize; 2],
    seed: u64,
    most: f32,
) -> Result<Tensor<bf16>, Error> {
    const PIECE: usize = 64;
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut draw = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bf16::from_f32(((state >> 40) as f32 / (1 << 23) as f32 - 1.0) * most)
    };
    let tensor = rank.zeros::<bf16>([rows, columns])?;
    let piece = PIECE.min(rows);
    let first = tensor.rows(0..piece)?;
    first.write(&Vec::from_iter((0..piece * columns).map(|_| draw())))?;
    for from in (piece..rows).step_by(piece) {
        let to = rows.min(from + piece);
        let part = tensor.rows(from..to)?;
        part.copy_from(&first.rows(0..to - from)?)?;
    }
    rank.synchronize()?;
    Ok(tensor)
}

/// Rows that are compared: the first two, the middle one and the last one. A twin on the host takes too long for all of them.
pub fn looked_at(rows: usize) -> [usize; 4] {
    [0, 1.min(rows - 1), rows / 2, rows - 1]
}

/// A row of a tensor.
pub fn row<T: counterflow::op::Element>(of: &Tensor<T>, at: usize) -> Result<Vec<T>, Error> {
    of.rows(at..at + 1)?.read()
}

/// Fails where bits differ.
pub fn same<T: Copy + std::fmt::Debug>(
    what: &str,
    found: &[T],
    wanted: &[T],
    bits: fn(T) -> u32,
) -> Result<(), Error> {
    let off = found
        .iter()
        .zip(wanted)
        .position(|(a, b)| bits(*a) != bits(*b));
    let off = off.or((found.len() != wanted.len()).then_some(found.len()));
    match off {
        None => Ok(()),
        Some(at) => Err(Error::Usage {
            what: format!(
                "{what}[{at}] is {:?}, not {:?}",
                found.get(at),
                wanted.get(at)
            ),
            legal: "report it: kernel and twin have other bits".into(),
        }),
    }
}

pub fn of_bf16(x: bf16) -> u32 {
    x.to_bits().into()
}
