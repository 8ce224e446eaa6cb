//! Orders by closure of smaller worlds.

#[path = "../../src/order/table.rs"]
#[allow(dead_code, reason = "the builder uses the rest")]
mod table;

use table::RankTable;

#[test]
fn a_smaller_world_is_visited_in_the_same_order_or_has_none() {
    let mirrored = RankTable::of(|me, step, _| me ^ step, 4);
    let three = mirrored.within(3).expect("an order");
    assert_eq!(three.ranks(), [0, 1, 2, 1, 0, 2, 2, 0, 1]);
    assert_eq!(mirrored.within(4), Some(mirrored.clone()));
    assert_eq!(mirrored.within(8), None, "nobody said so");
    let twice = RankTable::of(|_, step, _| step / 2, 4);
    assert_eq!(twice.within(3), None, "rank 2 is never visited");
}
