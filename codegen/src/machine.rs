//! Rates and latencies of a GPU and its links.

use crate::dtype::Dtype;

/// A machine profile: measured once, stored as data. Rates are per GPU, in bytes or FLOP a second. Times are in
/// seconds.
///
/// ```
/// use counterflow_codegen::{dtype::Dtype, model::Machine};
///
/// let h200 = Machine::h200();
/// println!("{} pushes {} B/s from 4 CTAs", h200.name, h200.push_rate(4));
/// assert!(h200.copy_engine_rate(64e6) > h200.copy_engine_rate(1e6), "each copy has a fixed cost");
/// assert!(h200.memory_of(132) > h200.memory_of(16));
/// assert_eq!(h200.clusters(2, h200.sms), 66);
/// let hot = h200.at_power_limit();
/// assert!(hot.flops_of(Dtype::Bf16, 132.0) < h200.flops_of(Dtype::Bf16, 132.0));
/// // Half of it, as two ranks on one GPU have.
/// let half = Machine { sms: 66, ..Machine::h200() };
/// # let _ = half;
/// assert_eq!(Machine::of("NVIDIA H100 80GB HBM3"), Machine::h100());
/// ```
#[derive(Clone, PartialEq, Debug)]
pub struct Machine {
    /// Its name in reports.
    pub name: &'static str,
    /// Streaming multiprocessors.
    pub sms: u32,
    /// Clusters that run at once if every SM is free, by their number of CTAs, from 1: see [`Machine::clusters`].
    pub clusters: &'static [u32],
    /// Bytes a second from device memory, with more requests than it can serve: see [`Machine::memory_of`].
    pub memory: f64,
    /// CTAs that reach half of it.
    pub memory_half: f64,
    /// The share of it that remains if several CTAs each request the same bytes.
    pub memory_again: f64,
    /// Bytes a second that all SMs together read through the L2 cache, each for itself.
    pub l2: f64,
    /// Bytes a second that the two SMs of a pair read through the L2 cache together, or one whose other is idle.
    pub l2_pair: f64,
    /// For an MN-major operand: the rate of an SM outside clusters through the L2 cache while in step with the others,
    /// as a share of its rate apart.
    pub in_step_by_rows: f64,
    /// K steps after which CTAs that began together are in step half the time.
    pub apart: f64,
    /// Bytes a second that an SM of a cluster receives: its own reads, and the others' reads for it.
    pub cluster_sm: f64,
    /// The least seconds of a K step of 64, however small the tile: barrier, multiplies, barrier, one after another.
    pub step_latency: f64,
    /// That cost if more than two CTAs split the steps of a tile.
    pub shared_step_latency: f64,
    /// Extra seconds of a step with multicast loads, in which the CTAs of a cluster wait for the slowest of them.
    pub meeting: f64,
    /// Seconds from the request for a stage to its arrival. With few stages in flight, a step takes its share of that.
    pub stage_latency: f64,
    /// Bytes of sums a second that a CTA sends to those that share its steps, and adds.
    pub exchange: f64,
    /// Dense 16-bit matrix FLOP a second of all SMs inside the K loop of full tiles.
    pub flops: f64,
    /// That rate of one SM, however few others multiply.
    pub flops_sm: f64,
    /// Elements of a piece's sums that an SM promotes a second.
    pub promotion: f64,
    /// Seconds between the multiplies of a piece and those that its warpgroup starts next, besides its promotion.
    pub promotion_latency: f64,
    /// Seconds of a piece besides its multiplies and its promotion.
    pub piece_latency: f64,
    /// The rate of tensor cores whose sums are promoted, as a multiple of that of others: between pieces they pause.
    pub promoted_rate: f64,
    /// Seconds by which scales of blocks make a step longer.
    pub scales: f64,
    /// The same of a step for each scale along the instruction's N side that a thread reads, and each block of 64 of the M side.
    pub scale_on_n: f64,
    /// The same for each number that a thread has of blocks which cross a tile's edges, beyond two, and each of its blocks of 64.
    pub scale_across: f64,
    /// Seconds of a cooperative tile besides its K loop: filling the ring, and the exposed part of the epilogue. In
    /// ping-pong mode one warpgroup's K loop hides the other's epilogue, if there is another tile.
    pub tile_overhead: f64,
    /// Seconds for each epilogue subtile of a cooperative tile of any number of rows: a synchronization with the
    /// storing thread.
    pub subtile_overhead: f64,
    /// Bytes a second one direction of its link carries when a copy engine moves large chunks.
    pub link_copy_engine: f64,
    /// Bytes a second when CTAs push.
    pub link_push: f64,
    /// Bytes a second when CTAs pull.
    pub link_pull: f64,
    /// Bytes a second when CTAs add to a peer's memory.
    pub link_reduce: f64,
    /// Bytes a second one pushing CTA reaches.
    pub link_push_cta: f64,
    /// Bytes a second one pulling CTA reaches.
    pub link_pull_cta: f64,
    /// Bytes a second one adding CTA reaches.
    pub link_reduce_cta: f64,
    /// Seconds from a signal to the waiter's next instruction on another GPU.
    pub signal_latency: f64,
    /// Seconds from a signal to the waiter's next instruction on the same GPU.
    pub local_signal_latency: f64,
    /// Seconds one copy-engine operation costs before its first byte.
    pub copy_engine_latency: f64,
    /// Seconds from enqueueing a kernel to its first instruction.
    pub launch_latency: f64,
    /// The same if its CTAs start early (programmatic dependent launch, [`crate::sm90::cta::dependent_launch`]).
    pub dependent_launch_latency: f64,
    /// Extra seconds of a kernel with clusters, for placement and synchronization, for each doubling of their CTAs.
    pub cluster_launch: f64,
    /// Changes under a load of several seconds.
    pub sustained: Sustained,
}

