//! What it costs to build ops that nobody measured before, and what they become.
//!
//! `COUNTERFLOW_CACHE=NEW_FOLDER cargo run --release --example cold_start -- 2 512x3584x5120` builds every family for two ranks and
//! up to 512 rows, 3584 columns and a depth of 5120 of one rank: once with an empty cache, where it compiles and measures
//! candidates, and once more. With one rank it builds the product alone. `COUNTERFLOW_TUNE` says how much is measured. Without
//! GPUs, ranks are emulated, and nothing is.

use counterflow::family::Family;
use counterflow::{Communicator, Device, Error, families, schedules::gemm};
use std::time::Instant;

/// Rows over all ranks, columns and depth of one.
type Size = [usize; 3];

/// A size such as 512x3584x5120.
fn size(text: &str) -> Option<Size> {
    let sides: Vec<usize> = (text.split('x').map(str::parse).collect::<Result<_, _>>()).ok()?;
    sides.try_into().ok()
}

fn main() -> Result<(), Error> {
    let mut words = std::env::args().skip(1);
    let world: u32 = words.next().map_or(2, |word| word.parse().expect("ranks"));
    let mut sizes: Vec<Size> = words
        .map(|word| size(&word).expect("rows, columns and depth, such as 512x3584x5120"))
        .collect();
    let ranks = match Device::Cuda.open() {
        Ok(_) => Communicator::local(world)?,
        Err(why) => {
            println!("{why}: ranks are emulated, and nothing is measured");
            Communicator::emulated(world)?
        }
    };
    if sizes.is_empty() {
        sizes = vec![match ranks[0].gpu().is_emulated() {
            true => [64, 256, 128],
            false => [512, 3584, 5120],
        }];
    }
    let heap = if ranks[0].gpu().is_emulated() {
        64 << 20
    } else {
        1 << 30
    };
    Communicator::each(&ranks, |rank| rank.reserve(heap))?;
    println!("op, size, milliseconds, again, what it became and why, why it was not measured");
    for size in sizes {
        if world == 1 {
            built(&ranks, &Family::new("gemm", gemm()), size)?;
            continue;
        }
        for family in families::ALL {
            built(&ranks, &family(), size)?;
        }
    }
    Ok(())
}

/// Builds a family twice, and prints what rank 0 says of it.
fn built(ranks: &[Communicator], family: &Family, [m, n, k]: Size) -> Result<(), Error> {
    let told = Communicator::each(ranks, |rank| {
        let builder = || rank.family(family).up_to(m, n, k);
        let took = || {
            let start = Instant::now();
            let op = builder().build()?;
            Ok::<_, Error>((op, start.elapsed().as_secs_f64() * 1e3))
        };
        let (op, first) = took()?;
        let (again, second) = took()?;
        assert_eq!(again.variant(), op.variant(), "what is known stays");
        Ok(format!(
            "{} {m}x{n}x{k} {first:.0} {second:.0} \"{} {}\" \"{}\" {:?}",
            family.name(),
            op.schedule_of(m),
            op.variant_of(m),
            op.why(m),
            op.unmeasured(m),
        ))
    })?;
    println!("{}", told[0]);
    Ok(())
}
