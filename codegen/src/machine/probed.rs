//! From what probes measured to the numbers of a profile.

use super::product::{Curve, ProductTime};
use super::profile::{FORMAT, Link, Number, Profile, Source};
use super::rates::NUMBERS;
use std::collections::BTreeMap;

/// Seconds of load after which a GPU is at its power limit, and up to which it is cool.
const HOT: f64 = 0.7;
const COOL: f64 = 0.2;
/// Bytes that every L2 cache of a data-centre GPU holds in each of its halves.
const WELL_WITHIN_L2: f64 = (8 << 20) as f64;

/// Measurements of one kind of GPU by probes. What could not be measured is absent.
///
/// ```
/// use counterflow_codegen::machine::{self, Curve, Link, Probed, ProductTime, Source};
/// use std::collections::BTreeMap;
///
/// let push: Curve = [1, 2, 4, 8, 16].map(|ctas| [f64::from(ctas), f64::from(ctas.min(8)) * 45e9]).into();
/// let products: Vec<ProductTime> = Vec::new();
/// let probed = Probed { sms: 132, clusters: vec![132, 66, 39, 30, 22, 17, 15, 15], curves: BTreeMap::from([("push".into(), push)]), products };
/// let profile = probed.profile(machine::shipped("NVIDIA H200"), "NVIDIA H20", Link::NvLink, "13.0");
/// assert_eq!(profile.numbers["link_push"].value, 8.0 * 45e9);
/// assert_eq!((profile.numbers["link_push"].from, profile.count(Source::Measured)), (Source::Measured, 2));
/// ```
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Probed {
    /// Streaming multiprocessors.
    pub sms: u32,
    /// Clusters that run at once, of 1 to 8 CTAs.
    pub clusters: Vec<u32>,
    /// Bytes a second over CTAs: `memory` and, of what two CTAs each read, `memory again`; `push`, `pull` and `add` on idle
    /// GPUs. Bytes a second over bytes that are read again and again: `l2`. Seconds over bytes: `copy`.
    /// Seconds of a signal over the links between: `signal`.
    pub curves: BTreeMap<String, Curve>,
    /// Times of our own products.
    pub products: Vec<ProductTime>,
}

impl Probed {
    /// A profile with these measurements. What was not measured has the number of `base`: assumed, if that is another GPU's.
    pub fn profile(self, base: &Profile, gpu: &str, link: Link, driver: &str) -> Profile {
        let same = base.gpu == gpu;
        let measured = self.numbers();
        let number = |name: &str| {
            let known = base.numbers.get(name);
            match measured.get(name) {
                Some(value) => Some(Number {
                    value: *value,
                    from: Source::Measured,
                }),
                None if same => known.copied(),
                None => known.map(|known| Number {
                    from: Source::Assumed,
                    ..*known
                }),
            }
        };
        let numbers = NUMBERS.iter();
        let numbers =
            numbers.filter_map(|named| Some((named.name.to_owned(), number(named.name)?)));
        Profile {
            format: FORMAT,
            gpu: gpu.to_owned(),
            link,
            driver: driver.to_owned(),
            sms: self.sms,
            numbers: numbers.collect(),
            clusters: self.clusters,
            curves: self.curves,
            products: self.products,
        }
    }

