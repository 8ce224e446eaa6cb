//! The classes that C++ code knows: each operation against an unsharded reference in f64, and what is refused.

use super::each;
use super::reference::{Matrix, Wanted};
use counterflow::op::Granularity;
use counterflow::prelude::{bf16, e4m3};
use counterflow::{Communicator, Error, Layout, QuantTensor, Tensor};
use counterflow_layers::overlap::{Comm, Method, Settings};
use counterflow_layers::{CommOverlap, CommOverlapP2P, Destination, Operand};
use std::sync::Arc;

const MOST: usize = 24;
/// Columns of the buffer, and of what its product makes.
const SIDES: [usize; 2] = [48, 96];

fn tensor(rank: &Communicator, shape: [usize; 2], values: &[bf16]) -> Result<Tensor<bf16>, Error> {
    let tensor = rank.zeros(shape)?;
    tensor.write(values)?;
    Ok(tensor)
}

fn wide<T: Copy + Into<f64>>(values: &[T]) -> Vec<f64> {
    values.iter().map(|value| (*value).into()).collect()
}

/// a · bᵀ, where both have the depth as columns.
fn product(a: &Matrix, b: &Matrix, parts: usize, bias: Option<&Matrix>) -> Wanted {
    let at =
        |matrix: &Matrix, row: usize, column: usize| matrix.values[row * matrix.columns + column];
    let sizes = [a.rows(), b.rows(), a.columns];
    let wanted = Wanted::product(sizes, parts, |m, k| at(a, m, k), |k, n| at(b, n, k));
    let bias = bias.map_or(vec![0.0; b.rows()], |bias| bias.values.clone());
    wanted.plus(&bias).rounded()
}

fn turned(of: &Matrix) -> Matrix {
    let (rows, columns) = (of.rows(), of.columns);
    let at = |at: usize| of.values[at % rows * columns + at / rows];
    Matrix {
        columns: rows,
        values: (0..rows * columns).map(at).collect(),
    }
}

fn gathers(rank: &Arc<Communicator>, settings: &Settings, nn: bool) -> Result<(), Error> {
    let overlap = CommOverlapP2P::new(rank, [MOST, SIDES[0]], Comm::AllGather, settings)?;
    for (seed, rows) in [(1, MOST), (2, 7), (3, 1)] {
        let x = Matrix::random(rows, SIDES[0], 1.0, seed);
        let w = Matrix::random(SIDES[1], SIDES[0], 0.5, 10 + u64::from(rank.rank()));
        let bias = Matrix::random(1, SIDES[1], 2.0, 20);
        let shard = rank.shard(rank.rank(), rows);
        let own = x.part(shard.clone(), 0..SIDES[0]);
        overlap.copy_into_buffer(rows, &tensor(rank, [shard.len(), SIDES[0]], &own)?, true)?;
        let stored = if nn { turned(&w) } else { w.clone() };
        let shape = [stored.rows(), stored.columns];
        let weight = tensor(rank, shape, &stored.part(0..shape[0], 0..shape[1]))?;
        let of_bias = tensor(rank, [1, SIDES[1]], &bias.part(0..1, 0..SIDES[1]))?;
        let operand = Operand {
            tensor: (&weight).into(),
            bias: (!nn).then_some(&of_bias),
            layout: if nn { Layout::Nn } else { Layout::Nt },
        };
        let (mut y, mut copy) = (rank.zeros([rows, SIDES[1]])?, rank.zeros([rows, SIDES[0]])?);
        match seed {
            1 => overlap.split_overlap_ag(rows, operand, &mut y, Some(&mut copy))?,
            _ => overlap.atomic_gemm_overlap_ag(rows, operand, &mut y, Some(&mut copy))?,
        }
        let wanted = product(&x, &w, 1, (!nn).then_some(&bias));
        wanted.check("y", 0..rows, 0..SIDES[1], &wide(&y.read()?));
        assert_eq!(copy.read()?, x.part(0..rows, 0..SIDES[0]), "all rows");
        let part = overlap.get_buffer(rows, SIDES[0], true)?;
        assert_eq!(part.read()?, own);
    }
    Ok(())
}

#[test]
fn products_of_gathered_rows() {
    for world in [1, 2, 3] {
        let settings = [
            Settings::default(),
            Settings {
                use_ce: Some(false),
                num_sm: Some(2),
                ..Settings::default()
            },
            Settings {
                use_ce: Some(false),
                aggregate: Some(true),
                ..Settings::default()
            },
        ];
        let done = each(world, |rank| {
            rank.reserve(32 << 20)?;
            let one = &settings[world as usize - 1];
            gathers(rank, one, false)?;
            gathers(rank, one, true)
        });
        done.unwrap_or_else(|error| panic!("{world} ranks: {error}"));
    }
}

