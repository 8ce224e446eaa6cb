//! Traces: what each role of a launch did when, and a report of it.
//!
//! A trace comes from a traced kernel's events ([`measured`]) or from the model's timeline ([`predicted`]). Both go
//! through the same [`report`], so the two can stand beside each other.
//!
//! ```
//! use counterflow_codegen::machine::Machine;
//! use counterflow_timeline::model;
//! use counterflow_timeline::trace::{self, Alone, Phase, Report, Span, Trace};
//! # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/../codegen/tests/fixtures/example.rs")); }
//!
//! let (series, plan) = example::proven();
//! let timeline = model::predict(series.kernel(), &plan, &Machine::h200())?;
//! let trace: Trace = trace::predicted(series.kernel(), &timeline);
//! let alone = Alone { gemm: Some(timeline.gemm_alone), communication: timeline.least_link, launch: None };
//! let report: Report = trace::report(&trace, &alone);
//! for (phase, seconds) in Phase::ALL.iter().zip(report.phases) {
//!     println!("{}: {seconds} s of a CTA", phase.name());
//! }
//! let waits = trace.spans.iter().filter(|span: &&Span| span.phase == Phase::Wait);
//! println!("{} waits, {} lanes", waits.count(), trace.lanes.len());
//! # Ok::<(), counterflow_codegen::diag::Diagnostic>(())
//! ```

mod clocks;
mod events;
mod predicted;
mod recorded;
mod report;
mod segments;
mod signals;
mod span;

pub use clocks::Clock;
pub use events::{Events, Mark, Misread, Recorded, Strand};
pub use predicted::predicted;
pub use recorded::measured;
pub use report::{Alone, Ladder, Report, WaitLine, report};
pub use segments::{Segment, segments};
pub use span::{Arrow, Lane, Phase, Span, Statement, Trace};
