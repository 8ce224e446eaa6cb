//! Products whose weights are declared constant, most of them behind a gather: launches of few rows, one behind the other and in
//! graphs, while rows or weights change at each launch.

use counterflow::families::AllGatherGemm;
use counterflow::prelude::bf16;
use counterflow::schedules::GemmOp;
use counterflow::{Communicator, Error};

/// Sizes, and how often the launches of all numbers of rows are made.
pub struct Case {
    pub rows: &'static [usize],
    pub columns: usize,
    pub depth: usize,
    pub rounds: usize,
    /// The candidate, a gather and then a product.
    pub candidate: &'static str,
}

impl Case {
    /// Most rows of a launch, and those of the buffer that ranks divide evenly.
    fn most(&self, rank: &Communicator) -> (usize, usize) {
        let (most, world) = (
            *self.rows.iter().max().expect("rows"),
            rank.world() as usize,
        );
        (most, most.next_multiple_of(world))
    }

    /// Of `x` in a round: whole numbers that bf16 has exactly.
    fn x(&self, rows: usize, round: usize) -> Vec<bf16> {
        let number = |at: usize| {
            let (row, k) = (at / self.depth, at % self.depth);
            (row * 31 + k * 7 + round * 13) % 251
        };
        (0..rows * self.depth)
            .map(|at| bf16::from_f32(number(at) as f32))
            .collect()
    }

    /// Depth at which a column of the product has its one.
    fn one(&self, column: usize, shift: usize) -> usize {
        (column * 37 + shift) % self.depth
    }

    fn w(&self, shift: usize) -> Vec<bf16> {
        let mut w = vec![bf16::ZERO; self.columns * self.depth];
        for column in 0..self.columns {
            w[column * self.depth + self.one(column, shift)] = bf16::ONE;
        }
        w
    }

    /// The product's first rows.
    fn y(&self, x: &[bf16], (rows, shift): (usize, usize)) -> Vec<bf16> {
        let number = |at: usize| {
            let (row, column) = (at / self.columns, at % self.columns);
            x[row * self.depth + self.one(column, shift)]
        };
        (0..rows * self.columns).map(number).collect()
    }

    /// Checks rows of a product of that round's `x`.
    fn right(&self, y: &[bf16], x: &[bf16], (rows, shift): (usize, usize)) {
        for (at, (found, wanted)) in y.iter().zip(self.y(x, (rows, shift))).enumerate() {
            let (row, column) = (at / self.columns, at % self.columns);
            assert!(
                *found == wanted,
                "{found} instead of {wanted} in row {row} of {rows}, column {column}"
            );
        }
    }

    /// Launches on all ranks, each checked on its rank. Every third is a replay of a graph.
    pub fn run(&self, ranks: &[Communicator]) -> Result<(), Error> {
        Communicator::each(ranks, |rank| self.run_on(rank)).map(drop)
    }

    fn run_on(&self, rank: &Communicator) -> Result<(), Error> {
        let (most, held) = self.most(rank);
        rank.reserve(((held * self.depth * 2) as u64).next_multiple_of(2 << 20) + (16 << 20))?;
        let op = rank.op_for::<AllGatherGemm>();
        let op = op.schedule(self.candidate).constant("w");
        let op = op.up_to(most, self.columns, self.depth).build()?;
        let x = rank.allocate::<bf16>("x", [held, self.depth])?;
        let w = rank.zeros::<bf16>([self.columns, self.depth])?;
        let mut y = rank.zeros::<bf16>([most, self.columns])?;
        let mut graphs = Vec::new();
        for rows in self.rows {
            let mut y = rank.zeros::<bf16>([most, self.columns])?;
            let graph = rank.capture(|recording| {
                let launch = op.on(recording).x(&x).w(&w).y(&mut y);
                launch.rows(*rows).launch().map(drop)
            })?;
            graphs.push((graph, y));
        }
        let mut shift = 0;
        w.write(&self.w(shift))?;
        for round in 0..self.rounds {
            if round % 5 == 3 {
                shift += 1;
                w.write(&self.w(shift))?;
            }
            for (at, rows) in self.rows.iter().enumerate() {
                let numbers = self.x(held, round + at);
                x.write(&numbers)?;
                if (round + at) % 3 == 2 {
                    let (graph, y) = &graphs[at];
                    graph.launch(rank)?.wait()?;
                    self.right(&y.read()?, &numbers, (*rows, shift));
                } else {
                    let launch = op.on(rank).x(&x).w(&w).y(&mut y);
                    launch.rows(*rows).launch()?.wait()?;
                    self.right(&y.read()?, &numbers, (*rows, shift));
                }
                // A peer must not send the next rows before these were multiplied.
                rank.barrier()?;
            }
        }
        Ok(())
    }