/// Rates of a GPU at its power limit, as in training. Links, latencies and memory keep theirs.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Sustained {
    /// As [`Machine::flops`].
    pub flops: f64,
    /// As [`Machine::flops_sm`].
    pub flops_sm: f64,
    /// As [`Machine::l2`].
    pub l2: f64,
    /// As [`Machine::l2_pair`].
    pub l2_pair: f64,
    /// As [`Machine::tile_overhead`].
    pub tile_overhead: f64,
}

impl Machine {
    /// One H200 of an NV18 NVSwitch domain (4 × H200, driver 580).
    ///
    /// Measured: copy engine 394 GB/s with 8.5 µs fixed; CTAs push 46 GB/s each up to 350 (TMA, 8 CTAs), pull 246/8
    /// each up to 331 (TMA, 8 and 16 CTAs), reduce-add 326/8 each up to 326 (8 CTAs); flag round trip 2.44 µs.
    ///
    /// Fitted to short runs of cuBLAS, in whole waves of 128×256 tiles: 2048×8192×2048 and 8192×8192×2048 give 22.3 µs
    /// a wave, 8192³ and 2048×14336×8192 84.5 µs, which is 1.5 µs + 10.13 ns for each column of K, or 854 TFLOP/s while
    /// the K loop runs. Of the sixteen measured shapes from M = 2048, twelve then lie within 4 %; three are long enough
    /// to meet the power limit, and one has tiles that we would not try.
    ///
    /// Fitted to the medians of our own kernels (tests/measured: 22 products in all variants, 105 in those that were
    /// favourites once), then rounded; in brackets what the first table alone gives: a step takes 0.148 µs at least
    /// (0.147), 0.235 where more than two CTAs share the steps (0.232); stages 1.4 µs (1.39); an SM alone multiplies
    /// with 7 TFLOP/s (7.1; at 1.98 GHz it could 8.1); launches cost 3.4 µs (3.3), 1.9 as dependent launches (1.5), and
    /// 0.6 for each doubling of a cluster (0.63); CTAs that share steps exchange 28 GB/s of sums (24); an SM of a
    /// cluster takes in 128 GB/s (136), and loses 12 ns a step to the other (7 to 37 in pairs of rows that differ in
    /// nothing else).
    ///
    /// Pairs of SMs: 128×80 in step (512×2560×8192, 128 CTAs) brings 16 TB/s to all SMs, which is about 200 GB/s a pair
    /// if they read the common operand once; apart, each reads for itself, as all do in long products. How fast they
    /// part is of the second table and of operands that are MN-major, by hand: half the time after 800 steps
    /// (128×96 takes 0.31 µs a step in the mean of 768 of them, 0.34 of 1536, 0.36 of 3072, 0.41 of 49152).
    ///
    /// Where an operand is MN-major, CTAs outside clusters read 4 % less a second in step than apart: a fit
    /// (0.93 to 0.97 do) to one product, 512×2560×8192 tn in 128×160 by two, with no reason known.
    ///
    /// 200×256 in 25 subtiles took 5 % longer than 128×256 at 8192×8192×4096 tn, ten tiles a CTA: 0.2 µs a subtile. In five
    /// that makes 1 %: as measured in nt and nn, while tn still takes 2 % longer than 128×256. Where warpgroups end a
    /// tile one after another (nt and nn by now) subtiles cost nothing: another 1.2 % at 8192³.
    ///
    /// Fitted to launches back to back that are dependent launches or not: 36.9 → 35.7 µs (1×8192×8192), 13.0 → 11.2
    /// (64×8192×2048), 16.0 → 15.1 (512×8192×1024) save 1.3 µs in the mean, 36.8 → 34.3 (512×2560×8192) and 28.2 → 24.7
    /// (512×1280×8192), where steps are shared, 3.0: taken as 1.5 µs less to launch.
    ///
    /// Reads through L2: 64 bytes a clock and SM, 96 GB/s at 1.5 GHz.
    ///
    /// Promoted sums of FP8, by hand from 8192³ at the power limit, in µs: 128×256 852, and with scales of 1×128 by 128×128 921,
    /// 256×128 934. Since the next stage is tested while sums are added: with 1×128 by 128×128 128×256 907, 128×192 890, 128×160
    /// 995, 128×144 1080, 128×128 963, in ping-pong 1393; with 1×128 by 1×128, where each thread reads a number for every four
    /// columns, 256×128 1291, 128×128 1355, in ping-pong 1800. Fitted to these, to the ratios of tiles of 18 products, and to few
    /// rows: tensor cores 10 % faster than without promotion; 47 ns for each piece of a step, 32 for a step; 3.1 for each of those
    /// numbers and block of 64 rows, so, too, at 128×4096×7168, where with K in two parts 64×128 takes 16.2 µs and 128×64 13.6; 9
    /// for each number beyond two of blocks of 128×128 that cross a tile's edges, in both warpgroups at once.
    ///
    /// Clusters: what `cuOccupancyMaxActiveClusters` says of a kernel that has one CTA an SM. A constant, of one GPU:
    /// others of the kind may differ, and with a cluster too many a GEMM without communication is right and takes
    /// another round. Those that communicate have no clusters.
    ///
    /// Memory: copies reach 4.3 TB/s, by the machine's notes. 128 CTAs read 134 MB of w with 3.9, and 112 CTAs take 9 %
    /// longer than 128 for 235 MB. Where two rows of tiles ask for the same columns of w, 3.3: 64×128 at 128×8192×8192
    /// takes 44.8 µs, in clusters that load w once 38.7. Assumed, not measured: 0.7 µs for a flag within one GPU.
    ///
    /// At the power limit: 8192³ for 8 s runs at 669 TFLOP/s (1470 MHz, 688 W), which is 683 TFLOP/s while the K loop runs.
    /// Fitted to the same medians, which were measured in turns with others on a GPU at 700 W: 687 TFLOP/s while all
    /// SMs are in the K loop (the first table alone: 715); fewer have a faster clock. A cooperative tile costs 0.4 µs, and
    /// so does one multiplied in ping-pong that has one block of 64 on the M side, or three (96×192 at 4096 and 16384×12288×1536:
    /// 0.5 µs); others nothing. Tiles of 128×96 take as long a step as 128×128 where the operands are many times what
    /// L2 holds (8192×14336×8192: 0.40 µs): 128 SMs read 10.8 TB/s with the latter, 9.5 with the former. So it is L2
    /// that bounds them, with 11.4 TB/s if all read.
    pub fn h200() -> Machine {
        Machine {
            name: "H200 NV18",
            sms: 132,
            clusters: &[132, 66, 39, 30, 22, 17, 15, 15],
            memory: 4.3e12,
            memory_half: 14.0,
            memory_again: 0.78,
            l2: 12.7e12,
            l2_pair: 203e9,
            in_step_by_rows: 0.96,
            apart: 800.0,
            cluster_sm: 128e9,
            step_latency: 0.148e-6,
            shared_step_latency: 0.235e-6,
            meeting: 0.012e-6,
            stage_latency: 1.4e-6,
            exchange: 28e9,
            flops: 854e12,
            flops_sm: 854e12 / 132.0,
            promotion: 128.0 * 1.5e9,
            promotion_latency: 65e-9,
            piece_latency: 47e-9,
            promoted_rate: 1.105,
            scales: 32e-9,
            scale_on_n: 3.1e-9,
            scale_across: 9e-9,
            tile_overhead: 1.5e-6,
            subtile_overhead: 0.2e-6,
            link_copy_engine: 394e9,
            link_push: 350e9,
            link_pull: 331e9,
            link_reduce: 326e9,
            link_push_cta: 46e9,
            link_pull_cta: 246e9 / 8.0,
            link_reduce_cta: 326e9 / 8.0,
            signal_latency: 1.22e-6,
            local_signal_latency: 0.7e-6,
            copy_engine_latency: 8.5e-6,
            launch_latency: 3.4e-6,
            dependent_launch_latency: 1.9e-6,
            cluster_launch: 0.6e-6,
            sustained: Sustained {
                flops: 687e12,
                flops_sm: 7e12,
                l2: 11.4e12,
                l2_pair: 203e9,
                tile_overhead: 0.4e-6,
            },
        }
    }