#[test]
fn products_that_are_summed() {
    for world in [1, 2, 3] {
        let done = each(world, |rank| {
            rank.reserve(32 << 20)?;
            let settings = Settings::default();
            let shape = [MOST, SIDES[1]];
            let p2p = CommOverlapP2P::new(rank, shape, Comm::ReduceScatter, &settings)?;
            let pipelined = CommOverlap::new(rank, shape, &settings)?;
            let depth = SIDES[0] / world as usize;
            let own = depth * rank.rank() as usize..depth * (rank.rank() as usize + 1);
            for (seed, rows) in [(1, MOST), (2, 5)] {
                let x = Matrix::random(rows, SIDES[0], 1.0, seed);
                let w = Matrix::random(SIDES[1], SIDES[0], 0.5, 10);
                let bias = Matrix::random(1, SIDES[1], 2.0, 20);
                let shard = rank.shard(rank.rank(), rows);
                let x_own = tensor(rank, [rows, depth], &x.part(0..rows, own.clone()))?;
                let w_own = w.part(0..SIDES[1], own.clone());
                let w_own = tensor(rank, [SIDES[1], depth], &w_own)?;
                let of_bias = tensor(rank, [1, SIDES[1]], &bias.part(0..1, 0..SIDES[1]))?;
                let operand = Operand {
                    tensor: (&w_own).into(),
                    bias: Some(&of_bias),
                    layout: Layout::Nt,
                };
                let wanted = product(&x, &w, world as usize, Some(&bias));
                let mut bits = Vec::new();
                for way in 0..4 {
                    let mut y = rank.zeros([shard.len(), SIDES[1]])?;
                    match way {
                        0 => p2p.split_overlap_rs(rows, &x_own, operand, &mut y)?,
                        1 => p2p.atomic_gemm_overlap_rs(rows, &x_own, operand, &mut y)?,
                        2 => pipelined.split_overlap_rs(rows, &x_own, operand, &mut y)?,
                        _ => pipelined.atomic_gemm_overlap_rs(rows, &x_own, operand, &mut y)?,
                    }
                    wanted.check("y", shard.clone(), 0..SIDES[1], &wide(&y.read()?));
                    bits.push(y.read()?);
                }
                assert!(bits.iter().all(|one| one == &bits[0]), "other bits");
            }
            Ok(())
        });
        done.unwrap_or_else(|error| panic!("{world} ranks: {error}"));
    }
}

