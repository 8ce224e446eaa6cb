//! Rotary positions on a rank.
#![allow(unsafe_code)]

use super::launch::Kernels;
use super::twin;
use counterflow::op::Running;
use counterflow::prelude::bf16;
use counterflow::{Communicator, Error, Tensor};
use std::sync::Arc;

/// The kernel of rotary positions: CUDA.
pub fn rope_text() -> String {
    "#include \"rope.cuh\"\n".into()
}

/// Rotary positions on a rank, with a table of angles: position × base^(-2i / depth) for pair `i`.
///
/// ```
/// use counterflow::{Communicator, prelude::bf16};
/// use counterflow_layers::side::RopeKernels;
/// use std::sync::Arc;
///
/// let rank = Arc::new(Communicator::emulated(1)?.remove(0));
/// let rope = RopeKernels::load(&rank, 128, 16, 10_000.0)?; // positions, numbers of a head
/// let mut x = rank.zeros::<bf16>([6, 48])?; // 3 positions of 2 sequences: two heads that are turned, one that is not
/// x.write(&[bf16::ONE; 6 * 48])?;
/// rope.turn(&mut x, [2, 2], false)?;
/// rope.turn(&mut x, [2, 2], true)?; // and back
/// assert!(x.read()?.iter().all(|x| (x.to_f32() - 1.0).abs() < 0.01));
/// # Ok::<(), counterflow::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct RopeKernels {
    kernels: Kernels,
    depth: usize,
    cosines: Tensor<f32>,
    sines: Tensor<f32>,
}

impl RopeKernels {
    /// Compiles and loads them, with a table for so many positions.
    ///
    /// # Errors
    /// [`Error::Usage`] for a head whose numbers are no multiple of 16; [`Error::Toolkit`] without a compiler; what the driver refuses.
    pub fn load(
        rank: &Arc<Communicator>,
        positions: usize,
        depth: usize,
        base: f64,
    ) -> Result<RopeKernels, Error> {
        if depth == 0 || !depth.is_multiple_of(16) || positions == 0 {
            return Err(Error::Usage {
                what: format!("rotary positions of {depth} numbers a head, {positions} positions"),
                legal: "give a multiple of 16, and a position or more".into(),
            });
        }
        let half = depth / 2;
        let angle = |at: usize| {
            let speed = base.powf(-((at % half) as f64) / half as f64);
            (at / half) as f64 * speed
        };
        let all = || (0..positions * half).map(angle);
        let (cosines, sines) = (
            rank.zeros([positions, half])?,
            rank.zeros([positions, half])?,
        );
        cosines.write(&Vec::from_iter(all().map(|angle| angle.cos() as f32)))?;
        sines.write(&Vec::from_iter(all().map(|angle| angle.sin() as f32)))?;
        Ok(RopeKernels {
            kernels: Kernels::load(rank, &rope_text(), &["rope"])?,
            depth,
            cosines,
            sines,
        })
    }

    /// Turns the first heads of each row in place. A row's position is its number divided by the batch. `back`: the other way around,
    /// for gradients.
    ///
    /// # Errors
    /// [`Error::Usage`] for more heads than a row has and more positions than the table; what
    /// [`Step::launch`](counterflow::op::Step::launch) refuses.
    pub fn turn(
        &self,
        x: &mut Tensor<bf16>,
        [heads, batch]: [usize; 2],
        back: bool,
    ) -> Result<(), Error> {
        let ([rows, columns], depth) = (x.shape(), self.depth);
        let [positions, half] = self.cosines.shape();
        if heads * depth > columns || batch == 0 || rows.div_ceil(batch) > positions {
            return Err(Error::Usage {
                what: format!("{heads} heads of {rows} x {columns} elements, {batch} sequences"),
                legal: format!("{depth} numbers a head, and {positions} positions at most"),
            });
        }
        super::norm::eights(columns)?;
        let (items, table) = (rows * heads * (half / 8), positions * half);
        let call = self.kernels.call("rope");
        let call = call.written::<bf16>("x", rows * columns, x);
        let call = call.read::<f32>("cosines", table, &self.cosines);
        let call = call.read::<f32>("sines", table, &self.sines);
        let call = call
            .number(items)
            .number(heads)
            .number(half / 8)
            .number(columns / 8);
        let call = call.number(batch).number(usize::from(back));
        let twin = |running: &Running<'_>| {
            let mut x: Vec<bf16> = running.read(0, rows * columns)?;
            let cosines: Vec<f32> = running.read(1, table)?;
            let sines: Vec<f32> = running.read(2, table)?;
            let tables = [&cosines[..], &sines[..]];
            twin::rope(&mut x, columns, [heads, depth, batch], tables, back);
            running.write(0, &x)
        };
        // SAFETY: a thread for each 8 pairs of each head; the parameters are the kernel's.
        unsafe { call.launch(items, twin).map(drop) }
    }
}