    /// The numbers that follow from what was measured.
    fn numbers(&self) -> BTreeMap<&'static str, f64> {
        let mut numbers = BTreeMap::new();
        let mut put = |name, value: Option<f64>| {
            let value = value.filter(|value| value.is_finite() && *value > 0.0);
            numbers.extend(value.map(|value| (name, value)));
        };
        let memory = self.most("memory", |_| true);
        put("memory", memory);
        put("memory_again", self.again());
        let read = self.most("l2", |bytes| bytes <= WELL_WITHIN_L2);
        put("l2", memory.and_then(|memory| self.l2(memory)));
        put("l2_bytes", self.l2_bytes(read.zip(memory)));
        let flops = self.flops(|load| load <= COOL, self.sms);
        put("flops", flops);
        let few = self.products.iter().map(|product| product.sms).min();
        let few = few.filter(|few| *few < self.sms);
        let sm = few.and_then(|few| Some(self.flops(|_| true, few)? / f64::from(few)));
        let shared = flops.map(|flops| flops / f64::from(self.sms));
        let sm = best([sm, shared]);
        put("flops_sm", sm);
        put("sustained_flops_sm", sm);
        put("sustained_flops", self.flops(|load| load >= HOT, self.sms));
        let copy = self.copy();
        put("link_copy_engine", copy.map(|(rate, _)| rate));
        put("copy_engine_latency", copy.map(|(_, latency)| latency));
        for (way, all, cta) in [
            ("push", "link_push", "link_push_cta"),
            ("pull", "link_pull", "link_pull_cta"),
            ("add", "link_reduce", "link_reduce_cta"),
        ] {
            put(all, self.most(way, |_| true));
            put(cta, self.each(way));
        }
        put("local_signal_latency", self.at("signal", 0.0));
        put("signal_latency", self.at("signal", 1.0));
        numbers
    }

    fn curve(&self, name: &str) -> &[[f64; 2]] {
        self.curves.get(name).map_or(&[], Vec::as_slice)
    }

    fn at(&self, name: &str, x: f64) -> Option<f64> {
        let mut points = self.curve(name).iter();
        points.find(|[at, _]| *at == x).map(|[_, y]| *y)
    }

    /// The highest of a curve where that holds.
    fn most(&self, name: &str, holds: impl Fn(f64) -> bool) -> Option<f64> {
        let points = self.curve(name).iter().filter(|[x, _]| holds(*x));
        best(points.map(|[_, y]| Some(*y)))
    }

    /// The rate of each CTA while CTAs add to it: the highest with four CTAs or fewer.
    fn each(&self, name: &str) -> Option<f64> {
        let points = self.curve(name).iter().filter(|[ctas, _]| *ctas <= 4.0);
        best(points.map(|[ctas, rate]| Some(rate / ctas)))
    }

    /// The share of its rate that memory has left if two CTAs read the same.
    fn again(&self) -> Option<f64> {
        let last = self.curve("memory again").last();
        let [ctas, again] = *last?;
        Some((again / self.at("memory", ctas)?).min(1.0))
    }

    /// Bytes at which the rate of reading again is midway between the cache's and memory's.
    fn l2_bytes(&self, rates: Option<(f64, f64)>) -> Option<f64> {
        let (l2, memory) = rates?;
        let midway = (l2 + memory) / 2.0;
        let pairs = self.curve("l2").windows(2);
        let crosses = pairs.map(|pair| (pair[0], pair[1]));
        let mut crosses = crosses.filter(|(a, b)| a[1] >= midway && b[1] < midway);
        let (a, b) = crosses.next()?;
        Some(a[0] + (b[0] - a[0]) * (a[1] - midway) / (a[1] - b[1]))
    }

    /// FLOP a second in the K loop, of the latest products where that holds.
    fn flops(&self, holds: impl Fn(f64) -> bool, sms: u32) -> Option<f64> {
        let all = || {
            self.products
                .iter()
                .filter(|it| holds(it.load) && it.sms == sms)
        };
        let mut rates = all().filter_map(|one| all().find_map(|longer| one.rate(longer)));
        rates.next_back()
    }

    /// Bytes a second through L2: the most of all hot products. Where the tensor cores bound one, L2 could do more.
    fn l2(&self, memory: f64) -> Option<f64> {
        let hot = self.products.iter().filter(|product| product.load >= HOT);
        best(hot.map(|product| product.l2(memory)))
    }

    /// Bytes a second of large copies, and the seconds that a small one takes besides its bytes.
    fn copy(&self) -> Option<(f64, f64)> {
        let copies = self.curve("copy");
        let [.., a, b] = copies else { return None };
        let rate = (b[0] - a[0]) / (b[1] - a[1]);
        let [bytes, seconds] = *copies.first()?;
        Some((rate, seconds - bytes / rate))
    }
}

/// The highest of those that there are.
fn best(of: impl IntoIterator<Item = Option<f64>>) -> Option<f64> {
    of.into_iter().flatten().max_by(f64::total_cmp)
}