#[test]
fn communication_beside_a_product() {
    for world in [1, 3] {
        let done = each(world, |rank| {
            rank.reserve(32 << 20)?;
            let settings = Settings {
                num_sm: Some(2),
                ..Settings::default()
            };
            let overlap = CommOverlap::new(rank, [MOST, SIDES[0]], &settings)?;
            for (seed, rows) in [(1, MOST), (2, 5)] {
                let (m, k) = (16, 32);
                let a = Matrix::random(m, k, 1.0, seed);
                let b = Matrix::random(SIDES[0], k, 1.0, seed + 5);
                let a_own = tensor(rank, [m, k], &a.part(0..m, 0..k))?;
                let b_own = tensor(rank, [SIDES[0], k], &b.part(0..SIDES[0], 0..k))?;
                let wanted = product(&a, &b, 1, None);
                let term = |of: u32| Matrix::random(rows, SIDES[0], 1.0, 30 + u64::from(of));
                let shard = rank.shard(rank.rank(), rows);
                let all = term(100);

                let own = all.part(shard.clone(), 0..SIDES[0]);
                overlap.copy_into_buffer(
                    rows,
                    &tensor(rank, [shard.len(), SIDES[0]], &own)?,
                    true,
                )?;
                let mut d = rank.zeros([m, SIDES[0]])?;
                let into = Destination::Written(&mut d);
                let operands = [&a_own, &b_own];
                overlap.bulk_overlap(rows, operands, Layout::Nt, into, Comm::AllGather, None)?;
                wanted.check("d", 0..m, 0..SIDES[0], &wide(&d.read()?));
                let buffer = overlap.get_buffer(rows, SIDES[0], false)?.read()?;
                assert_eq!(buffer, all.part(0..rows, 0..SIDES[0]), "gathered");

                let terms: Vec<Matrix> = (0..world).map(term).collect();
                let sum = |of: usize| terms.iter().map(|term| term.values[of]).sum();
                let mut sums = Wanted::exactly(0.0, [rows, SIDES[0]]);
                sums.values.values = (0..rows * SIDES[0]).map(sum).collect();
                // Terms of bf16 are added in f32, which takes a few of them exactly.
                let sums = sums.rounded();
                for added in [false, true] {
                    let own = term(rank.rank()).part(0..rows, 0..SIDES[0]);
                    overlap.copy_into_buffer(
                        rows,
                        &tensor(rank, [rows, SIDES[0]], &own)?,
                        false,
                    )?;
                    let mut r = rank.zeros([shard.len(), SIDES[0]])?;
                    let comm = Comm::ReduceScatter;
                    if added {
                        let (a, b) = (turned(&a), turned(&b));
                        let a_own = tensor(rank, [k, m], &a.part(0..k, 0..m))?;
                        let b_own = tensor(rank, [k, SIDES[0]], &b.part(0..k, 0..SIDES[0]))?;
                        let mut d = rank.zeros::<f32>([m, SIDES[0]])?;
                        d.write(&vec![0.5; d.len()])?;
                        let into = Destination::AddedTo(&mut d);
                        let operands = [&a_own, &b_own];
                        overlap.bulk_overlap(
                            rows,
                            operands,
                            Layout::Tn,
                            into,
                            comm,
                            Some(&mut r),
                        )?;
                        let mut more = Wanted::exactly(0.5, [m, SIDES[0]]);
                        more.add(&wanted);
                        more.check("d", 0..m, 0..SIDES[0], &wide(&d.read()?));
                    } else {
                        let mut d = rank.zeros([m, SIDES[0]])?;
                        let into = Destination::Written(&mut d);
                        let operands = [&a_own, &b_own];
                        overlap.bulk_overlap(
                            rows,
                            operands,
                            Layout::Nt,
                            into,
                            comm,
                            Some(&mut r),
                        )?;
                        wanted.check("d", 0..m, 0..SIDES[0], &wide(&d.read()?));
                    }
                    sums.check("r", shard.clone(), 0..SIDES[0], &wide(&r.read()?));
                }
            }
            Ok(())
        });
        done.unwrap_or_else(|error| panic!("{world} ranks: {error}"));
    }
}

