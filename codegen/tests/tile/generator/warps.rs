//! Schedules of a size that the warp level takes.

use super::draw::Draw;
use super::{Case, KIND, MULTICAST, SEVERAL, SLABS, TENSOR_CORES, bytes, gather, sized};
use counterflow_codegen::builder::ScheduleBuilder;
use counterflow_codegen::diag::{Diagnostics, Rule};
use counterflow_codegen::kernel::Kernel;
use counterflow_codegen::lower::lower;
use counterflow_codegen::machine::Machine;
use counterflow_codegen::program::Program;
use counterflow_codegen::shape::Shape;
use counterflow_codegen::sm90;
use counterflow_codegen::variant::Variant;
use counterflow_codegen::verify::{self, Checked};
use counterflow_codegen::warp::Pipeline;

/// A schedule that the tile level accepts in its world for all of its launches.
pub struct Accepted {
    /// Which of its seed's cases it is.
    pub number: u64,
    pub case: Case,
    pub kernel: Checked<Kernel>,
}

/// The accepted cases of a seed, with tiles that tensor cores have. `change` may give a case another world or other
/// launches first. None of them needs multicast: GPUs run these.
pub fn accepted(seed: u64, change: impl Fn(u64, &mut Case)) -> impl Iterator<Item = Accepted> {
    accepted_of(bytes, seed, change).filter(|it| !it.kernel.needs_multicast())
}

/// The same of what reaches every rank's memory at once, which no GPU of ours runs.
pub fn accepted_everywhere(seed: u64) -> impl Iterator<Item = Accepted> {
    let everywhere = |seed, number| {
        let mut bytes = bytes(seed, number);
        bytes[KIND] = MULTICAST;
        bytes
    };
    accepted_of(everywhere, seed, |_, _| {})
}

/// The same of several gathers, several GEMM loops of other depths, named roles and sums in one kernel.
pub fn accepted_of_several(
    seed: u64,
    change: impl Fn(u64, &mut Case),
) -> impl Iterator<Item = Accepted> {
    let several = |seed, number| {
        let mut bytes = bytes(seed, number);
        bytes[KIND] = SEVERAL;
        bytes
    };
    accepted_of(several, seed, change)
}

/// The same of gathers in slabs of rows and K.
pub fn accepted_in_slabs(
    seed: u64,
    change: impl Fn(u64, &mut Case),
) -> impl Iterator<Item = Accepted> {
    accepted_of(in_slabs, seed, change)
}

/// The bytes of a gather in slabs, which one cell counts for all of some rows, or one each.
pub fn in_slabs(seed: u64, number: u64) -> Vec<u8> {
    let mut bytes = bytes(seed, number);
    bytes[KIND] = 0;
    let drawn = bytes[SLABS];
    bytes[SLABS] = 8 + drawn % 8;
    bytes
}

fn accepted_of(
    bytes: impl Fn(u64, u64) -> Vec<u8>,
    seed: u64,
    change: impl Fn(u64, &mut Case),
) -> impl Iterator<Item = Accepted> {
    (0..).filter_map(move |number| {
        let mut case = sized(&bytes(seed, number), TENSOR_CORES);
        change(number, &mut case);
        let kernel = lower(&case.program, &Variant::new(case.world)).ok()?;
        for launch in &mut case.launches {
            launch
                .dims
                .retain(|name, _| kernel.dims.iter().any(|dim| dim.name == *name));
        }
        let most = case.most().most(&kernel);
        let kernel = verify::kernel(kernel).ok()?;
        let series = verify::series(&kernel, &most, &Machine::h200()).ok()?;
        let mut launches = case.launches.iter();
        let all = launches.all(|shape: &Shape| series.plan(shape).is_ok());
        all.then_some(Accepted {
            number,
            case,
            kernel,
        })
    })
}

/// What becomes of an accepted schedule's warps.
pub enum Warps {
    Right(Checked<Pipeline>),
    /// By a rule that names the statement, or in every world that warps are tried in.
    Refused(Diagnostics),
    /// They were made and found wrong: a mistake of ours.
    Wrong(Diagnostics),
}

pub fn warps(kernel: &Checked<Kernel>) -> Warps {
    match sm90::build(kernel).map(verify::pipeline) {
        Ok(Ok(pipeline)) => Warps::Right(pipeline),
        Ok(Err(found)) if found.first().rule != Rule::Resources => Warps::Wrong(found),
        Ok(Err(found)) | Err(found) => {
            speaks_of_the_schedule(&found);
            Warps::Refused(found)
        }
    }
}

/// A refusal has a place and a help, and names nothing that an author does not write.
fn speaks_of_the_schedule(found: &Diagnostics) {
    const OURS: [&str; 5] = ["register", "barrier", "descriptor", "wgmma", "swizzle"];
    for found in found.iter() {
        assert!(found.at.is_some(), "nowhere: {found}");
        assert!(found.hint.is_some(), "no help: {found}");
        let told = format!("{} {}", found.message, found.hint.as_deref().unwrap_or(""));
        let ours = OURS.into_iter().find(|word| told.contains(word));
        assert_eq!(ours, None, "{found}");
    }
}

/// The rule that a finding is of: what it says, in one line, without the names and numbers of its schedule.
pub fn rule(message: &str) -> String {
    let words = message.split_whitespace().collect::<Vec<_>>().join(" ");
    let parts = words.split('`').enumerate();
    let words: String = parts
        .map(|(at, words)| if at % 2 == 1 { "…" } else { words })
        .collect();
    let number = |c: char| if c.is_ascii_digit() { '0' } else { c };
    words.chars().map(number).take(200).collect()
}

/// The gather that those bytes are, and its world.
pub fn gather(bytes: &[u8]) -> (Program, u32) {
    let mut draw = Draw::new(bytes);
    let world = [4, 2, 3][draw.of(3)];
    let mut s = ScheduleBuilder::new("random");
    gather::all_gather(&mut draw, &mut s, TENSOR_CORES, false, &mut []);
    (s.finish(), world)
}
