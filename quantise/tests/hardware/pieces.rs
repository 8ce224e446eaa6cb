//! Transposed copies in pieces: each is that of its rows, quantised alone.

use crate::{emulated, fine, on_gpu};
use counterflow_codegen::dtype::Dtype;
use counterflow_emulator::Numbers;
use counterflow_quantise::{Fp8, Granularity, Quantiser, Recipe, ScaleRule, Scaling};
use counterflow_runtime::{Communicator, Error};
use float8::F8E4M3;
use half::bf16;

/// Rows, columns, and rows of a piece: all of them as well.
const CASES: [[usize; 3]; 4] = [
    [512, 272, 128],
    [512, 272, 256],
    [384, 16, 384],
    [768, 144, 256],
];

fn bits(codes: &[F8E4M3]) -> Vec<u8> {
    codes.iter().map(|code| code.to_bits()).collect()
}

fn are_those_of_their_rows(rank: &Communicator) -> Result<(), Error> {
    let scaling = Scaling::Current(Granularity::BLOCK_1X128);
    let recipe = Recipe::new(
        ScaleRule::transformer_engine(Fp8::E4M3),
        scaling,
        Dtype::Bf16,
    );
    let quantiser = Quantiser::build(rank, recipe.with_transposed(), [768, 272])?;
    for [rows, columns, piece] in CASES {
        let mut numbers = Numbers::new((rows + columns + piece) as u64);
        let mut number = |_| bf16::from_f32(numbers.below(4001) as f32 / 100.0 - 20.0);
        let x = rank.zeros::<bf16>([rows, columns])?;
        x.write(&(0..rows * columns).map(&mut number).collect::<Vec<_>>())?;
        let of_rows = |of: usize| Granularity::BLOCK_1X128.scales([of, columns]);
        let of_columns = |of: usize| Granularity::BLOCK_1X128.scales([columns, of]);
        let mut codes = rank.zeros::<F8E4M3>([rows, columns])?;
        let mut scales = rank.zeros::<f32>(of_rows(rows))?;
        let mut pieces = rank.zeros::<F8E4M3>([rows / piece * columns, piece])?;
        let mut of_pieces = rank.zeros::<f32>(of_columns(rows))?;
        pieces.fill(0xaa)?;
        of_pieces.fill(0xaa)?;
        let launch = quantiser.on(rank, [rows, columns]).x(&x);
        let launch = launch.codes(&mut codes).scales(&mut scales);
        let launch = launch
            .transposed(&mut pieces)
            .transposed_scales(&mut of_pieces);
        launch.pieces(piece).launch()?.wait()?;
        for number in 0..rows / piece {
            let own = x.rows(number * piece..(number + 1) * piece)?;
            let mut own_codes = rank.zeros::<F8E4M3>([piece, columns])?;
            let mut own_scales = rank.zeros::<f32>(of_rows(piece))?;
            let mut turned = rank.zeros::<F8E4M3>([columns, piece])?;
            let mut turned_scales = rank.zeros::<f32>(of_columns(piece))?;
            let launch = quantiser.on(rank, [piece, columns]).x(&own);
            let launch = launch.codes(&mut own_codes).scales(&mut own_scales);
            let launch = launch.transposed(&mut turned);
            launch
                .transposed_scales(&mut turned_scales)
                .launch()?
                .wait()?;
            let told = format!("{rows} x {columns}, piece {number} of {piece} rows");
            let found = codes.rows(number * piece..(number + 1) * piece)?;
            assert!(
                bits(&found.read()?) == bits(&own_codes.read()?),
                "{told}: codes"
            );
            let found = pieces.rows(number * columns..(number + 1) * columns)?;
            assert!(
                bits(&found.read()?) == bits(&turned.read()?),
                "{told}: on their side"
            );
            let lines = turned_scales.shape()[0];
            let found = of_pieces.rows(number * lines..(number + 1) * lines)?;
            assert_eq!(found.read()?, turned_scales.read()?, "{told}: scales");
        }
    }
    let x = rank.zeros::<bf16>([512, 16])?;
    for rows in [0, 64, 384] {
        let launch = quantiser.on(rank, [512, 16]).x(&x).pieces(rows);
        let told = launch.launch().expect_err("no such pieces").to_string();
        assert_eq!(
            told,
            format!("a transposed copy of 512 rows in pieces of {rows}")
        );
    }
    Ok(())
}

#[test]
fn are_those_of_their_rows_alone() {
    fine(are_those_of_their_rows(&emulated()));
    if let Some(rank) = on_gpu() {
        fine(are_those_of_their_rows(&rank));
    }
}