    /// Products without a wait of the host between them. Before each, a launch or a copy writes the weights anew: one that loads
    /// what was there before is wrong. Each result has memory of its own until it was looked at.
    pub fn back_to_back(&self, ranks: &[Communicator], launches: usize) -> Result<(), Error> {
        Communicator::each(ranks, |rank| self.back_to_back_on(rank, launches)).map(drop)
    }

    fn back_to_back_on(&self, rank: &Communicator, launches: usize) -> Result<(), Error> {
        const SHIFTS: usize = 3;
        const KEPT: usize = 16;
        let (most, held) = self.most(rank);
        rank.reserve(((held * self.depth * 2) as u64).next_multiple_of(2 << 20) + (16 << 20))?;
        let gathers = rank.op_for::<AllGatherGemm>();
        let gathers = gathers.schedule(self.candidate).constant("w");
        let gathers = gathers.up_to(most, self.columns, self.depth).build()?;
        let gemm = || {
            rank.op_of::<GemmOp>()
                .set("tiles", (64, 64))
                .first_options()
        };
        // Right behind the launch that writes its weights. It has so many CTAs that it begins early where it may.
        let product = gemm().constant("w");
        let product = product.up_to(most, self.columns, self.depth).build()?;
        let writer = gemm().up_to(self.columns, self.depth, self.depth).build()?;
        let numbers = self.x(held, 0);
        let x = rank.allocate::<bf16>("x", [held, self.depth])?;
        x.write(&numbers)?;
        let local = rank.zeros::<bf16>([most, self.depth])?;
        local.write(&numbers[..most * self.depth])?;
        let one = rank.zeros::<bf16>([self.depth, self.depth])?;
        let diagonal = |at: usize| match at / self.depth == at % self.depth {
            true => bf16::ONE,
            false => bf16::ZERO,
        };
        one.write(&(0..one.len()).map(diagonal).collect::<Vec<_>>())?;
        let weights = || rank.zeros::<bf16>([self.columns, self.depth]);
        let source = |shift| {
            let w = weights()?;
            w.write(&self.w(shift)).map(|()| w)
        };
        let sources = (0..SHIFTS).map(source).collect::<Result<Vec<_>, _>>()?;
        let wanted = (0..SHIFTS).map(|shift| self.y(&numbers, (most, shift)));
        let wanted: Vec<_> = wanted.collect();
        let mut w = weights()?;
        let results = (0..KEPT).map(|_| rank.zeros::<bf16>([most, self.columns]));
        let mut results = results.collect::<Result<Vec<_>, _>>()?;
        rank.synchronize()?;
        rank.barrier()?;
        let mut made = Vec::new();
        for at in 0..launches {
            let shift = at % SHIFTS;
            let y = &mut results[made.len()];
            match at % 2 {
                0 => drop(
                    writer
                        .on(rank)
                        .x(&sources[shift])
                        .w(&one)
                        .y(&mut w)
                        .launch()?,
                ),
                _ => w.copy_from(&sources[shift])?,
            }
            let rows = match at / 2 % 2 {
                0 => {
                    product.on(rank).x(&local).w(&w).y(y).launch()?;
                    most
                }
                _ => {
                    let rows = self.rows[at % self.rows.len()];
                    let launch = gathers.on(rank).x(&x).w(&w).y(y);
                    launch.rows(rows).launch()?;
                    rows
                }
            };
            made.push((rows, shift));
            if made.len() < KEPT && at + 1 < launches {
                continue;
            }
            for (y, (rows, shift)) in results.iter().zip(made.drain(..)) {
                let count = rows * self.columns;
                let same = y.read()?[..count] == wanted[shift][..count];
                assert!(
                    same,
                    "a product of {rows} rows with weights of another launch"
                );
            }
        }
        rank.barrier()
    }
}
