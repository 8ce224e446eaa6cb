//! Which variant is fastest where: what was measured, kept as data, and the model's choice where nothing was.
//!
//! A winner speaks for the shapes near it: those of which rows, columns and depth all lie within half an octave of
//! its own, in its type or the other one of 16 bits. [`select`] says how far it is believed.

mod choices;
mod choose;
mod rank;
mod table;

pub use choices::{choices, combinations, offered};
pub use choose::{Choice, select};
pub use rank::{Ranked, Ranking, alike, predicted, reordered, worth_asking};
pub use table::{Key, Tuned, Winner};
