//! Sums of gradients over replicas by the library itself.

use crate::average::Sums;
use counterflow::{Communicator, Error, Tensor};
use counterflow_layers::GradientSum;
use std::cell::RefCell;
use std::sync::Arc;

/// This rank's end of the sums. A tensor is of one group, so what the replicas share goes through the host, where the optimizer is.
pub struct Own {
    data: Arc<Communicator>,
    sum: GradientSum,
    /// Gradients, and their sums in the data-parallel group.
    begun: RefCell<Vec<(Tensor<f32>, Tensor<f32>)>>,
}

impl Own {
    /// For gradients of so many elements at most. Collective.
    pub fn new(data: &Arc<Communicator>, elements: usize) -> Result<Own, Error> {
        data.reserve(GradientSum::heap_bytes(elements, data.world()) + (4 << 20))?;
        Ok(Own {
            sum: GradientSum::new(data, elements)?,
            data: data.clone(),
            begun: RefCell::default(),
        })
    }
}

impl Sums for Own {
    /// Waits until the gradient is computed, since the host reads it. The sum itself runs beside what the rank enqueues later.
    fn begin(&self, gradient: &Tensor<f32>) -> Result<(), Error> {
        let mut sum = self.data.zeros::<f32>([1, gradient.len()])?;
        sum.write(&gradient.read()?)?;
        self.sum.over_ranks(&mut sum)?;
        self.begun.borrow_mut().push((gradient.clone(), sum));
        Ok(())
    }

    fn end(&self) -> Result<(), Error> {
        for (gradient, sum) in self.begun.take() {
            gradient.write(&sum.read()?)?;
        }
        Ok(())
    }
}
