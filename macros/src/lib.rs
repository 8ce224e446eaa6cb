//! `#[schedule]` and `#[epilogue]`.
