//! Launches of no rows between others, of every schedule of the library whose outputs have the launch's rows.

use crate::wide::wide;
use counterflow::codegen::program::Usage;
use counterflow::op::{Argument, Needs};
use counterflow::prelude::bf16;
use counterflow::{Communicator, Dtype, Error, Op, Program, Tensor, UserBuffer, schedules};
use std::ops::Range;

const MOST: usize = 128;
const N: usize = 64;
const K: usize = 16;
/// Launches with rows. Each gathers rows that none before has.
const ROWS: [usize; 2] = [64, MOST];

/// A tensor of a rank.
enum Held {
    Own(Tensor<bf16>),
    Heap(UserBuffer<bf16>),
}

impl Held {
    fn new(rank: &Communicator, name: &str, needs: &Needs) -> Result<Held, Error> {
        Ok(match needs.in_heap {
            true => Held::Heap(rank.allocate(name, needs.shape)?),
            false => Held::Own(rank.zeros(needs.shape)?),
        })
    }

    fn write(&self, values: &[bf16]) -> Result<(), Error> {
        match self {
            Held::Own(tensor) => tensor.write(values),
            Held::Heap(buffer) => buffer.write(values),
        }
    }

    fn bits(&self) -> Result<Vec<u16>, Error> {
        let values = match self {
            Held::Own(tensor) => tensor.read()?,
            Held::Heap(buffer) => buffer.read()?,
        };
        Ok(values.into_iter().map(bf16::to_bits).collect())
    }

    fn given(&mut self, written: bool) -> Argument<'_> {
        match (self, written) {
            (Held::Own(tensor), true) => tensor.into(),
            (Held::Own(tensor), false) => (&*tensor).into(),
            (Held::Heap(buffer), true) => buffer.into(),
            (Held::Heap(buffer), false) => (&*buffer).into(),
        }
    }
}

/// A rank's tensors, with their names and what they are.
struct Tensors(Vec<(String, Needs, Held)>);

impl Tensors {
    /// Whole numbers whose sums bf16 has exactly, and NaN where peers' rows come or a result does.
    fn new(rank: &Communicator, op: &Op, program: &Program) -> Result<Tensors, Error> {
        let mut made = Vec::new();
        for (at, tensor) in program.tensors.iter().enumerate() {
            if tensor.usage.is_scratch() {
                continue;
            }
            let needs = op.needs(&tensor.name)?;
            let held = Held::new(rank, &tensor.name, &needs)?;
            let [rows, columns] = needs.shape;
            let own: Vec<Range<usize>> = ROWS
                .map(|m| {
                    let shard = m.div_ceil(rank.world() as usize);
                    let start = rank.rank() as usize * shard;
                    start.min(m)..(start + shard).min(m)
                })
                .into();
            let gathered = tensor.usage == Usage::GATHERED;
            let value = |index: usize| {
                let (row, column) = (index / columns, index % columns);
                let here = !gathered || own.iter().any(|rows| rows.contains(&row));
                // A gathered tensor is the same on every rank.
                let by = if gathered { 0 } else { rank.rank() as usize };
                match here && tensor.usage.is_input() {
                    true => bf16::from_f32(((row + column * 5 + at + by) % 3) as f32 - 1.0),
                    false => bf16::NAN,
                }
            };
            held.write(&(0..rows * columns).map(value).collect::<Vec<_>>())?;
            made.push((tensor.name.clone(), needs, held));
        }
        rank.synchronize()?;
        rank.barrier()?;
        Ok(Tensors(made))
    }

    fn launch(&mut self, rank: &Communicator, op: &Op, rows: usize) -> Result<(), Error> {
        let mut launch = op.on(rank);
        for (name, needs, held) in &mut self.0 {
            let written = !needs.usage.is_input();
            launch = launch.tensor(name, held.given(written));
        }
        launch.rows(rows).launch().map(drop)
    }

    /// What is written.
    fn bits(&self) -> Result<Vec<Vec<u16>>, Error> {
        let written = self
            .0
            .iter()
            .filter(|(_, needs, _)| !needs.usage.is_input());
        written.map(|(.., held)| held.bits()).collect()
    }
}

/// What all ranks have after launches of those rows, one behind the other.
fn after(program: &Program, world: u32, rows: &[usize]) -> Vec<Vec<Vec<u16>>> {
    let ranks = Communicator::emulated(world).expect("ranks");
    let each = Communicator::each(&ranks, |rank| {
        rank.reserve(8 << 20)?;
        let op = rank.op(program).first_options().up_to(MOST, N, K).build()?;
        let mut tensors = Tensors::new(rank, &op, program)?;
        for rows in rows {
            tensors.launch(rank, &op, *rows)?;
        }
        rank.synchronize()?;
        let bits = tensors.bits()?;
        // Nor does one after all others, which are done.
        tensors.launch(rank, &op, 0)?;
        rank.synchronize()?;
        assert_eq!(tensors.bits()?, bits);
        rank.barrier()?;
        Ok(bits)
    });
    each.unwrap_or_else(|error| panic!("{} world {world} {rows:?}: {error}", program.name))
}

#[test]
fn launches_of_no_rows_change_nothing_of_others() {
    // The weight, or another tensor, is gathered whatever the rows are; or sums are in f32.
    const OTHERS: [&str; 2] = ["fsdp_gemm", "wgrad"];
    let worlds: &[u32] = if wide() {
        &[1, 2, 3, 4, 5, 6, 7, 8]
    } else {
        &[1, 2, 5]
    };
    let mut seen = 0;
    for (at, program) in (0..).zip(schedules::ALL.map(|schedule| schedule())) {
        if OTHERS.contains(&&program.name[..]) {
            continue;
        }
        assert!(
            program
                .tensors
                .iter()
                .all(|tensor| tensor.dtype == Dtype::Bf16)
        );
        // The sample has each schedule in one world.
        let own = &worlds[at % worlds.len()..][..1];
        for &world in if wide() { worlds } else { own } {
            let plain = after(&program, world, &ROWS);
            let [few, many] = ROWS;
            let between = after(&program, world, &[0, few, 0, many, 0, 0]);
            assert!(plain == between, "{} world {world}", program.name);
            seen += 1;
        }
    }
    let each = if wide() { worlds.len() } else { 1 };
    assert_eq!(seen, (schedules::ALL.len() - OTHERS.len()) * each);
}
