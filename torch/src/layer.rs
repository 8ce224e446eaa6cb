//! The product, on a GPU's tensors or on those of the host.

use crate::python;
use crate::tensor::{Elements, Given, Home};
use counterflow::driver::{Event, Stream};
use counterflow::op::Element;
use counterflow::schedules::AgGemmOp;
use counterflow::{Communicator, Dtype, Error, Op, Tensor, UserBuffer};
use pyo3::prelude::*;
use std::ffi::c_void;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// An op of a rank, with what peers read.
pub struct Layer<T: Element> {
    rank: Arc<Communicator>,
    op: Op<AgGemmOp<'static>>,
    /// In the symmetric heap: launches of one layer come one after another.
    heap: Mutex<UserBuffer<T>>,
}

/// The operands' first elements.
#[derive(Clone, Copy)]
struct Memory {
    x: usize,
    w: usize,
    y: usize,
}

impl<T: Element> Layer<T> {
    pub fn new(
        rank: &Arc<Communicator>,
        dtype: Dtype,
        [rows, n, k]: [usize; 3],
    ) -> Result<Layer<T>, Error> {
        let op = rank
            .op_of::<AgGemmOp>()
            .dtype(dtype)
            .up_to(rows, n, k)
            .build()?;
        let heap = rank.allocate("x", op.needs("x")?.shape)?;
        Ok(Layer {
            rank: rank.clone(),
            op,
            heap: Mutex::new(heap),
        })
    }

    fn heap(&self) -> MutexGuard<'_, UserBuffer<T>> {
        self.heap.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Checks the operands and launches. Their memory stays until this returns; what is enqueued then is before whatever its
    /// library enqueues on that stream, so before that can use the memory again.
    pub fn call(
        &self,
        py: Python<'_>,
        elements: Elements,
        [x, w, y]: [&Given; 3],
        stream: usize,
    ) -> PyResult<()> {
        let gpu = self.rank.gpu();
        let home = match gpu.is_emulated() {
            true => Home::Host,
            false => Home::Gpu(gpu.ordinal() as i32),
        };
        let most = self.op.most();
        let [n, k] = [most.n as usize, most.k as usize];
        let rows = y.shape[0];
        let shard = self.op.shard("x", self.rank.rank(), rows).map_err(python)?;
        x.check(elements, home, [shard.len(), k])?;
        w.check(elements, home, [n, k])?;
        y.check(elements, home, [rows, n])?;
        let memory = Memory {
            x: x.address,
            w: w.address,
            y: y.address,
        };
        let run = || match home {
            Home::Host => self.on_host(memory, shard, [rows, n, k]),
            Home::Gpu(_) => self.on_gpu(memory, shard, [rows, n, k], stream),
        };
        py.detach(run).map_err(python)
    }

    /// On an emulated GPU, whose memory nobody else can address: by copies.
    fn on_host(
        &self,
        at: Memory,
        shard: Range<usize>,
        [rows, n, k]: [usize; 3],
    ) -> Result<(), Error> {
        let (rank, heap) = (&*self.rank, self.heap());
        let given = |at: usize, count: usize| {
            // SAFETY: the tensor has so many elements there, and nobody writes them while Python is in this call.
            unsafe { std::slice::from_raw_parts(at as *const T, count) }
        };
        if !shard.is_empty() {
            let own = given(at.x, shard.len() * k);
            heap.rows(shard)?.write(own)?;
        }
        let w = rank.zeros::<T>([n, k])?;
        w.write(given(at.w, n * k))?;
        let mut y = rank.zeros::<T>([rows, n])?;
        let launch = self.op.on(rank).x(&*heap).w(&w).y(&mut y);
        launch.rows(rows).launch()?.wait()?;
        let y = y.read()?;
        // SAFETY: the tensor has `rows * n` elements there, as many as were computed, and nobody else uses them meanwhile.
        unsafe { std::ptr::copy_nonoverlapping(y.as_ptr(), at.y as *mut T, y.len()) };
        Ok(())
    }

    /// Where the tensors are, in the order of the caller's stream.
    fn on_gpu(
        &self,
        at: Memory,
        shard: Range<usize>,
        [rows, n, k]: [usize; 3],
        stream: usize,
    ) -> Result<(), Error> {
        let (rank, heap) = (&*self.rank, self.heap());
        // SAFETY: the caller's stream of this GPU lives while Python is in this call.
        let stream = unsafe { rank.gpu().cuda()?.borrowed_stream(stream as *mut c_void) };
        let stream = Stream::from(stream);
        // SAFETY: each tensor has so many elements there; who gave them uses them in the order of `stream`.
        let given = |at: usize, shape: [usize; 2]| -> Result<Tensor<T>, Error> {
            unsafe { rank.tensor_from_raw(at as u64, shape) }
        };
        if !shard.is_empty() {
            let own = given(at.x, [shard.len(), k])?;
            rank.stream().wait(&Event::record(&stream)?)?;
            heap.rows(shard)?.copy_from(&own)?;
            stream.wait(&Event::record(rank.stream())?)?;
        }
        let w = given(at.w, [n, k])?;
        let mut y = given(at.y, [rows, n])?;
        let launch = self.op.on(&stream).x(&*heap).w(&w).y(&mut y);
        launch.rows(rows).launch().map(drop)
    }
}
