//! Launches of no rows: they do nothing where nothing is there to do, and are refused elsewhere.

use counterflow_codegen::builder::{GemmOptions, ScheduleBuilder, me, ranks};
use counterflow_codegen::dtype::Dtype;
use counterflow_codegen::program::Program;
use counterflow_runtime::driver::Stream;
use counterflow_runtime::{Communicator, Error, QuantTensor};
use float8::F8E4M3;
use half::bf16;
use std::time::Duration;

/// y = x · wᵀ, and, if asked, z = w · vᵀ, which has no rows of x.
fn products(both: bool) -> Program {
    let mut s = ScheduleBuilder::new("products");
    let (x, w) = (s.local("x", Dtype::Bf16), s.local("w", Dtype::Bf16));
    let y = s.out("y", Dtype::Bf16);
    let tiles = s.tiles("tiles", y, (128, 64));
    let others = both.then(|| {
        let (v, z) = (s.local("v", Dtype::Bf16), s.out("z", Dtype::Bf16));
        (v, z, s.tiles("others", z, (128, 64)))
    });
    s.gemm(GemmOptions::default(), |s| {
        s.for_items("t", tiles.all(), |s, t| {
            let product = s.dot(x.at(t), w.at(t));
            s.store(y.at(t), product);
        });
    });
    if let Some((v, z, others)) = others {
        s.gemm(GemmOptions::default(), |s| {
            s.for_items("t", others.all(), |s, t| {
                let product = s.dot(w.at(t), v.at(t));
                s.store(z.at(t), product);
            });
        });
    }
    s.finish()
}

#[test]
fn a_launch_of_no_rows_does_nothing() -> Result<(), Error> {
    let rank = &Communicator::emulated(1)?[0];
    let program = products(false);
    let op = rank.op(&program).output(Dtype::E4M3).amax();
    let op = op.up_to(64, 64, 64).build()?;
    let (x, w) = (rank.zeros::<bf16>([64, 64])?, rank.zeros::<bf16>([64, 64])?);
    let (codes, amax) = (rank.zeros::<F8E4M3>([64, 64])?, rank.zeros::<f32>([1])?);
    let scale = rank.zeros::<f32>([1])?;
    x.write(&[bf16::ONE; 64 * 64])?;
    w.write(&[bf16::ONE; 64 * 64])?;
    scale.write(&[1.0])?;
    let mut y = QuantTensor::output(codes.clone(), scale)?.with_amax(amax.clone())?;
    let stream: Stream = rank.gpu().stream()?;
    for (rows, wanted) in [(0, [0.0; 2]), (2, [64.0; 2]), (0, [64.0; 2])] {
        for on_stream in [false, true] {
            let launch = match on_stream {
                true => op.on(&stream),
                false => op.on(rank),
            };
            let launch = launch.tensor("x", &x).tensor("w", &w).tensor("y", &mut y);
            launch.rows(rows).launch()?.wait()?;
            assert_eq!([codes.read()?[0].to_f32(), amax.read()?[0]], wanted);
        }
    }
    Ok(())
}

#[test]
fn outputs_without_those_rows_are_not_left_out() -> Result<(), Error> {
    let rank = &Communicator::emulated(1)?[0];
    let program = products(true);
    let op = rank.op(&program).up_to(64, 64, 64).build()?;
    let [x, w, v, mut y, mut z] = [0; 5].map(|_| rank.zeros::<bf16>([64, 64]));
    let launch = op.on(rank).tensor("x", x.as_ref().expect("x"));
    let launch = launch.tensor("w", w.as_ref().expect("w"));
    let launch = launch.tensor("v", v.as_ref().expect("v"));
    let launch = launch.tensor("y", y.as_mut().expect("y"));
    let launch = launch.tensor("z", z.as_mut().expect("z"));
    let error = launch.rows(0).launch().expect_err("z has rows of w");
    assert!(
        error.to_string().contains("no rows, where z has others"),
        "{error}"
    );
    Ok(())
}

/// A gather of x, whose rows are those of the launch.
fn gather() -> Program {
    let mut s = ScheduleBuilder::new("gather");
    let x = s.gathered("x", Dtype::Bf16);
    let chunks = s.chunks("chunks", x, 64);
    let arrived = s.counters("arrived", [chunks.into()]);
    s.comm(2, |s| {
        s.for_ranks("peer", ranks().before_me(), |s, peer| {
            s.for_items("c", chunks.of(me()), |s, c| {
                s.copy(x.on(&peer).at(c), x.at(c));
                s.signal(arrived.on(&peer).at(c), 1);
            });
        });
        s.for_ranks("from", ranks().after_me(), |s, from| {
            s.for_items("c", chunks.of(&from), |s, c| s.wait(arrived.at(c)));
        });
    });
    s.finish()
}

/// What each of two ranks launches, in rows, and how that ends for them. One comes later than the other.
fn both(rows: [&[usize]; 2], late: u32) -> Result<[Result<(), Error>; 2], Error> {
    let program = gather();
    let ended = Communicator::each(&Communicator::emulated(2)?, |rank| {
        rank.reserve(1 << 20)?;
        let op = rank.op(&program).up_to(64, 64, 64).build()?;
        let x = rank.allocate::<bf16>("x", [64, 64])?;
        rank.barrier()?;
        if rank.rank() == late {
            std::thread::sleep(Duration::from_millis(20));
        }
        let launch = |rows: &usize| op.on(rank).tensor("x", &x).rows(*rows).launch().map(drop);
        let launched = rows[rank.rank() as usize].iter().try_for_each(launch);
        let ended = launched.and_then(|()| rank.synchronize());
        // Who launched no rows waits for nobody, and is told by what it does next.
        Ok(ended.and_then(|()| rank.barrier()))
    })?;
    Ok(<[_; 2]>::try_from(ended).expect("two ranks"))
}