#[test]
fn each_setting_acts_or_is_told() {
    let done = each(1, |rank| {
        rank.reserve(32 << 20)?;
        let every = Settings {
            num_sm: Some(2),
            cga_size: Some(2),
            set_sm_margin: Some(true),
            num_splits: Some(4),
            num_max_streams: Some(3),
            atomic_gemm: Some(false),
            use_ce: Some(true),
            comm_priority: Some(0),
            gemm_priority: Some(0),
            ..Settings::default()
        };
        let keys = |told: &[(&'static str, &str)]| {
            let keys: Vec<&str> = told.iter().map(|(key, _)| *key).collect();
            keys.join(" ")
        };
        let always = "cga_size set_sm_margin num_splits num_max_streams atomic_gemm";
        let p2p = |comm, settings: &Settings| {
            let made = CommOverlapP2P::new(rank, [8, 16], comm, settings)?;
            Ok::<String, Error>(keys(made.notices()))
        };
        // Copy engines move what is gathered, or SMs do; a sum's tiles are sent by who computes them.
        let found = p2p(Comm::AllGather, &every)?;
        assert_eq!(
            found,
            format!("num_sm {always} comm_priority gemm_priority")
        );
        let by_sms = Settings {
            use_ce: Some(false),
            ..every.clone()
        };
        let found = p2p(Comm::AllGather, &by_sms)?;
        assert_eq!(found, format!("{always} comm_priority gemm_priority"));
        let found = p2p(Comm::ReduceScatter, &every)?;
        assert_eq!(
            found,
            format!("num_sm {always} use_ce comm_priority gemm_priority")
        );
        // Bulk products have CTAs that communicate.
        let bulk = CommOverlap::new(rank, [8, 16], &every)?;
        let found = keys(bulk.notices());
        assert_eq!(
            found,
            format!("{always} use_ce comm_priority gemm_priority")
        );
        Ok(())
    });
    done.expect("four communicators");
}

#[test]
fn what_a_class_cannot_do_is_refused() {
    let told = |result: Result<(), Error>| {
        let error = result.expect_err("refused");
        format!("{error}: {}", error.help().unwrap_or_default())
    };
    let all = each(1, |rank| {
        rank.reserve(16 << 20)?;
        let plain = Settings::default();
        let with = Settings::method(Method::Bulk);
        let error = told(CommOverlap::new(rank, [8, 16], &with).map(drop));
        assert!(
            error.starts_with("the method bulk of a communicator: "),
            "{error}"
        );
        let with = Settings {
            aggregate: Some(true),
            ..plain.clone()
        };
        let made = CommOverlapP2P::new(rank, [8, 16], Comm::ReduceScatter, &with);
        let error = told(made.map(drop));
        assert!(error.contains("cannot aggregate"), "{error}");
        CommOverlapP2P::new(rank, [8, 16], Comm::AllGather, &with)?;

        let sums = CommOverlapP2P::new(rank, [8, 16], Comm::ReduceScatter, &plain)?;
        let (w, mut y) = (rank.zeros([16, 16])?, rank.zeros([8, 16])?);
        let w = Operand {
            tensor: (&w).into(),
            bias: None,
            layout: Layout::Nt,
        };
        let error = told(sums.split_overlap_ag(8, w, &mut y, None));
        let wanted =
            "an all-gather by a communicator of a reduce-scatter: make one of an all-gather";
        assert_eq!(error, wanted);
        let x = rank.zeros([9, 16])?;
        let error = told(sums.split_overlap_rs(9, &x, w, &mut y));
        assert_eq!(error, "9 rows, with a buffer for 8: give 1 to 8");
        let tn = Operand {
            layout: Layout::Tn,
            ..w
        };
        let error = told(sums.split_overlap_rs(8, &y.clone(), tn, &mut y));
        assert!(error.starts_with("a weight in layout"), "{error}");

        // Codes are multiplied by codes, and have one scale.
        let one = rank.zeros::<f32>([1, 1])?;
        let codes = rank.zeros::<e4m3>([16, 16])?;
        let coded = QuantTensor::new(codes.clone(), one, Granularity::PerTensor)?;
        let rows = Granularity::PerRow;
        let scales = rank.zeros::<f32>(rows.scales([16, 16]))?;
        let by_row = QuantTensor::new(codes, scales, rows)?;
        let of_codes = |coded| Operand { tensor: coded, ..w };
        let error = told(sums.split_overlap_rs(8, &y.clone(), of_codes((&coded).into()), &mut y));
        assert!(
            error.starts_with("a product of codes and elements: "),
            "{error}"
        );
        let x = coded.rows(0..8)?;
        let error = told(sums.split_overlap_rs(8, &x, w, &mut y));
        assert!(
            error.starts_with("a product of codes and elements: "),
            "{error}"
        );
        let error = told(sums.split_overlap_rs(8, &x, of_codes((&by_row).into()), &mut y));
        assert!(error.starts_with("codes with scales PerRow: "), "{error}");
        let gathers = CommOverlapP2P::new(rank, [8, 16], Comm::AllGather, &plain)?;
        let error = told(gathers.copy_into_buffer(8, &by_row.rows(0..8)?, true));
        assert!(error.starts_with("codes with scales PerRow: "), "{error}");
        gathers.copy_into_buffer(8, &x, true)?;
        let mut copy = rank.zeros([8, 16])?;
        let w_of_codes = of_codes((&coded).into());
        let error = told(gathers.split_overlap_ag(8, w_of_codes, &mut y, Some(&mut copy)));
        assert!(
            error.starts_with("codes copied to a tensor of bf16: "),
            "{error}"
        );
        let error = told(gathers.split_overlap_ag(8, w, &mut y, None));
        assert!(
            error.starts_with("a product of codes and elements: "),
            "{error}"
        );
        gathers.split_overlap_ag(8, w_of_codes, &mut y, None)?;
        gathers.copy_into_buffer(8, &copy, true)?;
        gathers.split_overlap_ag(8, w, &mut y, None)?;

        let bulk = CommOverlap::new(rank, [8, 16], &plain)?;
        let (a, b) = (rank.zeros([8, 8])?, rank.zeros([16, 8])?);
        let mut r = rank.zeros([8, 16])?;
        let mut call = |comm, output: Option<&mut Tensor<bf16>>| {
            let d = Destination::Written(&mut y);
            told(bulk.bulk_overlap(8, [&a, &b], Layout::Nt, d, comm, output))
        };
        let error = call(Comm::AllGather, Some(&mut r));
        assert!(
            error.starts_with("a gather with an output of its own"),
            "{error}"
        );
        let error = call(Comm::ReduceScatter, None);
        assert!(
            error.starts_with("a sum over ranks without its output"),
            "{error}"
        );
        let mut f32s = rank.zeros::<f32>([8, 16])?;
        let into = Destination::AddedTo(&mut f32s);
        let error = told(bulk.bulk_overlap(8, [&a, &b], Layout::Nt, into, Comm::AllGather, None));
        assert!(
            error.starts_with("a result that is added to, or "),
            "{error}"
        );
        let into = Destination::Written(&mut r);
        let error = told(bulk.bulk_overlap(8, [&a, &a], Layout::Nt, into, Comm::AllGather, None));
        assert!(error.starts_with("d is 8 x 16"), "{error}");
        Ok(())
    });
    all.expect("refusals end nothing");
}

/// Bits of codes that are a number's, and no two rows alike.
fn bits(rows: usize) -> Vec<e4m3> {
    let of = |at: usize| e4m3::from_bits((0x30 + at % 16 + at / SIDES[0] % 7) as u8);
    (0..rows * SIDES[0]).map(of).collect()
}

#[test]
fn a_buffer_of_codes_is_not_taken_for_elements() {
    for world in [1, 3] {
        let done = each(world, |rank| {
            rank.reserve(32 << 20)?;
            let settings = Settings::default();
            let overlap = CommOverlapP2P::new(rank, [MOST, SIDES[0]], Comm::AllGather, &settings)?;
            let scale = rank.zeros::<f32>([1, 1])?;
            scale.write(&[0.5])?;
            let coded = |values: &[e4m3]| {
                let codes = rank.zeros::<e4m3>([values.len() / SIDES[0], SIDES[0]])?;
                codes.write(values)?;
                QuantTensor::new(codes, scale.clone(), Granularity::PerTensor)
            };
            let weight = coded(&bits(SIDES[1]))?;
            let w = Operand {
                tensor: (&weight).into(),
                bias: None,
                layout: Layout::Nt,
            };
            // On three ranks the last one has a row less.
            let rows = 8;
            let shard = rank.shard(rank.rank(), rows);
            let all = bits(rows);
            let own = &all[shard.start * SIDES[0]..shard.end * SIDES[0]];
            let told = |error: Error| error.to_string();
            let taken = |local| overlap.get_buffer(rows, SIDES[0], local).map(drop);
            let bytes =
                |codes: &[e4m3]| codes.iter().map(|code| code.to_bits()).collect::<Vec<_>>();

            let error = told(
                overlap
                    .get_codes(rows, SIDES[0], true)
                    .expect_err("elements"),
            );
            assert_eq!(error, "codes of a buffer that has elements");
            overlap.copy_into_buffer(rows, &coded(own)?, true)?;
            // Elements that were written through it would be multiplied as codes, with the scale of these.
            for local in [false, true] {
                let error = told(taken(local).expect_err("codes"));
                assert_eq!(error, "the buffer as bf16, and it has codes of E4M3");
            }
            let found = overlap.get_codes(rows, SIDES[0], true)?.read()?;
            assert_eq!(found, bytes(own), "this rank's codes");
            let mut y = rank.zeros([rows, SIDES[1]])?;
            overlap.split_overlap_ag(rows, w, &mut y, None)?;
            let found = overlap.get_codes(rows, SIDES[0], false)?.read()?;
            assert_eq!(found, bytes(&all), "all codes");

            let elements = rank.zeros([shard.len(), SIDES[0]])?;
            overlap.copy_into_buffer(rows, &elements, true)?;
            taken(true)?;
            let error = told(
                overlap
                    .get_codes(rows, SIDES[0], true)
                    .expect_err("elements"),
            );
            assert_eq!(error, "codes of a buffer that has elements");
            let error = overlap.split_overlap_ag(rows, w, &mut y, None);
            let error = told(error.expect_err("codes and elements"));
            assert_eq!(error, "a product of codes and elements");

            // Nothing of a communicator of sums reads codes from the buffer.
            let sums = CommOverlapP2P::new(rank, [MOST, SIDES[0]], Comm::ReduceScatter, &settings)?;
            let error = told(
                sums.copy_into_buffer(rows, &coded(own)?, true)
                    .expect_err("codes"),
            );
            assert_eq!(error, "codes in the buffer of a reduce-scatter");
            sums.copy_into_buffer(rows, &elements, true)
        });
        done.unwrap_or_else(|error| panic!("{world} ranks: {error}"));
    }
}
