//! Exchanges of low latency beside the schedules that do the same: random rows of launches of any number of them.

use counterflow::family::{Collective, Family, Stage};
use counterflow::jit::Compiler;
use counterflow::op::{Caller, Element};
use counterflow::prelude::bf16;
use counterflow::schedules::{all_gather, all_reduce, reduce_scatter};
use counterflow::{Communicator, Dtype, Error, Op, Program, Tensor, UserBuffer};

pub const ALL: [Collective; 4] = [
    Collective::AllGather,
    Collective::ReduceScatter,
    Collective::AllReduce,
    Collective::TwoShotAllReduce,
];

/// A 16-bit element type.
pub trait Half: Element + Copy + Send + Sync {
    const DTYPE: Dtype;
    /// Fraction bits.
    const BITS: i32;
    fn of_bits(bits: u16) -> Self;
    fn bits(self) -> u16;
    fn value(self) -> f64;
    fn of(value: f32) -> Self;
}

macro_rules! half {
    ($of:ty, $dtype:ident, $bits:literal) => {
        impl Half for $of {
            const DTYPE: Dtype = Dtype::$dtype;
            const BITS: i32 = $bits;
            fn of_bits(bits: u16) -> Self {
                <$of>::from_bits(bits)
            }
            fn bits(self) -> u16 {
                self.to_bits()
            }
            fn value(self) -> f64 {
                self.to_f64()
            }
            fn of(value: f32) -> Self {
                <$of>::from_f32(value)
            }
        }
    };
}
half!(bf16, Bf16, 8);
half!(half::f16, F16, 11);

pub fn schedule(collective: Collective) -> Program {
    match collective {
        Collective::AllGather => all_gather(),
        Collective::ReduceScatter => reduce_scatter(),
        Collective::AllReduce | Collective::TwoShotAllReduce => all_reduce(),
        other => panic!("no schedule of an {other}"),
    }
}

/// The exchange both ways, the bulk schedule first.
pub fn family(collective: Collective) -> Family {
    let name = schedule(collective).name;
    let few = Stage::low_latency(collective, schedule(collective));
    Family::new(&name, schedule(collective)).or_stages([few])
}

/// What is done.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    pub collective: Collective,
    pub most: usize,
    pub columns: usize,
    pub seed: u64,
}

