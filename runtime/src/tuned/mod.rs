//! The fastest variant for a shape: measured winners, kept as data, and the model's choice elsewhere.
//!
//! A winner counts for nearby shapes: rows, columns and depth all within half an octave of its own, in its type or the
//! other 16-bit type. [`select`] says when it is used.

mod choices;
mod choose;
mod rank;
mod shortlist;
mod table;

pub(crate) use choices::moves;
pub use choices::{choices, combinations};
pub(crate) use choose::select_of;
pub use choose::{Choice, select};
pub use rank::{Ranked, Ranking, alike, predicted, reordered, worth_asking};
pub use shortlist::{Shortlist, shortlist, winner};
pub use table::{Key, Tuned, Winner};
