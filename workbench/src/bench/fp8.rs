//! FP8 products beside cuBLASLt: with our kind of scales, and with every other kind that it has. Every element of each is
//! compared with the exact product of the numbers that codes and scales stand for.

use super::contenders::Ready;
use super::interleaved::Contender;
use super::task::{Measured, Set, Task};
use super::worker::{MOST_SETS, ROTATED, Worker, timed};
use crate::cuda::{
    Coded, Difference, Draw, Exactly, Fp8, Fused, Matmul, Matrix, Operands, Pieces, Problem, Scaled,
};
use counterflow_codegen::dtype::Dtype;
use counterflow_codegen::program::{TensorId, TensorKind};
use counterflow_codegen::variant::Scales;
use counterflow_runtime::driver::Address;
use counterflow_runtime::gpus::{Memory, POISON};
use counterflow_runtime::launch::Loaded;
use counterflow_runtime::{Communicator, Error};
use std::collections::BTreeMap;
use std::time::Instant;

/// One operand of a product, the left or the right one, with its scales: the same numbers with all kinds, set by set.
struct Drawn {
    matrix: Matrix,
    places: Vec<Coded>,
    /// Codes and planes. Those of our kernels are elsewhere.
    held: Vec<[Memory; 2]>,
}

/// The operands by side, and what has scales.
type Both = BTreeMap<(usize, Pieces), Drawn>;

/// cuBLASLt with a kind of scales.
struct Theirs<'a> {
    kind: Scaled,
    product: Matmul<'a>,
    /// Set by set.
    operands: Vec<Operands>,
}

impl Task<'_> {
    /// The kind that our kernels have.
    fn own_kind(&self) -> Scaled {
        let variant = &self.ours[0].built.kernel.variant;
        let pieces = match variant.scales {
            None => [Pieces::Nothing; 2],
            Some(Scales::Whole) => [Pieces::Whole; 2],
            Some(Scales::Rows) => [Pieces::Rows; 2],
            Some(Scales::Blocks1d2d) => [Pieces::OneBy128, Pieces::Square],
            Some(Scales::Blocks2d1d) => [Pieces::Square, Pieces::OneBy128],
            Some(Scales::Blocks1d1d) => [Pieces::OneBy128; 2],
        };
        let fast = !variant.promotes();
        Scaled { pieces, fast }
    }

    /// The types of both operands.
    fn dtypes(&self) -> [Dtype; 2] {
        let built = self.ours[0].built;
        [built.roles.x, built.roles.w].map(|tensor| built.kernel.buffers[tensor.index()].dtype)
    }
}

/// Whether that means that the library has nothing for the problem.
fn lacks(error: &Error) -> bool {
    match error {
        Error::Toolkit { .. } => true,
        Error::Driver { code, .. } => ["not supported", "invalid value"].contains(&&code[..]),
        _ => false,
    }
}