    /// The profile of a GPU by its driver's name: that of an H100 SXM for every H100, otherwise an H200's. No other card was measured:
    /// where it is one, only a sweep (`bench --sweep`) says what is fastest there.
    pub fn of(gpu: &str) -> Machine {
        if gpu.contains("H100") {
            Machine::h100()
        } else {
            Machine::h200()
        }
    }

    /// One H100 SXM of an NV18 NVSwitch domain.
    pub fn h100() -> Machine {
        let h200 = Machine::h200();
        Machine {
            name: "H100 NV18",
            memory: 3.0e12,
            sustained: Sustained {
                l2: 8.8e12,
                ..h200.sustained
            },
            ..h200
        }
    }

    /// This GPU under a load of several seconds.
    pub fn at_power_limit(&self) -> Machine {
        let Sustained {
            flops,
            flops_sm,
            l2,
            l2_pair,
            tile_overhead,
        } = self.sustained;
        Machine {
            flops,
            flops_sm,
            l2,
            l2_pair,
            tile_overhead,
            ..self.clone()
        }
    }

    /// Bytes a second that this many CTAs read from device memory.
    pub fn memory_of(&self, ctas: u32) -> f64 {
        let ctas = f64::from(ctas.max(1));
        self.memory * ctas / (ctas + self.memory_half)
    }

