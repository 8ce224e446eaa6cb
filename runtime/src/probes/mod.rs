//! Measures what a GPU and its links can do, for a [profile](counterflow_codegen::machine::Profile): some seconds, on GPUs that
//! do nothing else.

mod bench;
mod links;
mod memory;
mod products;

use crate::communicator::Communicator;
use crate::cuda::{Probes, Survey, compile_probes};
use crate::error::Error;
use crate::jit::{Compiled, Compiler};
use crate::machines;
use bench::Bench;
use counterflow_codegen::machine::{Link, Probed, Profile, shipped};
use links::Ends;
use std::collections::BTreeMap;
use tracing::info;

/// CTAs of the largest cluster that is asked about.
const CLUSTERS: u32 = 8;
/// Bytes of the heap that probes of links take.
const HEAP: u64 = links::HEAP + (8 << 20);

/// Measures the GPUs of these ranks: memory, L2, products and, with several GPUs, links. The profile has the slowest rank's
/// numbers. It takes some seconds, 2 GiB on each GPU, and GPUs that nobody else uses meanwhile. Nothing is kept:
/// [`keep`](machines::keep) does that.
///
/// ```no_run
/// use counterflow::{Communicator, machines, probes};
///
/// let profile = probes::measure(&Communicator::local(2)?)?;
/// println!("{}", profile.text());
/// machines::keep(&profile)?; // ops that are built from now on are chosen by it
/// # Ok::<(), counterflow::Error>(())
/// ```
///
/// # Errors
/// [`Error::Usage`] for emulated ranks, ranks that share a GPU, and GPUs of several names; too little memory; what the compiler or
/// the driver refuses.
///
/// # Panics
/// If a rank's thread panics.
pub fn measure(ranks: &[Communicator]) -> Result<Profile, Error> {
    let gpu = one_kind(ranks)?;
    let compiler = Compiler::find()?;
    let compiled = compile(&compiler)?;
    let each = Communicator::each(ranks, |rank| {
        let probes = Probes::load(rank.gpu().cuda()?, &compiled)?;
        let bench = Bench::new(rank, &probes)?;
        of_rank(&bench, &compiler)
    })?;
    let slowest = each.into_iter().reduce(slower).unwrap_or_default();
    let survey = Survey::take()?;
    let (major, minor) = survey.cuda;
    let link = match ranks.len() {
        1 => Link::Alone,
        _ => machines::link(&survey),
    };
    let driver = format!("{major}.{minor}");
    Ok(slowest.profile(shipped(&gpu), &gpu, link, &driver))
}

/// Compiles the kernels that measure memory and links, or takes them from the cache. [`measure`] does so itself; ahead of it, a
/// machine without a compiler has them in its cache.
///
/// ```no_run
/// use counterflow::{jit::Compiler, probes};
///
/// let compiled = probes::compile(&Compiler::find()?)?;
/// println!("{} kernels", compiled.facts.len());
/// # Ok::<(), counterflow::Error>(())
/// ```
///
/// # Errors
/// As [`Compiler::compile`].
pub fn compile(compiler: &Compiler) -> Result<Compiled, Error> {
    compile_probes(compiler)
}

/// The name of the ranks' GPUs, each of which has one rank.
fn one_kind(ranks: &[Communicator]) -> Result<String, Error> {
    let refused = |what: &str, legal: &str| Error::Usage {
        what: what.into(),
        legal: legal.into(),
    };
    let Some(first) = ranks.first() else {
        return Err(refused("probes of no rank", "one rank on each GPU"));
    };
    if ranks.iter().any(|rank| rank.gpu().is_emulated()) {
        return Err(refused(
            "probes of emulated GPUs, which have no speed",
            "measure on GPUs: `Communicator::local`",
        ));
    }
    let mut ordinals: Vec<u32> = ranks.iter().map(|rank| rank.gpu().ordinal()).collect();
    ordinals.sort_unstable();
    ordinals.dedup();
    if ordinals.len() < ranks.len() {
        return Err(refused(
            "probes of ranks that share a GPU",
            "a GPU for each rank: `Communicator::local`",
        ));
    }
    let gpu = first.gpu().name();
    if let Some(other) = ranks.iter().find(|rank| rank.gpu().name() != gpu) {
        let what = format!("probes of {gpu} and {} at once", other.gpu().name());
        return Err(refused(&what, "one kind of GPU at a time"));
    }
    first.gpu().cuda()?.must_be_hopper()?;
    Ok(gpu.to_owned())
}