impl Worker {
    /// As [`Worker::measure`], of FP8 operands.
    pub(super) fn measure_fp8(
        &self,
        rank: &Communicator,
        fp8: &Fp8,
        task: &Task<'_>,
        begin: Instant,
    ) -> Result<Measured, Error> {
        let own = task.own_kind();
        let [m, n, k] = task.case.size.map(u64::from);
        let bytes = m * k + n * k + m * n * u64::from(task.result().bytes());
        let count = (ROTATED.div_ceil(bytes) + 1).min(MOST_SETS) as usize;
        let scratch: u64 = task
            .ours
            .iter()
            .map(|one| one.plan.heap.bytes + 65536)
            .sum();
        rank.reserve(scratch + (16 << 20))?;
        let mut both = Both::new();
        draw((rank, fp8), task, own, count, &mut both)?;
        let sets = own_sets(rank, task, own, &mut both)?;

        let mut absent = Vec::new();
        let mut theirs = Vec::new();
        let whole = Scaled {
            pieces: [Pieces::Whole; 2],
            fast: true,
        };
        // Where the library has not our kind, its fastest one is the baseline.
        for kind in [own, whole] {
            theirs.extend(self.theirs((rank, fp8), task, kind, &sets, &mut both)?);
            if !theirs.is_empty() {
                break;
            }
            absent.push(kind.name());
        }
        let Some(baseline) = theirs.first().map(|first| first.kind) else {
            return Err(Error::Toolkit {
                what: format!(
                    "cuBLASLt has no algorithm for FP8 products of {}",
                    task.case
                ),
                help: "give another shape".into(),
            });
        };
        let more = Scaled::ALL.into_iter().filter(|_| task.every_scale);
        for kind in more {
            if kind == baseline || kind == own {
                continue;
            }
            match self.theirs((rank, fp8), task, kind, &sets, &mut both)? {
                Some(found) => theirs.push(found),
                None => absent.push(kind.name()),
            }
        }
        let ours = task.ours.iter();
        let ours = ours
            .map(|planned| Ready::new(rank, task.compiler, planned, &sets, false))
            .collect::<Result<Vec<_>, _>>()?;

        // cuBLASLt with our kind, ours, cuBLASLt with other kinds.
        let of_theirs = |one: &'_ Theirs<'_>| one.kind.pieces;
        let mut contenders = Vec::new();
        let mut pieces = Vec::new();
        let (first, rest) = theirs.split_at(1);
        for one in first {
            contenders.push(contender(|set| one.product.run(&one.operands[set])));
            pieces.push((of_theirs(one), false));
        }
        for ready in &ours {
            contenders.push(contender(|set| ready.launch(rank, set)));
            pieces.push((own.pieces, true));
        }
        for one in rest {
            contenders.push(contender(|set| one.product.run(&one.operands[set])));
            pieces.push((of_theirs(one), false));
        }
        let differences =
            self.differences((rank, fp8), task, &sets[0], &both, (&contenders, &pieces))?;
        let name = |one: &Theirs<'_>| format!("cuBLASLt {}", one.kind.name());
        let measured = Measured {
            differences,
            algorithms: first[0].product.tried(),
            baseline: name(&first[0]),
            products: 1,
            beside: rest.iter().map(name).collect(),
            absent,
            ..Measured::default()
        };
        timed(rank, task, (begin, sets.len()), &contenders, measured)
    }

