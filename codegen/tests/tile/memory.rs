//! Sizes of tensors in memory: what is told is what the places in them take.

use crate::fixtures::library;
use counterflow_codegen::dtype::Dtype;
use counterflow_codegen::lower::lower;
use counterflow_codegen::machine::Machine;
use counterflow_codegen::plan::Plan;
use counterflow_codegen::program::TensorId;
use counterflow_codegen::region::Span;
use counterflow_codegen::rule::{Fp8, ScaleRule};
use counterflow_codegen::shape::{Extent, Shape};
use counterflow_codegen::variant::{Scales, Variant};

/// Of each schedule, without FP8 and with what has planes beside tensors.
fn variants(world: u32) -> [Variant; 3] {
    let variant = || Variant::new(world).set("tiles", (128, 128));
    let theirs = ScaleRule::transformer_engine(Fp8::E4M3);
    let fp8 = variant().dtype(Dtype::E4M3).scales(Scales::Blocks1d2d);
    [variant(), fp8, variant().quantised_reduction(theirs)]
}

/// Rows that shards divide, and rows that they do not.
const ROWS: [u32; 4] = [1024, 1000, 389, 1];

#[test]
fn the_last_slot_of_a_tensor_ends_with_its_memory() {
    let (mut symmetric, mut planes) = (0, 0);
    for program in library::all() {
        for variant in (1..=4).flat_map(variants) {
            // Not every schedule has partial sums, or scales of blocks.
            let Ok(kernel) = lower(&program, &variant) else {
                continue;
            };
            let most = Shape::new(ROWS[0], 272, 272).most(&kernel);
            let plan = |rows| {
                let shape = Shape::new(rows, 272, 272);
                let plan = Plan::within(&kernel, &shape, &most, &Machine::h200());
                plan.unwrap_or_else(|found| panic!("{} {variant}: {found}", program.name))
            };
            let largest = plan(ROWS[0]);
            for plan in ROWS.map(plan) {
                let geometry = &plan.geometry;
                for (index, buffer) in (0..).zip(&kernel.buffers) {
                    let (tensor, slots) = (TensorId(index), buffer.slots(variant.world));
                    let name = format!("{} {variant}: {}", program.name, buffer.name);
                    let bytes = plan.bytes(&kernel, tensor);
                    assert!(bytes <= largest.bytes(&kernel, tensor), "{name}");
                    if !buffer.usage.placement.symmetric {
                        continue;
                    }
                    let mut entries = largest.heap.entries.iter();
                    let entry = entries.find(|(of, ..)| *of == buffer.name);
                    let (.., room) = entry.expect("a place in the heap");
                    assert!(*room >= bytes, "{name}: {room} for {bytes}");
                    // A full shard, the last one that a slot has.
                    let shard = geometry.shard_rows(buffer.rows);
                    let start = shard * (geometry.held_shards(buffer) - 1);
                    let last = Span {
                        buffer: tensor,
                        home: 0,
                        slot: (slots - 1) as u16,
                        rows: Extent {
                            start,
                            end: start + shard,
                        },
                        columns: Extent {
                            start: 0,
                            end: geometry.size(buffer.columns),
                        },
                    };
                    let lines = plan.lines(&kernel, &last);
                    let end = lines.offset + lines.lines * lines.pitch;
                    assert_eq!(end, bytes, "{name} of {} rows", plan.shape.m);
                    symmetric += 1;
                    planes += u32::from(buffer.usage.scales_of().is_some());
                }
            }
        }
    }
    assert!(symmetric > 500 && planes > 90, "{symmetric}, {planes}");
}
