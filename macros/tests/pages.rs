//! The examples in the pages of `#[schedule]` and `#[epilogue]`, as tests.

#[doc = include_str!("../docs/schedule.md")]
pub mod schedule {}

#[doc = include_str!("../docs/epilogue.md")]
pub mod epilogue {}
