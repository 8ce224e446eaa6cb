//! A gather and then a product whose weights are declared constant: launches of few rows, one behind the other and in graphs, while
//! rows change at each launch and weights now and then.

use counterflow::families::AllGatherGemm;
use counterflow::prelude::bf16;
use counterflow::{Communicator, Error};

/// Sizes, and how often the launches of all numbers of rows are made.
pub struct Case {
    pub rows: &'static [usize],
    pub columns: usize,
    pub depth: usize,
    pub rounds: usize,
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

    /// Checks rows of a product of that round's `x`.
    fn right(&self, y: &[bf16], x: &[bf16], (rows, shift): (usize, usize)) {
        for row in 0..rows {
            for column in 0..self.columns {
                let wanted = x[row * self.depth + self.one(column, shift)];
                let found = y[row * self.columns + column];
                assert!(
                    found == wanted,
                    "{found} instead of {wanted} in row {row} of {rows}, column {column}"
                );
            }
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
        let op = op.schedule("all_gather+gemm").constant("w");
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

    /// Launches without a wait of the host between them, and the last one checked.
    pub fn back_to_back(&self, ranks: &[Communicator], launches: usize) -> Result<(), Error> {
        Communicator::each(ranks, |rank| {
            let (most, held) = self.most(rank);
            rank.reserve(((held * self.depth * 2) as u64).next_multiple_of(2 << 20) + (16 << 20))?;
            let op = rank.op_for::<AllGatherGemm>();
            let op = op.schedule("all_gather+gemm").constant("w");
            let op = op.up_to(most, self.columns, self.depth).build()?;
            let x = rank.allocate::<bf16>("x", [held, self.depth])?;
            let w = [0, 1].map(|_| rank.zeros::<bf16>([self.columns, self.depth]));
            let [first, second] = w;
            let w = [first?, second?];
            let mut y = rank.zeros::<bf16>([most, self.columns])?;
            let numbers = self.x(held, 0);
            x.write(&numbers)?;
            for (shift, w) in w.iter().enumerate() {
                w.write(&self.w(shift))?;
            }
            rank.synchronize()?;
            rank.barrier()?;
            for at in 0..launches {
                let rows = self.rows[at % self.rows.len()];
                let launch = op.on(rank).x(&x).w(&w[at % 2]).y(&mut y);
                launch.rows(rows).launch()?;
            }
            rank.synchronize()?;
            let last = launches - 1;
            let rows = self.rows[last % self.rows.len()];
            self.right(&y.read()?, &numbers, (rows, last % 2));
            rank.barrier()
        })
        .map(drop)
    }
}