#[test]
fn ranks_that_wait_for_each_other_all_launch_no_rows() -> Result<(), Error> {
    for rows in [&[0][..], &[0, 64, 0, 0, 3, 64, 0]] {
        for late in [0, 1] {
            let ended = both([rows; 2], late)?;
            assert!(ended.iter().all(Result::is_ok), "{rows:?}: {ended:?}");
        }
    }
    Ok(())
}

/// A rank that leaves a launch of no rows out, or makes one where its peer has rows, is told, and so is its peer.
#[test]
fn a_launch_of_no_rows_is_compared_with_the_peers_launch() -> Result<(), Error> {
    for rows in [[&[0, 64][..], &[64]], [&[64], &[0]], [&[64, 0], &[64, 64]]] {
        for late in [0, 1] {
            for error in both(rows, late)?.map(|ended| ended.expect_err("they differ")) {
                assert_eq!(error.kind(), "mismatch", "{rows:?}: {error}");
                assert!(error.to_string().contains("of 0 rows"), "{error}");
            }
        }
    }
    Ok(())
}

/// By itself and in a graph it counts as a launch, so one rank may replay what the other launches.
#[test]
fn a_graph_has_launches_of_no_rows() -> Result<(), Error> {
    let program = gather();
    Communicator::each(&Communicator::emulated(2)?, |rank| {
        rank.reserve(1 << 20)?;
        let op = rank.op(&program).up_to(64, 64, 64).build()?;
        let x = rank.allocate::<bf16>("x", [64, 64])?;
        let rows = [0, 64, 0];
        let graph = rank.capture(|s| {
            let launch = |rows| op.on(s).tensor("x", &x).rows(rows).launch().map(drop);
            rows.into_iter().try_for_each(launch)
        })?;
        assert_eq!(graph.len(), 3);
        let nothing = rank.capture(|s| op.on(s).tensor("x", &x).rows(0).launch().map(drop))?;
        let shard = rank.rank() as usize * 32 * 64..(rank.rank() as usize + 1) * 32 * 64;
        for round in 0..4usize {
            let own = |at: usize| match shard.contains(&at) {
                true => bf16::from_f32((round + 1) as f32),
                false => bf16::NAN,
            };
            x.write(&(0..64 * 64).map(own).collect::<Vec<_>>())?;
            rank.synchronize()?;
            rank.barrier()?;
            if round % 2 == rank.rank() as usize {
                graph.launch(rank)?;
                nothing.launch(rank)?;
            } else {
                for rows in [0, 64, 0, 0] {
                    op.on(rank).tensor("x", &x).rows(rows).launch()?;
                }
            }
            rank.synchronize()?;
            let wanted = bf16::from_f32((round + 1) as f32);
            assert!(x.read()?.into_iter().all(|got| got == wanted), "{round}");
            rank.barrier()?;
        }
        Ok(())
    })
    .map(drop)
}

/// What is gathered whatever the rows are must come.
#[test]
fn a_gather_of_other_rows_is_not_left_out() -> Result<(), Error> {
    let mut s = ScheduleBuilder::new("beside");
    let (x, w) = (s.local("x", Dtype::Bf16), s.gathered("w", Dtype::Bf16));
    let y = s.out("y", Dtype::Bf16);
    let chunks = s.chunks("chunks", w, 64);
    let tiles = s.tiles("tiles", y, (128, 64));
    let arrived = s.counters("arrived", [chunks.into()]);
    s.comm(2, |s| {
        s.for_ranks("peer", ranks().before_me(), |s, peer| {
            s.for_items("c", chunks.of(me()), |s, c| {
                s.copy(w.on(&peer).at(c), w.at(c));
                s.signal(arrived.on(&peer).at(c), 1);
            });
        });
    });
    s.gemm(GemmOptions::default(), |s| {
        s.for_ranks("shard", ranks().from_me(), |s, shard| {
            s.for_items("t", tiles.of(&shard), |s, t| {
                s.wait(arrived.at(t.columns()));
                let product = s.dot(x.at(t), w.at(t));
                s.store(y.at(t), product);
            });
        });
    });
    let program = s.finish();
    Communicator::each(&Communicator::emulated(2)?, |rank| {
        rank.reserve(1 << 20)?;
        let op = rank.op(&program).up_to(64, 64, 64).build()?;
        let (x, w) = (
            rank.zeros::<bf16>([64, 64])?,
            rank.allocate::<bf16>("w", [64, 64])?,
        );
        let mut y = rank.zeros::<bf16>([64, 64])?;
        let launch = op.on(rank).tensor("x", &x).tensor("w", &w);
        let error = launch.tensor("y", &mut y).rows(0).launch();
        let error = error.map(drop).expect_err("w has rows of its own");
        assert!(
            error.to_string().contains("no rows, where w has others"),
            "{error}"
        );
        Ok(())
    })
    .map(drop)
}
