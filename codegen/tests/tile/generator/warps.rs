//! Gathers of a size that the warp level takes.

use super::draw::Draw;
use super::{TENSOR_CORES, gather};
use counterflow_codegen::builder::ScheduleBuilder;
use counterflow_codegen::program::Program;

/// The gather that those bytes are, and its world.
pub fn gather(bytes: &[u8]) -> (Program, u32) {
    let mut draw = Draw::new(bytes);
    let world = [4, 2, 3][draw.of(3)];
    let mut s = ScheduleBuilder::new("random");
    gather::all_gather(&mut draw, &mut s, TENSOR_CORES);
    (s.finish(), world)
}
