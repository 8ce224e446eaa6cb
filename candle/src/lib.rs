//! candle's tensors in products that ranks share, each fused with its communication, as custom operations.
//!
//! The two halves of a layer in Megatron's way with sequence parallelism, for bf16 and inference (no backward pass):
//!
//! - [`ColumnParallel`]: `y = all_gather(x) · wᵀ`. A rank has a shard of the rows of `x` and some rows of `w`, and gets all rows
//!   of its columns of `y`.
//! - [`RowParallel`]: `y = reduce_scatter(x · wᵀ)`. A rank has some columns of `x` and `w`, and gets its shard of the rows.
//!
//! Tensors on the CPU go to emulated ranks, for tests. With the feature `cuda`, tensors on a GPU are used where they are, in the
//! order of candle's stream; only what peers address is copied to or from the symmetric heap.
//!
//! ```
//! use candle_core::{DType, Device, Tensor};
//! use counterflow::{Communicator, Error};
//! use counterflow_candle::{ColumnParallel, RowParallel};
//! use std::sync::Arc;
//!
//! let (rows, hidden, side) = (8, 32, 16); // rows over all ranks
//! let ranks: Vec<_> = Communicator::emulated(2)?.into_iter().map(Arc::new).collect();
//! let run = |rank: &Arc<Communicator>| -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
//!     rank.reserve(4 << 20)?;
//!     let up = ColumnParallel::new(rank, rows, hidden / 2, side)?;
//!     let down = RowParallel::new(rank, rows, side, hidden / 2)?;
//!     let ones = |rows, columns| Tensor::ones((rows, columns), DType::BF16, &Device::Cpu);
//!     let x = ones(rank.shard(rank.rank(), rows).len(), side)?; // this rank's shard
//!     let y = up.forward(&x, &ones(hidden / 2, side)?, rows)?.relu()?;
//!     let z = down.forward(&y, &ones(side, hidden / 2)?, rows)?;
//!     assert_eq!(z.dims(), [4, side]);
//!     assert_eq!(z.to_dtype(DType::F32)?.max_all()?.to_scalar::<f32>()?, (hidden * side) as f32);
//!     Ok(())
//! };
//! std::thread::scope(|scope| {
//!     let threads: Vec<_> = ranks.iter().map(|rank| scope.spawn(|| run(rank))).collect();
//!     threads.into_iter().try_for_each(|thread| thread.join().expect("no panic"))
//! })
//! .expect("a layer");
//! # Ok::<(), counterflow::Error>(())
//! ```

#[cfg(feature = "cuda")]
mod gpu;

#[cfg(feature = "cuda")]
use candle_core::CudaStorage;
use candle_core::{CpuStorage, CustomOp2, Layout, Result, Shape, Tensor, bail};
use counterflow::prelude::bf16;
use counterflow::schedules::{AgGemmOp, GemmRsOp};
use counterflow::{Communicator, Error, Op, UserBuffer};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// An op of a rank, with what peers address.
struct Layer<S> {
    rank: Arc<Communicator>,
    op: Op<S>,
    /// In the symmetric heap: launches of one layer come one after another.
    heap: Mutex<UserBuffer<bf16>>,
    /// Columns and depth of a rank's product.
    sides: [usize; 2],
}

impl<S> Layer<S> {
    fn new(rank: &Arc<Communicator>, op: Op<S>, shared: &str) -> std::result::Result<Self, Error> {
        let heap = rank.allocate(shared, op.needs(shared)?.shape)?;
        let sides = [op.most().n as usize, op.most().k as usize];
        Ok(Layer {
            rank: rank.clone(),
            op,
            heap: Mutex::new(heap),
            sides,
        })
    }

    fn heap(&self) -> MutexGuard<'_, UserBuffer<bf16>> {
        self.heap.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The rows of this rank's shard of a tensor, in a launch of so many.
    fn shard(&self, tensor: &str, rows: usize) -> Result<usize> {
        let shard = self
            .op
            .shard(tensor, self.rank.rank(), rows)
            .map_err(ours)?;
        Ok(shard.len())
    }

    /// Refuses operands of other shapes than a rows-by-depth and a columns-by-depth one.
    fn check(&self, rows: usize, [x, w]: [&Layout; 2]) -> Result<()> {
        let [n, k] = self.sides;
        if x.dims() != [rows, k] || w.dims() != [n, k] {
            bail!(
                "x is {:?} and w is {:?}: give x {rows} x {k} and w {n} x {k}",
                x.dims(),
                w.dims()
            );
        }
        Ok(())
    }
}

/// An error of counterflow, as one of candle's.
fn ours(error: Error) -> candle_core::Error {
    let help = error.help().unwrap_or_default().to_owned();
    candle_core::Error::wrap(error).context(help)
}

/// The elements of a tensor on the CPU, row by row.
fn elements<'a>(storage: &'a CpuStorage, layout: &Layout) -> Result<&'a [bf16]> {
    match (storage, layout.contiguous_offsets()) {
        (CpuStorage::BF16(all), Some((start, end))) => Ok(&all[start..end]),
        (CpuStorage::BF16(_), None) => bail!("a tensor that is not contiguous: call `contiguous`"),
        (other, _) => bail!(
            "a tensor of {:?}: these layers take bf16",
            candle_core::backend::BackendStorage::dtype(other)
        ),
    }
}

