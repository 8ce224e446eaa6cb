//! Averages of gradients over replicas, part by part: each begins before the rest of the backward pass is enqueued.

use counterflow::{Error, Tensor};
use std::cell::{Cell, RefCell};
use std::time::{Duration, Instant};

/// Sums over the replicas: by NCCL on GPUs, or by the library's own.
pub trait Sums {
    /// Begins the sum of a gradient, behind what its rank has enqueued so far. NCCL's runs beside what comes later. The library's own goes
    /// through the host, which waits here until the gradient is computed: only later work that is enqueued runs beside it. Collective:
    /// every replica begins the same sums in the same order.
    fn begin(&self, gradient: &Tensor<f32>) -> Result<(), Error>;

    /// Waits until every sum that was begun has taken its gradient's place.
    fn end(&self) -> Result<(), Error>;
}

/// Averages that are under way in a step. Gradients were divided by the number of replicas already, so sums are averages.
pub struct Averages<'a> {
    sums: Option<&'a dyn Sums>,
    begun: Cell<usize>,
    told: RefCell<Vec<String>>,
    /// Work that the rank has enqueued so far: a number that only grows.
    enqueued: &'a dyn Fn() -> u64,
}

impl<'a> Averages<'a> {
    /// Without sums there is one replica.
    pub fn new(sums: Option<&'a dyn Sums>, enqueued: &'a dyn Fn() -> u64) -> Averages<'a> {
        Averages {
            sums,
            begun: Cell::default(),
            told: RefCell::default(),
            enqueued,
        }
    }

    /// The gradients of a part of a layer are enqueued: their averages begin.
    pub fn begin<'g>(
        &self,
        part: &str,
        gradients: impl IntoIterator<Item = &'g Tensor<f32>>,
    ) -> Result<(), Error> {
        let Some(sums) = self.sums else {
            return Ok(());
        };
        for gradient in gradients {
            sums.begin(gradient)?;
            self.begun.set(self.begun.get() + 1);
        }
        let launches = (self.enqueued)();
        let told = format!("Averages of {part} begun behind {launches} launches");
        self.told.borrow_mut().push(told);
        Ok(())
    }

    /// Waits for all of them, once the backward pass itself has ended. Gives their number, and how long they went on behind it.
    pub fn end(
        &self,
        backward: impl FnOnce() -> Result<(), Error>,
    ) -> Result<(usize, Duration), Error> {
        let Some(sums) = self.sums else {
            return Ok((0, Duration::ZERO));
        };
        let launches = (self.enqueued)();
        let told = format!("Averages awaited behind {launches} launches");
        self.told.borrow_mut().push(told);
        backward()?;
        let ended = Instant::now();
        sums.end()?;
        Ok((self.begun.take(), ended.elapsed()))
    }

    /// What was begun and awaited so far, in order.
    pub fn told(&self) -> Vec<String> {
        self.told.take()
    }
}
