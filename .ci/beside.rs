//! A program with a cudarc of its own, of another version than counterflow's: its tensors and its stream go through the
//! raw doors. `.ci/embedder.sh` builds and runs it. Without a GPU the rank is emulated, and lends its own memory.

use counterflow::driver::Stream;
use counterflow::prelude::bf16;
use counterflow::schedules::GemmOp;
use counterflow::{Communicator, Error};
use cudarc::driver::{CudaContext, DevicePtr, DevicePtrMut};

/// Rows, columns and depth.
const SIDE: usize = 128;

fn main() -> Result<(), Error> {
    let y = match Communicator::local(1) {
        Ok(ranks) => by_cudarc(&ranks[0])?,
        Err(_) => emulated(&Communicator::emulated(1)?[0])?,
    };
    assert_eq!(y, shifted(2), "each step moves a row's one on by one");
    println!("memory through the raw doors: every number is right");
    Ok(())
}

/// A one in each row, so many columns to the right of the diagonal.
fn shifted(by: usize) -> Vec<u16> {
    let one = |at| (at % SIDE == (at / SIDE + by) % SIDE).then_some(bf16::ONE);
    (0..SIDE * SIDE)
        .map(|at| one(at).unwrap_or(bf16::ZERO).to_bits())
        .collect()
}

fn by_cudarc(rank: &Communicator) -> Result<Vec<u16>, Error> {
    let context = CudaContext::new(rank.gpu().ordinal() as usize).expect("the GPU");
    let stream = context.new_stream().expect("a stream");
    // w is read as its transpose: the other way round.
    let x = stream.clone_htod(&shifted(1)).expect("memory");
    let w = stream.clone_htod(&shifted(SIDE - 1)).expect("memory");
    let mut y = stream
        .alloc_zeros::<u16>(SIDE * SIDE)
        .expect("memory");
    {
        // SAFETY: both are of the GPU's primary context, and `stream` outlives what is made of it.
        let ours = unsafe {
            rank.gpu()
                .cuda()?
                .borrowed_stream(stream.cu_stream().cast())
        };
        let (x, _x) = x.device_ptr(&stream);
        let (w, _w) = w.device_ptr(&stream);
        let (y, _y) = y.device_ptr_mut(&stream);
        multiply(rank, &Stream::from(ours), [x, w, y])?;
    }
    Ok(stream.clone_dtoh(&y).expect("read"))
}

fn emulated(rank: &Communicator) -> Result<Vec<u16>, Error> {
    let lent = |values: Vec<u16>| {
        let lent = rank.zeros::<u16>([SIDE, SIDE])?;
        lent.write(&values).map(|()| lent)
    };
    let (x, w, y) = (
        lent(shifted(1))?,
        lent(shifted(SIDE - 1))?,
        lent(shifted(0))?,
    );
    let stream = rank.gpu().stream()?;
    multiply(rank, &stream, [&x, &w, &y].map(|lent| lent.address().get()))?;
    y.read()
}

/// y = x · wᵀ, of memory that is not ours.
fn multiply(rank: &Communicator, on: &Stream, all: [u64; 3]) -> Result<(), Error> {
    rank.reserve(16 << 20)?;
    let op = rank.op_of::<GemmOp>().up_to(SIDE, SIDE, SIDE).build()?;
    // SAFETY: so many elements are there until the launch is done, and the program uses them only in the stream's order.
    let tensor = |address| unsafe { rank.tensor_from_raw::<bf16>(address, [SIDE, SIDE]) };
    let [x, w, mut y] = [tensor(all[0])?, tensor(all[1])?, tensor(all[2])?];
    op.on(on).x(&x).w(&w).y(&mut y).launch()?.wait()
}