/// `y = all_gather(x) · wᵀ`.
#[derive(Clone)]
pub struct ColumnParallel(Arc<Layer<AgGemmOp<'static>>>);

/// `y = reduce_scatter(x · wᵀ)`.
#[derive(Clone)]
pub struct RowParallel(Arc<Layer<GemmRsOp<'static>>>);

impl ColumnParallel {
    /// For up to `rows` rows over all ranks, and a rank's `n` columns of depth `k`. Collective: every rank makes the same.
    ///
    /// # Errors
    /// As [`OpBuilder::build`](counterflow::OpBuilder::build); a heap with too little reserved.
    pub fn new(
        rank: &Arc<Communicator>,
        rows: usize,
        n: usize,
        k: usize,
    ) -> std::result::Result<ColumnParallel, Error> {
        let op = rank.op_of::<AgGemmOp>().up_to(rows, n, k).build()?;
        Ok(ColumnParallel(Arc::new(Layer::new(rank, op, "x")?)))
    }

    /// All of `rows` rows of this rank's columns, of this rank's shard of them ([`Communicator::shard`]) and its `w`, `[n, k]`.
    /// Every rank calls it with as many.
    ///
    /// # Errors
    /// Operands of another type or shape, or not contiguous; what a launch refuses.
    pub fn forward(&self, x: &Tensor, w: &Tensor, rows: usize) -> Result<Tensor> {
        let layer = self.0.clone();
        x.apply_op2(w, Column { layer, rows })
    }
}

impl RowParallel {
    /// For up to `rows` rows over all ranks, and a rank's `n` columns of depth `k`. Collective: every rank makes the same.
    ///
    /// # Errors
    /// As [`OpBuilder::build`](counterflow::OpBuilder::build); a heap with too little reserved.
    pub fn new(
        rank: &Arc<Communicator>,
        rows: usize,
        n: usize,
        k: usize,
    ) -> std::result::Result<RowParallel, Error> {
        let op = rank.op_of::<GemmRsOp>().up_to(rows, n, k).build()?;
        Ok(RowParallel(Arc::new(Layer::new(rank, op, "y")?)))
    }

    /// This rank's shard of the sum over ranks, of `rows` rows of this rank's columns and its `w`, `[n, k]`. Every rank calls it
    /// with as many.
    ///
    /// # Errors
    /// Operands of another type or shape, or not contiguous; what a launch refuses.
    pub fn forward(&self, x: &Tensor, w: &Tensor, rows: usize) -> Result<Tensor> {
        let layer = self.0.clone();
        x.apply_op2(w, Row { layer, rows })
    }
}

/// One launch of a [`ColumnParallel`].
struct Column {
    layer: Arc<Layer<AgGemmOp<'static>>>,
    rows: usize,
}

impl CustomOp2 for Column {
    fn name(&self) -> &'static str {
        "column-parallel"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        x_layout: &Layout,
        w: &CpuStorage,
        w_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let Column { layer, rows } = self;
        let own = layer.shard("x", *rows)?;
        layer.check(own, [x_layout, w_layout])?;
        let (x, w) = (elements(x, x_layout)?, elements(w, w_layout)?);
        let [n, k] = layer.sides;
        let heap = layer.heap();
        let run = || {
            let rank = &*layer.rank;
            let shard = layer.op.shard("x", rank.rank(), *rows)?;
            heap.rows(shard)?.write(x)?;
            let weight = rank.zeros([n, k])?;
            weight.write(w)?;
            let mut y = rank.zeros::<bf16>([*rows, n])?;
            let launch = layer.op.on(rank).x(&*heap).w(&weight).y(&mut y);
            launch.rows(*rows).launch()?.wait()?;
            y.read()
        };
        let y = run().map_err(ours)?;
        Ok((CpuStorage::BF16(y), Shape::from((*rows, n))))
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        x: &CudaStorage,
        x_layout: &Layout,
        w: &CudaStorage,
        w_layout: &Layout,
    ) -> Result<(CudaStorage, Shape)> {
        gpu::column(&self.layer, self.rows, (x, x_layout), (w, w_layout))
    }
}

/// One launch of a [`RowParallel`].
struct Row {
    layer: Arc<Layer<GemmRsOp<'static>>>,
    rows: usize,
}

impl CustomOp2 for Row {
    fn name(&self) -> &'static str {
        "row-parallel"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        x_layout: &Layout,
        w: &CpuStorage,
        w_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let Row { layer, rows } = self;
        layer.check(*rows, [x_layout, w_layout])?;
        let (x, w) = (elements(x, x_layout)?, elements(w, w_layout)?);
        let [n, k] = layer.sides;
        let own = layer.shard("y", *rows)?;
        let mut heap = layer.heap();
        let mut run = || {
            let rank = &*layer.rank;
            let (given, weight) = (rank.zeros([*rows, k])?, rank.zeros([n, k])?);
            given.write(x)?;
            weight.write(w)?;
            let launch = layer.op.on(rank).x(&given).w(&weight).y(&mut *heap);
            launch.rows(*rows).launch()?.wait()?;
            heap.rows(0..own)?.read()
        };
        let y = run().map_err(ours)?;
        Ok((CpuStorage::BF16(y), Shape::from((own, n))))
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        x: &CudaStorage,
        x_layout: &Layout,
        w: &CudaStorage,
        w_layout: &Layout,
    ) -> Result<(CudaStorage, Shape)> {
        gpu::row(&self.layer, self.rows, (x, x_layout), (w, w_layout))
    }
}
