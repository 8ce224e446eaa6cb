//! Ranks that share a GPU: what a rank may call while its peer's kernel waits for it.

use crate::fine;
use crate::gpus::loopback;
use crate::op::{Operands, SIZE, built, right};
use counterflow::prelude::bf16;
use counterflow::{Communicator, cuda::CudaStream, driver::Event, schedules};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a call may last that waits for nobody.
const AT_ONCE: Duration = Duration::from_secs(1);

/// What is in the stream is done soon.
fn comes_through(stream: &Arc<CudaStream>) {
    let (start, stream) = (Instant::now(), stream.clone().into());
    let done = fine(Event::record(&stream));
    while !fine(done.is_done()) {
        assert!(start.elapsed() < AT_ONCE, "the stream waits for a peer");
        std::thread::yield_now();
    }
}

/// Rank 0's kernel waits for rank 1's launch. Behind it stands a free, and rank 0's host waits. Before rank 1
/// launches, it allocates what would fit into that memory, copies, and makes events.
#[test]
fn a_waiting_kernel_holds_up_no_call_of_a_peer_that_finds_memory() {
    let Some(world) = loopback(2) else { return };
    let [m, side] = SIZE;
    fine(Communicator::each(&world.ranks, |rank| {
        let op = built(rank, &schedules::ag_gemm())?;
        let Operands { x, .. } = Operands::new(rank)?;
        x.write(Operands::all())?;
        let context = rank.gpu().cuda()?.context().clone();
        let stream = context.new_stream().expect("a stream");
        let mut y = stream.alloc_zeros::<bf16>(m * side).expect("memory");
        // So much stays in the pool: each call below takes a part of it.
        let pool = (0..8).map(|_| stream.alloc_zeros::<bf16>(side * side).expect("memory"));
        let pool: Vec<_> = pool.collect();
        stream.synchronize().expect("done");
        rank.barrier()?;
        drop(pool);
        stream.synchronize().expect("done");
        rank.synchronize()?;
        rank.barrier()?;
        for _ in 0..20 {
            let w = stream.clone_htod(&Operands::moving()).expect("memory");
            if rank.rank() == 1 {
                // Rank 0's memory is free behind its launch, and its host waits for that.
                rank.barrier()?;
                std::thread::sleep(Duration::from_millis(20));
                let timed = |what: &str, call: &dyn Fn()| {
                    let start = Instant::now();
                    call();
                    comes_through(&stream);
                    let took = start.elapsed();
                    assert!(took < AT_ONCE, "{what} took {took:?}");
                };
                timed("allocating", &|| {
                    drop(stream.alloc_zeros::<bf16>(side * side).expect("memory"));
                });
                timed("copying to the GPU", &|| {
                    drop(stream.clone_htod(&Operands::moving()).expect("memory"));
                });
                timed("copying from the GPU", &|| {
                    drop(stream.clone_dtoh(&w).expect("read"));
                });
                timed("making events", &|| {
                    let events = (0..64).map(|_| stream.record_event(None).expect("an event"));
                    drop(events.collect::<Vec<_>>());
                });
                timed("a tensor", &|| drop(fine(rank.zeros::<bf16>([side, side]))));
            }
            let launch = op.on(&stream).tensor("x", &x).tensor("w", &w);
            launch.tensor("y", &mut y).launch()?;
            drop(w);
            if rank.rank() == 0 {
                rank.barrier()?;
            }
            // A copy to pageable memory would keep a lock of the context while it waits.
            stream.synchronize().expect("done");
            right(&stream.clone_dtoh(&y).expect("read"), m);
            rank.barrier()?;
        }
        Ok(())
    }));
    println!("  calls beside a waiting kernel: {}", world.told());
}
