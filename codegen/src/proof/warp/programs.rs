//! Programs of a rank's agents, worked out once for each shape: all its launches, at each pace, run the same steps.

use super::case::Case;
use super::flatten::flatten;
use super::host;
use super::step::Step;
use crate::diag::Diagnostic;
use crate::warp::Pipeline;

/// Steps of an agent in a launch.
pub(super) struct Program<'a> {
    pub block: u32,
    pub warp: usize,
    /// Index among the role's runners.
    pub runner: u32,
    pub steps: Vec<Step<'a>>,
}

/// The programs of all ranks, for each shape of a case.
pub(super) struct Programs<'a> {
    world: usize,
    /// By plan and rank.
    all: Vec<Vec<Program<'a>>>,
}

impl<'a> Programs<'a> {
    /// # Errors
    /// A number that has no value.
    pub fn new(case: &'a Case<'a>) -> Result<Programs<'a>, Box<Diagnostic>> {
        let ranks =
            (0..case.plans()).flat_map(|plan| (0..case.world).map(move |rank| (plan, rank)));
        let all = ranks.map(|(plan, rank)| of_rank(case, plan, rank));
        Ok(Programs {
            world: case.world as usize,
            all: all.collect::<Result<_, _>>()?,
        })
    }

    /// Programs of a rank in a launch of a plan: block by block, then the host's, which belongs to no warp.
    pub fn of(&self, plan: usize, rank: u32) -> &[Program<'a>] {
        &self.all[plan * self.world + rank as usize]
    }
}

fn of_rank<'a>(
    case: &'a Case<'a>,
    plan: usize,
    rank: u32,
) -> Result<Vec<Program<'a>>, Box<Diagnostic>> {
    let warps = &case.pipeline.warps;
    let mut programs = Vec::new();
    for block in 0..case.blocks {
        for (warp, role) in warps.iter().enumerate() {
            for runner in 0..Pipeline::runners(role.run_by) {
                let steps = flatten(case, (plan, rank), block, warp, runner)?;
                programs.push(Program {
                    block,
                    warp,
                    runner,
                    steps,
                });
            }
        }
    }
    let steps = host::steps(case, plan, rank)?;
    if !steps.is_empty() {
        programs.push(Program {
            block: 0,
            warp: warps.len(),
            runner: 0,
            steps,
        });
    }
    Ok(programs)
}
