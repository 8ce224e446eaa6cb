//! The fastest of the algorithms that the library's heuristic returns.

use super::{Blas, Matmul, Operands, Problem};
use counterflow_runtime::Error;
use std::time::Duration;

impl Blas {
    /// The fastest algorithm for a product: each one that the heuristic returns is tried on these operands.
    ///
    /// # Errors
    /// [`Error::NotYet`] for types that are not compared; what the library rejects.
    pub fn product(&self, problem: Problem, operands: &[Operands]) -> Result<Matmul<'_>, Error> {
        let mut product = Matmul::new(self, problem)?;
        if let Some(first) = operands.first() {
            product.say_scales(first)?;
        }
        // Algorithms that are far behind in the first lap are dropped. The others run more laps, each lap starting with
        // the next algorithm, and the least sum wins, so a changing clock decides nothing. (Taking the least time of
        // three laps in one order is not enough: at 8192³, where the best two are 3 % ahead of the next, it made our
        // speed over it 0.99 or 1.025, depending on the run.)
        const BEHIND: f64 = 1.25;
        const LAPS: usize = 8;
        let mut near: Vec<(Duration, Duration, _)> = Vec::new();
        for answer in product.answers()? {
            product.algorithm = answer;
            match product.time(operands, None) {
                Ok(once) => near.push((once, Duration::ZERO, answer)),
                // The heuristic also returns algorithms that then do not run.
                Err(Error::Driver { code, .. })
                    if ["not supported", "invalid value"].contains(&&code[..]) => {}
                Err(error) => return Err(error),
            }
        }
        let tried = near.len();
        let least = near.iter().map(|(once, ..)| *once).min();
        let most = least.unwrap_or_default().mul_f64(BEHIND);
        near.retain(|(once, ..)| *once <= most);
        for _ in 0..LAPS {
            for (once, sum, answer) in &mut near {
                product.algorithm = *answer;
                *sum += product.time(operands, Some(*once))?;
            }
            let next = near.len().min(1);
            near.rotate_left(next);
        }
        let best = near.into_iter().min_by_key(|(_, sum, _)| *sum);
        let Some((.., algorithm)) = best else {
            return Err(Error::Toolkit {
                what: format!("cuBLASLt has no algorithm for {problem:?}"),
                help: "give another shape".into(),
            });
        };
        product.algorithm = algorithm;
        product.tried = tried;
        Ok(product)
    }
}
