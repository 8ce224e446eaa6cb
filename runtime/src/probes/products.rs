//! Products of our own: the rate of the K loop, cool and at the power limit, and what small tiles are fed.

use super::bench::Bench;
use crate::communicator::Communicator;
use crate::driver::Event;
use crate::error::Error;
use crate::jit::Compiler;
use crate::noise;
use crate::op::Op;
use crate::tensor::Tensor;
use counterflow_codegen::builder::{GemmOptions, ScheduleBuilder};
use counterflow_codegen::dtype::Dtype::Bf16;
use counterflow_codegen::machine::ProductTime;
use counterflow_codegen::program::Program;
use half::bf16;
use std::time::Duration;

/// Rows, columns and depth of a product whose operands no cache holds.
const LARGE: [u32; 3] = [8192, 14336, 8192];
/// Tiles of that product, and whether in ping-pong. The first heats the GPU.
const TILES: [((u32, u32), bool); 5] = [
    ((128, 256), false),
    ((128, 192), false),
    ((128, 144), true),
    ((128, 128), true),
    ((128, 96), true),
];
/// Tiles of the products of whole rounds.
const TILE: (u32, u32) = (128, 256);
/// Their depths: the difference has no start and no end of a launch in it.
const DEPTHS: [u32; 2] = [4096, 8192];
/// Rounds of their tiles along each side.
const ROUNDS: u32 = 2;
/// Of the SMs, one in so many multiplies in the products of few SMs.
const FEW: u32 = 4;

/// A pause after which a GPU is cool.
const PAUSE: Duration = Duration::from_millis(200);
/// Seconds of launches that are timed, cool and hot, and that heat: the power limit takes more than a second to settle.
const COOL: f64 = 0.02;
const HOT: f64 = 0.1;
const HEAT: f64 = 2.0;
/// Turns of hot products whose difference counts: both meet the same clocks, which two in a row did not.
const TURNS: u32 = 8;

/// A product, ready to launch.
struct Product {
    op: Op,
    size: [u32; 3],
    tile: (u32, u32),
    ping_pong: bool,
    sms: u32,
}

/// Operands of products, and a result.
struct Operands {
    x: Tensor<bf16>,
    w: Tensor<bf16>,
    y: Tensor<bf16>,
}

/// All products, and their memory.
pub(super) struct Products {
    /// In the tiles of [`TILES`].
    large: Vec<Product>,
    /// Each depth on all SMs, then on few.
    rounds: Vec<Product>,
    of_large: Operands,
    of_depth: Vec<Operands>,
}

/// y = x · wᵀ.
fn product(tile: (u32, u32), ping_pong: bool) -> Program {
    let mut s = ScheduleBuilder::new("probe");
    let (x, w, y) = (s.local("x", Bf16), s.local("w", Bf16), s.out("y", Bf16));
    let tiles = s.tiles("tiles", y, tile);
    let options = GemmOptions {
        ping_pong: Some(ping_pong.into()),
        ..GemmOptions::default()
    };
    s.gemm(options, |s| {
        s.for_items("t", tiles.grouped(8), |s, t| {
            let sum = s.dot(x.at(t), w.at(t));
            s.store(y.at(t), sum);
        });
    });
    s.finish()
}

/// Rows and columns whose tiles fill all SMs in whole rounds.
fn whole_rounds(sms: u32) -> [u32; 2] {
    let down = (1..=sms).filter(|down| sms.is_multiple_of(*down) && down * down <= sms);
    let down = down.max().unwrap_or(1);
    [TILE.0 * ROUNDS * (sms / down), TILE.1 * ROUNDS * down]
}

impl Operands {
    fn new(rank: &Communicator, [m, n, k]: [u32; 3]) -> Result<Operands, Error> {
        let of = |rows: u32, columns: u32| rank.zeros([rows as usize, columns as usize]);
        let operands = Operands {
            x: of(m, k)?,
            w: of(n, k)?,
            y: of(m, n)?,
        };
        for (tensor, seed) in [(&operands.x, 1), (&operands.w, 2)] {
            noise::fill(rank.own_stream(), tensor.address(), tensor.len() * 2, seed)?;
        }
        Ok(operands)
    }
}

impl Product {
    fn new(
        rank: &Communicator,
        compiler: &Compiler,
        size: [u32; 3],
        (tile, ping_pong): ((u32, u32), bool),
        left: u32,
    ) -> Result<Product, Error> {
        let program = product(tile, ping_pong);
        let [m, n, k] = size.map(|side| side as usize);
        let builder = rank.op(&program).compiler(compiler).up_to(m, n, k);
        Ok(Product {
            op: builder.first_options().sm_margin(left).build()?,
            size,
            tile,
            ping_pong,
            sms: rank.gpu().sms() - left,
        })
    }

