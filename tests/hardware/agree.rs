//! Ranks that launch different things are told on every rank, whatever they launched before.

use crate::case::{self, Case, Fill};
use crate::fine;
use crate::gpus::both_ways;
use crate::memory::{Heap, Memory, Words};
use crate::right::KINDS;
use counterflow::codegen::program::TensorId;
use counterflow::jit::Compiler;
use counterflow::launch::Loaded;
use counterflow::{Communicator, Error, Shape, schedules};
use std::time::{Duration, Instant};

/// What a rank does differently from its peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Different {
    /// Two known shapes.
    Shape,
    /// Two loaded kernels of equal plans and equal numbers of counters, in the other order.
    Order,
    /// Two buffers of one size.
    Buffer,
}

/// Launches that differ after some that did not, and what both ranks are told.
fn told(different: Different) {
    for world in both_ways(2) {
        let compiler = fine(Compiler::find());
        let shapes = [512, 384].map(|m| Shape::new(m, 256, 256).up_to(512));
        let variant = case::variant(2, KINDS[0]);
        let case = Case::new(&schedules::ag_gemm(), &variant, &shapes, world.sharing);
        let plans: Vec<_> = case.plans.iter().collect();
        let told = Communicator::each(&world.ranks, |rank| {
            let second = usize::from(rank.rank() == 1);
            let heap = Heap::new(rank, &case.kernel, &plans)?;
            let load = || Loaded::load(rank, &compiler, &case.pipeline, &case.series);
            let loaded = [load()?, load()?];
            let words = Words::new(&case.kernel, plans[0], rank.rank(), 0, Fill::Uniform(1));
            let memory = Memory::new(rank, &heap, &words)?;
            let tensors = memory.tensors();
            let other = rank.allocate::<u16>("other x", [512 * 256])?;
            let mut others = tensors.clone();
            others.shared(TensorId(0), &other);
            for round in 0..3 {
                for kernel in &loaded {
                    for plan in &plans {
                        let tensors = if round == 1 { &others } else { &tensors };
                        kernel.launch(rank, plan, tensors)?;
                    }
                }
            }
            rank.synchronize()?;
            rank.barrier()?;
            let start = Instant::now();
            let launch = || match different {
                Different::Shape => loaded[0].launch(rank, plans[second], &tensors),
                Different::Order => {
                    loaded[second].launch(rank, plans[0], &tensors)?;
                    loaded[1 - second].launch(rank, plans[0], &tensors)
                }
                Different::Buffer => {
                    let tensors = [&tensors, &others][second];
                    loaded[0].launch(rank, plans[0], tensors)
                }
            };
            let error = launch().and_then(|()| rank.synchronize());
            let later = rank.barrier().expect_err("the communicator is dead");
            Ok::<_, Error>((error.expect_err("different"), later, start.elapsed()))
        });
        let [parts, between] = match different {
            Different::Shape => [
                ["of 512 rows", "of 384 rows"],
                ["launch 12", "rank 0 launches"],
            ],
            Different::Order => [
                ["(kernel 0)", "(kernel 1)"],
                ["launch 12", "rank 1 launches"],
            ],
            Different::Buffer => [["x at ", ", x at "], ["launch 12", "rank 1 launches"]],
        };
        for (error, later, took) in fine(told) {
            let text = error.to_string();
            assert_eq!(
                (error.kind(), later.kind()),
                ("mismatch", "mismatch"),
                "{text}"
            );
            assert!(
                parts.iter().chain(&between).all(|part| text.contains(part)),
                "{text}"
            );
            assert!(
                took < Duration::from_secs(1),
                "{different:?} was told after {took:?}"
            );
        }
        println!("  {different:?} that differs is told: {}", world.told());
    }
}

#[test]
fn ranks_that_launch_different_shapes_are_told_both() {
    told(Different::Shape);
}

#[test]
fn ranks_that_launch_two_kernels_in_another_order_are_told_both() {
    told(Different::Order);
}

#[test]
fn ranks_that_give_another_buffer_of_the_same_size_are_told_both() {
    told(Different::Buffer);
}
