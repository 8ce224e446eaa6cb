//! Schedules that a program makes at run time: what `#[schedule]` writes as calls, `builder` takes from any code.
//!
//! Here a program asks for a gather by pushes or around a ring, in chunks of so many rows, with or without a bias. Each is
//! proved like any other: `cargo run --release --example built`.

use counterflow::builder::{GemmOptions, ScheduleBuilder, me, ranks, ring, world};
use counterflow::prelude::bf16;
use counterflow::{Communicator, Dtype::Bf16, Error, Program};

/// What a user of such a program would choose, in a file perhaps.
#[derive(Clone, Copy, Debug)]
struct Wanted {
    around_a_ring: bool,
    rows: u32,
    bias: bool,
}

/// y = all_gather(x) · wᵀ, plus a bias if wanted.
fn gather(wanted: Wanted) -> Program {
    let mut s = ScheduleBuilder::new("gather");
    let (x, w) = (s.gathered("x", Bf16), s.local("w", Bf16));
    let bias = wanted.bias.then(|| s.vector("b", Bf16));
    let y = s.out("y", Bf16);
    let chunks = s.chunks("chunks", x, wanted.rows);
    let tiles = s.tiles("tiles", y, (128, 128));
    let arrived = s.counters("arrived", [chunks.into()]);
    s.comm(4, |s| match wanted.around_a_ring {
        true => s.for_ranks("shard", ring(1).but_last(1), |s, shard| {
            let next = (me() + 1) % world();
            s.for_items("c", chunks.of(&shard), |s, c| {
                s.wait(arrived.at(c)); // mine are here
                s.copy(x.on(&next).at(c), x.at(c));
                s.signal(arrived.on(&next).at(c), 1);
            });
        }),
        false => s.for_ranks("peer", ranks().before_me(), |s, peer| {
            s.for_items("c", chunks.of(me()), |s, c| {
                s.copy(x.on(&peer).at(c), x.at(c));
                s.signal(arrived.on(&peer).at(c), 1);
            });
        }),
    });
    s.gemm(GemmOptions::default(), |s| {
        let order = match wanted.around_a_ring {
            true => ring(1),
            false => ranks().from_me(),
        };
        s.for_ranks("shard", order, |s, shard| {
            s.for_items("t", tiles.of(&shard), |s, t| {
                s.wait(arrived.at(t.rows()));
                let product = s.dot(x.at(t), w.at(t));
                let value = match bias {
                    Some(bias) => product.bias(s.load(bias)),
                    None => product,
                };
                s.store(y.at(t), value);
            });
        });
    });
    s.finish()
}

/// Ones times ones, of rows that this rank and its peers fill.
fn run(rank: &Communicator, wanted: Wanted) -> Result<(), Error> {
    rank.reserve(2 << 20)?;
    let schedule = gather(wanted);
    let op = rank.op(&schedule).up_to(96, 32, 16).build()?;
    let x = rank.allocate::<bf16>("x", [96, 16])?;
    let (w, mut y) = (rank.zeros::<bf16>([32, 16])?, rank.zeros::<bf16>([96, 32])?);
    let bias = rank.zeros::<bf16>([1, 32])?;
    let mine = op.shard("x", rank.rank(), 96)?;
    x.rows(mine.clone())?
        .write(&vec![bf16::ONE; mine.len() * 16])?;
    w.write(&[bf16::ONE; 32 * 16])?;
    bias.write(&[bf16::ONE; 32])?;
    let launch = op.on(rank).tensor("x", &x).tensor("w", &w);
    let bias = wanted.bias.then_some(&bias).into_iter();
    let launch = bias.fold(launch, |launch, bias| launch.tensor("b", bias));
    launch.tensor("y", &mut y).launch()?.wait()?;
    let sum = if wanted.bias { 17.0 } else { 16.0 };
    assert_eq!(y.read()?, [bf16::from_f32(sum); 96 * 32], "{wanted:?}");
    Ok(())
}

fn main() -> Result<(), Error> {
    for (around_a_ring, rows, bias) in [(false, 128, false), (true, 128, true), (true, 256, false)]
    {
        let wanted = Wanted {
            around_a_ring,
            rows,
            bias,
        };
        Communicator::each(&Communicator::emulated(3)?, |rank| run(rank, wanted))?;
        println!("{wanted:?}: proved, and every number is right");
    }
    Ok(())
}
