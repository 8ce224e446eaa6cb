//! Sets of operands that launches take by turns, so that each comes from memory, as a layer's weights do.

/// The most sets. Launches of operands of which so many fit into the cache take little but their latency.
const MOST: u64 = 64;

/// Number of sets of `bytes` bytes each that take turns, so that more than `between` bytes are touched before a set comes again: no
/// more than that needs, and at most 64. Of a set that alone has more, there is one.
pub const fn sets(bytes: u64, between: u64) -> u64 {
    if bytes == 0 || bytes > between {
        return 1;
    }
    let needed = between / bytes + 2;
    if needed < MOST { needed } else { MOST }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_than_the_cache_holds_is_touched_between_two_uses_of_a_set() {
        for between in [0, 1, 1000, 50 << 20, 60 << 20] {
            for bytes in (0..70).chain((1..70).map(|some| some << 20)) {
                let sets = sets(bytes, between);
                assert!((1..=MOST).contains(&sets));
                let touched = |sets| (sets - 1) * bytes;
                match sets {
                    1 => assert!(bytes == 0 || bytes > between),
                    MOST => assert!(touched(MOST - 1) <= between),
                    // As many as that needs.
                    _ => assert!(touched(sets) > between && touched(sets - 1) <= between),
                }
            }
        }
    }
}
