//! All-reduces with a norm behind them (`counterflow::quantise::AllReduceNorm`) in graphs that the program captures and replays
//! itself. All else of them is in the quantisers' suite.

use crate::capture::{MODES, captured, replay, stream};
use crate::fine;
use crate::gpus::both_ways;
use counterflow::prelude::bf16;
use counterflow::quantise::AllReduceNorm;
use counterflow::{Communicator, Error, Tensor, op::Caller};

const COLUMNS: usize = 2056;
const MOST: usize = 40;
const EPS: f32 = 1e-5;

/// The texts of the kernels.
pub fn texts() -> Vec<String> {
    let worlds = [2, 4].map(|world| fine(Communicator::emulated(world)));
    let text = |ranks: &Vec<Communicator>| AllReduceNorm::of(&ranks[0]).eps(EPS).text(COLUMNS);
    worlds.iter().map(text).collect()
}

/// The same for all rows, so that a row's result says which launches it was in. Those of other launches differ: words that a
/// launch before left would be seen.
fn row_of(rank: u32, which: usize) -> Vec<bf16> {
    let number = |at: usize| ((at * 37 + rank as usize * 11 + which * 23) % 64) as f32 / 64.0 - 0.5;
    (0..COLUMNS).map(|at| bf16::from_f32(number(at))).collect()
}

fn bits(values: &[bf16]) -> Vec<u16> {
    values.iter().map(|value| value.to_bits()).collect()
}

struct Operands {
    x: Vec<Tensor<bf16>>,
    gamma: Tensor<bf16>,
    residual: Tensor<bf16>,
    y: Tensor<bf16>,
}

fn launch(
    norm: &AllReduceNorm,
    on: Caller<'_>,
    of: &mut Operands,
    (which, rows): (usize, usize),
) -> Result<(), Error> {
    let launch = norm.on(on).x(&of.x[which]).gamma(&of.gamma);
    let launch = launch.residual(&mut of.residual).y(&mut of.y);
    launch.rows(rows).launch().map(drop)
}

/// Ten thousand replays between launches of other rows. Each launch adds to the residual of its rows, which begins anew at
/// times, before what a launch adds is lost in rounding: a row that was in another number of launches has other bits.
#[test]
fn ten_thousand_replays_of_captured_all_reduces_between_launches_of_other_rows() {
    const ROUNDS: usize = 3400;
    const ROWS: [usize; 3] = [6, MOST, 1];
    for world in both_ways(2).chain(both_ways(4)) {
        fine(Communicator::each(&world.ranks, |rank| {
            let norm = AllReduceNorm::of(rank).eps(EPS).up_to(MOST, COLUMNS);
            rank.reserve(norm.workspace()?.heap + (2 << 20))?;
            let norm = norm.build()?;
            let tensor = || rank.zeros::<bf16>([MOST, COLUMNS]);
            let mut of = Operands {
                x: (0..5).map(|_| tensor()).collect::<Result<_, _>>()?,
                gamma: rank.zeros([COLUMNS])?,
                residual: tensor()?,
                y: tensor()?,
            };
            for (which, x) in of.x.iter().enumerate() {
                x.write(&row_of(rank.rank(), which).repeat(MOST))?;
            }
            of.gamma.write(&[bf16::ONE; COLUMNS])?;
            let stream = stream(rank)?;
            rank.synchronize()?;
            rank.barrier()?;
            let mut graphs = Vec::new();
            for (launched, mode) in ROWS.into_iter().enumerate().zip(MODES) {
                let record = || launch(&norm, (&stream).into(), &mut of, launched);
                graphs.push(captured(&stream, mode, record)?);
                rank.synchronize()?;
            }
            rank.barrier()?;
            let of_ranks = |which| (0..rank.world()).map(move |rank| row_of(rank, which));
            let given: Vec<Vec<_>> = (0..5).map(|which| of_ranks(which).collect()).collect();
            let gamma = [bf16::ONE; COLUMNS];
            let mut after = vec![[bf16::ZERO; COLUMNS].to_vec(); MOST];
            let mut normed = after.clone();
            // Launches since the residual began anew.
            let mut made = Vec::new();
            for round in 0..ROUNDS {
                // Ranks that are threads stalled three times, on one GPU and on two, each time with one of them 27 replays ahead: as
                // if a full queue held a lock of the process (`notes/truth`). So none runs ahead by as many.
                if round % 5 == 0 {
                    rank.barrier()?;
                }
                let others = [(3, 1 + round * 7 % MOST), (4, 1 + round % 5)];
                replay(&graphs[round % 3]);
                launch(&norm, (&stream).into(), &mut of, others[0])?;
                replay(&graphs[2]);
                launch(&norm, rank.into(), &mut of, others[1])?;
                replay(&graphs[0]);
                let first = (round % 3, ROWS[round % 3]);
                made.extend([first, others[0], (2, ROWS[2]), others[1], (0, ROWS[0])]);
                if round % 20 != 19 && round + 1 != ROUNDS {
                    continue;
                }
                for (which, rows) in made.drain(..) {
                    let given: Vec<&[bf16]> = given[which].iter().map(Vec::as_slice).collect();
                    for row in 0..rows {
                        [after[row], normed[row]] =
                            AllReduceNorm::row(&given, &after[row], &gamma, EPS);
                    }
                }
                rank.synchronize()?;
                let same = |got: &Tensor<bf16>, wanted: &[Vec<bf16>]| -> Result<bool, Error> {
                    Ok(bits(&got.read()?) == bits(&wanted.concat()))
                };
                assert!(same(&of.residual, &after)?, "residual of round {round}");
                assert!(same(&of.y, &normed)?, "y of round {round}");
                after = vec![[bf16::ZERO; COLUMNS].to_vec(); MOST];
                of.residual.fill(0)?;
            }
            rank.synchronize()?;
            rank.barrier()
        }));
        println!("  {} replays: {}", 3 * ROUNDS, world.told());
    }
}