    fn launch(&self, rank: &Communicator, on: &mut Operands) -> Result<(), Error> {
        let Operands { x, w, y } = on;
        let launch = self.op.on(rank).tensor("x", &*x).tensor("w", &*w);
        launch.tensor("y", y).launch().map(drop)
    }

    /// Launches one after another for about so many seconds, after so many of load.
    fn time(
        &self,
        rank: &Communicator,
        on: &mut Operands,
        (load, span): (f64, f64),
    ) -> Result<ProductTime, Error> {
        let stream = rank.own_stream();
        let mut timed = |launches: u32| {
            let start = Event::record(stream)?;
            (0..launches).try_for_each(|_| self.launch(rank, on))?;
            let end = Event::record(stream)?;
            end.wait()?;
            Ok::<_, Error>(end.since(&start)?.as_secs_f64() / f64::from(launches))
        };
        // The first launch of a kernel takes longer.
        timed(1)?;
        let launches = (span / timed(1)?).clamp(2.0, 1000.0);
        let seconds = timed(launches as u32)?;
        let (rows, columns) = self.tile;
        Ok(ProductTime {
            size: self.size,
            tile: [rows, columns],
            ping_pong: self.ping_pong,
            sms: self.sms,
            load,
            seconds,
        })
    }
}

impl Products {
    /// Builds all of them and allocates what they read and write.
    ///
    /// # Errors
    /// What the compiler or the driver refuses; too little memory.
    pub fn new(bench: &Bench<'_>, compiler: &Compiler) -> Result<Products, Error> {
        let rank = bench.rank;
        let sms = rank.gpu().sms();
        let [m, n] = whole_rounds(sms);
        let made = |size, kind, left| Product::new(rank, compiler, size, kind, left);
        let few = sms - (sms / FEW).max(1);
        let rounds = [0, few].into_iter();
        let rounds = rounds.flat_map(|left| DEPTHS.map(|k| made([m, n, k], (TILE, false), left)));
        Ok(Products {
            large: TILES
                .into_iter()
                .map(|kind| made(LARGE, kind, 0))
                .collect::<Result<_, _>>()?,
            rounds: rounds.collect::<Result<_, _>>()?,
            of_large: Operands::new(rank, LARGE)?,
            of_depth: DEPTHS
                .into_iter()
                .map(|k| Operands::new(rank, [m, n, k]))
                .collect::<Result<_, _>>()?,
        })
    }

    /// Times of all of them: cool ones first, then hot ones.
    ///
    /// # Errors
    /// What the driver refuses.
    pub fn times(&mut self, bench: &Bench<'_>) -> Result<Vec<ProductTime>, Error> {
        let rank = bench.rank;
        let mut times = Vec::new();
        let on = |of_depth: &mut Vec<Operands>, product: &Product| {
            let at = DEPTHS.iter().position(|k| *k == product.size[2]);
            at.unwrap_or_default().min(of_depth.len() - 1)
        };
        for product in &self.rounds {
            let at = on(&mut self.of_depth, product);
            std::thread::sleep(PAUSE);
            times.push(product.time(rank, &mut self.of_depth[at], (0.0, COOL))?);
        }
        for product in [self.large.first(), self.large.last()]
            .into_iter()
            .flatten()
        {
            std::thread::sleep(PAUSE);
            times.push(product.time(rank, &mut self.of_large, (0.0, COOL))?);
        }
        let mut load = 0.0;
        for (at, product) in self.large.iter().enumerate() {
            let span = if at == 0 { HEAT } else { HOT };
            let time = product.time(rank, &mut self.of_large, (load, span))?;
            load += span;
            // The first of them heats: its mean is neither cool nor hot.
            let again = match at {
                0 => product.time(rank, &mut self.of_large, (load, HOT))?,
                _ => time,
            };
            times.push(again);
        }
        let all = self.rounds.iter().filter(|it| it.sms == rank.gpu().sms());
        let all: Vec<&Product> = all.collect();
        let mut turns = vec![Vec::new(); all.len()];
        for _ in 0..TURNS {
            for (product, turns) in all.iter().zip(&mut turns) {
                let at = on(&mut self.of_depth, product);
                let span = HOT / 2.0;
                turns.push(product.time(rank, &mut self.of_depth[at], (load, span))?);
                load += span;
            }
        }
        let means = turns.iter().filter_map(|turns| {
            let seconds = turns.iter().map(|turn| turn.seconds).sum::<f64>();
            let seconds = seconds / f64::from(TURNS);
            turns.first().map(|turn| ProductTime { seconds, ..*turn })
        });
        times.extend(means);
        Ok(times)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_fill_every_sm_in_whole_rounds() {
        for sms in [1, 7, 78, 114, 132, 144] {
            let [m, n] = whole_rounds(sms);
            assert_eq!(m / TILE.0 * (n / TILE.1), sms * ROUNDS * ROUNDS, "{sms}");
        }
        assert_eq!(whole_rounds(132), [3072, 5632]);
    }
}
