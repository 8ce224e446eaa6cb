//! GPUs and their links as numbers: what the model takes, where each number comes from, and how measurements become numbers.
//!
//! A [`Profile`] is a file: the numbers of one kind of GPU, each with its source. A [`Machine`] is what the model reads. What is
//! a property of the architecture is in neither: [`Sm::HOPPER`].

mod probed;
mod product;
mod profile;
mod rates;
mod shipped;
mod sm;
mod wave;

pub use probed::Probed;
pub use product::{Curve, ProductTime};
pub use profile::{FORMAT, Link, Number, Profile, Refused, Source};
pub use rates::{Machine, Sustained};
pub use shipped::shipped;
pub use sm::Sm;
pub use wave::wave;
