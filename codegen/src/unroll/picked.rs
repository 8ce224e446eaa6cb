//! The slots, ranks or cells that an index names.

/// Indices along one axis: a range, perhaps without me.
pub(super) struct Picked {
    pub range: std::ops::Range<u32>,
    pub without: Option<u32>,
}

impl Iterator for Picked {
    type Item = u32;
    fn next(&mut self) -> Option<u32> {
        let next = self.range.next()?;
        if Some(next) == self.without {
            self.range.next()
        } else {
            Some(next)
        }
    }
}
