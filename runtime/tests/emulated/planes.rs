//! Planes of scales of blocks: launches of fewer rows than their memory has room for.

use crate::schedules;
use counterflow_codegen::dtype::Dtype;
use counterflow_codegen::variant::Scales;
use counterflow_runtime::{Communicator, Error, QuantTensor};
use float8::F8E4M3;
use half::bf16;

const ROWS: usize = 100;
const N: usize = 64;
const K: usize = 272;

/// What a rank has by itself, which is no buffer of the heap.
#[test]
fn a_plane_of_fewer_rows_has_shorter_lines() -> Result<(), Error> {
    let rank = &Communicator::emulated(1)?[0];
    let program = schedules::product((128, 64));
    let op = rank.op(&program).dtype(Dtype::E4M3);
    let op = op.scales(Scales::Blocks1d2d).up_to(ROWS, N, K).build()?;
    let x = QuantTensor::zeros::<F8E4M3>(rank, &op.needs("x")?)?;
    let w = QuantTensor::zeros::<F8E4M3>(rank, &op.needs("w")?)?;
    let plane = x.scales();
    assert_eq!(plane.shape(), [3, ROWS]);
    x.codes().fill(F8E4M3::ONE.to_bits())?;
    w.codes().fill(F8E4M3::ONE.to_bits())?;
    w.scales().write(&vec![1.0; w.scales().len()])?;
    for rows in [ROWS, 39, 1] {
        let mut y = rank.zeros::<bf16>([ROWS, N])?;
        let needs = op.needs_at("x", rows)?;
        let shorter = x.shaped(&needs)?;
        let [lines, line] = shorter.scales().shape();
        assert_eq!([lines, line], [3, rows.next_multiple_of(4)]);
        plane.fill(0xff)?;
        let scales = |at: usize| match at % line < rows {
            true => 2f32.powi((at % line % 5) as i32),
            false => 0.0,
        };
        shorter
            .scales()
            .write(&(0..lines * line).map(scales).collect::<Vec<_>>())?;
        let mut launch = |x: &QuantTensor| {
            let launch = op.on(rank).tensor("x", x).tensor("w", &w);
            launch.tensor("y", &mut y).rows(rows).launch()
        };
        if line != ROWS {
            let error = launch(&x).map(drop).expect_err("lines of all rows");
            assert_eq!(
                error.to_string(),
                format!("the scale tensor of x is 3 x {ROWS}")
            );
            let help = error.help().unwrap_or_default().to_owned();
            let wanted = format!("give 3 x {line} for {rows}x{N}x{K}; `needs_at` has");
            assert!(
                help.starts_with(&wanted) && help.contains("`shaped`"),
                "{help}"
            );
        }
        launch(&shorter)?.wait()?;
        for (at, got) in y.read()?.into_iter().enumerate() {
            let row = at / N;
            let wanted = match row < rows {
                true => bf16::from_f32(K as f32 * 2f32.powi((row % 5) as i32)),
                false => bf16::ZERO,
            };
            assert_eq!(got, wanted, "{rows} rows, row {row}");
        }
    }
    let error = plane.shaped([4, ROWS]).map(drop).expect_err("more");
    assert_eq!(error.to_string(), "4 x 100 elements of a tensor");
    Ok(())
}