    /// Clusters of `ctas` CTAs that run at once on this many SMs, at most as many as a GPU can place.
    pub fn clusters(&self, ctas: u32, sms: u32) -> u32 {
        let size = (ctas.max(1) as usize).min(self.clusters.len());
        let [Some(whole), Some(all)] = [1, size].map(|size| self.clusters.get(size - 1)) else {
            return 0;
        };
        (all * sms / whole).max(u32::from(sms >= ctas))
    }

    /// FLOP a second of one SM inside the K loop, if this many SMs multiply operands of that type (f32 operands run as
    /// tf32, at half the 16-bit rate). At the power limit, fewer SMs have a faster clock: power grows faster than the
    /// clock.
    pub fn flops_of(&self, dtype: Dtype, busy: f64) -> f64 {
        let sms = f64::from(self.sms);
        let faster = (sms / busy.clamp(1.0, sms.max(1.0))).sqrt();
        let all = (self.flops / sms * faster).min(self.flops_sm);
        all * 2.0 / f64::from(dtype.bytes())
    }

    /// Bytes a second that copies of `bytes` bytes, one after another on one stream, reach.
    pub fn copy_engine_rate(&self, bytes: f64) -> f64 {
        bytes / (self.copy_engine_latency + bytes / self.link_copy_engine)
    }

    /// Bytes a second that `ctas` CTAs push.
    pub fn push_rate(&self, ctas: u32) -> f64 {
        (f64::from(ctas) * self.link_push_cta).min(self.link_push)
    }
}
