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

/// The same for all rows, so that a row's result says which launches it was in.
fn row_of(rank: u32) -> Vec<bf16> {
    let number = |at: usize| ((at * 37 + rank as usize * 11) % 64) as f32 / 64.0 - 0.5;
    (0..COLUMNS).map(|at| bf16::from_f32(number(at))).collect()
}

fn bits(values: &[bf16]) -> Vec<u16> {
    values.iter().map(|value| value.to_bits()).collect()
}

struct Operands {
    x: Tensor<bf16>,
    gamma: Tensor<bf16>,
    residual: Tensor<bf16>,
    y: Tensor<bf16>,
}

fn launch(
    norm: &AllReduceNorm,
    on: Caller<'_>,
    of: &mut Operands,
    rows: usize,
) -> Result<(), Error> {
    let launch = norm.on(on).x(&of.x).gamma(&of.gamma);
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
                x: tensor()?,
                gamma: rank.zeros([COLUMNS])?,
                residual: tensor()?,
                y: tensor()?,
            };
            of.x.write(&row_of(rank.rank()).repeat(MOST))?;
            of.gamma.write(&[bf16::ONE; COLUMNS])?;
            let stream = stream(rank)?;
            rank.synchronize()?;
            rank.barrier()?;
            let mut graphs = Vec::new();
            for (rows, mode) in ROWS.into_iter().zip(MODES) {
                let record = || launch(&norm, (&stream).into(), &mut of, rows);
                graphs.push((captured(&stream, mode, record)?, rows));
                rank.synchronize()?;
            }
            rank.barrier()?;
            let given: Vec<_> = (0..rank.world()).map(row_of).collect();
            let given: Vec<&[bf16]> = given.iter().map(Vec::as_slice).collect();
            let gamma = [bf16::ONE; COLUMNS];
            let mut after = vec![[bf16::ZERO; COLUMNS].to_vec(); MOST];
            let mut normed = after.clone();
            // Launches of each row since it began anew.
            let mut counts = [0; MOST];
            for round in 0..ROUNDS {
                let (graph, rows) = &graphs[round % 3];
                let others = [1 + round * 7 % MOST, 1 + round % 5];
                replay(graph);
                launch(&norm, (&stream).into(), &mut of, others[0])?;
                replay(&graphs[2].0);
                launch(&norm, rank.into(), &mut of, others[1])?;
                replay(&graphs[0].0);
                for rows in [*rows, others[0], 1, others[1], 6] {
                    counts[..rows].iter_mut().for_each(|count| *count += 1);
                }
                if round % 20 != 19 && round + 1 != ROUNDS {
                    continue;
                }
                for (row, count) in counts.iter_mut().enumerate() {
                    for _ in 0..std::mem::take(count) {
                        [after[row], normed[row]] =
                            AllReduceNorm::row(&given, &after[row], &gamma, EPS);
                    }
                }
                rank.synchronize()?;
                assert_eq!(bits(&of.residual.read()?), bits(&after.concat()), "{round}");
                assert_eq!(bits(&of.y.read()?), bits(&normed.concat()), "{round}");
                after = vec![[bf16::ZERO; COLUMNS].to_vec(); MOST];
                of.residual.fill(0)?;
            }
            rank.synchronize()?;
            rank.barrier()
        }));
        println!("  {} replays: {}", 3 * ROUNDS, world.told());
    }
}