    /// cuBLASLt with a kind of scales; nothing if it has no algorithm for that.
    fn theirs<'a>(
        &'a self,
        with: (&Communicator, &Fp8),
        task: &Task<'_>,
        kind: Scaled,
        sets: &[Set],
        both: &mut Both,
    ) -> Result<Option<Theirs<'a>>, Error> {
        draw(with, task, kind, sets.len(), both)?;
        let in_place = task.epilogue().in_place;
        let of = |side: usize| &both[&(side, kind.pieces[side])].places;
        let operands = sets.iter().zip(of(0).iter().zip(of(1)));
        let operands: Vec<Operands> = operands
            .map(|(set, (x, w))| {
                let y = set.product.address();
                let scale = |side: usize, plane: Address| {
                    (kind.pieces[side] != Pieces::Nothing).then_some(plane)
                };
                Operands {
                    x: x.codes,
                    w: w.codes,
                    c: in_place.then_some(y),
                    y,
                    scales: [scale(0, x.plane), scale(1, w.plane)],
                }
            })
            .collect();
        let problem = Problem {
            size: task.case.size,
            dtypes: task.dtypes(),
            scaled: Some(kind),
            result: task.result(),
            fused: Fused {
                added: in_place,
                ..Fused::default()
            },
            layout: task.layout,
        };
        match self.blas.product(problem, &operands) {
            Ok(product) => Ok(Some(Theirs {
                kind,
                product,
                operands,
            })),
            Err(error) if lacks(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// One launch of each contender on a poisoned result, or on what it adds to, compared element by element.
    fn differences(
        &self,
        (rank, fp8): (&Communicator, &Fp8),
        task: &Task<'_>,
        set: &Set,
        both: &Both,
        (contenders, pieces): (&[Contender<'_>], &[([Pieces; 2], bool)]),
    ) -> Result<Vec<Difference>, Error> {
        let (dtype, [m, n, _]) = (task.result(), task.case.size.map(u64::from));
        let count = m * n;
        let value = Memory::new(rank, "exact", 8 * count, false)?;
        let allowed = Memory::new(rank, "allowed", 4 * count, false)?;
        let exact = Exactly {
            value: value.address(),
            allowed: allowed.address(),
        };
        let before = (task.epilogue().in_place)
            .then(|| Memory::new(rank, "before", count * u64::from(dtype.bytes()), false))
            .transpose()?;
        let draw = Draw {
            // No operand's.
            seed: task.seed.wrapping_mul(1 << 20).wrapping_sub(1),
            first: 0,
            count,
        };
        if let Some(before) = &before {
            self.numbers.normal(before.address(), dtype, draw)?;
        }
        let mut found = vec![Difference::default(); contenders.len()];
        let mut known: Option<[Pieces; 2]> = None;
        let mut order: Vec<usize> = (0..contenders.len()).collect();
        order.sort_by_key(|which| pieces[*which].0);
        for which in order {
            let (of, ours) = pieces[which];
            if known != Some(of) {
                let side = |side: usize| {
                    let drawn = &both[&(side, of[side])];
                    (drawn.matrix, drawn.places[0])
                };
                fp8.exactly(side(0), side(1), exact)?;
                known = Some(of);
            }
            let result = if ours { &set.y } else { &set.product };
            match before {
                Some(_) => self.numbers.normal(result.address(), dtype, draw)?,
                None => result.fill(POISON)?,
            }
            (contenders[which].launch)(0)?;
            rank.synchronize()?;
            let got = (result.address(), dtype);
            let before = before.as_ref().map(Memory::address);
            found[which] = fp8.differ_exactly(got, exact, before, count)?;
        }
        Ok(found)
    }
}

/// Draws the operands of a kind, those that are not there.
fn draw(
    (rank, fp8): (&Communicator, &Fp8),
    task: &Task<'_>,
    kind: Scaled,
    count: usize,
    both: &mut Both,
) -> Result<(), Error> {
    let [m, n, depth] = task.case.size;
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
        let mut drawn = Drawn {
            matrix,
            places: Vec::new(),
            held: Vec::new(),
        };
        for set in 0..count {
            let codes = Memory::new(rank, "codes", matrix.count(), false)?;
            let plane = Memory::new(rank, "scales", 4 * matrix.scales(), false)?;
            let place = Coded {
                codes: codes.address(),
                plane: plane.address(),
            };
            let seed = task.seed.wrapping_mul(1 << 20);
            let seed = seed.wrapping_add(((set as u64) << 12) + ((side as u64) << 8));
            fp8.quantised(matrix, place, seed)?;
            drawn.places.push(place);
            drawn.held.push([codes, plane]);
        }
        both.insert((side, pieces), drawn);
    }
    Ok(())
}

/// The tensors of our kernels, with results for theirs.
fn own_sets(
    rank: &Communicator,
    task: &Task<'_>,
    own: Scaled,
    both: &mut Both,
) -> Result<Vec<Set>, Error> {
    let first = &task.ours[0];
    let (kernel, roles) = (&first.built.kernel, first.built.roles);
    let scale = |operand: TensorId| {
        let mut buffers = kernel.buffers.iter();
        let at = buffers.position(
            |buffer| matches!(buffer.kind, TensorKind::Scale { of, .. } if of == operand),
        );
        at.map(|at| TensorId(at as u16))
    };
    let mut held = [0, 1].map(|side| {
        let drawn = both.get_mut(&(side, own.pieces[side]));
        drawn
            .map(|drawn| std::mem::take(&mut drawn.held))
            .unwrap_or_default()
            .into_iter()
    });
    let [m, n, _] = task.case.size.map(u64::from);
    let mut sets = Vec::new();
    while let (Some([x, of_x]), Some([w, of_w])) = (held[0].next(), held[1].next()) {
        let planes = [(scale(roles.x), of_x), (scale(roles.w), of_w)];
        let (bytes, in_heap) = Loaded::needs(kernel, &first.plan, roles.y);
        let of_product = m * n * u64::from(task.result().bytes());
        sets.push(Set {
            x,
            w,
            y: Memory::new(rank, "y", bytes, in_heap)?,
            whole: None,
            product: Memory::new(rank, "product", of_product, false)?,
            more: (planes.into_iter())
                .filter_map(|(tensor, plane)| Some((tensor?, plane)))
                .collect(),
        });
    }
    Ok(sets)
}

fn contender<'a>(launch: impl Fn(usize) -> Result<(), Error> + 'a) -> Contender<'a> {
    Contender {
        launch: Box::new(launch),
        together: false,
    }
}
