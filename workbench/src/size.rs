//! Estimates the cost of a request before anything is allocated.

use super::facts::Facts;
use super::render;
use counterflow_codegen::kernel::{Buffer, Kernel};
use counterflow_codegen::plan::Plan;
use counterflow_codegen::shape::{Geometry, Shape};
use counterflow_codegen::unroll::{MOST_STEPS, most_steps};
use counterflow_runtime::Error;

/// The most elements that the emulator holds over all ranks, each as a value and a record of who wrote it.
const MOST_ELEMENTS: u64 = 1 << 29;

/// The most multiply-adds of a run. The emulator does some ten billion a second.
const MOST_PRODUCTS: u64 = 1 << 44;

/// Rejects a shape whose plan would not fit in memory.
pub(super) fn plan_fits(kernel: &Kernel, shape: &Shape) -> Result<(), Error> {
    let geometry = Geometry::new(kernel, shape)?;
    let world = geometry.world;
    let steps = most_steps(kernel, &geometry);
    if steps <= MOST_STEPS {
        return Ok(());
    }
    Err(Error::TooLarge {
        what: format!(
            "{} at {shape} in a world of {world} is up to {} steps",
            kernel.name,
            render::count(steps)
        ),
        help: format!(
            "at most {} are checked at once: use larger tiles and chunks, or a smaller shape or world",
            render::count(MOST_STEPS)
        ),
    })
}

/// Rejects a run that would take hours, or whose tensors (of all ranks, with every launch's outputs) would not fit in
/// memory.
pub(super) fn run_fits(kernel: &Kernel, plan: &Plan, launches: u32) -> Result<(), Error> {
    let products = Facts::of(kernel, plan)
        .products
        .saturating_mul(launches.into());
    if products > MOST_PRODUCTS {
        return Err(Error::TooLarge {
            what: format!(
                "{} at {} would take the emulator {} multiply-adds",
                kernel.name,
                plan.shape,
                render::count(products)
            ),
            help: format!("at most {}: {SMALLER}", render::count(MOST_PRODUCTS)),
        });
    }
    let geometry = &plan.geometry;
    let held = |buffer: &Buffer| {
        let rows: u64 = (0..geometry.world)
            .map(|rank| u64::from(geometry.held(buffer, rank).len()))
            .sum();
        let kept = if buffer.is_scratch() || buffer.usage.is_input() {
            1
        } else {
            1 + u64::from(launches)
        };
        rows.saturating_mul(u64::from(geometry.size(buffer.columns)))
            .saturating_mul(u64::from(buffer.slots(geometry.world)))
            .saturating_mul(kept)
    };
    let elements: u64 = kernel.buffers.iter().map(held).fold(0, u64::saturating_add);
    if elements <= MOST_ELEMENTS {
        return Ok(());
    }
    Err(Error::TooLarge {
        what: format!(
            "the emulator would hold {} elements for {}",
            render::count(elements),
            kernel.name
        ),
        help: format!("at most {}: {SMALLER}", render::count(MOST_ELEMENTS)),
    })
}

const SMALLER: &str =
    "give a smaller --m, --n, --k, --world or --launches; check and predict take larger ones";
