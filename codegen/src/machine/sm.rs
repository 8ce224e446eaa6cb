//! An SM: what the architecture decides, on every card of it.

/// Latencies and shares of one SM, which the model takes to be alike on all cards of an architecture. Times are in seconds.
///
/// ```
/// use counterflow_codegen::machine::{Machine, Sm};
///
/// let (h100, h200) = (Machine::h100(), Machine::h200());
/// assert_eq!((h100.sm, h200.sm), (Sm::HOPPER, Sm::HOPPER));
/// assert!(h200.sm.at_power_limit().tile_overhead < h200.sm.tile_overhead);
/// ```
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Sm {
    /// Bytes a second that the two SMs of a pair read through the L2 cache together, or one whose other is idle.
    pub l2_pair: f64,
    /// Bytes a second that an SM reads if an operand is MN-major, with what memory delivers of it: measured with
    /// [`Sm::by_rows_at`]'s.
    pub by_rows: f64,
    /// Bytes a second through L2 and from memory where that was measured, of all SMs. With others such reads take the
    /// difference that other reads take.
    pub by_rows_at: [f64; 2],
    /// The rate of such an SM outside clusters while in step with the others, as a share of that.
    pub in_step_by_rows: f64,
    /// K steps after which CTAs that began together are in step half the time.
    pub apart: f64,
    /// Bytes a second that an SM of a cluster receives: its own reads, and the others' reads for it.
    pub cluster_sm: f64,
    /// The least seconds of a K step of 64, however small the tile: barrier, multiplies, barrier, one after another.
    pub step_latency: f64,
    /// The least seconds of a K step of 64 if more than two CTAs split the steps of a tile.
    pub shared_step_latency: f64,
    /// Extra seconds of a step with multicast loads, in which the CTAs of a cluster wait for the slowest of them.
    pub meeting: f64,
    /// Seconds from the request for a stage to its arrival. With few stages in flight, a step takes its share of that.
    pub stage_latency: f64,
    /// Bytes of sums a second that a CTA sends to those that share its steps, and adds.
    pub exchange: f64,
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
    /// Seconds by which a step is longer for each scale along the instruction's N side that a thread reads, and each block of 64 of the
    /// M side.
    pub scale_on_n: f64,
    /// Seconds by which a step is longer for each number that a thread has of blocks which cross a tile's edges, beyond two, and each of
    /// its blocks of 64.
    pub scale_across: f64,
    /// Seconds of a cooperative tile besides its K loop: filling the ring, and the exposed part of the epilogue. In
    /// ping-pong mode one warpgroup's K loop hides the other's epilogue, if there is another tile.
    pub tile_overhead: f64,
    /// Seconds of a cooperative tile besides its K loop, at the power limit.
    pub tile_overhead_sustained: f64,
    /// Seconds for each epilogue subtile of a cooperative tile of any number of rows: a synchronization with the
    /// storing thread.
    pub subtile_overhead: f64,
    /// Seconds from enqueueing a kernel to its first instruction.
    pub launch_latency: f64,
    /// Latency of a launch if its CTAs start early (programmatic dependent launch,
    /// [`crate::sm90::cta::dependent_launch`]).
    pub dependent_launch_latency: f64,
    /// Extra seconds of a kernel with clusters, for placement and synchronization, for each doubling of their CTAs.
    pub cluster_launch: f64,
}

impl Sm {
    /// Hopper, by fits to the medians of our own kernels on H200s (tests/measured: 22 products in all variants, 105 in those
    /// that were favourites once), then rounded. In brackets what the first table alone gives.
    ///
    /// A step takes 0.148 µs at least (0.147), 0.235 where more than two CTAs share the steps (0.232); stages 1.4 µs (1.39);
    /// launches cost 3.4 µs (3.3), 1.9 as dependent launches (1.5), and 0.6 for each doubling of a cluster (0.63); CTAs that
    /// share steps exchange 28 GB/s of sums (24); an SM of a cluster takes in 128 GB/s (136), and loses 12 ns a step to the other
    /// (7 to 37 in pairs of rows that differ in nothing else). Tiles cost 1.5 µs in short runs of cuBLAS in whole waves.
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
    /// Promoted sums of FP8, by hand from 8192³ at the power limit, in µs: 128×256 852, and with scales of 1×128 by 128×128 921,
    /// 256×128 934. Since the next stage is tested while sums are added: with 1×128 by 128×128 128×256 907, 128×192 890, 128×160
    /// 995, 128×144 1080, 128×128 963, in ping-pong 1393; with 1×128 by 1×128, where each thread reads a number for every four
    /// columns, 256×128 1291, 128×128 1355, in ping-pong 1800. Fitted to these, to the ratios of tiles of 18 products, and to few
    /// rows: tensor cores 10 % faster than without promotion; 47 ns for each piece of a step, 32 for a step; 3.1 for each of those
    /// numbers and block of 64 rows, so, too, at 128×4096×7168, where with K in two parts 64×128 takes 16.2 µs and 128×64 13.6; 9
    /// for each number beyond two of blocks of 128×128 that cross a tile's edges, in both warpgroups at once.
    ///
    /// At the power limit, fitted to medians measured in turns with others at 700 W: a cooperative tile costs 0.4 µs, and
    /// so does one multiplied in ping-pong that has one block of 64 on the M side, or three (96×192 at 4096 and 16384×12288×1536:
    /// 0.5 µs); others nothing.
    pub const HOPPER: Sm = Sm {
        l2_pair: 203e9,
        by_rows: 11.4e12 / 132.0,
        by_rows_at: [13.4e12, 4.3e12],
        in_step_by_rows: 0.96,
        apart: 800.0,
        cluster_sm: 128e9,
        step_latency: 0.148e-6,
        shared_step_latency: 0.235e-6,
        meeting: 0.012e-6,
        stage_latency: 1.4e-6,
        exchange: 28e9,
        promotion: 128.0 * 1.5e9,
        promotion_latency: 65e-9,
        piece_latency: 47e-9,
        promoted_rate: 1.105,
        scales: 32e-9,
        scale_on_n: 3.1e-9,
        scale_across: 9e-9,
        tile_overhead: 1.5e-6,
        tile_overhead_sustained: 0.4e-6,
        subtile_overhead: 0.2e-6,
        launch_latency: 3.4e-6,
        dependent_launch_latency: 1.9e-6,
        cluster_launch: 0.6e-6,
    };

    /// Rates under a load of several seconds.
    #[must_use]
    pub fn at_power_limit(self) -> Sm {
        Sm {
            tile_overhead: self.tile_overhead_sustained,
            ..self
        }
    }
}
