//! Ops by what they compute. A family is built as the fastest of its schedules for each number of rows, also as none of
//! the fused ones: our bulk kernels, then our product. Of few rows an exchange of low latency may take the place of a bulk kernel
//! ([`Stage::low_latency`]).
//!
//! ```
//! use counterflow::{Communicator, families::AllGatherGemm, prelude::bf16};
//!
//! Communicator::each(&Communicator::emulated(2)?, |rank| {
//!     rank.reserve(4 << 20)?;
//!     let op = rank.op_for::<AllGatherGemm>().up_to(1024, 64, 32).buckets([64]).build()?;
//!     println!("{} for a few rows, {} for many: {}", op.schedule_of(64), op.schedule_of(1024), op.why(1024));
//!     let x = rank.allocate::<bf16>("x", [1024, 32])?; // what the schedules of the family take, whichever is launched
//!     let (w, mut y) = (rank.zeros::<bf16>([64, 32])?, rank.zeros::<bf16>([1024, 64])?);
//!     for rows in [1024, 64, 7] {
//!         op.on(rank).x(&x).w(&w).y(&mut y).rows(rows).launch()?.wait()?;
//!     }
//!     Ok(())
//! })?;
//! # Ok::<(), counterflow::Error>(())
//! ```

use crate::family::{Collective, Family, Stage};
use crate::op::{Computes, Launch, Launcher};
use crate::schedules::{
    AgGemmOp, AgSwigluOp, GemmArOp, GemmRsOp, ag_gemm, ag_gemm_multicast, ag_gemm_pull, ag_swiglu,
    all_gather, all_reduce, all_reduce_multicast, gemm, gemm_ar, gemm_ar_multicast,
    gemm_ar_one_shot, gemm_rs, reduce_scatter, swiglu,
};

/// A type for [`Communicator::op_for`](crate::Communicator::op_for), whose launches are those of the family's first schedule.
macro_rules! computes {
    ($(#[$about:meta])* $name:ident, $family:ident, $launcher:ident) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug)]
        pub enum $name {}

        impl Launcher for $name {
            type Launch<'a> = $launcher<'a>;

            fn from_named(launch: Launch<'_>) -> $launcher<'_> {
                $launcher::from_named(launch)
            }
        }

        impl Computes for $name {
            fn family() -> Family {
                $family()
            }
        }
    };
}

computes! {
    /// Launches [`all_gather_gemm`]: `x`, `w` and `y`, as [`AgGemmOp`] takes them.
    AllGatherGemm, all_gather_gemm, AgGemmOp
}
computes! {
    /// Launches [`all_gather_swiglu`]: `x`, `gate`, `up` and `y`, as [`AgSwigluOp`] takes them.
    AllGatherSwiglu, all_gather_swiglu, AgSwigluOp
}
computes! {
    /// Launches [`gemm_reduce_scatter`]: `x`, `w` and `y`, as [`GemmRsOp`] takes them.
    GemmReduceScatter, gemm_reduce_scatter, GemmRsOp
}
computes! {
    /// Launches [`gemm_all_reduce`]: `x`, `w` and `y`, as [`GemmArOp`] takes them.
    GemmAllReduce, gemm_all_reduce, GemmArOp
}

/// y = all_gather(x) · wᵀ: by pushes, by copy engines, or not fused, with a bulk gather or one of low latency.
///
/// [`ag_gemm_across`](crate::schedules::ag_gemm_across()) and [`ag_gemm_slabs`](crate::schedules::ag_gemm_slabs()) are none of them: on H100s
/// they were the fastest nowhere, and from 512 rows on the first took up to 3.0 times as long as the fastest (`notes/bench`).
pub fn all_gather_gemm() -> Family {
    Family::new("all_gather_gemm", ag_gemm())
        .or(ag_gemm_pull())
        .or_stages([few_gathered(), Stage::new(gemm())])
        .or_stages([Stage::new(all_gather()), Stage::new(gemm())])
        .or_predicted([Stage::new(ag_gemm_multicast())])
}

/// y = silu(a · gateᵀ) · (a · upᵀ) of a = all_gather(x): by pushes, or not fused, with a bulk gather or one of low latency.
pub fn all_gather_swiglu() -> Family {
    Family::new("all_gather_swiglu", ag_swiglu())
        .or_stages([few_gathered(), Stage::new(swiglu())])
        .or_stages([Stage::new(all_gather()), Stage::new(swiglu())])
}

/// y = reduce_scatter(x · wᵀ): in one kernel, or not fused, with a bulk exchange or one of low latency. All round each rank's term, and add in f32 in the order of ranks.
///
/// [`gemm_rs_across`](crate::schedules::gemm_rs_across()) is none of them: on four H100s it was slower than the faster of both at all rows that
/// were measured but 16, and took two to eleven times as long from 256 on (`notes/bench`).
pub fn gemm_reduce_scatter() -> Family {
    let few = Stage::low_latency(Collective::ReduceScatter, reduce_scatter());
    Family::new("gemm_reduce_scatter", gemm_rs())
        .or_stages([product(), few.of_result()])
        .or_stages([product(), Stage::new(reduce_scatter()).of_result()])
}

/// y = all_reduce(x · wᵀ): in one kernel by two shots or by one, or not fused, with a bulk exchange or one of low latency, which takes one
/// shot or two. All round each rank's term, and add in f32 in the order of ranks.
pub fn gemm_all_reduce() -> Family {
    let few = |shots| Stage::low_latency(shots, all_reduce()).of_result();
    Family::new("gemm_all_reduce", gemm_ar())
        .or(gemm_ar_one_shot())
        .or_stages([product(), few(Collective::AllReduce)])
        .or_stages([product(), few(Collective::TwoShotAllReduce)])
        .or_stages([product(), Stage::new(all_reduce()).of_result()])
        .or_predicted([Stage::new(gemm_ar_multicast())])
        .or_predicted([product(), Stage::new(all_reduce_multicast()).of_result()])
}

/// A product whose result goes to memory of the op's own.
fn product() -> Stage {
    Stage::new(gemm()).tensor("y", "g")
}

/// A gather of few rows.
fn few_gathered() -> Stage {
    Stage::low_latency(Collective::AllGather, all_gather())
}

/// Every family.
pub const ALL: [fn() -> Family; 4] = [
    all_gather_gemm,
    all_gather_swiglu,
    gemm_reduce_scatter,
    gemm_all_reduce,
];
