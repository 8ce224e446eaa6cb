//! Products of candle's tensors on a GPU, in the order of candle's stream, which waits for nobody on the host.

use super::{Layer, ours};
use candle_core::backend::BackendStorage;
use candle_core::cuda_backend::cudarc::driver::{CudaView, DevicePtr, DevicePtrMut};
use candle_core::{CudaDevice, CudaStorage, Layout, Result, Shape, bail};
use counterflow::driver::{Event, Stream};
use counterflow::prelude::bf16;
use counterflow::schedules::{AgGemmOp, GemmRsOp};
use counterflow::{Error, Tensor};

type Given<'a> = (&'a CudaStorage, &'a Layout);

/// The elements of a tensor, row by row.
fn view<'a>((storage, layout): Given<'a>) -> Result<CudaView<'a, bf16>> {
    let Some((start, end)) = layout.contiguous_offsets() else {
        bail!("a tensor that is not contiguous: call `contiguous`");
    };
    Ok(storage.as_cuda_slice::<bf16>()?.slice(start..end))
}

fn device_of<'a>((storage, _): Given<'a>) -> &'a CudaDevice {
    storage.device()
}

pub(super) fn column(
    layer: &Layer<AgGemmOp<'static>>,
    rows: usize,
    x: Given<'_>,
    w: Given<'_>,
) -> Result<(CudaStorage, Shape)> {
    let own = layer.shard("x", rows)?;
    layer.check(own, [x.1, w.1])?;
    let device = device_of(x);
    let ([n, k], theirs) = (layer.sides, device.cuda_stream());
    let (shard, weight) = (view(x)?, view(w)?);
    // SAFETY: the launch writes every element before candle reads one.
    let mut y = unsafe { device.alloc::<bf16>(rows * n)? };
    let heap = layer.heap();
    let mut run = || {
        let rank = &*layer.rank;
        let at = layer.op.shard("x", rank.rank(), rows)?;
        let stream = Stream::from(theirs.clone());
        {
            let (address, _used) = shard.device_ptr(&theirs);
            // SAFETY: the shard has `own` rows of `k` elements. The copy comes after candle's work and before what candle
            // enqueues later, both by events.
            let given: Tensor<bf16> = unsafe { rank.tensor_from_raw(address, [own, k])? };
            rank.stream().wait(&Event::record(&stream)?)?;
            heap.rows(at)?.copy_from(&given)?;
            stream.wait(&Event::record(rank.stream())?)?;
        }
        let launch = layer.op.on(&stream).x(&*heap).w(&weight).y(&mut y);
        launch.rows(rows).launch().map(drop)
    };
    run().map_err(ours)?;
    Ok((
        CudaStorage::wrap_cuda_slice(y, device.clone()),
        Shape::from((rows, n)),
    ))
}

pub(super) fn row(
    layer: &Layer<GemmRsOp<'static>>,
    rows: usize,
    x: Given<'_>,
    w: Given<'_>,
) -> Result<(CudaStorage, Shape)> {
    layer.check(rows, [x.1, w.1])?;
    let own = layer.shard("y", rows)?;
    let device = device_of(x);
    let ([n, _], theirs) = (layer.sides, device.cuda_stream());
    let (given, weight) = (view(x)?, view(w)?);
    // SAFETY: the copy writes every element before candle reads one.
    let mut y = unsafe { device.alloc::<bf16>(own * n)? };
    let mut heap = layer.heap();
    let mut run = || -> std::result::Result<(), Error> {
        let rank = &*layer.rank;
        let stream = Stream::from(theirs.clone());
        let launch = layer.op.on(&stream).x(&given).w(&weight).y(&mut *heap);
        launch.rows(rows).launch()?;
        let (address, _used) = y.device_ptr_mut(&theirs);
        // SAFETY: it has `own` rows of `n` elements. The copy comes after candle's allocation, on which the launch waited,
        // and before what candle enqueues later, by an event.
        let to: Tensor<bf16> = unsafe { rank.tensor_from_raw(address, [own, n])? };
        heap.rows(0..own)?.copy_to(&to)?;
        stream.wait(&Event::record(rank.stream())?)
    };
    run().map_err(ours)?;
    Ok((
        CudaStorage::wrap_cuda_slice(y, device.clone()),
        Shape::from((own, n)),
    ))
}
