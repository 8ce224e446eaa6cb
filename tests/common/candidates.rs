//! What every candidate of a family leaves, launch by launch.

use counterflow::family::Family;
use counterflow::op::{Argument, Needs};
use counterflow::prelude::bf16;
use counterflow::{Communicator, Error, Op, Tensor, UserBuffer};

pub const MOST: usize = 150;
pub const N: usize = 64;
pub const K: usize = 32;
/// Launches, across buckets and back; some ranks have no rows of the last.
pub const ROWS: [usize; 6] = [MOST, 5, 64, 17, MOST - 1, 1];

/// A tensor of a rank.
pub enum Held {
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

    pub fn given(&mut self, written: bool) -> Argument<'_> {
        match (self, written) {
            (Held::Own(tensor), true) => tensor.into(),
            (Held::Own(tensor), false) => (&*tensor).into(),
            (Held::Heap(buffer), true) => buffer.into(),
            (Held::Heap(buffer), false) => (&*buffer).into(),
        }
    }
}

/// The tensors of a family's launches on a rank.
pub struct Tensors(pub Vec<(String, Needs, Held)>);

impl Tensors {
    pub fn new(rank: &Communicator, op: &Op, family: &Family) -> Result<Tensors, Error> {
        let mut made = Vec::new();
        for tensor in &family.first().tensors {
            if let Ok(needs) = op.needs(&tensor.name) {
                let held = Held::new(rank, &tensor.name, &needs)?;
                made.push((tensor.name.clone(), needs, held));
            }
        }
        Ok(Tensors(made))
    }

    /// Numbers of which products need rounding, and NaN where peers' rows come or a result does.
    pub fn fill(&self, rank: &Communicator, (launch, rows): (usize, usize)) -> Result<(), Error> {
        let shard = rows.div_ceil(rank.world() as usize);
        for (at, (_, needs, held)) in self.0.iter().enumerate() {
            let [lines, columns] = needs.shape;
            let gathered = needs.usage.is_gathered();
            let by = if gathered { 0 } else { rank.rank() as usize };
            let value = |index: usize| {
                let (row, column) = (index / columns, index % columns);
                let here = !gathered || row / shard == rank.rank() as usize;
                match here && needs.usage.is_input() {
                    true => {
                        let number = (row * 7 + column * 5 + at * 3 + by * 11 + launch) % 23;
                        bf16::from_f32(number as f32 / 8.0 - 1.3)
                    }
                    false => bf16::NAN,
                }
            };
            held.write(&(0..lines * columns).map(value).collect::<Vec<_>>())?;
        }
        rank.synchronize()?;
        rank.barrier()
    }

    pub fn launch(&mut self, rank: &Communicator, op: &Op, rows: usize) -> Result<(), Error> {
        let mut launch = op.on(rank);
        for (name, needs, held) in &mut self.0 {
            let written = !needs.usage.is_input();
            launch = launch.tensor(name, held.given(written));
        }
        launch.rows(rows).launch().map(drop)
    }

    /// What is written.
    pub fn bits(&self) -> Result<Vec<Vec<u16>>, Error> {
        let written = self
            .0
            .iter()
            .filter(|(_, needs, _)| !needs.usage.is_input());
        written.map(|(.., held)| held.bits()).collect()
    }
}

pub fn built(rank: &Communicator, family: &Family, only: Option<&str>) -> Result<Op, Error> {
    let builder = rank.family(family).up_to(MOST, N, K).buckets([8, 64]);
    match only {
        Some(only) => builder.schedule(only).first_options().build(),
        None => builder.build(),
    }
}

/// What a rank has after each launch.
pub type Bits = Vec<Vec<Vec<u16>>>;

/// What all ranks have after each launch of a candidate, and of the one that is chosen where none is named.
pub fn after(ranks: &[Communicator], family: &Family, only: Option<&str>) -> Vec<Bits> {
    let world = ranks.len();
    let each = Communicator::each(ranks, |rank| {
        rank.reserve(16 << 20)?;
        let op = built(rank, family, only)?;
        if let Some(only) = only {
            assert!(ROWS.iter().all(|rows| op.schedule_of(*rows) == only));
        }
        let mut tensors = Tensors::new(rank, &op, family)?;
        let mut all = Vec::new();
        for (launch, rows) in ROWS.into_iter().enumerate() {
            tensors.fill(rank, (launch, rows))?;
            tensors.launch(rank, &op, rows)?;
            rank.synchronize()?;
            let bits = tensors.bits()?;
            // All rows of the largest launch are there.
            let number = |bits: &&u16| **bits & 0x7f80 != 0x7f80 && **bits & 0x7fff != 0;
            let (numbers, values) = (
                bits.iter().flatten().filter(number).count(),
                bits.concat().len(),
            );
            assert!(rows < MOST || 2 * numbers > values, "{numbers} of {values}");
            all.push(bits);
            rank.barrier()?;
        }
        // A launch of no rows changes nothing.
        tensors.launch(rank, &op, 0)?;
        rank.synchronize()?;
        assert!(all.last() == Some(&tensors.bits()?));
        rank.barrier()?;
        Ok(all)
    });
    each.unwrap_or_else(|error| panic!("{} {only:?} world {world}: {error}", family.name()))
}
