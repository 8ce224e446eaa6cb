//! Device memory, by the CTAs that read it, and L2, by the bytes that are read again and again.

use super::bench::Bench;
use crate::cuda::{CHUNK, Reads};
use crate::driver::Local;
use crate::error::Error;
use counterflow_codegen::machine::Curve;
use std::collections::BTreeMap;

/// Bytes that are read: many times what a cache holds.
const BYTES: u64 = 1 << 30;
/// Chunks that a CTA reads in a run.
const EACH: u64 = 512;
/// MiB that are read again and again.
const FOOTPRINTS: [u64; 14] = [4, 8, 16, 20, 24, 28, 32, 36, 40, 48, 56, 64, 96, 160];

pub(super) fn curves(bench: &Bench<'_>) -> Result<BTreeMap<String, Curve>, Error> {
    let memory: Local<u8> = Local::zeros(&bench.stream, BYTES as usize)?;
    let stream = bench.stream.cuda()?;
    let sms = bench.rank.gpu().sms() & !1;
    // Each run reads what the runs before have not: the cache has none of it.
    let from_memory = |ctas: u32, alike: u32| {
        let each = u64::from(ctas / alike);
        let span = each * EACH;
        let spans = (BYTES / CHUNK / span).max(1);
        let chunks = span.min(BYTES / CHUNK);
        let seconds = bench.seconds(
            || Ok(()),
            |run| {
                let reads = Reads {
                    from: memory.address().plus(run as u64 % spans * span * CHUNK),
                    chunks,
                    each: EACH,
                    first: 1,
                    step: each,
                    alike,
                };
                bench.probes.read(stream, ctas, reads)
            },
        )?;
        Ok::<_, Error>([f64::from(ctas), (span * CHUNK) as f64 / seconds])
    };
    let few = [8, 16, 32, 64].into_iter().filter(|ctas| *ctas < sms);
    let distinct = few.chain([sms]).map(|ctas| from_memory(ctas, 1));
    let distinct: Curve = distinct.collect::<Result<_, _>>()?;
    let again = vec![from_memory(sms, 2)?];
    let cached = FOOTPRINTS.map(|mib| {
        let chunks = (mib << 20) / CHUNK;
        let reads = Reads {
            from: memory.address(),
            chunks,
            each: EACH,
            first: (chunks / u64::from(sms)).max(1),
            step: 1,
            alike: 1,
        };
        let seconds = bench.seconds(|| Ok(()), |_| bench.probes.read(stream, sms, reads))?;
        let bytes = u64::from(sms) * EACH * CHUNK;
        Ok::<_, Error>([(mib << 20) as f64, bytes as f64 / seconds])
    });
    let cached: Curve = cached.into_iter().collect::<Result<_, _>>()?;
    let named = [
        ("memory", distinct),
        ("memory again", again),
        ("l2", cached),
    ];
    Ok(named.map(|(name, curve)| (name.to_owned(), curve)).into())
}
