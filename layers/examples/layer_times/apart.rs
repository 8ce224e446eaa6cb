//! How far results are apart.

use counterflow::op::Element;
use counterflow::{Error, Tensor};

/// The largest differences of some tensors. What is not a number stays that.
#[derive(Default, Debug)]
pub struct Apart {
    /// The norm of the difference by that of the other (Frobenius).
    pub norm: f64,
    /// The largest difference by the other's largest number.
    pub most: f64,
}

impl Apart {
    /// Adds two tensors, of which one block of rows in `part` is compared.
    pub fn add<T: Element>(
        &mut self,
        (own, other): (&Tensor<T>, &Tensor<T>),
        part: usize,
        number: impl Fn(T) -> f64,
    ) -> Result<(), Error> {
        const ROWS: usize = 64;
        let larger = |a: f64, b: f64| if a >= b || a.is_nan() { a } else { b };
        let ([rows, _], mut of) = (own.shape(), [0.0; 4]);
        for from in (0..rows).step_by(part * ROWS) {
            let at = from..rows.min(from + ROWS);
            let (own, other) = (own.rows(at.clone())?.read()?, other.rows(at)?.read()?);
            for (own, other) in own.into_iter().zip(other) {
                let (own, other) = (number(own), number(other));
                let apart = (own - other).abs();
                of[0] += apart * apart;
                of[1] += other * other;
                of[2] = larger(of[2], apart);
                of[3] = larger(of[3], other.abs());
            }
        }
        let [apart, all, most, largest] = of;
        self.norm = larger(self.norm, (apart / all).sqrt());
        self.most = larger(self.most, most / largest);
        Ok(())
    }
}
