//! Operands of FP8 with their scales: the same numbers with every kind, and what the schedule's kernels have of them.

use super::super::room::Room;
use super::super::task::{Held, Operand, Set, Task};
use super::super::variants::Planned;
use crate::cuda::{Coded, Fp8, Matrix, Numbers, OperandSource, Pieces, Scaled, Share};
use counterflow_codegen::program::TensorId;
use counterflow_runtime::gpus::Memory;
use counterflow_runtime::launch::Loaded;
use counterflow_runtime::{Communicator, Error};
use std::collections::BTreeMap;

/// One operand of a product, the left or the right one, with its scales: the same numbers with all kinds, set by set.
pub(super) struct Drawn {
    pub matrix: Matrix,
    pub places: Vec<Coded>,
    /// Codes and planes. Those of our kernels are elsewhere.
    held: Vec<Held>,
}

/// The operands by side, and what has scales.
pub(super) type Both = BTreeMap<(usize, Pieces), Drawn>;

/// Draws the operands of a kind, those that are not there.
pub(super) fn draw(
    (rank, numbers): (&Communicator, &Numbers),
    task: &Task<'_>,
    kind: Scaled,
    count: usize,
    both: &mut Both,
) -> Result<(), Error> {
    let [m, n, depth] = task.case.size;
    let built = task.ours[0].built;
    for (side, (rows, dtype)) in [m, n].into_iter().zip(task.dtypes()).enumerate() {
        let pieces = kind.pieces[side];
        if both.contains_key(&(side, pieces)) {
            continue;
        }
        let matrix = Matrix {
            rows,
            depth,
            dtype,
            pieces,
        };
        // A gathered operand is the same on every rank. Everything else differs.
        let own = match built.is_gathered(built.operands()[side]) {
            true => 0,
            false => u64::from(rank.rank()),
        };
        let source = OperandSource::new(rank, matrix)?;
        let mut drawn = Drawn {
            matrix,
            places: Vec::new(),
            held: Vec::new(),
        };
        for set in 0..count {
            let held = Held {
                elements: Memory::new(rank, "codes", matrix.count(), false)?,
                scales: Some(Memory::new(rank, "scales", 4 * matrix.scales(), false)?),
            };
            let seed = task.seed.wrapping_mul(1 << 20);
            let seed = seed.wrapping_add(((set as u64) << 12) + ((side as u64) << 8) + own);
            let place = held.coded();
            source.write(numbers, place, seed)?;
            drawn.places.push(place);
            drawn.held.push(held);
        }
        both.insert((side, pieces), drawn);
    }
    Ok(())
}

impl Held {
    fn coded(&self) -> Coded {
        Coded {
            codes: self.elements.address(),
            plane: self
                .scales
                .as_ref()
                .map(Memory::address)
                .unwrap_or_default(),
        }
    }
}

/// The rows of a gathered operand that this rank has.
fn share(rank: &Communicator, planned: &Planned<'_>, operand: TensorId) -> Share {
    let rows = planned.built.kernel.buffers[operand.index()].rows;
    Share {
        rows: planned.plan.geometry.shard_rows(rows),
        rank: rank.rank(),
    }
}

/// Makes what is gathered of an operand what it is before a launch: this rank's share, and NaN where its peers' come.
pub(super) fn spoil(
    (rank, fp8): (&Communicator, &Fp8),
    planned: &Planned<'_>,
    (side, matrix): (usize, Matrix),
    operand: &Operand,
) -> Result<(), Error> {
    let Some(whole) = &operand.whole else {
        return Ok(());
    };
    let built = planned.built;
    let share = share(rank, planned, built.operands()[side]);
    let (from, to) = (whole.coded(), operand.given.coded());
    fp8.share_codes(matrix, (from.codes, to.codes), share)?;
    match built.scales(side) {
        Some(scales) if built.is_gathered(scales) => {
            let (bytes, _) = Loaded::needs(&built.kernel, &planned.plan, scales);
            fp8.share_scales(matrix, (from.plane, to.plane), (share, bytes / 4))
        }
        Some(_) | None => Ok(()),
    }
}

/// The tensors of our kernels, with results for theirs.
pub(super) fn own_sets(
    (room, fp8): (&Room<'_>, &Fp8),
    task: &Task<'_>,
    own: Scaled,
    both: &mut Both,
) -> Result<Vec<Set>, Error> {
    let first = &task.ours[0];
    let built = first.built;
    let mut held = [0, 1].map(|side| {
        let drawn = both.get_mut(&(side, own.pieces[side]));
        drawn
            .map(|drawn| std::mem::take(&mut drawn.held))
            .unwrap_or_default()
            .into_iter()
    });
    let mut sets = Vec::new();
    while let (Some(x), Some(w)) = (held[0].next(), held[1].next()) {
        let operand = |side: usize, drawn: Held| -> Result<Operand, Error> {
            let tensor = built.operands()[side];
            if !built.is_gathered(tensor) {
                return Ok(Operand {
                    given: drawn,
                    whole: None,
                });
            }
            let operand = Operand {
                given: Held::given(room, built, side)?,
                whole: Some(drawn),
            };
            let matrix = both[&(side, own.pieces[side])].matrix;
            // One scale for all does not travel: each rank has it.
            if own.pieces[side] == Pieces::Whole {
                let all = Share {
                    rows: matrix.rows,
                    rank: 0,
                };
                let from = both[&(side, Pieces::Whole)].places[sets.len()].plane;
                let to = operand.given.coded().plane;
                fp8.share_scales(matrix, (from, to), (all, 1))?;
            }
            spoil((room.rank, fp8), first, (side, matrix), &operand)?;
            Ok(operand)
        };
        let operands = [operand(0, x)?, operand(1, w)?];
        sets.push(Set::new(room, task, operands)?);
    }
    Ok(sets)
}
