//! What a launch is given, without memory of its own in most launches.

/// As many as most launches have tensors, scales and all.
const INLINE: usize = 8;

/// A list whose first entries lie in it. It is covariant in what it holds, as `Vec` is and smallvec's list is not: so a program may
/// give a launch tensors that it borrows for less time than the op.
#[derive(Debug)]
pub(super) struct Inline<T> {
    first: [Option<T>; INLINE],
    more: Vec<T>,
}

impl<T> Inline<T> {
    pub fn new() -> Inline<T> {
        Inline {
            first: [const { None }; INLINE],
            more: Vec::new(),
        }
    }

    pub fn push(&mut self, entry: T) {
        match self.first.iter_mut().find(|place| place.is_none()) {
            Some(place) => *place = Some(entry),
            None => self.more.push(entry),
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.first.iter().flatten().chain(&self.more)
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.first.iter_mut().flatten().chain(&mut self.more)
    }
}

impl<T> Extend<T> for Inline<T> {
    fn extend<I: IntoIterator<Item = T>>(&mut self, entries: I) {
        entries.into_iter().for_each(|entry| self.push(entry));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_keep_their_order() {
        let mut list = Inline::new();
        list.extend(0..5);
        list.extend(5..20);
        assert!(list.iter().copied().eq(0..20));
        list.iter_mut().for_each(|entry| *entry += 1);
        assert!(list.iter().copied().eq(1..21));
    }

    /// A longer borrow becomes a shorter one.
    #[test]
    fn it_is_covariant() {
        fn shorter<'s>(long: Inline<&'static str>, _: &'s str) -> Inline<&'s str> {
            long
        }
        let owned = String::from("own");
        let mut list = shorter(Inline::new(), &owned);
        list.extend([&owned[..]]);
        assert_eq!(list.iter().count(), 1);
    }
}