fn of_rank(bench: &Bench<'_>, compiler: &Compiler) -> Result<Probed, Error> {
    let rank = bench.rank;
    let clusters = (1..=CLUSTERS).map(|ctas| bench.probes.clusters(ctas));
    let mut probed = Probed {
        sms: rank.gpu().sms(),
        clusters: clusters.collect::<Result<_, _>>()?,
        ..Probed::default()
    };
    rank.reserve(if rank.world() > 1 { HEAP } else { 4 << 20 })?;
    info!(rank = rank.rank(), "probes of memory");
    probed.curves.extend(memory::curves(bench)?);
    let mut products = products::Products::new(bench, compiler)?;
    let mut signals = vec![links::local_signal(bench)?];
    let ends = (rank.world() > 1).then(|| Ends::new(bench)).transpose()?;
    if let Some(ends) = &ends {
        info!(rank = rank.rank(), "probes of idle links");
        signals.push(links::signal(bench)?);
        probed.curves.extend(links::idle(bench, ends)?);
    }
    probed.curves.insert("signal".into(), signals);
    info!(rank = rank.rank(), "probes of products");
    rank.barrier()?;
    probed.products = products.times(bench)?;
    Ok(probed)
}

/// The slower of two ranks' measurements, each by itself.
fn slower(a: Probed, b: Probed) -> Probed {
    let in_seconds = |name: &str| ["copy", "signal"].contains(&name);
    let mut curves = BTreeMap::new();
    for (name, mut points) in a.curves {
        let others = b.curves.get(&name).map_or(&[][..], Vec::as_slice);
        for (point, other) in points.iter_mut().zip(others) {
            point[1] = match in_seconds(&name) {
                true => point[1].max(other[1]),
                false => point[1].min(other[1]),
            };
        }
        curves.insert(name, points);
    }
    let mut products = a.products;
    for (product, other) in products.iter_mut().zip(&b.products) {
        product.seconds = product.seconds.max(other.seconds);
    }
    let clusters = a.clusters.iter().zip(&b.clusters);
    Probed {
        sms: a.sms.min(b.sms),
        clusters: clusters.map(|(a, b)| *a.min(b)).collect(),
        curves,
        products,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn emulated_ranks_have_no_speed_to_measure() {
        let ranks = Communicator::emulated(2).expect("ranks");
        let error = measure(&ranks).expect_err("refused");
        assert_eq!(error.kind(), "usage");
        assert!(
            error
                .to_string()
                .contains("emulated GPUs, which have no speed")
        );
        assert_eq!(measure(&[]).expect_err("refused").kind(), "usage");
        // They are refused before they did anything.
        Communicator::each(&ranks, Communicator::barrier).expect("alive");
    }

    #[test]
    fn the_slower_rank_counts_in_each_measurement() {
        let of = |rate: f64, seconds: f64| Probed {
            sms: 132,
            clusters: vec![132, 66],
            curves: [("push", rate), ("copy", seconds)]
                .map(|(name, y)| (name.to_owned(), vec![[1.0, y]]))
                .into(),
            products: Vec::new(),
        };
        let slowest = slower(of(40e9, 1e-6), of(30e9, 2e-6));
        assert_eq!(slowest, slower(of(30e9, 2e-6), of(40e9, 1e-6)));
        assert_eq!(slowest, of(30e9, 2e-6));
    }
}