/// Random bits.
fn drawn(mut seed: u64) -> u64 {
    seed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    seed = (seed ^ (seed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    seed = (seed ^ (seed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    seed ^ (seed >> 31)
}

/// Every NaN is the same.
fn plain<E: Half>(value: E) -> u16 {
    match value.value().is_nan() {
        true => 0x7fff,
        false => value.bits(),
    }
}

impl Case {
    /// An element of a rank's rows in the `which`-th set of them: numbers of many sizes, zeros of both signs, and what is no number, also
    /// in pairs all of whose bits are set.
    fn element<E: Half>(&self, which: usize, rank: u32, row: usize, column: usize) -> E {
        // What is gathered does not say whose it is: that depends on the number of rows.
        let rank = match self.collective {
            Collective::AllGather => 0,
            _ => rank,
        };
        let of = |at: usize| {
            let place = ((which * 64 + rank as usize) * self.most + row) * self.columns + at;
            drawn(self.seed << 40 ^ place as u64)
        };
        let special = of(column / 2) % 97;
        let bits = of(column + self.most * self.columns * 4096);
        let sign = if bits & 1 == 0 { 1.0 } else { -1.0 };
        match special {
            0 => E::of_bits(0xffff),
            1 if bits & 2 == 0 => E::of(f32::INFINITY),
            2..8 => E::of(sign * 0.0),
            _ => {
                let size = (bits >> 8 & 7) as i32 - 4;
                let fraction = 1.0 + (bits >> 40) as f32 / 16_777_216.0;
                E::of(sign * fraction * (size as f32).exp2())
            }
        }
    }

    /// The rows that a rank owns in a launch.
    fn owned(&self, world: usize, rank: usize, rows: usize) -> std::ops::Range<usize> {
        let shard = rows.div_ceil(world);
        (rank * shard).min(rows)..((rank + 1) * shard).min(rows)
    }

    /// Holds what a rank has after a launch to f64's sums, and what must not change to what was there.
    fn holds<E: Half>(&self, of: (usize, usize, usize), (which, rows): (usize, usize), got: &[E]) {
        let (world, rank, shard) = of;
        let (first, held) = match self.collective {
            Collective::ReduceScatter => {
                let owned = self.owned(world, rank, rows);
                (owned.start, owned.len())
            }
            _ => (0, rows),
        };
        for (at, value) in got.iter().enumerate() {
            let (line, column) = (at / self.columns, at % self.columns);
            let told = || {
                format!(
                    "{self:?}, {rows} rows, rank {rank} of {world}, row {line}, column {column}"
                )
            };
            if line >= held {
                assert_eq!(value.bits(), POISON, "{}: written", told());
                continue;
            }
            let row = first + line;
            if self.collective == Collective::AllGather {
                let wanted: E = self.element(which, (row / shard) as u32, row, column);
                assert_eq!(plain(*value), plain(wanted), "{}", told());
                continue;
            }
            let terms =
                (0..world).map(|rank| self.element::<E>(which, rank as u32, row, column).value());
            let terms: Vec<f64> = terms.collect();
            let (sum, sizes) = (
                terms.iter().sum::<f64>(),
                terms.iter().map(|term| term.abs()).sum::<f64>(),
            );
            if !sum.is_finite() {
                let same = value.value().is_nan() == sum.is_nan()
                    && (sum.is_nan() || value.value() == sum);
                assert!(same, "{}: {} instead of {sum}", told(), value.value());
                continue;
            }
            let allowed =
                sum.abs() * (-f64::from(E::BITS)).exp2() + sizes * world as f64 * (-23.0f64).exp2();
            let off = (value.value() - sum).abs();
            // NaN is no number.
            assert!(
                off <= allowed,
                "{}: {} instead of {sum}",
                told(),
                value.value()
            );
        }
    }
}

/// What was there before, and is no result.
const POISON: u16 = 0x7e5a;

/// The tensors of a launch.
struct Held<E> {
    x: Option<UserBuffer<E>>,
    g: Option<Tensor<E>>,
    y: Option<UserBuffer<E>>,
}

/// An exchange on a rank, with tensors for several launches.
pub struct Exchange<E> {
    case: Case,
    pub op: Op,
    held: Vec<Held<E>>,
}

impl<E: Half> Exchange<E> {
    /// Builds the schedule, or the exchange of low latency, and so many sets of tensors.
    pub fn new(
        rank: &Communicator,
        case: Case,
        few: bool,
        (sets, compiler): (usize, Option<&Compiler>),
    ) -> Result<Exchange<E>, Error> {
        let family = family(case.collective);
        let name = family.candidates()[usize::from(few)].name();
        let [m, k] = [case.most, case.columns];
        let builder = rank.family(&family).schedule(&name).dtype(E::DTYPE);
        let builder = builder.up_to(m, k, k).first_options();
        let tensors = sets * (2 * (m + rank.world() as usize) * k + 4096);
        let used = rank.heap_use().used + builder.workspace()?.heap;
        rank.reserve(used + tensors as u64 + (4 << 20))?;
        let op = match compiler {
            Some(compiler) => builder.compiler(compiler).build()?,
            None => builder.build()?,
        };
        assert_eq!(op.schedule_of(1), name);
        let gathers = case.collective == Collective::AllGather;
        let tensor = |name: &str| rank.allocate::<E>(name, op.needs(name)?.shape);
        let held = (0..sets).map(|_| {
            Ok::<_, Error>(Held {
                x: gathers.then(|| tensor("x")).transpose()?,
                g: (!gathers).then(|| rank.zeros::<E>([m, k])).transpose()?,
                y: (!gathers).then(|| tensor("y")).transpose()?,
            })
        });
        let held = held.collect::<Result<_, _>>()?;
        Ok(Exchange { case, op, held })
    }

    /// Fills the input of a launch, and poisons the rest.
    pub fn fill(
        &self,
        rank: &Communicator,
        set: usize,
        (which, rows): (usize, usize),
    ) -> Result<(), Error> {
        let Case { columns, most, .. } = self.case;
        let own = rank.rank();
        let owned = self.case.owned(rank.world() as usize, own as usize, rows);
        let number = |at: usize| {
            self.case
                .element::<E>(which, own, at / columns, at % columns)
        };
        let Held { x, g, y } = &self.held[set];
        if let Some(x) = x {
            let value = |at: usize| match owned.contains(&(at / columns)) {
                true => number(at),
                false => E::of_bits(POISON),
            };
            x.write(&(0..x.len()).map(value).collect::<Vec<_>>())?;
        }
        if let (Some(g), Some(y)) = (g, y) {
            g.write(&(0..most * columns).map(number).collect::<Vec<_>>())?;
            y.write(&vec![E::of_bits(POISON); y.len()])?;
        }
        Ok(())
    }

    pub fn launch<'a>(
        &'a mut self,
        on: impl Into<Caller<'a>>,
        set: usize,
        rows: usize,
    ) -> Result<(), Error> {
        let mut launch = self.op.on(on);
        let Held { x, g, y } = &mut self.held[set];
        if let Some(x) = x {
            launch = launch.tensor("x", &*x);
        }
        if let (Some(g), Some(y)) = (g, y) {
            launch = launch.tensor("g", &*g).tensor("y", y);
        }
        launch.rows(rows).launch().map(drop)
    }

    /// What the rank has after a launch of those numbers, held to the reference.
    pub fn after(
        &self,
        rank: &Communicator,
        set: usize,
        (which, rows): (usize, usize),
    ) -> Result<Vec<u16>, Error> {
        rank.synchronize()?;
        let (world, own) = (rank.world() as usize, rank.rank() as usize);
        let got = match &self.held[set] {
            Held { x: Some(x), .. } => x.read()?,
            Held { y: Some(y), .. } => y.read()?,
            Held { .. } => Vec::new(),
        };
        let of = (world, own, rows.div_ceil(world).max(1));
        self.case.holds(of, (which, rows), &got);
        Ok(got.into_iter().map(plain).collect())
    }

    /// A launch by itself: the bits of each element afterwards.
    fn alone(&mut self, rank: &Communicator, of: (usize, usize)) -> Result<Vec<u16>, Error> {
        self.fill(rank, 0, of)?;
        rank.synchronize()?;
        rank.barrier()?;
        self.launch(rank, 0, of.1)?;
        let bits = self.after(rank, 0, of)?;
        rank.barrier()?;
        Ok(bits)
    }
}

/// The bits of each rank after each launch of those rows, each of other numbers.
pub fn run<E: Half>(
    ranks: &[Communicator],
    case: Case,
    few: bool,
    (rows, compiler): (&[usize], Option<&Compiler>),
) -> Result<Vec<Vec<Vec<u16>>>, Error> {
    Communicator::each(ranks, |rank| {
        let mut exchange = Exchange::<E>::new(rank, case, few, (1, compiler))?;
        let launches = rows.iter().enumerate();
        let all = launches.map(|(which, rows)| exchange.alone(rank, (which, *rows)));
        all.collect()
    })
}

/// The bits of each row of launches of those rows, of the same numbers: where a rank has a row, whichever rank that is.
pub fn rows_of<E: Half>(
    ranks: &[Communicator],
    case: Case,
    rows: &[usize],
) -> Result<Vec<Vec<Vec<u16>>>, Error> {
    let world = ranks.len();
    let each = Communicator::each(ranks, |rank| {
        let mut exchange = Exchange::<E>::new(rank, case, true, (1, None))?;
        let all = rows.iter().map(|rows| exchange.alone(rank, (0, *rows)));
        all.collect::<Result<Vec<_>, _>>()
    })?;
    let line = |bits: &[u16], at: usize| bits[at * case.columns..][..case.columns].to_vec();
    let launches = rows.iter().enumerate().map(|(launch, rows)| {
        let mut all = vec![Vec::new(); *rows];
        for (rank, bits) in each.iter().enumerate() {
            let (own, first) = match case.collective {
                Collective::ReduceScatter => {
                    let own = case.owned(world, rank, *rows);
                    (own.clone(), own.start)
                }
                _ => (0..*rows, 0),
            };
            for row in own {
                let found = line(&bits[launch], row - first);
                assert!(
                    all[row].is_empty() || all[row] == found,
                    "ranks differ in row {row}"
                );
                all[row] = found;
            }
        }
        all
    });
    Ok(launches.collect())
}
