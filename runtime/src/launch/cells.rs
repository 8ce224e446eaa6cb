//! Places of counter cells: a kernel's own cells one after another, and those of credits that other kernels of the
//! communicator share where these are.

/// The cells of a kernel's counters, by their numbers from the base that a launch is given.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Cells {
    /// Number of cells of each counter.
    counts: Vec<u32>,
    /// The first cell of each counter as the compiler counts them: counter by counter.
    first: Vec<u32>,
    /// The first cell of each counter from the base.
    at: Vec<u32>,
}

impl Cells {
    /// Counters of so many cells, one after another.
    pub fn new(counts: Vec<u32>) -> Cells {
        let mut next = 0;
        let first = counts.iter().map(|count| {
            next += count;
            next - count
        });
        let first: Vec<u32> = first.collect();
        Cells {
            at: first.clone(),
            counts,
            first,
        }
    }

    /// Places the kernel's own cells from `own` on, and those of some counters elsewhere.
    #[must_use]
    pub fn placed(mut self, own: u32, shared: impl IntoIterator<Item = (usize, u32)>) -> Cells {
        for (at, first) in self.at.iter_mut().zip(&self.first) {
            *at = own + first;
        }
        for (counter, at) in shared {
            self.at[counter] = at;
        }
        self
    }

    /// Number of cells of a rank, as the compiler counts them.
    pub fn count(&self) -> u32 {
        self.counts.iter().sum()
    }

    /// A cell's number as the compiler counts them.
    pub fn number(&self, counter: usize, cell: u32) -> u32 {
        self.first[counter] + cell
    }

    /// A counter's first cell from the base.
    pub fn at(&self, counter: usize) -> u32 {
        self.at[counter]
    }

    /// One past the last cell from the base.
    pub fn end(&self) -> u32 {
        let ends = self.at.iter().zip(&self.counts);
        ends.map(|(at, count)| at + count).max().unwrap_or(0)
    }

    /// Numbers of cells as the compiler counts them, at their places from the base.
    pub fn spread(&self, numbers: &[u32]) -> Vec<u32> {
        let mut spread = vec![0; self.end() as usize];
        for ((count, first), at) in self.counts.iter().zip(&self.first).zip(&self.at) {
            let from = &numbers[*first as usize..][..*count as usize];
            spread[*at as usize..][..*count as usize].copy_from_slice(from);
        }
        spread
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_lie_one_after_another_unless_others_share_them() {
        let cells = Cells::new(vec![2, 3, 1]);
        assert_eq!((cells.count(), cells.end()), (6, 6));
        let numbers = [10, 11, 20, 21, 22, 30];
        assert_eq!(cells.spread(&numbers), numbers);

        let placed = cells.placed(8, [(1, 3)]);
        assert_eq!([0, 1, 2].map(|counter| placed.at(counter)), [8, 3, 13]);
        assert_eq!((placed.count(), placed.end()), (6, 14));
        assert_eq!(placed.number(1, 2), 4, "the compiler's numbers stay");
        let spread = placed.spread(&numbers);
        assert_eq!(spread[3..6], [20, 21, 22]);
        assert_eq!(spread[8..], [10, 11, 0, 0, 0, 30]);
        assert_eq!(spread[..3], [0; 3]);
    }
}
